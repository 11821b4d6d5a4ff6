"""Facts of a model: shapes, heads, quantisation, bytes, where its file is, and its tokenizer.

Nothing here needs mlx: facts come from ``config.json`` or from the header of a GGUF file.
"""

from __future__ import annotations

from tbkit.model.catalog import Entry, facts_of, fetch, find, names
from tbkit.model.facts import ModelFacts, facts_from_config, facts_from_gguf_metadata

__all__ = [
    "Entry",
    "ModelFacts",
    "facts_from_config",
    "facts_from_gguf_metadata",
    "facts_of",
    "fetch",
    "find",
    "names",
]
