"""Text to tokens and back, from the tokens and merges that a GGUF file carries.

Byte-level BPE with single digits split (the pre-tokenizer named ``smollm``). Text is always taken as plain
text: a user who types ``<|im_end|>`` gets those characters, and only :meth:`Tokenizer.chat` places control
tokens.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as _Bpe
from tokenizers import models, pre_tokenizers

from tbkit.errors import InputError
from tbkit.model.gguf import read_header

_CONTROL = 3  # token_type of control tokens in GGUF
_START, _END = "<|im_start|>", "<|im_end|>"
_SYSTEM = re.compile(re.escape(_START) + r"system\n(.*?)" + re.escape(_END), re.DOTALL)


def _byte_of_letter() -> dict[str, int]:
    """The letters of byte-level BPE: printable bytes stand for themselves, the others from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(rest)}


class DecodeStream:
    """Token-by-token printing: each push gives the text that is whole so far, never half a character."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        return self._decoder.decode(self._pieces[token])

    def finish(self) -> str:
        """What is left at the end: U+FFFD for a character that was never finished, else nothing."""
        return self._decoder.decode(b"", final=True)


class Tokenizer:
    """A model's tokenizer. ``eos`` ends an answer, ``specials`` maps control tokens to ids."""

    def __init__(self, metadata: Mapping[str, Any], source: str = "GGUF metadata") -> None:
        self._source = source
        self._expect("tokenizer.ggml.model", metadata, "gpt2")
        self._expect("tokenizer.ggml.pre", metadata, "smollm")
        tokens = self._list("tokenizer.ggml.tokens", metadata, str)
        types = self._list("tokenizer.ggml.token_type", metadata, int)
        if len(types) != len(tokens):
            raise self._wrong(
                "tokenizer.ggml.token_type", f"must have {len(tokens)} elements", str(len(types))
            )
        self.specials = {
            t: i for i, (t, kind) in enumerate(zip(tokens, types, strict=True)) if kind == _CONTROL
        }
        self.vocab_rows = len(tokens)
        self.eos = self._eos(metadata)
        self._bpe = self._build(tokens, self._list("tokenizer.ggml.merges", metadata, str))
        self._pieces = self._bytes_of(tokens)
        self._template = str(metadata.get("tokenizer.chat_template", ""))

    @classmethod
    def from_gguf(cls, path: str | Path) -> Tokenizer:
        """The tokenizer in a GGUF file; :class:`InputError` for another kind or a corrupt file."""
        return cls(read_header(path).metadata, str(path))

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text, without any control token.

        Lone surrogates become U+FFFD. A byte that the vocabulary lacks is left out, as the byte-level BPE
        of the model's authors does; SmolLM2 lacks U+0004, 06, 13, 14, 16, 1D and characters from U+40000 to
        U+BFFFF.
        """
        clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids: list[int] = self._bpe.encode(clean, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of tokens, control tokens as they are spelled; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self._pieces[i] for i in ids).decode("utf-8", "replace")

    def decode_stream(self) -> DecodeStream:
        """A fresh stream for printing while tokens come."""
        return DecodeStream(self._pieces)

    def chat(self, user_text: str) -> list[int]:
        """Tokens of one user turn in ChatML with the system prompt of the file's template."""
        found = _SYSTEM.search(self._template)
        if found is None or not {_START, _END} <= self.specials.keys():
            raise self._wrong(
                "tokenizer.chat_template", "must be ChatML with a system prompt", repr(self._template[:60])
            )
        start, end, line = self.specials[_START], self.specials[_END], self.encode("\n")
        turns = (f"system\n{found[1]}", f"user\n{user_text}")
        ids = [i for turn in turns for i in (start, *self.encode(turn), end, *line)]
        return [*ids, start, *self.encode("assistant\n")]

    def _build(self, tokens: list[str], merges: list[str]) -> Any:
        pairs: Any = [tuple(m.split(" ")) for m in merges]
        try:
            bpe = _Bpe(models.BPE({t: i for i, t in enumerate(tokens)}, pairs))
        except Exception as error:  # the library raises bare Exception for a merge outside the vocabulary
            raise self._wrong(
                "tokenizer.ggml.merges", "must merge tokens of the vocabulary", str(error)
            ) from None
        digits = pre_tokenizers.Digits(individual_digits=True)
        bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        return bpe

    def _bytes_of(self, tokens: list[str]) -> list[bytes]:
        """The bytes that each token stands for; control tokens stand for their own spelling."""
        letters = _byte_of_letter()
        try:
            return [t.encode() if t in self.specials else bytes(letters[c] for c in t) for t in tokens]
        except KeyError as error:
            raise self._wrong(
                "tokenizer.ggml.tokens", "must be spelled in byte-level letters", str(error)
            ) from None

    def _eos(self, metadata: Mapping[str, Any]) -> int:
        value: Any = metadata.get("tokenizer.ggml.eos_token_id")
        if hasattr(value, "item"):
            value = value.item()
        if not isinstance(value, int) or not 0 <= value < self.vocab_rows:
            raise self._wrong(
                "tokenizer.ggml.eos_token_id", f"must be a token below {self.vocab_rows}", repr(value)
            )
        return value

    def _expect(self, key: str, metadata: Mapping[str, Any], word: str) -> None:
        if metadata.get(key) != word:
            raise self._wrong(key, f"must be {word!r}, the tokenizer that tbkit has", repr(metadata.get(key)))

    def _list(self, key: str, metadata: Mapping[str, Any], kind: type) -> list[Any]:
        value: Any = metadata.get(key)
        value = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(value, list) or not value or not all(isinstance(v, kind) for v in value):
            raise self._wrong(key, f"must be a list of {kind.__name__} that is not empty", repr(value)[:40])
        return value

    def _wrong(self, key: str, rule: str, got: str) -> InputError:
        return InputError(
            f"{self._source}: {key}", rule, got, "Remedy: take another model, or fetch it again", key=key
        )
