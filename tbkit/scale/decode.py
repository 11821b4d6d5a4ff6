"""The decode workload: one sequence, teacher-forced, so that every arm does the same work."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tbkit.cluster.shard import Weights
from tbkit.model.tokenizer import Tokenizer

PROMPT_TOKENS = 24
GATE_TOKENS = 12  # with the prompt 36 positions; the gate asks for at least 32
RANDOM_PROMPT_TOKENS = 4  # a random model attends to all rows alike: few rows, so that each one matters

TEXT = (
    "A cluster is a set of computers that work together as one. The network between them decides how fast the "
    "whole can be: every machine must wait for the slowest message before the next step can begin, and a "
    "machine that waits does no work."
)


class Decode(msgspec.Struct, frozen=True):
    """Token ids: what stands in the caches before, and what is forced step by step."""

    prompt: tuple[int, ...]
    forced: tuple[int, ...]
    words: str


def decode_workload(weights: Weights) -> Decode:
    """The fixed text of a catalogue model; seeded ids for a random one."""
    count = PROMPT_TOKENS + GATE_TOKENS
    if weights.source.startswith("gguf:"):
        ids = Tokenizer.from_gguf(Path(weights.path)).encode(TEXT)[:count]
    else:
        ids = [(7919 * i + 13) % weights.facts.vocab_rows for i in range(count)]
    cut = PROMPT_TOKENS if weights.source.startswith("gguf:") else RANDOM_PROMPT_TOKENS
    words = f"decode, batch 1, {cut} tokens of context, teacher-forced"
    return Decode(tuple(ids[:cut]), tuple(ids[cut:]), words)
