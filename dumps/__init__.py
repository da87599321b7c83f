"""Stage dumps: the recorded stages of one run, in a directory that an engine appends to or in one packed file."""

from .dump import Dump, StageRecord
from .errors import DumpError
from .packed import pack, unpack
from .reader import announced, open_dump
from .writer import DumpWriter

__all__ = ["Dump", "DumpError", "DumpWriter", "StageRecord", "announced", "open_dump", "pack", "unpack"]
