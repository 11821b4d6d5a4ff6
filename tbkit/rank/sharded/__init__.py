"""The sharded model: a rank's slices, its collectives, and what is done to them to learn where time goes."""
