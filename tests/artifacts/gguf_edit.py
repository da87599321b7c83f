"""A GGUF file with its keys and tensors edited, to break exactly one thing of a seeded one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from oracle.artifacts.gguf_file import read_gguf
from oracle.artifacts.writers import PlannedTensor, Typed, write_gguf

Keys = dict[str, Typed]
Tensors = dict[str, PlannedTensor]
Edit = Callable[[Keys, Tensors], None]


def rewritten(gguf: Path, out: Path, edit: Edit) -> Path:
    """The file with its keys and tensors edited."""
    container = read_gguf(gguf)
    keys = {k: Typed(container.kinds[k], v.tolist() if isinstance(v, np.ndarray) else v) for k, v in container.metadata.items()}
    raws = {n: t.raw for n, t in container.tensors.items()}
    tensors = {n: PlannedTensor.whole(n, t.shape, t.stored, raws[n]) for n, t in container.tensors.items()}
    edit(keys, tensors)
    write_gguf(out, keys, list(tensors.values()))
    return out


def zeros(name: str, *shape: int) -> PlannedTensor:
    return PlannedTensor(name, shape, "f32", lambda: iter([np.zeros(shape, "<f4").view(np.uint8).reshape(shape[0], -1)]))


def add(name: str, *shape: int) -> Edit:
    return lambda keys, tensors: tensors.update({name: zeros(name, *shape)})


def put(name: str, kind: str, value: Any, arch: str = "dflash.") -> Edit:
    return lambda keys, tensors: keys.update({arch + name: Typed(kind, value)})


def drop(*names: str, arch: str = "dflash.") -> Edit:
    """Without keys or tensors of these names."""

    def edit(keys: Keys, tensors: Tensors) -> None:
        for name in names:
            keys.pop(arch + name, None)
            tensors.pop(name, None)

    return edit


def both(*edits: Edit) -> Edit:
    """Several edits in turn."""

    def edit(keys: Keys, tensors: Tensors) -> None:
        for one in edits:
            one(keys, tensors)

    return edit


def renamed(old: str, new: str) -> Edit:
    """A key or tensor under another name; KeyError where there is none."""

    def edit(keys: Keys, tensors: Tensors) -> None:
        if old in keys:
            keys[new] = keys.pop(old)
        else:
            tensors[new] = replace(tensors.pop(old), name=new)

    return edit
