"""The rank process: the child of an engine that holds the channels, the model shard and all that can crash."""
