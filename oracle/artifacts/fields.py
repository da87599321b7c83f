"""Typed, bounded and accounted access to metadata: what a reader did not ask for is reported, never ignored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from oracle.artifacts.container import Container, fail, name_list, show

LARGEST_DIM = 1 << 24
LARGEST_LAYERS = 1024
LARGEST_HEADS = 1024
WINDOWS = (2, 1 << 20)
LARGEST_CONTEXT = 1 << 31
BLOCK_SIZES = (2, 512)

# Words in a key's name that say it changes the mathematics.
DIALECT_WORDS = re.compile(
    r"gate|selector|conv|markov|confidence|sink|scale|scaling|norm|bias|mask|rope|rotary|window|causal|softcap|multiplier"
    r"|anchor|expert|quant|d2t|draft|layer|head|hidden|vocab|block|attn|attention|tap|yarn|moe"
)

Number = int | float
_ABSENT: Any = object()


class Fields:
    """The keys of one metadata object, read by name. ``where`` prefixes key names in messages."""

    def __init__(self, container: Container, values: dict[str, Any], where: str = "") -> None:
        self.container, self.values, self.where = container, values, where
        self.used: set[str] = set()
        self.typed = container.kind == "gguf"

    def has(self, key: str) -> bool:
        """True when the key is present and not null."""
        return self.values.get(key) is not None

    def refuse(self, key: str, expected: str, advice: str = "") -> Any:
        """Raise about ``key``: what was expected, and what is there."""
        found = show(self.values[key]) if key in self.values else "nothing"
        if self.typed and key in self.container.kinds:
            found = f"{self.container.kinds[key]} {found}"
        fail(self.container.metadata_path, f"key {self.where}{key}: expected {expected}, found {found}" + (f"; {advice}" if advice else ""))

    def _get(self, key: str, default: Any, expected: str) -> Any:
        self.used.add(key)
        if self.has(key):
            return self.values[key]
        if default is _ABSENT:
            fail(self.container.metadata_path, f"missing key {self.where}{key}: expected {expected}")
        return None

    def _kind(self, key: str, *kinds: str) -> bool:
        return not self.typed or self.container.kinds[key] in kinds

    def integer(self, key: str, low: int, high: int, default: Any = _ABSENT) -> Any:
        """A whole number in ``low..high`` (GGUF: typed u32); ``default`` when absent."""
        expected = f"a {'u32' if self.typed else 'whole number'} from {low} to {high}"
        value = self._get(key, default, expected)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not self._kind(key, "u32") or not low <= value <= high:
            self.refuse(key, expected)
        return value

    def window(self, key: str) -> int | None:
        """A sliding window within `WINDOWS`; None when it is absent or zero."""
        if isinstance(self.values.get(key), int | float) and self.values[key] == 0 and self.integer(key, 0, WINDOWS[1]) == 0:
            return None
        value: int | None = self.integer(key, *WINDOWS, default=None)
        return value

    def number(self, key: str, low: float, high: float, default: Any = _ABSENT) -> Any:
        """A finite number in ``low..high`` (GGUF: typed f32), as float; ``default`` when absent."""
        expected = f"a finite {'f32' if self.typed else 'number'} from {low:g} to {high:g}"
        value = self._get(key, default, expected)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self._kind(key, "f32"):
            self.refuse(key, expected)
        # Written so that NaN is refused too.
        if not low <= value <= high:
            self.refuse(key, expected)
        return shortest(value) if self.typed else float(value)

    def flag(self, key: str, default: Any = _ABSENT) -> Any:
        """A bool; ``default`` when absent."""
        value = self._get(key, default, "a bool")
        if value is None:
            return default
        return value if isinstance(value, bool) else self.refuse(key, "a bool")

    def text(self, key: str, default: Any = _ABSENT) -> Any:
        """A string; ``default`` when absent."""
        value = self._get(key, default, "a string")
        if value is None:
            return default
        return value if isinstance(value, str) else self.refuse(key, "a string")

    def integers(self, key: str, low: int, high: int, longest: int) -> tuple[int, ...]:
        """A non-empty list of distinct whole numbers in ``low..high`` (GGUF: array of u32 or i32)."""
        expected = f"a list of 1 to {longest} distinct whole numbers from {low} to {high}"
        value = self._get(key, _ABSENT, expected)
        if self.typed:
            if not self._kind(key, "array of u32", "array of i32"):
                self.refuse(key, expected)
            value = value[: longest + 1].tolist()
        if not isinstance(value, list) or not 1 <= len(value) <= longest:
            self.refuse(key, expected)
        if any(isinstance(v, bool) or not isinstance(v, int) or not low <= v <= high for v in value) or len(set(value)) != len(value):
            self.refuse(key, expected)
        return tuple(value)

    def counts(self, key: str, low: int, high: int, count: int, kinds: Sequence[str] = ("u32", "i32")) -> tuple[int, ...]:
        """An array of exactly ``count`` whole numbers in ``low..high``, of one of the GGUF ``kinds``; repeats are allowed."""
        expected = f"an array of {count} whole numbers from {low} to {high}"
        value = self._get(key, _ABSENT, expected)
        if self.typed:
            if not self._kind(key, *(f"array of {k}" for k in kinds)):
                self.refuse(key, expected)
            value = value[: count + 1].tolist()
        if not isinstance(value, list) or len(value) != count or any(type(v) is not int or not low <= v <= high for v in value):
            self.refuse(key, expected)
        return tuple(value)

    def flags(self, key: str, count: int) -> tuple[bool, ...]:
        """A list of exactly ``count`` bools."""
        expected = f"an array of {count} bools, one per layer"
        value = self._get(key, _ABSENT, expected)
        if isinstance(value, np.ndarray) and value.dtype == np.bool_:
            value = value[: count + 1].tolist()
        if not isinstance(value, list) or len(value) != count or not all(isinstance(v, bool) for v in value):
            self.refuse(key, expected)
        return tuple(value)

    def words(self, key: str, choices: Sequence[str], count: int) -> tuple[str, ...]:
        """A list of exactly ``count`` strings out of ``choices``."""
        expected = f"a list of {count} entries, each {' or '.join(choices)}"
        value = self._get(key, _ABSENT, expected)
        if not isinstance(value, list) or len(value) != count or not all(isinstance(v, str) and v in choices for v in value):
            self.refuse(key, expected)
        return tuple(value)

    def child(self, key: str) -> Fields:
        """The object under ``key`` (empty when absent)."""
        value = self._get(key, None, "an object")
        if value is not None and not isinstance(value, dict):
            self.refuse(key, "an object")
        return Fields(self.container, value or {}, f"{self.where}{key}.")

    def must_be(self, key: str, *accepted: Any) -> None:
        """``key`` is absent, null, or one of ``accepted`` (its only supported values)."""
        self.used.add(key)
        if self.has(key) and not any(type(self.values[key]) is type(a) and self.values[key] == a for a in accepted):
            self.refuse(key, " or ".join(show(a) for a in accepted), "this family supports nothing else")

    def ignore(self, *keys: str) -> None:
        """Keys that are known to change nothing."""
        self.used.update(keys)

    def unused(self, prefix: str = "") -> list[str]:
        """Keys with ``prefix`` that nobody asked for, null ones left out."""
        return [k for k in self.values if k.startswith(prefix) and k not in self.used and self.values[k] is not None]

    def finish(self, prefix: str = "", strict: bool = True) -> list[str]:
        """Refuse what was not consumed: every key when ``strict``, else those whose name suggests a dialect change.

        Returns the keys that were left unread.
        """
        left = self.unused(prefix)
        wrong = left if strict else [k for k in left if DIALECT_WORDS.search(k.lower())]
        if wrong:
            names = name_list(self.where + k for k in wrong)
            fail(self.container.metadata_path, f"keys that this family does not know: {names}; remove them or choose another --family")
        return left


def shortest(value: float) -> float:
    """The float64 that a person would have written for the f32 ``value``: 1e-5 for 0.00001 stored as f32.

    Engines read such a constant as f32; the two differ by less than half an ulp of f32.
    """
    return float(str(np.float32(value)))
