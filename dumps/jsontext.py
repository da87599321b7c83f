"""Strict, bounded JSON: no duplicate keys, no NaN, limited depth and size (RFC 8259, narrowed)."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from .errors import DumpError, shown

MAX_DEPTH = 64

# Possessive, and content with a missing closing quote: the scan stays linear on hostile text.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


class _Refused(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Refused(f"the key {shown(repeated)} appears twice in one object")
    return result


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Refused(f"the number {shown(text)} does not fit a float64")
    return value


def _constant(text: str) -> NoReturn:
    raise _Refused(f"{text} is not JSON")


def _check_depth(text: str, max_depth: int) -> None:
    if text.count("[") + text.count("{") <= max_depth:
        return
    depth = 0
    for match in _TOKEN.finditer(text):
        first = match.group()[0]
        if first in "[{":
            depth += 1
            if depth > max_depth:
                raise _Refused(f"it is nested deeper than {max_depth} levels")
        elif first in "]}":
            depth -= 1


def parse(data: bytes, where: str, max_depth: int = MAX_DEPTH) -> Any:
    """The value of the UTF-8 JSON text ``data``.

    Raises `DumpError`, starting with ``where``, on anything but exactly one well-formed value whose objects have
    unique keys, whose numbers are finite and whose nesting is at most ``max_depth``.
    """
    try:
        text = data.decode("utf-8")
        _check_depth(text, max_depth)
        return json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise DumpError(f"{where}: expected UTF-8 JSON, found the byte 0x{data[error.start]:02x} at offset {error.start}") from None
    except json.JSONDecodeError as error:
        found = shown(error.doc[error.pos : error.pos + 20])
        raise DumpError(f"{where}: expected JSON, found {found} ({error.msg}, column {error.colno})") from None
    except (_Refused, RecursionError) as error:
        raise DumpError(f"{where}: expected strict JSON, but {error}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise DumpError(f"{where}: expected strict JSON, but {shown(str(error), 160)}") from None


def render(value: Any, where: str, max_depth: int = MAX_DEPTH) -> str:
    """``value`` as one line of ASCII JSON that `parse` reads back equal (tuples become lists).

    Raises `DumpError` for what JSON cannot say: other types, keys that are not strings, non-finite numbers, cycles, depth.
    """
    _check_plain(value, where, max_depth)
    try:
        return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise DumpError(f"{where}: {shown(str(error), 160)}") from None


def _check_plain(value: Any, where: str, depth_left: int) -> None:
    if value is None or isinstance(value, (str, bool)) or type(value) is int:
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise DumpError(f"{where}: JSON has no {value}; write it as a string or null")
        return
    if depth_left == 0:
        raise DumpError(f"{where}: nested deeper than {MAX_DEPTH} levels (or in a cycle)")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise DumpError(f"{where}: the key {shown(key)} must be a string")
            _check_plain(item, f"{where}.{key[:40]}", depth_left - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_plain(item, where, depth_left - 1)
    else:
        found = f"{type(value).__name__} {shown(value)}"
        raise DumpError(f"{where}: expected plain JSON values, found {found}; convert it to int, float, str or list")
