"""Whatever bytes stand where a dump should be: it reads, or `DumpError` says why, in a bounded message."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dumps import DumpError, open_dump, pack

from .dump_strategies import tiny

with tempfile.TemporaryDirectory() as folder:
    TINY = tiny(Path(folder) / "d")
    pack(TINY, Path(folder) / "p.safetensors")
    FILES = {file.name: file.read_bytes() for file in TINY.iterdir()} | {"p.safetensors": (Path(folder) / "p.safetensors").read_bytes()}

SPLICES = [b'"', b"{", b"]", b"\n", b"\0", b"\xff", b"-1", b"1e400", b"NaN", b'"end":true,', b"99999999999999999999", b"../", b"null"]


@st.composite
def spoiled(draw: st.DrawFn) -> tuple[str, bytes]:
    """A file of the tiny dump with a few bytes flipped, cut out, repeated or spliced in."""
    name = draw(st.sampled_from(sorted(FILES)))
    data = bytearray(FILES[name])
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        to = min(len(data), at + draw(st.integers(0, 40)))
        match draw(st.sampled_from(["flip", "cut", "repeat", "splice", "random"])):
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:to]
            case "repeat":
                data[at:at] = data[at:to]
            case "splice":
                data[at:to] = draw(st.sampled_from(SPLICES))
            case _:
                data[at:at] = draw(st.binary(max_size=8))
    return name, bytes(data)


@given(spoiled())
@settings(max_examples=400, deadline=None)
def test_spoiled_bytes_never_escape_as_another_exception(change: tuple[str, bytes]) -> None:
    name, data = change
    with tempfile.TemporaryDirectory() as folder:
        for other in FILES:
            (Path(folder) / other).write_bytes(data if other == name else FILES[other])
        path = Path(folder) / "p.safetensors" if name == "p.safetensors" else Path(folder)
        try:
            dump = open_dump(path)
            dump.verify()
            assert isinstance(dump.sha256, str)
            for record in dump.records():
                assert record.float64().shape == record.shape
        except DumpError as error:
            assert folder in str(error) and len(str(error)) < 1000 and "\n" not in str(error)


@given(st.binary(max_size=200))
def test_any_bytes_as_a_packed_file(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.safetensors"
        file.write_bytes(data)
        try:
            open_dump(file)
        except DumpError as error:
            assert str(file) in str(error)
        else:
            raise AssertionError("random bytes are no dump")
