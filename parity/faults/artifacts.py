"""Artifact faults: what a loader that misreads a model really holds, written as a file of its own (`plant`), or run in its place.

Tensors are found by role in either container (SafeTensors or GGUF); bytes are moved, never decoded.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.faults import FaultError, NotHereError, Options

Bytes = NDArray[np.uint8]
# Role of a layer's matrix or norm -> its names, after the layer's number, in the families' containers.
ROLES = {
    "q": r"(self_attn\.q_proj|attn_q)\.weight",
    "k": r"(self_attn\.k_proj|attn_k)\.weight",
    "v": r"(self_attn\.v_proj|attn_v)\.weight",
    "o": r"(self_attn\.o_proj|attn_output)\.weight",
    "gate": r"(mlp\.gate_proj|ffn_gate)\.weight",
    "up": r"(mlp\.up_proj|ffn_up)\.weight",
    "down": r"(mlp\.down_proj|ffn_down)\.weight",
    "input_norm": r"(input_layernorm|attn_norm)\.weight",
    "q_norm": r"(self_attn\.q_norm|attn_q_norm)\.weight",
}
# Parameter -> its keys in a SafeTensors configuration and the end of its key in GGUF metadata.
PARAMETERS = {
    "eps": (("rms_norm_eps",), "layer_norm_rms_epsilon"),
    "theta": (("rope_theta",), "rope.freq_base"),
    "window": (("sliding_window",), "attention.sliding_window"),
}
ITEM = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}


@dataclass
class Entry:
    """A tensor's bytes, mapped for writing: ``rows`` by bytes of a row; ``item`` bytes per element, 0 in block formats."""

    name: str
    rows: Bytes
    item: int
    kind: str


class Editable:
    """A copy of a model, folder or GGUF file, whose tensors and configuration can be changed in place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, Entry] = {}
        self.reader: Any = None
        if path.is_dir():
            for file in sorted(path.glob("*.safetensors")):
                self._folder(file)
        else:
            self._gguf()

    def _folder(self, file: Path) -> None:
        raw = np.memmap(file, np.uint8, "r+")
        size = int(struct.unpack("<Q", raw[:8].tobytes())[0])
        for name, t in json.loads(raw[8 : 8 + size].tobytes()).items():
            if name != "__metadata__" and t["dtype"] in ITEM:
                start, stop = (8 + size + o for o in t["data_offsets"])
                rows = t["shape"][0] if len(t["shape"]) > 1 else 1
                self.tensors[name] = Entry(name, raw[start:stop].reshape(rows, -1), ITEM[t["dtype"]], t["dtype"])

    def _gguf(self) -> None:
        from gguf import GGUFReader

        self.reader = GGUFReader(self.path, "r+")
        for t in self.reader.tensors:
            rows = int(np.prod(t.shape[1:])) if len(t.shape) > 1 else 1
            item = {"F32": 4, "F16": 2, "BF16": 2}.get(t.tensor_type.name, 0)
            self.tensors[t.name] = Entry(t.name, t.data.view(np.uint8).reshape(rows, -1), item, t.tensor_type.name)

    def find(self, role: str, layer: int) -> Entry:
        """The tensor of a role; `NotHereError` where this model stores it otherwise."""
        if role not in ROLES:
            raise FaultError(f"role={role}: expected one of {', '.join(ROLES)}")
        pattern = re.compile(rf"(^|\.){layer}\.{ROLES[role]}$")
        for name, entry in self.tensors.items():
            if pattern.search(name):
                return entry
        raise NotHereError(f"there is no tensor of role {role} in layer {layer} here")

    def parameter(self, name: str, change: Callable[[float], float]) -> None:
        """Change a parameter of the configuration wherever it is written; `NotHereError` where it is not."""
        if name not in PARAMETERS:
            raise FaultError(f"key={name}: expected one of {', '.join(PARAMETERS)}")
        keys, suffix = PARAMETERS[name]
        if self.reader is not None:
            fields = [f for key, f in self.reader.fields.items() if key.endswith(f".{suffix}")]
            for f in fields:
                # A field's parts are views of the file, mapped for writing.
                part = f.parts[f.data[0]]
                made = change(float(part[0]))
                part[0] = int(made) if np.issubdtype(part.dtype, np.integer) else made
            if not fields:
                raise NotHereError(f"there is no {suffix} here")
            return
        file = self.path / "config.json"
        config = json.loads(file.read_text())
        if not _changed(config, keys, change):
            raise NotHereError(f"there is no {keys[0]} here")
        file.write_text(json.dumps(config, indent=1))

    def close(self) -> None:
        """Write everything back."""
        for entry in self.tensors.values():
            base = entry.rows.base
            while base is not None and not isinstance(base, np.memmap):
                base = base.base
            if isinstance(base, np.memmap):
                base.flush()
                return


def _changed(config: Any, keys: tuple[str, ...], change: Callable[[float], float]) -> bool:
    found = False
    if isinstance(config, dict):
        for key, value in config.items():
            if key in keys and isinstance(value, int | float) and not isinstance(value, bool):
                made = change(float(value))
                config[key] = int(made) if isinstance(value, int) else made
                found = True
            else:
                found |= _changed(value, keys, change)
    return found


@dataclass(frozen=True)
class ArtifactFault:
    """``edit`` of a copy of the model."""

    kind: str
    edit: Callable[[Editable], None]

    def plant(self, model: Path, out: Path) -> Path:
        """A copy of ``model`` under ``out`` with the mistake in it. `FaultError` where it cannot hold it."""
        copy = out / model.name
        if copy.is_dir():
            shutil.rmtree(copy)
        out.mkdir(parents=True, exist_ok=True)
        if model.is_dir():
            shutil.copytree(model, copy)
        else:
            # A new file: one that is mapped elsewhere keeps its bytes.
            copy.unlink(missing_ok=True)
            shutil.copyfile(model, copy)
        made = Editable(copy)
        self.edit(made)
        made.close()
        return copy


@dataclass(frozen=True)
class ArtifactKind:
    """One kind of artifact fault; the fields are those of `oracle.faults.Kind`."""

    name: str
    defaults: dict[str, str]
    make: Callable[[Options], Callable[[Editable], None]]
    about: str
    reports: tuple[str, ...]
    dial: str = ""
    variants: tuple[str, ...] = ("",)
    knobs: dict[str, str] = field(default_factory=dict)
    alike: tuple[str, ...] = ()
    stage: str = "*"


def _same(a: Entry, b: Entry) -> None:
    if a.rows.shape != b.rows.shape or a.kind != b.kind:
        raise NotHereError(f"{a.name} and {b.name} are not alike in shape and format here: no such mistake")


def _swapped(o: Options) -> Callable[[Editable], None]:
    first, second, layer = o["a"], o["b"], o.integer("layer")

    def edit(model: Editable) -> None:
        a, b = model.find(first, layer), model.find(second, layer)
        _same(a, b)
        kept = a.rows.copy()
        a.rows[:] = b.rows
        b.rows[:] = kept

    return edit


def _layer(o: Options) -> Callable[[Editable], None]:
    role, layer, source = o["role"], o.integer("layer"), o.integer("from")

    def edit(model: Editable) -> None:
        a, b = model.find(role, layer), model.find(role, source)
        _same(a, b)
        a.rows[:] = b.rows

    return edit


def _permuted(o: Options) -> Callable[[Editable], None]:
    role, layer, how = o["role"], o.integer("layer"), o.choice("how", "halves", "pairs")

    def edit(model: Editable) -> None:
        rows = model.find(role, layer).rows
        if len(rows) % 2:
            raise NotHereError("there is an odd number of rows here")
        index = np.arange(len(rows))
        order = np.roll(index, len(rows) // 2) if how == "halves" else index.reshape(-1, 2)[:, ::-1].ravel()
        rows[:] = rows[order]

    return edit


def _transposed(o: Options) -> Callable[[Editable], None]:
    role, layer = o["role"], o.integer("layer")

    def edit(model: Editable) -> None:
        entry = model.find(role, layer)
        if not entry.item:
            raise NotHereError("quantised blocks cannot be transposed here")
        cells = entry.rows.reshape(len(entry.rows), -1, entry.item)
        turned = cells.reshape(cells.shape[1], cells.shape[0], entry.item).swapaxes(0, 1)
        entry.rows[:] = np.ascontiguousarray(turned).reshape(entry.rows.shape)

    return edit


def _parameter(o: Options) -> Callable[[Editable], None]:
    key, factor = o["key"], o.number("factor")
    if key not in PARAMETERS:
        raise FaultError(f"key={key}: expected one of {', '.join(PARAMETERS)}")
    return lambda model: model.parameter(key, lambda value: value * factor)


KINDS = (
    ArtifactKind(
        "artifact.swapped",
        {"a": "k", "b": "v", "layer": "1"},
        _swapped,
        "two tensors of one shape exchanged: k and v, gate and up",
        ("K14", "K34"),
        "a, b",
        ("a=k,b=v", "a=gate,b=up"),
        alike=("linear.other",),
    ),
    ArtifactKind(
        "artifact.layer",
        {"role": "q", "layer": "1", "from": "0"},
        _layer,
        "another layer's tensor",
        ("K34", "K14"),
        "role",
        ("role=q", "role=down", "role=input_norm"),
        alike=("linear.other", "norm.weight"),
    ),
    ArtifactKind(
        "artifact.permuted",
        {"role": "q", "layer": "1", "how": "halves"},
        _permuted,
        "rows of a tensor out of order",
        ("K14", "K27"),
        "how",
        ("how=halves", "how=pairs"),
        alike=("linear.permuted",),
    ),
    ArtifactKind(
        "artifact.transposed",
        {"role": "o", "layer": "1"},
        _transposed,
        "a tensor stored with rows and columns exchanged",
        ("K14",),
        "role",
        ("role=o", "role=up"),
        alike=("linear.transposed",),
    ),
    ArtifactKind(
        "artifact.config",
        {"key": "eps", "factor": "1000"},
        _parameter,
        "a parameter of the configuration lost: eps, theta or window times factor",
        ("K34", "K5", "K9", "K10"),
        "factor",
        ("key=eps,factor=1000", "key=theta,factor=0.1", "key=window,factor=0.5"),
        alike=("norm.eps", "rope.theta", "attention.window", "attention.cell"),
    ),
)
