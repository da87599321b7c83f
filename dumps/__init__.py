"""Stage dumps: the recorded stages of one run, in a directory that an engine appends to or in one packed file."""

from pathlib import Path

from .dump import Dump, StageRecord
from .errors import DumpError
from .packed import pack, unpack
from .reader import announced, open_dump
from .writer import DumpWriter

__all__ = ["Dump", "DumpError", "DumpWriter", "StageRecord", "announced", "open_dump", "pack", "stage_dump_header", "unpack"]


def stage_dump_header() -> Path:
    """The C header that writes a dump directory."""
    return Path(__file__).with_name("stage_dump.h")
