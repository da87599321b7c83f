"""Small valid artifacts as editable descriptions, so that a test can break exactly one thing.

The GGUF and SafeTensors bytes are put together here, independently of the project's writers.
"""

from __future__ import annotations

import copy
import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SCALARS = {"u8": (0, "<B"), "u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<B"), "u64": (10, "<Q"), "f64": (12, "<d")}
ALIGN = 32
HIDDEN, INTER, HEADS, KV, DIM, VOCAB = 8, 12, 4, 2, 4, 6


@dataclass
class Tensor:
    name: str
    dims: list[int]
    data: bytes
    type: int = 0
    offset: int | None = None


@dataclass
class Gguf:
    """An editable GGUF file; ``keys``: name -> (kind, value), rendered in order, ``extra_keys`` after them."""

    keys: dict[str, tuple[str, Any]]
    tensors: list[Tensor]
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    key_count: int | None = None
    extra_keys: list[bytes] = field(default_factory=list)
    tail: bytes = b""
    align: int = ALIGN

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name)

    def render(self) -> bytes:
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        keys = len(self.keys) + len(self.extra_keys) if self.key_count is None else self.key_count
        head = self.magic + struct.pack("<IQQ", self.version, tensors, keys)
        head += b"".join(string(k) + value(*v) for k, v in self.keys.items()) + b"".join(self.extra_keys)
        body = b""
        for t in self.tensors:
            at = len(body) if t.offset is None else t.offset
            head += string(t.name) + struct.pack(f"<I{len(t.dims)}QIQ", len(t.dims), *t.dims, t.type, at)
            body += t.data + b"\0" * (-len(t.data) % self.align)
        return head + b"\0" * (-len(head) % self.align) + body + self.tail


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(kind: str, content: Any) -> bytes:
    if kind == "raw":
        return content
    if kind == "string":
        return struct.pack("<I", 8) + string(content)
    if kind.startswith("array of "):
        element = kind.removeprefix("array of ")
        code = 8 if element == "string" else SCALARS[element][0]
        items = b"".join(string(c) if element == "string" else struct.pack(SCALARS[element][1], c) for c in content)
        return struct.pack("<IIQ", 9, code, len(content)) + items
    code, fmt = SCALARS[kind]
    return struct.pack("<I", code) + struct.pack(fmt, content)


def numbers(*shape: int) -> bytes:
    return (1.0 + np.arange(np.prod(shape), dtype="<f4") % 7 / 8).tobytes()


def layer_shapes() -> dict[str, list[int]]:
    """Hugging Face name -> NumPy shape of one layer."""
    return {
        "input_layernorm.weight": [HIDDEN],
        "post_attention_layernorm.weight": [HIDDEN],
        "self_attn.q_proj.weight": [HEADS * DIM, HIDDEN],
        "self_attn.k_proj.weight": [KV * DIM, HIDDEN],
        "self_attn.v_proj.weight": [KV * DIM, HIDDEN],
        "self_attn.o_proj.weight": [HIDDEN, HEADS * DIM],
        "self_attn.q_norm.weight": [DIM],
        "self_attn.k_norm.weight": [DIM],
        "mlp.gate_proj.weight": [INTER, HIDDEN],
        "mlp.up_proj.weight": [INTER, HIDDEN],
        "mlp.down_proj.weight": [HIDDEN, INTER],
    }


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def sizes(arch: str, layers: int) -> dict[str, tuple[str, Any]]:
    return {
        f"{arch}.block_count": ("u32", layers),
        f"{arch}.context_length": ("u32", 64),
        f"{arch}.embedding_length": ("u32", HIDDEN),
        f"{arch}.feed_forward_length": ("u32", INTER),
        f"{arch}.attention.head_count": ("u32", HEADS),
        f"{arch}.attention.head_count_kv": ("u32", KV),
        f"{arch}.attention.key_length": ("u32", DIM),
        f"{arch}.attention.value_length": ("u32", DIM),
        f"{arch}.attention.layer_norm_rms_epsilon": ("f32", 1e-5),
        f"{arch}.rope.freq_base": ("f32", 10000.0),
    }


def vocabulary() -> dict[str, tuple[str, Any]]:
    return {
        "tokenizer.ggml.tokens": ("array of string", [f"t{n}" for n in range(VOCAB)]),
        "tokenizer.ggml.eos_token_id": ("u32", 1),
        "tokenizer.ggml.mask_token_id": ("u32", 5),
    }


def gguf_tensors(layers: int, outer: dict[str, list[int]], without: tuple[str, ...] = ()) -> list[Tensor]:
    shapes = dict(outer)
    for layer in range(layers):
        for name, shape in layer_shapes().items():
            stem = GGUF_NAMES[name.removesuffix(".weight")]
            if stem not in without:
                shapes[f"blk.{layer}.{stem}.weight"] = shape
    return [Tensor(name, shape[::-1], numbers(*shape)) for name, shape in shapes.items()]


def muse_gguf() -> Gguf:
    keys = {"general.architecture": ("string", "dflash")} | sizes("dflash", 5)
    keys |= {
        "dflash.block_size": ("u32", 4),
        "dflash.target_layers": ("array of i32", [2, 14]),
        "dflash.attention.sliding_window": ("u32", 8),
        "dflash.attention.sliding_window_pattern": ("array of bool", [True] * 5),
    }
    outer = {"fc.weight": [HIDDEN, 2 * HIDDEN], "enc.output_norm.weight": [HIDDEN], "output_norm.weight": [HIDDEN]}
    return Gguf(keys | vocabulary(), gguf_tensors(5, outer))


def qwen3_gguf() -> Gguf:
    file = muse_gguf()
    for key in ("sliding_window", "sliding_window_pattern"):
        del file.keys[f"dflash.attention.{key}"]
    file.keys["dflash.block_count"] = ("u32", 2)
    file.tensors = [t for t in file.tensors if not t.name.startswith(("blk.2", "blk.3", "blk.4"))]
    return file


def llama_gguf() -> Gguf:
    keys = {"general.architecture": ("string", "llama")} | sizes("llama", 2) | {"llama.vocab_size": ("u32", VOCAB)}
    outer = {"token_embd.weight": [VOCAB, HIDDEN], "output_norm.weight": [HIDDEN], "output.weight": [VOCAB, HIDDEN]}
    return Gguf(keys | vocabulary(), gguf_tensors(2, outer, without=("attn_q_norm", "attn_k_norm")))


@dataclass
class Folder:
    """An editable SafeTensors folder. ``tensors``: name -> [dtype, shape, bytes]; ``shards``: file -> names."""

    config: Any
    tensors: dict[str, list[Any]]
    shards: dict[str, list[str]] | None = None
    header: dict[str, Any] = field(default_factory=dict)
    header_text: bytes | None = None
    header_size: int | None = None
    config_text: bytes | None = None
    index: Any = None
    tail: bytes = b""
    drop: list[str] = field(default_factory=list)

    def weights(self, names: list[str] | None = None) -> bytes:
        header: dict[str, Any] = {}
        body = b""
        for name in names if names is not None else self.tensors:
            dtype, shape, data = self.tensors[name]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
            body += data
        for name, change in self.header.items():
            header[name] = change if name not in header or not isinstance(change, dict) else header[name] | change
        text = self.header_text or json.dumps(header).encode()
        return struct.pack("<Q", len(text) if self.header_size is None else self.header_size) + text + body + self.tail

    def write(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        files = {"config.json": self.config_text if self.config_text is not None else json.dumps(self.config).encode()}
        if self.shards is None:
            files["model.safetensors"] = self.weights()
        else:
            for shard, names in self.shards.items():
                files[shard] = self.weights(names)
            placed = {name: shard for shard, names in self.shards.items() for name in names}
            files["model.safetensors.index.json"] = json.dumps({"weight_map": placed} if self.index is None else self.index).encode()
        for name, content in files.items():
            if name not in self.drop:
                (folder / name).write_bytes(content)
        return folder


def hf_tensors(layers: int, outer: dict[str, list[int]], prefix: str = "", without: tuple[str, ...] = ()) -> dict[str, list[Any]]:
    shapes = dict(outer)
    for layer in range(layers):
        shapes |= {f"{prefix}layers.{layer}.{n}": s for n, s in layer_shapes().items() if n not in without}
    return {name: ["F32", shape, numbers(*shape)] for name, shape in shapes.items()}


def config_sizes(layers: int) -> dict[str, Any]:
    return {
        "hidden_size": HIDDEN,
        "intermediate_size": INTER,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": DIM,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
    }


def qwen3_folder() -> Folder:
    config = config_sizes(2) | {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "rope_theta": 10000.0,
        "block_size": 4,
        "num_target_layers": 6,
        "dflash_config": {"mask_token_id": 5, "target_layer_ids": [1, 4]},
    }
    outer = {"fc.weight": [HIDDEN, 2 * HIDDEN], "hidden_norm.weight": [HIDDEN], "norm.weight": [HIDDEN]}
    return Folder(config, hf_tensors(2, outer))


def muse_folder() -> Folder:
    config = config_sizes(5) | {
        "architectures": ["MuseGlimmerAssistantModel"],
        "model_type": "muse_glimmer_assistant",
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "sliding_window": 8,
        "block_size": 4,
        "mask_token_id": 5,
        "target_layer_ids": [1, 13],
    }
    outer = {"encoder.fc.weight": [HIDDEN, 2 * HIDDEN], "encoder.output_norm_enc.weight": [HIDDEN], "norm.weight": [HIDDEN]}
    return Folder(config, hf_tensors(5, outer))


def llama_folder() -> Folder:
    config = config_sizes(2) | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
    }
    outer = {"model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN], "lm_head.weight": [VOCAB, HIDDEN]}
    norms = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
    return Folder(config, hf_tensors(2, outer, "model.", norms))


def sharded(folder: Folder) -> Folder:
    names = list(folder.tensors)
    folder.shards = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    return folder


def changed(file: Any, edit: Any) -> Any:
    """A copy of ``file`` with ``edit`` applied in place."""
    out = copy.deepcopy(file)
    edit(out)
    return out
