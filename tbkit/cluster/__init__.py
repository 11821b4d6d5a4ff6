"""Live machines: connect, shard a model over them, ask the ranks, heal, close. So far: engines on this machine."""

from tbkit.cluster.cluster import Cluster
from tbkit.cluster.connect import connect
from tbkit.cluster.shard import ShardedModel, shard

__all__ = ["Cluster", "ShardedModel", "connect", "shard"]
