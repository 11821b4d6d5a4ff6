"""The run folder: schema, provenance, store, queries."""

from tbkit.record.query import find_run, open_run, query, read, read_environment, resume, run_folders, samples
from tbkit.record.schema import (
    SCHEMA_VERSION,
    Arm,
    Check,
    Gate,
    Interval,
    Ledger,
    Reality,
    Record,
    Residual,
    SpeedUp,
    Term,
)
from tbkit.record.store import RunFolder, Sample, new_run_id, runs_root

__all__ = [
    "SCHEMA_VERSION",
    "Arm",
    "Check",
    "Gate",
    "Interval",
    "Ledger",
    "Reality",
    "Record",
    "Residual",
    "RunFolder",
    "Sample",
    "SpeedUp",
    "Term",
    "find_run",
    "new_run_id",
    "open_run",
    "query",
    "read",
    "read_environment",
    "resume",
    "run_folders",
    "runs_root",
    "samples",
]
