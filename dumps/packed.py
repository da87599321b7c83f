"""The packed form: one SafeTensors file, its index in the metadata of the header, SHA-256 per tensor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from . import jsontext
from .dtypes import SAFETENSORS, STORED
from .dump import Dump, Piece
from .errors import DumpError, shown
from .reader import open_dump
from .schema import FORMAT, MAX_HEADER_BYTES, MAX_RECORDS, VERSION, Entry, Rows, check_entry, check_header
from .writer import DumpWriter, digest

MAX_PACKED_HEADER = 256 << 20

_METADATA = {"format", "version", "case", "provenance", "complete", "records"}


def pack(dump: str | Path | Dump, file: str | Path) -> None:
    """Write the dump directory ``dump`` as the packed ``file`` (replaced atomically), every record with its SHA-256.

    An incomplete dump stays one. Raises `DumpError` for a dump that does not read, or a ``file`` that cannot be written.
    """
    source = dump if isinstance(dump, Dump) else open_dump(dump)
    file = Path(file)
    pieces = [_named(piece) for piece in source.pieces]
    # Widest elements first: every tensor then starts aligned to its own element size, without padding (which SafeTensors forbids).
    order = sorted(range(len(pieces)), key=lambda at: -STORED[pieces[at][0].dtype].itemsize)
    header: dict[str, Any] = {"__metadata__": _metadata(source, [entry for entry, _ in pieces])}
    offset = 0
    for at in order:
        entry = pieces[at][0]
        header[entry.place] = {
            "dtype": SAFETENSORS[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + entry.nbytes],
        }
        offset += entry.nbytes
    text = jsontext.render(header, f"{file}: header").encode("ascii")
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_PACKED_HEADER:
        raise DumpError(f"{file}: expected an index of at most {MAX_PACKED_HEADER} bytes, found {len(text)}")
    temporary = file.with_name(file.name + ".part")
    try:
        with temporary.open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for at in order:
                out.write(pieces[at][1].array().tobytes(order="C"))
        temporary.replace(file)
    except OSError as error:
        raise DumpError(f"{file}: cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def unpack(file: str | Path, directory: str | Path) -> None:
    """Write the packed dump ``file`` as the dump ``directory`` (absent or empty), records in recorded order. Raises `DumpError`."""
    source = open_dump(file)
    with DumpWriter(directory, source.case, source.provenance) as writer:
        for piece in source.pieces:
            entry = piece.entry
            writer.put(entry.step, entry.stage, piece.array(), entry.row0, entry.dtype, entry.axes)
        writer.close(complete=source.complete)


def _named(piece: Piece) -> tuple[Entry, Piece]:
    entry = piece.entry
    place = f"{entry.step}/{entry.stage}@{entry.row0}"
    return replace(entry, sha256=entry.sha256 or digest(piece.array()), place=place), piece


def _metadata(source: Dump, entries: list[Entry]) -> dict[str, str]:
    return {
        "format": FORMAT,
        "version": str(VERSION),
        "case": jsontext.render(source.case, "case"),
        "provenance": jsontext.render(source.provenance, "provenance"),
        "complete": "true" if source.complete else "false",
        "records": jsontext.render([entry.line("tensor") for entry in entries], "records"),
    }


def open_packed(path: Path) -> Dump:
    """The packed dump ``path``. Raises `DumpError`; `OSError` is left to `open_dump`."""
    header, offset, available = read_header(path, "a packed dump (SafeTensors)")
    case, provenance, complete, lines = _read_metadata(header.pop("__metadata__", None), path)
    places = check_tensors(header, available, path)
    pieces: list[Piece] = []
    rows = Rows()
    for number, line in enumerate(lines):
        where = f"{path}: record {number}"
        entry = check_entry(line, "tensor", where)
        where = f"{where}, {entry.key}"
        rows.add(entry, where)
        if entry.sha256 is None:
            raise DumpError(f"{where}: expected a sha256, found none; a packed dump has one per tensor")
        if entry.place not in places:
            raise DumpError(f"{where}: expected a tensor {shown(entry.place)} of its own, found none (or one taken by another record)")
        dtype, shape, start = places.pop(entry.place)
        if dtype != SAFETENSORS[entry.dtype] or shape != entry.shape:
            found = f"{dtype} {list(shape)}"
            raise DumpError(f"{where}: expected the tensor to be {SAFETENSORS[entry.dtype]} {list(entry.shape)}, found {found}")
        pieces.append(Piece(entry, path, offset + start))
    if places:
        raise DumpError(f"{path}: expected one record per tensor, found the tensor {shown(next(iter(places)))} without one")
    return Dump(path, case, provenance, pieces, complete=complete)


def read_header(path: Path, expected: str) -> tuple[dict[str, Any], int, int]:
    """``(header, offset of the first tensor, bytes of tensors)`` of a SafeTensors file. Raises `DumpError`."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_PACKED_HEADER):
            found = f"a header of {length} bytes in a file of {size}"
            raise DumpError(f"{path}: expected {expected}, found {found}; truncated, or another format")
        text = file.read(length)
    header = jsontext.parse(text, f"{path}: header", max_depth=4)
    if not isinstance(header, dict):
        raise DumpError(f"{path}: expected the header to be a JSON object, found {shown(header)}")
    return header, 8 + length, size - 8 - length


def _read_metadata(found: Any, path: Path) -> tuple[dict[str, Any], dict[str, Any], bool, list[Any]]:
    where = f"{path}: header metadata"
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DumpError(f'{where}: expected format "{FORMAT}" (a packed stage dump), found {shown(found)}')
    if found.get("version") != str(VERSION):
        version = shown(found.get("version"))
        raise DumpError(f'{where}: expected version "{VERSION}", found {version}; read it with the release that wrote it')
    if found.keys() != _METADATA or not all(isinstance(value, str) for value in found.values()):
        raise DumpError(f"{where}: expected the strings {', '.join(sorted(_METADATA))}, found {shown(sorted(found))}")
    if found["complete"] not in ("true", "false"):
        raise DumpError(f'{where}: expected complete to be "true" or "false", found {shown(found["complete"])}')
    parts: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    for key in ("case", "provenance"):
        if len(found[key]) > MAX_HEADER_BYTES:
            raise DumpError(f"{where}: expected {key} of at most {MAX_HEADER_BYTES} characters, found {len(found[key])}")
        parts[key] = jsontext.parse(found[key].encode("utf-8", "surrogatepass"), f"{where}, {key}")
    case, provenance = check_header(parts, where)
    records = jsontext.parse(found["records"].encode("utf-8", "surrogatepass"), f"{where}, records", max_depth=4)
    if not isinstance(records, list) or len(records) > MAX_RECORDS:
        raise DumpError(f"{where}: expected records to be a list of at most {MAX_RECORDS}, found {shown(records)}")
    return case, provenance, found["complete"] == "true", records


def check_tensors(
    header: dict[str, Any], available: int, path: Path, others: dict[str, int] | None = None
) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Tensor name -> (dtype word, shape, first byte); together they cover the ``available`` bytes exactly, without holes or overlap.

    ``others``: further dtype words and their bytes an element. Raises `DumpError`.
    """
    sizes = {SAFETENSORS[name]: dtype.itemsize for name, dtype in STORED.items()} | (others or {})
    found: list[tuple[int, int, str]] = []
    places: dict[str, tuple[str, tuple[int, ...], int]] = {}
    for name, value in header.items():
        where = f"{path}: tensor {shown(name)}"
        if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
            raise DumpError(f"{where}: expected dtype, shape and data_offsets, found {shown(value)}")
        dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        if not isinstance(dtype, str) or dtype not in sizes:
            raise DumpError(f"{where}: expected dtype to be one of {', '.join(sizes)}, found {shown(dtype)}")
        numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2 else [-1]
        if any(type(number) is not int or number < 0 for number in numbers):
            raise DumpError(f"{where}: expected non-negative sizes and two data_offsets, found {shown(shape)} and {shown(offsets)}")
        nbytes = sizes[dtype]
        for size in shape:
            nbytes *= size
        if offsets[1] - offsets[0] != nbytes:
            raise DumpError(f"{where}: expected {nbytes} bytes for {dtype} {shown(shape)}, found data_offsets {offsets}")
        places[name] = (dtype, tuple(shape), offsets[0])
        found.append((offsets[0], offsets[1], name))
    end = 0
    for start, stop, name in sorted(found):
        if start != end:
            raise DumpError(f"{path}: tensor {shown(name)}: expected its bytes to start at {end} (no hole, no overlap), found {start}")
        end = stop
    if end != available:
        raise DumpError(f"{path}: expected {end} bytes of tensors after the header, found {available}")
    return places
