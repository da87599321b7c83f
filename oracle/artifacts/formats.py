"""Weight formats by name: how many values and bytes a block has, which are plain, and which are read through the ``gguf`` package.

Source: `specs/native-backends.md` section 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from oracle.artifacts import package_blocks


@dataclass(frozen=True)
class Format:
    """``name``; ``ggml_type``: the id in GGUF files; ``values`` per block and ``bytes`` per block."""

    name: str
    ggml_type: int
    values: int
    bytes: int


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("f32", 0, 1, 4),
        Format("f16", 1, 1, 2),
        Format("bf16", 30, 1, 2),
        Format("f64", 28, 1, 8),
        Format("q4_0", 2, 32, 18),
        Format("q4_1", 3, 32, 20),
        Format("q5_0", 6, 32, 22),
        Format("q8_0", 8, 32, 34),
        Format("q4_k", 12, 256, 144),
        Format("q5_k", 13, 256, 176),
        Format("q6_k", 14, 256, 210),
    )
}
PLAIN = ("f32", "f16", "bf16", "f64")
# Read only, by the gguf package.
READ_ONLY: dict[str, Format] = {name: Format(name, *layout) for name, layout in package_blocks.LAYOUTS.items()}
DECODABLE: dict[str, Format] = FORMATS | READ_ONLY


def format_of(stored: str) -> Format:
    """The format named ``stored``; ValueError lists the known ones."""
    try:
        return DECODABLE[stored]
    except KeyError:
        raise ValueError(f"unknown weight format {stored!r}: expected one of {', '.join(DECODABLE)}") from None


def readable(stored: str) -> bool:
    """Whether `blocks.decode` reads the format ``stored`` here: ours always, the rest where the installed gguf package can."""
    return stored in FORMATS or package_blocks.available(stored)


def row_bytes(stored: str, width: int) -> int:
    """Bytes of one row of ``width`` values. ValueError when ``width`` is not a multiple of the block."""
    f = format_of(stored)
    if width < 1 or width % f.values:
        raise ValueError(f"a row of {width} values cannot be stored as {stored}: expected a positive multiple of {f.values}")
    return width // f.values * f.bytes
