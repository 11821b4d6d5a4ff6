"""Facts from configurations: what is read, what is assumed, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tbkit.errors import InputError, UsageError
from tbkit.model import facts_from_config, facts_from_gguf_metadata, facts_of, find, names

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def config(**changes: Any) -> dict[str, Any]:
    return LLAMA_8B | changes


def test_a_published_config_gives_its_known_facts_and_bytes() -> None:
    """Llama 3.1 8B: 8 030 261 248 parameters in bfloat16."""
    facts = facts_from_config(LLAMA_8B, "llama-3.1-8b")
    assert (facts.layers, facts.query_heads, facts.kv_heads, facts.head_dim) == (32, 32, 8, 128)
    assert facts.weights_bytes == 2 * 8_030_261_248
    assert facts.missing == () and not facts.tied and not facts.rope_traditional


def test_an_mlx_quantised_config_counts_scales_and_biases() -> None:
    """Four bits in groups of 64 with a 16-bit scale and bias take 4.5 bits a weight."""
    facts = facts_from_config(config(quantization={"group_size": 64, "bits": 4}), "q4")
    assert (facts.group_size, facts.weight_bits, facts.weight_cost_bits) == (64, 4, 4.5)
    assert facts.embedding_cost_bits == 4.5 and facts.norm_bits == 16


def test_an_embedding_may_have_bits_of_its_own_or_none() -> None:
    """mlx writes a layer's own bits beside the general ones, and false for a layer that is not quantised."""
    own = {"group_size": 64, "bits": 4, "model.embed_tokens": {"group_size": 64, "bits": 6}}
    assert facts_from_config(config(quantization=own), "m").embedding_bits == 6
    plain = {"group_size": 64, "bits": 4, "model.embed_tokens": False}
    assert facts_from_config(config(quantization=plain), "m").embedding_bits == 16


def test_absent_keys_with_a_default_take_it() -> None:
    """Without KV heads every query head has its own; without a RoPE base it is 10 000."""
    bare = {
        k: v for k, v in LLAMA_8B.items() if k not in ("num_key_value_heads", "rope_theta", "torch_dtype")
    }
    facts = facts_from_config(bare | {"head_dim": None}, "bare")
    assert (facts.kv_heads, facts.rope_theta, facts.head_dim) == (32, 10_000.0, 128)
    assert facts.weight_bits == 0 and facts.weights_bytes is None


def test_nested_text_config_and_rope_parameters_are_taken() -> None:
    """A multimodal config keeps its language model in text_config."""
    text = config(rope_parameters={"rope_theta": 7.0})
    del text["rope_theta"]
    facts = facts_from_config(
        {"model_type": "mistral3", "text_config": text | {"model_type": "mistral"}}, "m"
    )
    assert (facts.family, facts.layers, facts.rope_theta) == ("llama", 32, 7.0)


@pytest.mark.parametrize("key", ["model_type", "num_hidden_layers", "hidden_size", "num_attention_heads"])
def test_absent_keys_without_a_default_are_named(key: str) -> None:
    """A key that cannot be guessed is listed, not invented."""
    lacking = {k: v for k, v in LLAMA_8B.items() if k != key}
    assert key in facts_from_config(lacking, "m").missing


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads", 0),
        ("num_attention_heads", -8),
        ("num_attention_heads", 32.0),
        ("num_attention_heads", True),
        ("num_attention_heads", 10**30),
        ("num_attention_heads", "32"),
        ("num_key_value_heads", 5),
        ("num_key_value_heads", 0),
        ("num_key_value_heads", 64),
        ("num_hidden_layers", -1),
        ("num_hidden_layers", [32]),
        ("hidden_size", 4095),
        ("head_dim", -1),
        ("intermediate_size", float("nan")),
        ("vocab_size", 0),
        ("rms_norm_eps", -1.0),
        ("rope_theta", float("inf")),
        ("tie_word_embeddings", "yes"),
        ("quantization", 4),
        ("quantization", {"bits": -4, "group_size": 64}),
        ("model_type", "mamba"),
        ("model_type", ["llama"]),
    ],
)
def test_numbers_that_make_no_sense_are_refused(key: str, value: Any) -> None:
    """The error names file, rule, what was got and a remedy, in one line."""
    with pytest.raises(InputError) as caught:
        facts_from_config(config(**{key: value}), "m", source="/models/m/config.json")
    text = str(caught.value)
    assert text.startswith("/models/m/config.json: ") and "Remedy" in text and "\n" not in text
    assert caught.value.rule and caught.value.got


def test_heads_that_do_not_group_name_both_counts() -> None:
    """32 query heads cannot share 5 KV heads."""
    with pytest.raises(InputError, match=r"multiple of num_key_value_heads.*32 query heads, 5 KV heads"):
        facts_from_config(config(num_key_value_heads=5), "m")


def test_a_model_is_found_by_config_folder_facts_and_name(tmp_path: Path) -> None:
    """All ways to name a model lead to the same facts; the folder gives the name."""
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    facts = facts_of(folder)
    assert facts == facts_of(str(folder / "config.json")) == facts_of(facts)
    assert facts.name == "my-llama"
    assert facts_of("SmolLM2-135M-Instruct") is find(names()[0]).facts


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"null", b"[" * 100_000])
def test_a_corrupt_config_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    """Whatever the file holds, the error names it."""
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json: must"):
        facts_of(file)


@pytest.mark.parametrize("model", ["no/such/config.json", "nothing.gguf", "./x"])
def test_an_absent_file_is_named(model: str) -> None:
    """A path that is not there is not taken for a name."""
    with pytest.raises(InputError, match="No such file"):
        facts_of(model)


def test_an_unknown_name_gets_the_nearest() -> None:
    """A typing error is answered with the name that was meant."""
    with pytest.raises(UsageError, match="Did you mean 'smollm2-135m-instruct'"):
        facts_of("smolm2-135m-instuct")


@pytest.mark.parametrize("model", ["x" * 5000, "a\0b", "~nobody-of-this-name", "", "/a/\0"])
def test_odd_names_are_refused_in_words(model: str) -> None:
    """What the file system itself refuses is still one line."""
    with pytest.raises((InputError, UsageError), match="must"):
        facts_of(model)


@pytest.mark.parametrize("model", [None, 7, ["smollm2-135m-instruct"]])
def test_a_model_is_a_name_a_path_or_facts(model: Any) -> None:
    """Another type is a usage error."""
    with pytest.raises(UsageError, match="must be a name, a path or facts"):
        facts_of(model)


def test_gguf_metadata_of_another_architecture_is_refused() -> None:
    """The error names the architecture and the families that are known."""
    with pytest.raises(InputError, match=r"general\.architecture.*'gemma3'.*llama"):
        facts_from_gguf_metadata({"general.architecture": "gemma3"})
