"""Hypothesis strategies and small builders shared by the tests of the dump format."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dumps import DumpWriter
from dumps.dtypes import STORED

CASE = {"family": "muse-glimmer", "seed": 7, "steps": [{"propose": [1, 2, 3], "position": 9}]}
PROVENANCE = {"candidate": "cpu", "version": "0.1.0", "arithmetic": "f32", "device": False}


@dataclass(frozen=True)
class Stage:
    """One recorded stage: ``stored`` `[row, ...]` and the order in which its pieces are put."""

    step: int
    name: str
    dtype: str
    stored: np.ndarray[Any, Any]
    row0: int
    pieces: tuple[tuple[int, int], ...]
    axes: tuple[str, ...] | None


@st.composite
def stored_arrays(draw: st.DrawFn, dtype: str) -> np.ndarray[Any, Any]:
    """Any bit pattern of ``dtype`` (NaN payloads and infinities included), in any of several memory layouts."""
    shape = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=4)))
    bits = np.dtype(f"<u{STORED[dtype].itemsize}")
    values = draw(hnp.arrays(bits, shape)).view(STORED[dtype])
    layout = draw(st.sampled_from(["plain", "fortran", "reversed", "every other", "transposed", "big-endian"]))
    if layout == "fortran":
        return np.asfortranarray(values)
    if layout == "reversed":
        return values[::-1]
    if layout == "every other":
        return np.repeat(values, 2, axis=-1)[..., ::2]
    if layout == "transposed":
        return values.T
    return values.astype(values.dtype.newbyteorder(">")) if layout == "big-endian" else values


@st.composite
def stages(draw: st.DrawFn) -> list[Stage]:
    keys = st.tuples(st.integers(0, 3), st.sampled_from(["draft.fc", "draft.L3.q_rope", "draft.L3.ctx.v", "Qcur-3 (view)", "größe/.."]))
    result = []
    for step, name in draw(st.lists(keys, min_size=1, max_size=5, unique=True)):
        dtype = draw(st.sampled_from(sorted(STORED)))
        stored = draw(stored_arrays(dtype))
        rows = stored.shape[0]
        cuts = sorted(draw(st.sets(st.integers(1, rows - 1), max_size=3))) if rows > 1 else []
        pieces = list(zip([0, *cuts], [*cuts, rows], strict=True))
        axes = draw(st.sampled_from([None, ("row", "head", "dim", "cell")[: stored.ndim]]))
        result.append(Stage(step, name, dtype, stored, draw(st.integers(0, 2**40)), tuple(draw(st.permutations(pieces))), axes))
    return result


def write(path: Path, recorded: list[Stage], *, checksums: bool = True, complete: bool = True) -> None:
    with DumpWriter(path, CASE, PROVENANCE, checksums=checksums) as writer:
        for stage in recorded:
            for start, stop in stage.pieces:
                writer.put(stage.step, stage.name, stage.stored[start:stop], stage.row0 + start, stage.dtype, stage.axes)
        writer.close(complete=complete)


def bits(array: np.ndarray[Any, Any]) -> bytes:
    """The elements in C order, little-endian, so that NaN payloads and signed zeros are compared too."""
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()


def tiny(path: Path, *, complete: bool = True) -> Path:
    """A dump of three records in two steps: f32 in two pieces, and bf16."""
    with DumpWriter(path, CASE, PROVENANCE) as writer:
        writer.put(0, "draft.fc", np.arange(6, dtype=np.float32).reshape(2, 3), axes=("row", "dim"))
        writer.put(0, "draft.fc", np.full((1, 3), np.nan, np.float32), row0=2, axes=("row", "dim"))
        writer.put(1, "draft.pick", np.array([0x3F80, 0xFF80], np.uint16), dtype="bf16")
        writer.close(complete=complete)
    return path


def edit_line(dump: Path, number: int, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Apply ``edit`` to the parsed manifest line ``number`` (1 is the header); what it returns, if anything, replaces the object."""
    manifest = dump / "manifest.jsonl"
    lines = manifest.read_text().splitlines()
    value = json.loads(lines[number - 1])
    result = edit(value)
    lines[number - 1] = json.dumps(value if result is None else result)
    manifest.write_text("\n".join(lines) + "\n")


def edit_packed(file: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Apply ``edit`` to the parsed header of a packed dump."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def edit_records(file: Path, edit: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Apply ``edit`` to the record index of a packed dump."""

    def inner(header: dict[str, Any]) -> None:
        records = json.loads(header["__metadata__"]["records"])
        edit(records)
        header["__metadata__"]["records"] = json.dumps(records)

    edit_packed(file, inner)
