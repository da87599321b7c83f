"""A second opinion on a weight file: the public library of its container reads it too, and every disagreement is a problem."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from oracle.artifacts.container import Container, StoredTensor, name_list, show
from oracle.artifacts.safetensors_folder import DTYPES


class Seen(NamedTuple):
    """One tensor as a reader sees it: format, shape in NumPy order, and its place (byte offset, or its turn in the file)."""

    stored: str
    shape: tuple[int, ...]
    place: int


def second_opinion(container: Container) -> list[str]:
    """Problems, one line each: what the library cannot read, or reads otherwise than the lab. Empty where both agree."""
    problems = []
    for file in (f.path for f in container.files if f.path.suffix != ".json"):
        ours = {t.name: t for t in container.tensors.values() if t.path == file}
        library = "gguf" if container.kind == "gguf" else "safetensors"
        try:
            theirs = _gguf(file) if container.kind == "gguf" else _safetensors(file)
        except Exception as error:
            # Whatever a third party's reader raises is what a person would meet in it.
            text = " ".join(str(error).split())
            problems.append(f"{file}: the {library} package cannot read this file ({type(error).__name__}: {text[:160]})")
            continue
        problems += disagreements(file, library, _places(ours, container.kind), theirs)
    return problems


def disagreements(file: Path, library: str, ours: dict[str, Seen], theirs: dict[str, Seen]) -> list[str]:
    """One line per difference between the lab's reading of ``file`` and the library's."""
    found = []
    for names, who in ((theirs.keys() - ours.keys(), "does not see"), (ours.keys() - theirs.keys(), "alone sees")):
        if names:
            found.append(f"{file}: the lab {who} {name_list(names)}, compared with the {library} package")
    for name in sorted(ours.keys() & theirs.keys()):
        for what, a, b in zip(Seen._fields, ours[name], theirs[name], strict=True):
            if a != b:
                found.append(f"{file}: tensor {show(name)}: {what} is {a} to the lab and {b} to the {library} package")
    return found


def _places(tensors: dict[str, StoredTensor], kind: str) -> dict[str, Seen]:
    ordered = sorted(tensors.values(), key=lambda t: t.offset)
    places = {t.name: t.offset if kind == "gguf" else turn for turn, t in enumerate(ordered)}
    return {t.name: Seen(t.stored, t.shape, places[t.name]) for t in ordered}


def _gguf(file: Path) -> dict[str, Seen]:
    from gguf import GGUFReader

    reader = GGUFReader(file)
    return {
        t.name: Seen(t.tensor_type.name.lower(), tuple(int(n) for n in t.shape)[::-1], int(t.data_offset)) for t in reader.tensors
    }


def _safetensors(file: Path) -> dict[str, Seen]:
    """The library shows no offsets, but the order of the tensors in the file, which are packed: the same thing."""
    from safetensors import safe_open

    with safe_open(file, framework="np") as reader:
        slices = {name: reader.get_slice(name) for name in reader.offset_keys()}
        return {
            name: Seen(DTYPES.get(s.get_dtype(), (s.get_dtype(), 0))[0], tuple(s.get_shape()), turn)
            for turn, (name, s) in enumerate(slices.items())
        }
