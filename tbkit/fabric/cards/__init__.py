"""Link cards: what one cable can do, each way, measured, kept, read back and compared with its like."""

from __future__ import annotations

from tbkit.fabric.cards.compare import compare, odd_ones
from tbkit.fabric.cards.fits import Fit, Piece, fit
from tbkit.fabric.cards.schema import (
    CARDS_VERSION,
    Bandwidth,
    Cards,
    Collective,
    Collectives,
    Crossing,
    Cut,
    Direction,
    Finding,
    Latency,
    LinkCard,
    Measurement,
)
from tbkit.fabric.cards.store import keep, links_root, read_links, samples_of

__all__ = [
    "CARDS_VERSION",
    "Bandwidth",
    "Cards",
    "Collective",
    "Collectives",
    "Crossing",
    "Cut",
    "Direction",
    "Finding",
    "Fit",
    "Latency",
    "LinkCard",
    "Measurement",
    "Piece",
    "compare",
    "fit",
    "keep",
    "links_root",
    "odd_ones",
    "read_links",
    "samples_of",
]
