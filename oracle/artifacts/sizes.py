"""What all families read alike: sizes within bounds, heads that divide, keys that change nothing."""

from __future__ import annotations

import logging

from oracle.artifacts.container import Container, fail
from oracle.artifacts.fields import LARGEST_CONTEXT, LARGEST_DIM, LARGEST_HEADS, LARGEST_LAYERS, Fields

LARGEST_HEAD_DIM = 4096

HARMLESS_CONFIG = (
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "is_llama_config",
    "max_window_layers",
    "model_type",
    "pad_token_id",
    "pretraining_tp",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "use_cache",
)
TARGET_BLOCK_COUNT = "dflash.target_block_count"
HARMLESS_GGUF = ("general.", "tokenizer.", "quantize.", "split.")


def read_config_sizes(config: Fields, required: bool, deepest: int = LARGEST_LAYERS) -> dict[str, int]:
    """Sizes by their `Geometry` names out of a Hugging Face config.

    ``required``: kv heads and head width must be spelled out, because the families' own defaults are constants that
    differ from ``hidden / heads`` (Muse: 128, not 208). ``deepest``: the most layers.
    """
    sizes = {
        "hidden": config.integer("hidden_size", 1, LARGEST_DIM),
        "intermediate": config.integer("intermediate_size", 1, LARGEST_DIM),
        "layers": config.integer("num_hidden_layers", 1, deepest),
        "heads": config.integer("num_attention_heads", 1, LARGEST_HEADS),
    }
    kv_default = {} if required else {"default": sizes["heads"]}
    sizes["kv_heads"] = config.integer("num_key_value_heads", 1, LARGEST_HEADS, **kv_default)
    derived = {"default": sizes["hidden"] // sizes["heads"]} if not required and sizes["hidden"] % sizes["heads"] == 0 else {}
    sizes["head_dim"] = config.integer("head_dim", 2, LARGEST_HEAD_DIM, **derived)
    _check_heads(config, sizes, "num_key_value_heads", "head_dim")
    return sizes


def read_gguf_sizes(keys: Fields, arch: str, required: bool) -> dict[str, int]:
    """Sizes by their `Geometry` names out of GGUF keys under ``arch``; ``required``: head widths must be spelled out."""
    sizes = {
        "hidden": keys.integer(f"{arch}.embedding_length", 1, LARGEST_DIM),
        "intermediate": keys.integer(f"{arch}.feed_forward_length", 1, LARGEST_DIM),
        "layers": keys.integer(f"{arch}.block_count", 1, LARGEST_LAYERS),
        "heads": keys.integer(f"{arch}.attention.head_count", 1, LARGEST_HEADS),
    }
    kv = {} if required else {"default": sizes["heads"]}
    sizes["kv_heads"] = keys.integer(f"{arch}.attention.head_count_kv", 1, LARGEST_HEADS, **kv)
    derived = {"default": sizes["hidden"] // sizes["heads"]} if not required and sizes["hidden"] % sizes["heads"] == 0 else {}
    sizes["head_dim"] = keys.integer(f"{arch}.attention.key_length", 2, LARGEST_HEAD_DIM, **derived)
    value = keys.integer(f"{arch}.attention.value_length", 2, LARGEST_HEAD_DIM, **derived)
    if value != sizes["head_dim"]:
        keys.refuse(f"{arch}.attention.value_length", f"the same value as {arch}.attention.key_length = {sizes['head_dim']}")
    _check_heads(keys, sizes, f"{arch}.attention.head_count_kv", f"{arch}.attention.key_length")
    return sizes


def _check_heads(fields: Fields, sizes: dict[str, int], kv_key: str, dim_key: str) -> None:
    if sizes["heads"] % sizes["kv_heads"]:
        fields.refuse(kv_key, f"a divisor of the {sizes['heads']} query heads")
    if sizes["head_dim"] % 2:
        fields.refuse(dim_key, "an even number")


def context_length(fields: Fields, key: str) -> int | None:
    """The declared context length, or None."""
    value: int | None = fields.integer(key, 1, LARGEST_CONTEXT, default=None)
    return value


def target_block_count(keys: Fields, taps: tuple[int, ...], most: int = LARGEST_LAYERS) -> int | None:
    """The target's layers out of a drafter's GGUF, at least enough for its ``taps``: a key of the lab's own, which engines do not read."""
    value: int | None = keys.integer(TARGET_BLOCK_COUNT, max(taps) + 1, most, default=None)
    return value


def released_taps(container: Container, taps: tuple[int, ...], released: tuple[int, ...]) -> list[str]:
    """A warning where the taps of a checkpoint of released size are not the released ones; the usual slip is one in the counting."""
    if taps == released:
        return []
    steps = {a - b for a, b in zip(taps, released, strict=False)}
    guess = "check who wrote the file"
    if steps in ({1}, {-1}):
        guess = f"each is one {'more' if steps == {1} else 'less'}: was a list counted from 1 taken for one from 0, or the other way?"
    return [warn(container, f"taps {list(taps)} (zero-based) are not the released {list(released)}; {guess}")]


def finish_config(config: Fields) -> list[str]:
    """Refuse unread dialect keys of a Hugging Face config; the messages name other unread keys."""
    config.ignore(*HARMLESS_CONFIG)
    left = config.finish(strict=False)
    return [f"ignored unknown keys of config.json: {', '.join(sorted(left))}"] if left else []


def finish_gguf(keys: Fields) -> list[str]:
    """Refuse unread keys, those of `HARMLESS_GGUF` aside."""
    for key in list(keys.values):
        if key.startswith(HARMLESS_GGUF):
            keys.ignore(key)
    keys.finish()
    return []


def vocabulary_rows(container: Container, keys: Fields, arch: str, embedding: str) -> int:
    """Rows of the tensor ``embedding``, which the vocabulary declared under ``arch`` and the token list may not contradict."""
    if embedding not in container.tensors:
        fail(container.path, f"missing tensors: {embedding!r}")
    rows = container.tensors[embedding].shape[0]
    declared = keys.integer(f"{arch}.vocab_size", 1, LARGEST_DIM, default=rows)
    tokens = keys.values.get("tokenizer.ggml.tokens", ())
    if declared != rows:
        keys.refuse(f"{arch}.vocab_size", f"{rows}, the rows of {embedding}")
    if keys.container.kinds.get("tokenizer.ggml.tokens") == "array of string" and len(tokens) not in (0, rows):
        fail(container.path, f"key tokenizer.ggml.tokens: expected {rows} tokens, the rows of {embedding}, found {len(tokens)}")
    return rows


def token_count(keys: Fields) -> int:
    """The number of tokens in the file's vocabulary, the length of ``tokenizer.ggml.tokens``."""
    key = "tokenizer.ggml.tokens"
    keys.ignore(key)
    tokens = keys.values.get(key)
    kind = keys.container.kinds.get(key, "nothing")
    if kind != "array of string" or tokens is None or not 1 <= len(tokens) <= LARGEST_DIM:
        found = f"{kind} of length {len(tokens)}" if tokens is not None and kind == "array of string" else kind
        fail(keys.container.path, f"key {key}: expected an array of 1 to {LARGEST_DIM} strings, found {found}")
    return len(tokens)


def warn(container: Container, text: str) -> str:
    """Log ``text`` about ``container`` on the logger ``parity`` and return it."""
    logging.getLogger("parity").warning("%s: %s", container.path, text)
    return text
