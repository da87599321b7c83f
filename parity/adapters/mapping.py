"""Mapping files: which of an engine's tensors is which stage, how its axes lie, and which tensors are knowingly left out.

A mapping is a TOML file (`docs/engines.md` describes it); shipped ones lie in ``mappings/ENGINE.FAMILY.ROLE.toml``. Nothing is passed over
silently: a tensor without a rule is reported, and so is a rule that no tensor met.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.recipes import ROPE_STYLES
from parity.errors import UsageError

SCHEMA = "dflash-parity-mapping/1"
SHIPPED = Path(__file__).parent / "mappings"
MAX_BYTES, MAX_RULES, MAX_LAYER = 1 << 20, 4096, 1 << 16
AXES = ("row", "cell", "head", "dim", "vocab", "expert", "rank", "stream", "block", "key", "rest")
TOP = {"schema", "engine", "family", "role", "layer_base", "map", "ignore", "unseen"}
MAP = {"name", "stage", "axes", "op", "source", "step", "pairs", "otherwise", "also"}
IGNORE, UNSEEN = {"name", "reason", "op"}, {"stage", "reason"}
NOWHERE = "nowhere"
LEADING = ("row", "rank")
Stages = dict[tuple[int, str], tuple[tuple[str, ...], tuple[int, ...]]]
STEPS = ("append", "propose", "window")


class MappingError(UsageError):
    """A mapping file that is not one, or a tensor that does not fit its rule."""


@dataclass(frozen=True)
class Rule:
    """``pattern`` matches a tensor's whole name; ``op``, ``source`` (the name of one of its inputs) and ``step`` (the kind) narrow it.

    The layer is captured from the name or from the source.

    ``axes``: of the recorded tensor, slowest first; ``head.dim`` is one axis that holds two, ``rest`` one that holds all not named.
    ``pairs``: how its rotated dims pair. ``others``: further stages behind ``stage`` on its last axis (a fused product).
    ``otherwise``: the stage it is in layers that have not ``stage``, or ``nowhere``. ``also``: another rule gives the stage elsewhere.
    """

    pattern: re.Pattern[str]
    name: str
    stage: str
    axes: tuple[str, ...] = ()
    op: str | None = None
    source: re.Pattern[str] | None = None
    step: str | None = None
    pairs: str | None = None
    others: tuple[str, ...] = ()
    otherwise: str | None = None
    also: bool = False

    def matches(self, name: str, op: str, sources: tuple[str, ...], step: str) -> dict[str, str] | None:
        """What the name and the source captured, or None where the rule is not about this tensor."""
        found = self.pattern.fullmatch(name)
        if found is None or self.op not in (None, op) or self.step not in (None, step):
            return None
        if self.source is None:
            return found.groupdict()
        source = next((match for s in sources if (match := self.source.fullmatch(s))), None)
        return None if source is None else found.groupdict() | source.groupdict()


@dataclass(frozen=True)
class Place:
    """Where a tensor goes: the stage's path (the first, where it holds several), and the rule that says so."""

    path: str
    rule: Rule
    others: tuple[str, ...] = ()
    otherwise: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.others)

    def parts(self, stages: Stages, step: int) -> list[tuple[Place, slice]]:
        """The stages that the tensor holds in a step of a case, each with its part of the tensor's last axis; empty where it is none
        there, as the mapping says (``nowhere``)."""
        if self.otherwise is not None and (step, self.path) not in stages:
            return [] if self.otherwise == NOWHERE else [(Place(self.otherwise, self.rule), slice(None))]
        if not self.others:
            return [(self, slice(None))]
        found, start = [], 0
        for path in self.paths:
            axes, shape = stages.get((step, path), ((), ()))
            width = int(np.prod([n for axis, n in zip(axes, shape, strict=True) if axis not in LEADING]))
            found.append((Place(path, self.rule), slice(start, start + width)))
            start += width
        return found


@dataclass
class Mapping:
    """The rules of one engine and family, and what became of them in a run: ``met`` and ``unmapped`` count tensors by name."""

    file: Path
    engine: str
    family: str
    role: str
    layer_base: int
    rules: tuple[Rule, ...]
    ignored: tuple[Rule, ...]
    unseen: tuple[re.Pattern[str], ...] = ()
    met: Counter[str] = field(default_factory=Counter)
    unmapped: Counter[str] = field(default_factory=Counter)

    def place(self, name: str, op: str = "", sources: tuple[str, ...] = (), step: str = "window") -> Place | None:
        """The stage of the tensor ``name`` that ``op`` makes from ``sources``, or None (ignored, or counted as unmapped)."""
        found = [(rule, groups) for rule in self.rules if (groups := rule.matches(name, op, sources, step)) is not None]
        if len(found) > 1:
            both = " and ".join(repr(rule.stage) for rule, _ in found)
            raise MappingError(f"{self.file}: the tensor {name!r} ({op}) is mapped twice, to {both}: narrow one with op or source")
        if not found:
            if not self.is_ignored(name, step, op, sources):
                self.unmapped[f"{re.sub(r'[0-9]+', '{n}', name)} ({op})"] += 1
            return None
        rule, groups = found[0]
        self.met[rule.name + rule.stage] += 1
        layer = groups.get("layer")
        number = "" if layer is None else str(int(layer) - self.layer_base)
        others = tuple(o.replace("{layer}", number) for o in rule.others)
        otherwise = None if rule.otherwise is None else rule.otherwise.replace("{layer}", number)
        return Place(rule.stage.replace("{layer}", number), rule, others, otherwise)

    def is_ignored(self, name: str, step: str = "window", op: str = "", sources: tuple[str, ...] = ()) -> bool:
        """Whether the tensor is knowingly left out."""
        return any(rule.matches(name, op, sources, step) is not None for rule in self.ignored)

    def hidden(self, path: str) -> bool:
        """Whether the mapping says that its engine cannot show the stage ``path``."""
        return any(pattern.fullmatch(path) for pattern in self.unseen)

    @property
    def unmet(self) -> list[str]:
        """Stages whose rule no tensor met."""
        return [rule.stage for rule in self.rules if not self.met[rule.name + rule.stage]]


def load_mapping(file: Path) -> Mapping:
    """Read and check a mapping file. `MappingError` names the place and what was expected."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise MappingError(f"{file}: larger than {MAX_BYTES} bytes: not a mapping")
        raw = tomllib.loads(file.read_text())
    except OSError as e:
        raise MappingError(f"{file}: cannot be read: {e.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as e:
        raise MappingError(f"{file}: not TOML: {e}") from None
    if raw.get("schema") != SCHEMA:
        raise MappingError(f"{file}: expected schema = {SCHEMA!r}, found {raw.get('schema')!r}")
    _known(file, "the file", raw, TOP)
    base = raw.get("layer_base", 0)
    if base not in (0, 1) or isinstance(base, bool):
        raise MappingError(f"{file}: layer_base: expected 0 or 1, found {base!r}")
    rules = tuple(_rule(file, i, r) for i, r in enumerate(_tables(file, raw, "map")))
    ignored = tuple(_ignored(file, i, r) for i, r in enumerate(_tables(file, raw, "ignore")))
    unseen = tuple(_unseen(file, i, r) for i, r in enumerate(_tables(file, raw, "unseen")))
    for stage, count in Counter(stage for r in rules if not r.also for stage in (r.stage, *r.others)).items():
        if count > 1:
            raise MappingError(f"{file}: the stage {stage!r} has {count} rules; expected one")
    engine, family, role = (_text(file, "the file", raw, key) for key in ("engine", "family", "role"))
    return Mapping(file, engine, family, role, base, rules, ignored, unseen)


def shipped(engine: str, family: str, role: str) -> Mapping:
    """The mapping in the package for ``engine``, ``family`` and ``role``. `MappingError` lists those there are."""
    file = SHIPPED / f"{engine}.{family}.{role}.toml"
    if not file.exists():
        known = sorted(f.stem.removeprefix(f"{engine}.").replace(".", " ") for f in SHIPPED.glob(f"{engine}.*.toml"))
        raise MappingError(f"no mapping of {engine} tensors for a {family} {role}: there are {', '.join(known)}; name one with --mapping")
    return load_mapping(file)


def arranged(
    where: str, values: NDArray[Any], place: Place, axes: tuple[str, ...], shape: tuple[int, ...], style: str | None
) -> NDArray[Any]:
    """``values``, axes as the rule says, as the stage has them: ``axes`` and ``shape``. A cache's spare cells are cut off, and so are
    axes of one entry in front of those the rule names.

    ``style``: how the oracle pairs rotated dims; a rule with other ``pairs`` is put in that order. `MappingError` where it does not fit.
    """
    rule = place.rule
    rest = ".".join(a for a in axes if a not in [part for axis in rule.axes for part in axis.split(".")])
    named = tuple(rest if axis == "rest" else axis for axis in rule.axes)
    while values.ndim > len(named) and values.shape[0] == 1:
        values = values[0]
    if values.ndim != len(named):
        raise MappingError(f"{where}: has {values.ndim} axes {list(values.shape)}, the mapping names {', '.join(rule.axes)}")
    have = tuple(part for axis in named for part in axis.split("."))
    if sorted(have) != sorted(axes):
        raise MappingError(f"{where}: mapped with the axes {', '.join(rule.axes)}; {place.path} has {', '.join(axes)}")
    want = dict(zip(axes, shape, strict=True))
    cut = values[tuple(slice(want[a]) if a == "cell" else slice(None) for a in named)]
    for axis, size in zip(named, cut.shape, strict=True):
        expected = int(np.prod([want[part] for part in axis.split(".")]))
        if size != expected:
            raise MappingError(f"{where}: its axis {axis} has {size} entries, {place.path} has {expected}")
    split = cut.reshape([want[a] for a in have])
    moved = np.ascontiguousarray(split.transpose([have.index(a) for a in axes]))
    return moved if rule.pairs in (None, style) or style is None else _repaired(moved, style)


def _repaired(x: NDArray[Any], style: str) -> NDArray[Any]:
    """The last axis from the other pairing into ``style``: neighbours apart by half the width, or the halves interleaved."""
    if style == "neox":
        return np.ascontiguousarray(np.concatenate([x[..., 0::2], x[..., 1::2]], -1))
    half = x.shape[-1] // 2
    return np.ascontiguousarray(np.stack([x[..., :half], x[..., half:]], -1).reshape(x.shape))


def _tables(file: Path, raw: dict[str, Any], key: str) -> list[dict[str, Any]]:
    tables = raw.get(key, [])
    if not isinstance(tables, list) or len(tables) > MAX_RULES or not all(isinstance(t, dict) for t in tables):
        raise MappingError(f"{file}: {key}: expected at most {MAX_RULES} tables [[{key}]]")
    return tables


def _rule(file: Path, index: int, raw: dict[str, Any]) -> Rule:
    where = f"[[map]] number {index + 1}"
    _known(file, where, raw, MAP)
    name, (stage, *others) = _text(file, where, raw, "name"), _stages(file, where, raw)
    where = f"[[map]] {name!r}"
    op, source, step = (_text(file, where, raw, key) if key in raw else None for key in ("op", "source", "step"))
    if any((name + (source or "")).count("{layer}") != s.count("{layer}") for s in (stage, *others)):
        raise MappingError(f"{file}: {where}: expected {{layer}} once in name or source and in stage, or nowhere; the stage is {stage!r}")
    if step not in (None, *STEPS):
        raise MappingError(f"{file}: {where}: step: expected one of {', '.join(STEPS)}, found {step!r}")
    axes = raw.get("axes")
    parts = [part for axis in axes for part in str(axis).split(".")] if isinstance(axes, list) else []
    if not isinstance(axes, list) or not parts or any(p not in AXES for p in parts) or len(set(parts)) != len(parts):
        raise MappingError(f"{file}: {where}: axes: expected different names of {', '.join(AXES)}, slowest first, found {axes!r}")
    pairs = raw.get("pairs")
    if pairs not in (None, *ROPE_STYLES):
        raise MappingError(f"{file}: {where}: pairs: expected {' or '.join(ROPE_STYLES)}, found {pairs!r}")
    also = raw.get("also", False)
    if not isinstance(also, bool):
        raise MappingError(f"{file}: {where}: also: expected true or false, found {also!r}")
    otherwise = _text(file, where, raw, "otherwise") if "otherwise" in raw else None
    from_source = None if source is None else _pattern(file, where, source)
    return Rule(_pattern(file, where, name), name, stage, tuple(axes), op, from_source, step, pairs, tuple(others), otherwise, also)


def _stages(file: Path, where: str, raw: dict[str, Any]) -> list[str]:
    """The stage, or the stages that lie behind each other on the last axis."""
    value = raw.get("stage")
    if isinstance(value, list) and len(value) > 1 and all(isinstance(s, str) and s for s in value):
        return value
    return [_text(file, where, raw, "stage")]


def _unseen(file: Path, index: int, raw: dict[str, Any]) -> re.Pattern[str]:
    where = f"[[unseen]] number {index + 1}"
    _known(file, where, raw, UNSEEN)
    stage = _text(file, where, raw, "stage")
    _text(file, where, raw, "reason")
    return _pattern(file, where, stage)


def _ignored(file: Path, index: int, raw: dict[str, Any]) -> Rule:
    where = f"[[ignore]] number {index + 1}"
    _known(file, where, raw, IGNORE)
    name = _text(file, where, raw, "name")
    _text(file, where, raw, "reason")
    return Rule(_pattern(file, where, name), name, "", op=_text(file, where, raw, "op") if "op" in raw else None)


def _pattern(file: Path, where: str, name: str) -> re.Pattern[str]:
    """``{layer}`` and ``{n}`` stand for a number, ``{any}`` for anything; the rest is literal."""
    found = re.split(r"(\{[^}]*\})", name)
    kinds = {"{layer}": r"(?P<layer>[0-9]{1,5})", "{n}": "[0-9]+", "{any}": ".*"}
    for part in found:
        if part.startswith("{") and part not in kinds:
            raise MappingError(f"{file}: {where}: expected {', '.join(kinds)} in a name, found {part}")
    return re.compile("".join(kinds.get(part, re.escape(part)) for part in found))


def _known(file: Path, where: str, raw: dict[str, Any], known: set[str]) -> None:
    unknown = sorted(raw.keys() - known)
    if unknown:
        raise MappingError(f"{file}: {where}: unknown key {unknown[0]!r}; expected {', '.join(sorted(known))}")


def _text(file: Path, where: str, raw: dict[str, Any], key: str) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not value:
        raise MappingError(f"{file}: {where}: {key}: expected text, found {value!r}")
    return value
