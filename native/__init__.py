"""Compiled candidates behind one C ABI (``include/dlab.h``), loaded with cffi.

>>> import native
>>> with native.open_library("cpu").context(threads=2) as ctx:
...     y = ctx.linear(x, native.Stored.of(w))

A library is a name of this project's own (``cpu`` ...) or the path of anybody's shared library that implements the header. It is
checked before it is used: required symbols, ABI version, struct layout, source hash of our own, and that loading it left the
processor's floating-point mode alone.
"""

from native.context import Context
from native.drafter import Drafter, Proposal
from native.errors import NativeError
from native.library import Info, Library
from native.loader import open_library
from native.tensors import DTYPES, Stored

__all__ = ["DTYPES", "Context", "Drafter", "Info", "Library", "NativeError", "Proposal", "Stored", "open_library"]
