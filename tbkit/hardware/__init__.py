"""Machines as they are written down: the reading of ``m3ultra-512*2, 512``."""

from tbkit.hardware.machines import Machine, read_machines

__all__ = ["Machine", "read_machines"]
