"""An engine's round trace: JSON lines, a header and then one line per round, read strictly and bounded (`docs/round-trace.md`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.speculation.trace import SCHEMA, Trace
from parity.errors import UsageError
from parity.identity import Placement, as_placement, moved

MAX_LINE, MAX_ROUNDS, MAX_IDS, MAX_ID, MAX_FILE = 64 << 20, 1 << 18, 1 << 20, 1 << 31, 512 << 20
FLOATS = ("<f4", "<f2", "<f8")


@dataclass(frozen=True, eq=False)
class LogitRow:
    """One recorded row of logits: ``values``, of every token, or of ``ids`` only (the largest of them)."""

    values: NDArray[np.float64]
    ids: NDArray[np.int64] | None = None

    @property
    def pick(self) -> int:
        """The first largest; the lowest id where only some were recorded."""
        best = np.flatnonzero(self.values == self.values.max())
        return int(best[0] if self.ids is None else self.ids[best].min())

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.values).all())

    def of(self, token: int) -> float | None:
        """The recorded logit of ``token``."""
        if self.ids is None:
            return float(self.values[token]) if 0 <= token < len(self.values) else None
        at = np.flatnonzero(self.ids == token)
        return float(self.values[at[0]]) if len(at) else None


@dataclass(frozen=True, eq=False)
class Round:
    """One line of a trace; None for what the engine did not record. The fields are those of `oracle.speculation.trace.RoundRecord`."""

    line: int
    position: int
    anchor: int
    proposals: tuple[int, ...]
    window: tuple[int, ...]
    accepted: int
    bonus: int
    picks: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    emitted: tuple[int, ...] | None = None
    kept: int | None = None
    context_start: int | None = None
    context: tuple[int, ...] | None = None
    target_rows: tuple[int, ...] | None = None
    draft_rows: int | None = None
    fallback: bool = False
    draft_logits: tuple[LogitRow, ...] | None = None
    target_logits: tuple[LogitRow, ...] | None = None
    taps: NDArray[np.float64] | None = None
    placement: Placement | None = None


@dataclass(frozen=True, eq=False)
class Foreign:
    """A read trace. ``prompt`` and ``first`` (the token after it) are None where the header does not say.

    ``taps`` [row, taps * target hidden], here and in every round: the features that the drafter was given. ``placement``, likewise: which
    weights ran where.
    """

    source: str
    layout: str
    publishes: str
    judge: str
    rounds: tuple[Round, ...]
    prompt: tuple[int, ...] | None = None
    first: int | None = None
    mask: int | None = None
    context_rows: tuple[int, ...] | None = None
    stops: tuple[int, ...] = ()
    max_new: int | None = None
    context_start: int | None = None
    chooser: str = "argmax"
    taps: NDArray[np.float64] | None = None
    header: dict[str, Any] = field(default_factory=dict)
    placement: Placement = field(default_factory=dict)

    @property
    def moves(self) -> tuple[int, str] | None:
        """The first round whose weights lie elsewhere than the header says, and what moved."""
        for number, r in enumerate(self.rounds):
            if r.placement is not None and (what := moved(self.placement, r.placement)):
                return number, what
        return None

    @property
    def prompt_rows(self) -> int | None:
        return None if self.prompt is None else len(self.prompt)


def read(path: Path) -> Foreign:
    """The trace at ``path``. `UsageError` names the line and what is wrong with it."""
    try:
        with path.open("rb") as stream:
            return _trace(str(path), _lines(str(path), stream), path.parent)
    except OSError as e:
        raise UsageError(f"{path}: cannot be read: {e.strerror}") from None


def of_trace(trace: Trace, source: str = "this run") -> Foreign:
    """A session's own trace, by the same reader; its logits ride along."""
    made = _trace(source, ((i, json.loads(line)) for i, line in enumerate(trace.lines().splitlines(), 1)))
    rounds = []
    for r, own in zip(made.rounds, trace.rounds, strict=True):
        logits = {n: _logit_rows(getattr(own, n), ids) for n, ids in (("draft_logits", trace.draft_ids), ("target_logits", None))}
        rounds.append(Round(**(vars(r) | logits | {"taps": own.taps})))
    return Foreign(**(vars(made) | {"rounds": tuple(rounds), "taps": trace.taps}))


def _logit_rows(rows: Any, ids: Any) -> tuple[LogitRow, ...] | None:
    return None if rows is None else tuple(LogitRow(row, None if ids is None else np.asarray(ids, np.int64)) for row in rows)


def _lines(source: str, stream: Any) -> Iterator[tuple[int, Any]]:
    number = 0
    while raw := stream.readline(MAX_LINE + 1):
        number += 1
        if len(raw) > MAX_LINE:
            raise UsageError(f"{source}:{number}: longer than {MAX_LINE} bytes: expected one round as one line of JSON")
        if number > MAX_ROUNDS:
            raise UsageError(f"{source}: more than {MAX_ROUNDS} lines")
        if not raw.strip():
            continue
        try:
            yield number, json.loads(raw)
        except (ValueError, RecursionError) as e:
            raise UsageError(f"{source}:{number}: not JSON ({str(e)[:120]})") from None


def _trace(source: str, lines: Iterator[tuple[int, Any]], folder: Path | None = None) -> Foreign:
    """``folder``: where the files that the lines name lie."""
    number, head = next(lines, (1, None))
    if not isinstance(head, dict) or head.get("schema") != SCHEMA:
        raise UsageError(f"{source}:{number}: expected a header with schema {SCHEMA!r} (docs/round-trace.md)")
    h = _Fields(f"{source}:{number}", head, folder)
    layout = h.choice("layout", ("fill_in", "predict_next"), "fill_in")
    publishes = "window" if head.get("schedule") == "muser" else "picks"
    rounds = tuple(_round(_Fields(f"{source}:{n}", raw, folder), n) for n, raw in lines)
    if not rounds:
        raise UsageError(f"{source}: a header and no round: nothing to check")
    judge = h.text("judge", "greedy")
    fixed = {n: h.integer(n) for n in ("first", "mask", "max_new", "context_start")}
    return Foreign(
        source, layout, publishes, judge, rounds, h.ids("prompt"), context_rows=h.ids("context_rows"), stops=h.ids("stops") or (),
        header={k: v for k, v in head.items() if k != "taps"}, chooser=h.text("chooser", "argmax"), taps=h.rows("taps"),
        placement=h.placement() or {}, **fixed,
    )  # fmt: skip


def _round(f: _Fields, line: int) -> Round:
    position, anchor, accepted, bonus = (f.need(n, f.integer(n)) for n in ("position", "anchor", "accepted", "bonus"))
    proposals, window = (f.need(n, f.ids(n)) for n in ("proposals", "window"))
    if not window:
        raise UsageError(f"{f.where}: window: expected at least the anchor, found nothing")
    more: dict[str, Any] = {n: f.ids(n) for n in ("picks", "block", "emitted", "context", "target_rows")}
    more |= {n: f.integer(n) for n in ("kept", "context_start", "draft_rows")}
    more |= {n: f.logits(n) for n in ("draft_logits", "target_logits")}
    more |= {"fallback": f.boolean("fallback"), "taps": f.rows("taps"), "placement": f.placement()}
    return Round(line, position, anchor, proposals, window, accepted, bonus, **more)


class _Fields:
    """One JSON object; every getter refuses another type by name."""

    def __init__(self, where: str, raw: Any, folder: Path | None = None) -> None:
        if not isinstance(raw, dict):
            raise UsageError(f"{where}: expected a JSON object, found {type(raw).__name__}")
        self.where, self.raw, self.folder = where, raw, folder

    def need(self, name: str, value: Any) -> Any:
        if value is None:
            raise UsageError(f"{self.where}: {name}: missing; every round has position, anchor, proposals, window, accepted and bonus")
        return value

    def _wrong(self, name: str, expected: str) -> UsageError:
        return UsageError(f"{self.where}: {name}: expected {expected}, found {str(self.raw.get(name))[:60]!r}")

    def integer(self, name: str) -> int | None:
        value = self.raw.get(name)
        if value is not None and not _whole(value):
            raise self._wrong(name, "a whole number")
        return value

    def boolean(self, name: str) -> bool:
        if not isinstance(self.raw.get(name, False), bool):
            raise self._wrong(name, "true or false")
        return bool(self.raw.get(name, False))

    def text(self, name: str, default: str) -> str:
        if not isinstance(self.raw.get(name, default), str):
            raise self._wrong(name, "a string")
        return str(self.raw.get(name, default))

    def choice(self, name: str, known: tuple[str, ...], default: str) -> str:
        if self.text(name, default) not in known:
            raise self._wrong(name, " or ".join(known))
        return self.text(name, default)

    def ids(self, name: str) -> tuple[int, ...] | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > MAX_IDS or not all(_whole(i) for i in value):
            raise self._wrong(name, "a list of whole numbers")
        return tuple(value)

    def rows(self, name: str) -> NDArray[np.float64] | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if isinstance(value, str) and self.folder is not None:
            return self._stored(name, value, self.folder)
        widths = {len(row) if isinstance(row, list) else -1 for row in value} if isinstance(value, list) else {-1}
        if -1 in widths or len(widths) > 1 or not all(_number(v) for row in value for v in row):
            raise self._wrong(name, "rows of numbers, all equally long, or the name of a .npy file beside the trace")
        try:
            return np.asarray(value, np.float64).reshape(len(value), max(widths, default=0))
        except OverflowError:
            raise self._wrong(name, "numbers that double precision holds") from None

    def _stored(self, name: str, file: str, folder: Path) -> NDArray[np.float64]:
        """Rows in a .npy file beside the trace; only its header is believed, and only what it says is read."""
        from dumps.npy import header_text, parse_header

        where = f"{self.where}: {name}"
        if Path(file).name != file or not file.endswith(".npy"):
            raise self._wrong(name, "the plain name of a .npy file beside the trace")
        try:
            with (folder / file).open("rb") as stream:
                text, offset = header_text(stream, f"{where}: {file}")
                descr, fortran, shape = parse_header(text, f"{where}: {file}")
                if descr not in FLOATS or fortran or len(shape) != 2:
                    raise UsageError(f"{where}: {file}: expected rows of float16, float32 or float64, found {descr} {list(shape)}")
                size = shape[0] * shape[1] * int(descr[-1])
                if size > MAX_FILE or (folder / file).stat().st_size != offset + size:
                    raise UsageError(f"{where}: {file}: expected {size} bytes of rows, at most {MAX_FILE}, behind its header")
                return np.frombuffer(stream.read(size), descr).reshape(shape).astype(np.float64)
        except OSError as e:
            raise UsageError(f"{where}: {file}: cannot be read: {e.strerror}") from None

    def placement(self) -> Placement | None:
        said = self.raw.get("placement")
        return None if said is None else as_placement(said, f"{self.where}: placement")

    def logits(self, name: str) -> tuple[LogitRow, ...] | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > MAX_IDS:
            raise self._wrong(name, "a list of rows")
        return tuple(self._row(name, row) for row in value)

    def _row(self, name: str, row: Any) -> LogitRow:
        some = isinstance(row, dict)
        values, ids = (row.get("logits"), row.get("ids")) if some else (row, [])
        fine = isinstance(values, list) and values and all(_number(v) for v in values)
        if not fine or not isinstance(ids, list) or not all(_whole(i) for i in ids) or (some and len(ids) != len(values)):
            raise self._wrong(name, 'rows that are lists of numbers or {"ids": […], "logits": […]} of equal lengths')
        try:
            return LogitRow(np.asarray(values, np.float64), np.asarray(ids, np.int64) if some else None)
        except OverflowError:
            raise self._wrong(name, "numbers that double precision holds") from None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < MAX_ID
