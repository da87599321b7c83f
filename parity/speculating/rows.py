"""`parity probe rows`: does a window of w rows give the bytes of w windows of one row, for any candidate, at every width?

Source: `specs/laguna.md` section 6 and the weaknesses it names (key by weights and backend, every width, past the window). Each arm is a
case of its own, run by the candidate in a worker process and read from its dump. The chain arm runs twice first: a candidate that does not
repeat itself cannot be told apart from one whose windows differ.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oracle.models import Target, open_target
from oracle.ops.argmax import first_argmax
from parity import candidates
from parity.cage import Limits, run_worker
from parity.case import Case, window
from parity.emulated import read_findings
from parity.errors import CandidateError, UsageError
from parity.report import EXIT, plain
from parity.speculating.noise import declared, row_noise

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA, STAGE = "dflash-parity-rows/1", "target.logits"
SHORT = 8
DRAWS = 3


@dataclass(frozen=True)
class Flip:
    """An argmax that differs between the arms: the chain's choice, the block's, the oracle's gap and its noise; tie or divergence."""

    row: int
    chain: int
    block: int
    gap: float
    noise: float
    verdict: str


@dataclass(frozen=True)
class Width:
    """One width after one context. ``first``: the first row whose bytes differ, None where all are equal."""

    width: int
    context: int
    draw: int
    rows: int
    first: int | None
    differing_bytes: int
    total_bytes: int
    elements: int
    largest_ulps: int
    flips: list[Flip]
    prefill_differs: bool

    @property
    def exact(self) -> bool:
        return self.first is None and not self.prefill_differs


@dataclass
class RowsReport:
    """``allowed``: whether an engine may serve blocks of these widths: exact at every one, or overridden. Fail-closed."""

    key: dict[str, Any]
    widths: list[Width]
    control: str
    override: bool = False
    remembered: bool = False
    known_exact: bool = False
    reason: str = ""
    geometry: dict[str, Any] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        judged = bool(self.widths) and all(w.exact for w in self.widths)
        return not self.control and not self.reason and (self.known_exact if self.remembered else judged)

    @property
    def allowed(self) -> bool:
        return self.exact or self.override

    @property
    def verdict(self) -> str:
        if self.reason:
            return "inconclusive"
        return "parity" if self.exact else "divergence"

    @property
    def exit_status(self) -> int:
        return 0 if self.allowed else EXIT[self.verdict]

    def to_json(self) -> dict[str, Any]:
        head = {"schema": SCHEMA, "verdict": self.verdict, "allowed": self.allowed, "exact": self.exact, "exit_status": self.exit_status}
        out: dict[str, Any] = plain(head | asdict(self))
        return out


def tokens(draw: int, prompt: int, block: int, vocab: int) -> tuple[list[int], list[int]]:
    """Prompt and block of one draw (section 6.1): salt = 977 draw + 1, (7 i + 1 + salt) and (13 i + 3 + salt) modulo the vocabulary."""
    salt = 977 * draw + 1
    return [(7 * i + 1 + salt) % vocab for i in range(prompt)], [(13 * i + 3 + salt) % vocab for i in range(block)]


def probe(
    model: Path,
    candidate: str,
    largest: int,
    *,
    contexts: Sequence[int] = (),
    draws: int = 1,
    arithmetic: str | None = None,
    members: int = 4,
    threads: int = 0,
    timeout: float = 600.0,
    fault: str | None = None,
    override: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> RowsReport:
    """Probe widths 2 … ``largest`` after each context (default: 8 rows, and past the widest window). `UsageError`, `CandidateError`."""
    parsed, target = candidates.parse(candidate), open_target(model)
    key = identity(target, candidate, largest)
    report = RowsReport(key, [], "", override, geometry={"family": target.geometry.family, "vocab": target.geometry.vocab})
    if largest < 2:
        report.reason = f"no width to probe: the largest is {largest}, the smallest window of several rows is 2"
        return report
    for context in contexts or _contexts(target, largest):
        for draw in range(draws):
            prompt, block = tokens(draw, context, largest, target.geometry.vocab)
            arms = _Arms(model, target, parsed, prompt, block, threads, timeout, fault)
            progress(f"one by one after {context} rows")
            chain = arms.chain()
            if not _same(chain, arms.chain()):
                report.control = f"one by one after {context} rows is not repeatable: two runs differ, so no width can be judged"
                return report
            for width in range(2, largest + 1):
                progress(f"width {width} after {context} rows")
                report.widths.append(_compare(arms, chain, width, draw, declared(candidate, arithmetic), members))
    return report


def _contexts(target: Target, largest: int) -> tuple[int, ...]:
    """Short, and with every window passed before the block begins."""
    from oracle.speculation.caches import layer_windows

    widest = max((w for w in layer_windows(target) if w is not None), default=0)
    return (SHORT, widest + largest + 1) if 0 < widest <= 4096 else (SHORT,)


@dataclass(frozen=True, eq=False)
class _Arms:
    model: Path
    target: Target
    candidate: candidates.Candidate
    prompt: list[int]
    block: list[int]
    threads: int
    timeout: float
    fault: str | None

    def chain(self) -> list[NDArray[Any]]:
        """Logits of the prefill's last row, then of every block token fed alone: [vocab] each."""
        steps = [window(self.prompt, 0)] + [window([t], len(self.prompt) + i) for i, t in enumerate(self.block)]
        return [rows[-1] for rows in self._run(steps)]

    def wide(self, width: int) -> list[NDArray[Any]]:
        """The same rows of the prefill and one window."""
        prefill, rows = self._run([window(self.prompt, 0), window(self.block[:width], len(self.prompt))])
        return [prefill[-1], *rows]

    def _run(self, steps: list[Any]) -> list[NDArray[Any]]:
        from dumps import open_dump

        family = self.target.geometry.family
        case = Case(f"{family} rows", family, "target", self.model, tuple(steps))
        with tempfile.TemporaryDirectory(prefix="parity-rows-") as folder:
            out = Path(folder) / "dump"
            limits = Limits(self.timeout)
            saved = case.save(Path(folder) / "case")
            run_worker(self.candidate, saved, out, fault=self.fault, threads=self.threads, limits=limits).demand_clean()
            if found := read_findings(out):
                raise CandidateError(f"{found[0]['kind']}: {found[0]['text']}")
            dump = open_dump(out)
            return [_stored(dump, step) for step in range(len(steps))]


def _stored(dump: Any, step: int) -> NDArray[Any]:
    record = dump.get(step, STAGE)
    if record is None:
        raise CandidateError(f"the candidate recorded no {STAGE} in step {step}: its rows cannot be compared")
    return np.array(record.array())


def _same(a: Sequence[NDArray[Any]], b: Sequence[NDArray[Any]]) -> bool:
    return all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


def _compare(arms: _Arms, chain: list[NDArray[Any]], width: int, draw: int, noise: tuple[Any, float], members: int) -> Width:
    wide = arms.wide(width)
    if len(wide) != width + 1 or any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(wide, chain, strict=False)):
        raise CandidateError(f"width {width}: expected {width} rows of logits like those one by one, found {len(wide) - 1}")
    pairs = list(zip(wide[1:], chain[1 : width + 1], strict=True))
    differing = [i for i, (w, c) in enumerate(pairs) if w.tobytes() != c.tobytes()]
    raw = [np.frombuffer(w.tobytes(), np.uint8) != np.frombuffer(c.tobytes(), np.uint8) for w, c in pairs]
    elements = sum(int((w != c).sum()) for w, c in pairs)
    return Width(
        width, len(arms.prompt), draw, len(pairs), differing[0] if differing else None, sum(int(r.sum()) for r in raw),
        sum(r.size for r in raw), elements, max(_ulps(w, c) for w, c in pairs), _flips(arms, pairs, differing, noise, members),
        wide[0].tobytes() != chain[0].tobytes(),
    )  # fmt: skip


def _ulps(a: NDArray[Any], b: NDArray[Any]) -> int:
    """Largest distance in representable values of the stored dtype (bf16 comes as its 16 bits)."""
    bits = a.dtype.itemsize * 8
    x, y = (v.view(f"<i{a.dtype.itemsize}").astype(object if bits == 64 else np.int64) for v in (a, b))
    low = -(1 << (bits - 1))
    x, y = (np.where(v < 0, low - v, v) for v in (x, y))
    return int(np.max(np.abs(x - y), initial=0))


def _flips(arms: _Arms, pairs: Sequence[tuple[Any, Any]], differing: list[int], noise: tuple[Any, float], members: int) -> list[Flip]:
    rows = [(i, *(int(first_argmax(_wide(v))) for v in pairs[i])) for i in differing]
    rows = [r for r in rows if r[1] != r[2]]
    if not rows:
        return []
    spread = row_noise(arms.target, [*arms.prompt, *arms.block], len(arms.prompt), *noise, members)
    found = []
    for i, block, chain in rows:
        gap, sigma, tie = spread.tie(i, chain, block)
        found.append(Flip(i, chain, block, gap, sigma, "tie" if tie else "divergence"))
    return found


def _wide(x: NDArray[Any]) -> NDArray[Any]:
    """Values as numbers; bf16 is stored as uint16."""
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


def identity(target: Target, candidate: str, largest: int) -> dict[str, Any]:
    """What a verdict is remembered by: the weights, the family and geometry, the widths, and the backend with its build."""
    files = [f.sha256 for f in target.identity.files] if target.identity else []
    backend, parsed = candidate, candidates.parse(candidate)
    if parsed.kind == "library":
        library, options = candidates.library_of(parsed)
        info = library.info
        backend = " ".join((info.name, info.version, info.source_hash, *options.values()))
    sizes = hashlib.sha256(repr(target.geometry).encode()).hexdigest()
    return {"weights": files, "family": target.geometry.family, "geometry": sizes, "largest": largest, "backend": backend}


def remembered(memory: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    """The verdict kept under ``key``, or None. `UsageError` for a memory that is not one."""
    entries = _memory(memory)
    return next((e for e in entries if e["key"] == key), None)


def remember(memory: Path, report: RowsReport) -> None:
    """Keep the verdict (never an override) beside the others."""
    entry = {"key": report.key, "exact": report.exact, "verdict": report.verdict}
    entries = [e for e in _memory(memory) if e["key"] != report.key] + [entry]
    memory.parent.mkdir(parents=True, exist_ok=True)
    part = memory.with_name(memory.name + ".part")
    part.write_text(json.dumps(entries, indent=1))
    part.replace(memory)


def _memory(memory: Path) -> list[dict[str, Any]]:
    if not memory.exists():
        return []
    try:
        if memory.stat().st_size > 4 << 20:
            raise ValueError("larger than 4 MiB")
        entries = json.loads(memory.read_text())
        if not isinstance(entries, list) or not all(isinstance(e, dict) and isinstance(e.get("key"), dict) for e in entries):
            raise ValueError("expected a list of verdicts")
    except (OSError, ValueError) as e:
        raise UsageError(f"{memory}: not a memory of row probes ({e}); remove it") from None
    return entries
