"""A strict reader of SafeTensors folders: ``config.json`` and ``model.safetensors``, or shards named by an index.

The header of every file is read by hand, because offsets, overlap, holes, duplicate keys and sizes must be checked
before anything is made from them.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from oracle.artifacts.container import Bytes, Container, FileIdentity, StoredTensor, fail, map_file, name_list, show

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LARGEST_CONFIG = 4 << 20
LARGEST_INDEX = 64 << 20
LARGEST_HEADER = 100 << 20
LONGEST_NUMBER = 40
DEEPEST = 32

DTYPES: dict[str, tuple[str, int]] = {
    "F32": ("f32", 4),
    "F16": ("f16", 2),
    "BF16": ("bf16", 2),
    "F64": ("f64", 8),
    "I64": ("i64", 8),
    "I32": ("i32", 4),
    "I16": ("i16", 2),
    "I8": ("i8", 1),
    "U64": ("u64", 8),
    "U32": ("u32", 4),
    "U16": ("u16", 2),
    "U8": ("u8", 1),
    "BOOL": ("bool", 1),
    "F8_E4M3": ("f8_e4m3", 1),
    "F8_E5M2": ("f8_e5m2", 1),
}


class _Refused(ValueError):
    pass


def parse_json(path: Path, text: bytes, what: str) -> dict[str, Any]:
    """The JSON object in ``text``; refuses duplicate keys, NaN and infinities, endless numbers and deep nesting."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, value in items:
            if key in out:
                raise _Refused(f"duplicate key {show(key)}")
            out[key] = value
        return out

    def constant(word: str) -> Any:
        raise _Refused(f"the number {word}, which JSON does not have")

    def whole(digits: str) -> int:
        if len(digits) > LONGEST_NUMBER:
            raise _Refused(f"a number of {len(digits)} digits")
        return int(digits)

    def real(digits: str) -> float:
        if len(digits) > LONGEST_NUMBER or not math.isfinite(float(digits)):
            raise _Refused(f"the number {digits[:LONGEST_NUMBER]}, which does not fit a float")
        return float(digits)

    try:
        if _depth(text) > DEEPEST:
            raise _Refused(f"nesting deeper than {DEEPEST}")
        value = json.loads(text.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant, parse_int=whole, parse_float=real)
    except UnicodeDecodeError as error:
        fail(path, f"{what} is not valid UTF-8 (byte {error.start})")
    except json.JSONDecodeError as error:
        fail(path, f"{what} is not valid JSON: {error.msg} at line {error.lineno} column {error.colno}")
    except _Refused as error:
        fail(path, f"{what} holds {error}")
    if not isinstance(value, dict):
        fail(path, f"{what}: expected a JSON object, found {type(value).__name__}")
    return value


def _depth(text: bytes) -> int:
    """The nesting depth of JSON ``text``, brackets inside strings not counted."""
    depth = deepest = 0
    for bracket in re.findall(rb"[\[\]{}]", re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def read_json(path: Path, largest: int, what: str) -> dict[str, Any]:
    """The JSON object in the file ``path`` of at most ``largest`` bytes."""
    data = map_file(path, 2)
    if len(data) > largest:
        fail(path, f"{what} has {len(data)} bytes; expected at most {largest}")
    return parse_json(path, data.tobytes(), what)


def read_folder(folder: Path) -> Container:
    """Open ``folder``; `ArtifactError` names the file and tensor that is wrong."""
    config_path = folder / "config.json"
    if not config_path.exists():
        fail(folder, "no config.json in this folder; expected config.json beside model.safetensors")
    config = read_json(config_path, LARGEST_CONFIG, "config.json")
    single, index = folder / WEIGHTS, folder / INDEX
    if single.exists() and index.exists():
        fail(folder, f"both {WEIGHTS} and {INDEX} are present; remove the one that does not belong")
    identities = [FileIdentity(config_path, config_path.stat().st_size)]
    if single.exists():
        tensors = read_file(single)
        identities.append(FileIdentity(single, single.stat().st_size))
    elif index.exists():
        tensors, shards = _read_shards(folder, index)
        identities += [FileIdentity(p, p.stat().st_size) for p in (index, *shards)]
    else:
        fail(folder, f"no weights: expected {WEIGHTS} or {INDEX}")
    return Container(folder, "safetensors", config, {}, tensors, tuple(identities))


def _read_shards(folder: Path, index: Path) -> tuple[dict[str, StoredTensor], list[Path]]:
    weight_map = read_json(index, LARGEST_INDEX, INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        fail(index, f"weight_map: expected an object of tensor -> file name, found {show(weight_map)}")
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            fail(index, f"weight_map of {show(name)}: expected a file name, found {show(shard)}")
    shards = {shard: _inside(folder, index, shard) for shard in sorted(set(weight_map.values()))}
    tensors: dict[str, StoredTensor] = {}
    for shard, path in shards.items():
        found = read_file(path)
        listed = {name for name, file in weight_map.items() if file == shard}
        if listed - found.keys():
            fail(path, f"missing tensors that the index places here: {name_list(listed - found.keys())}")
        if found.keys() - listed:
            fail(path, f"tensors that the index does not place here: {name_list(found.keys() - listed)}")
        tensors |= found
    return tensors, list(shards.values())


def _inside(folder: Path, index: Path, shard: str) -> Path:
    """The file named ``shard``, which must lie in ``folder`` (or in the blob store of a hub cache it links to)."""
    if not shard or shard in (".", "..") or any(c in shard for c in "/\\\0") or not shard.endswith(".safetensors"):
        fail(index, f"shard {show(shard)}: expected the plain name of a .safetensors file in this folder")
    path = folder / shard
    home = folder.resolve()
    allowed = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
    try:
        real = path.resolve()
    except (OSError, RuntimeError):
        fail(index, f"shard {show(shard)}: the link cannot be followed")
    if real.parent not in allowed:
        fail(index, f"shard {show(shard)} leads to a file outside the folder; copy the file in")
    if not path.exists():
        fail(index, f"shard {show(shard)} is missing from the folder; fetch it")
    return path


def read_file(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one SafeTensors file: header bounded and well formed, data packed without overlap or hole."""
    data = map_file(path, 10)
    size = int.from_bytes(data[:8].tobytes(), "little")
    limit = min(LARGEST_HEADER, len(data) - 8)
    if not 2 <= size <= limit:
        fail(path, f"header of {size} bytes; expected 2 to {limit} in a file of {len(data)} bytes, it is damaged or truncated")
    header = parse_json(path, data[8 : 8 + size].tobytes(), "the header")
    notes = header.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(v, str) for v in notes.values()):
        fail(path, "__metadata__: expected an object of strings")
    body = data[8 + size :]
    entries = sorted((_read_entry(path, name, entry) for name, entry in header.items()), key=lambda e: (e[3], e[4]))
    end, before = 0, "the header"
    for name, _, _, start, stop, _ in entries:
        if start < end:
            fail(path, f"tensor {show(name)} at offset {start} overlaps {before}, which ends at {end}")
        if start > end:
            fail(path, f"hole of {start - end} bytes before tensor {show(name)}; expected it to start at {end}, right after {before}")
        if stop > len(body):
            fail(path, f"tensor {show(name)} ends at {stop}; the file holds {len(body)} bytes of data, it is truncated; fetch it again")
        end, before = stop, f"tensor {show(name)}"
    if end != len(body):
        fail(path, f"{len(body) - end} unexplained bytes after {before}; expected the file to end there")
    return {e[0]: _stored(path, e, data, 8 + size) for e in entries}


Entry = tuple[str, str, tuple[int, ...], int, int, int]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _read_entry(path: Path, name: str, entry: Any) -> Entry:
    """(name, stored, shape, start, stop, bytes per value) of one header entry."""
    what = f"tensor {show(name)}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        fail(path, f"{what}: expected an object with dtype, shape and data_offsets, found {show(entry)}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        fail(path, f"{what} has the dtype {show(dtype)}; known: {', '.join(DTYPES)}")
    stored, width = DTYPES[dtype]
    if not isinstance(shape, list) or len(shape) > 8 or not all(_whole(n) for n in shape):
        fail(path, f"{what} has the shape {show(shape)}; expected a list of whole numbers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_whole(n) for n in offsets):
        fail(path, f"{what} has the data_offsets {show(offsets)}; expected two whole numbers")
    start, stop = offsets
    need = math.prod(shape) * width
    if stop - start != need:
        fail(path, f"{what}: {dtype} of shape {show(shape)} needs {need} bytes, data_offsets span {stop - start}")
    return name, stored, tuple(shape), start, stop, width


def _stored(path: Path, entry: Entry, data: Bytes, base: int) -> StoredTensor:
    """The tensor of ``entry``, whose offsets count from byte ``base`` of the file."""
    name, stored, shape, start, stop, width = entry
    row = max(1, (shape[-1] if shape else 1) * width)
    return StoredTensor(name, stored, shape, data[base + start : base + stop].reshape(-1, row), path, base + start)
