"""What a speculative run is made of, as plain values that a worker process can be handed, and the session built from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from oracle import arithmetic as arithmetics
from oracle.models import Drafter, Target, open_drafter, open_target
from oracle.readings import Exact, Reading, Rounded
from oracle.speculation.caches import CacheError, RecurrentCache, TargetCache, new_cache
from oracle.speculation.drafting import Drafting, LookupDrafter, ModelDrafter, OracleDrafter, RandomDrafter
from oracle.speculation.gates import GATES
from oracle.speculation.judging import Greedy, Judge
from oracle.speculation.rounds import Request, Session
from oracle.speculation.schedules import SCHEDULES, Schedule, ScheduleError, schedule_of
from parity import candidates
from parity.emulated import found_by
from parity.errors import UsageError
from parity.native_reading import Native
from parity.speculating.bugs import bug

DRAFTERS = ("model", "steered", "oracle", "lookup", "random")

KNOWING = ("oracle", "steered")
"""Those whose drafts are the target's own continuation, spoiled where a round is to refuse."""


@dataclass(frozen=True)
class Setup:
    """``target``: files; ``prompt``: token ids; ``verify_length`` in the schedule's unit.

    ``drafter``: one of `DRAFTERS`, of the files ``drafter_path`` for ``model`` and ``steered`` (the model runs, the oracle drafter's
    drafts are sent). ``accepts``: forced accept lengths of the oracle drafter, in turn; None accepts all, -1 a seeded random number.
    ``candidate``: f64 (the oracle), a NumPy arithmetic or a native library, for target and drafter alike. ``entry``: how a library's
    drafter runs, ``op`` by op or ``fused``; ``auto`` is fused where it can be. ``plant``: a name of `bugs.BUGS`.
    """

    target: Path
    prompt: tuple[int, ...]
    max_new: int = 256
    drafter: str = "lookup"
    drafter_path: Path | None = None
    family: str | None = None
    dialect: tuple[tuple[str, str], ...] = ()
    schedule: str | None = None
    verify_length: int | None = None
    accepts: tuple[int | None, ...] = (0, 1, 2, None, -1)
    cache: str | None = None
    gate: str | None = None
    candidate: str = "f64"
    entry: str = "auto"
    plant: str | None = None
    stops: tuple[int, ...] = ()
    seed: int = 0
    threads: int = 0


@dataclass(frozen=True, eq=False)
class Models:
    """Opened: the target and, where one drafts, the drafter; ``schedule`` and verify ``length`` are resolved."""

    target: Target
    drafter: Drafter | None
    schedule: Schedule
    length: int


def open_models(setup: Setup) -> Models:
    """Open what the setup names. `UsageError` for a pair that does not fit, a prompt that is no prompt, a length the engine lacks."""
    from oracle.artifacts.pairing import mismatches

    target = open_target(setup.target)
    drafter = None
    if setup.drafter in ("model", "steered"):
        if setup.drafter_path is None:
            raise UsageError(f"--drafter {setup.drafter}: name the drafter (--model PATH) beside its target (--target PATH)")
        drafter = open_drafter(setup.drafter_path, dict(setup.dialect), setup.family)
        if wrong := mismatches(drafter.dialect.family, drafter.geometry, target.embedding, target.geometry):
            raise UsageError(f"{setup.target}: not the target of {setup.drafter_path}: {'; '.join(wrong)}")
    elif setup.drafter not in DRAFTERS:
        raise UsageError(f"--drafter {setup.drafter}: expected one of {', '.join(DRAFTERS)}")
    vocab = target.geometry.vocab
    if not setup.prompt or any(not 0 <= t < vocab for t in setup.prompt):
        raise UsageError(f"the prompt: expected at least one token id, each below {vocab}")
    known = drafter.dialect if drafter else None
    if setup.schedule is not None and setup.schedule not in SCHEDULES:
        raise UsageError(f"--engine {setup.schedule}: expected one of {', '.join(SCHEDULES)}")
    schedule = SCHEDULES[setup.schedule] if setup.schedule else schedule_of(known.family if known else target.geometry.family, known)
    return Models(target, drafter, schedule, _length(setup, schedule, drafter))


def _length(setup: Setup, schedule: Schedule, drafter: Drafter | None) -> int:
    """The asked verify length, or the longest that engine and block have, up to 7 drafts."""
    g = drafter.geometry if drafter else None
    most = schedule.most(g) if g else 7
    fits = [n for n in (schedule.lengths or range(1, most + 2)) if _drafts(schedule, n) in range(1, min(most, 7) + 1)]
    if setup.verify_length is None and not fits:
        raise UsageError(f"engine {schedule.name} has no verify length for a block of {most + 1} rows; choose another (--engine)")
    length = setup.verify_length if setup.verify_length is not None else max(fits)
    try:
        schedule.drafts(length, g)
    except ScheduleError as e:
        raise UsageError(f"--verify: {e}") from None
    return length


def _drafts(schedule: Schedule, length: int) -> int:
    return length - 1 if schedule.unit == "rows" else length


def forced(setup: Setup) -> tuple[int | None, ...]:
    """The oracle drafter's accept lengths, -1 drawn from the seed."""
    rng = np.random.default_rng(setup.seed)
    return tuple(int(rng.integers(0, 8)) if a == -1 else a for a in setup.accepts * (7 if -1 in setup.accepts else 1))


def drafting(setup: Setup, m: Models, reference: list[int], reading: Reading) -> Drafting:
    """Who proposes; ``reference``: the target's own continuation, for the oracle drafter."""
    known = OracleDrafter([*setup.prompt, *reference], forced(setup), m.target.geometry.vocab)
    if m.drafter is not None:
        made = model_drafter(setup, m.drafter, m, reading)
        made.steer = known if setup.drafter == "steered" else None
        return made
    if setup.drafter == "oracle":
        return known
    return LookupDrafter() if setup.drafter == "lookup" else RandomDrafter(setup.seed, m.target.geometry.vocab)


def model_drafter(setup: Setup, drafter: Drafter, m: Models, reading: Reading) -> ModelDrafter:
    """The drafter in the candidate: the library's own, or in its reading."""
    if fused(setup, drafter, reading):
        from parity.speculating.fused import FusedDrafter

        assert isinstance(reading, Native)
        return FusedDrafter(reading.context, drafter, m.target.embedding, m.target.head, m.schedule)
    return ModelDrafter(drafter, m.target.embedding, m.target.head, m.schedule, reading)


def fused(setup: Setup, drafter: Drafter, reading: Reading) -> bool:
    """Whether the candidate's own fused drafter drafts. `UsageError` where it is asked for and there is none."""
    flags = reading.context.flags if isinstance(reading, Native) else frozenset[str]()
    if setup.entry == "fused" and "fused" not in flags:
        raise UsageError(f"--entry fused: candidate {setup.candidate} has no fused drafter")
    return "fused" in flags and (setup.entry == "fused" or (setup.entry == "auto" and not drafter.dialect.sinks))


def session(setup: Setup, m: Models, reference: list[int], reading: Reading) -> Session:
    """The session of the setup, with its planted bug."""
    rows = _drafts(m.schedule, m.length) + 1
    planted = bug(setup.plant, m.target) if setup.plant else None
    try:
        made: TargetCache = planted.cache(m.target, rows) if planted and planted.cache else new_cache(m.target, setup.cache, max(rows, 1))
    except CacheError as e:
        raise UsageError(f"--cache: {e}") from None
    if setup.gate is not None and setup.gate not in GATES:
        raise UsageError(f"--gate {setup.gate}: expected one of {', '.join(GATES)}")
    usual = "kept-rows" if isinstance(made, RecurrentCache) else "dense"
    request = Request(setup.prompt, setup.max_new, m.length, m.schedule, setup.stops)
    who = drafting(setup, m, reference, reading)
    kinds = [planted.session] if planted and planted.session else []
    judge: Judge = Greedy()
    if isinstance(reading, Native):
        from parity.speculating.fused import FusedDrafter, FusedSession, NativeGreedy

        judge = NativeGreedy(reading.context) if {"top2", "accept"} <= reading.context.ops else judge
        kinds += [FusedSession] if isinstance(who, FusedDrafter) and "drafter_verify" in who.library.entries else []
    # A planted step of the loop goes before the library's own.
    build: type[Session] = type("Planned", tuple(kinds), {}) if kinds else Session
    return build(
        m.target, who, request, judge=judge, cache=made, cache_name=setup.cache or usual,
        gate=GATES[setup.gate]() if setup.gate else None, reading=reading,
    )  # fmt: skip


@contextmanager
def reading_of(spec: str, threads: int = 0) -> Iterator[Reading]:
    """The reading that a candidate's name stands for: f64, a NumPy arithmetic, or a native library op by op."""
    if spec == "f64":
        yield Exact()
        return
    parsed = candidates.parse(spec)
    if parsed.kind == "numpy":
        yield Rounded(arithmetics.named(parsed.spec))
        return
    if parsed.kind != "library":
        raise UsageError(f"--candidate {spec}: it runs whole cases, not single windows; record its rounds and use parity replay")
    library, options = candidates.library_of(parsed)
    with library.context(threads, **options) as context:
        yield Native(context)


def found_by_emulator(spec: str) -> list[str]:
    """What the emulator of the candidate's library has found in this process, one line each; [] where it is not emulated."""
    if not caged(spec):
        return []
    library, _ = candidates.library_of(candidates.parse(spec))
    return [f"{f['kind']}: {f['text']}" for f in found_by(library.info)]


def caged(spec: str) -> bool:
    """Whether the candidate is compiled code, which runs in a process of its own."""
    return spec != "f64" and candidates.parse(spec).kind == "library"


def healthy(setup: Setup) -> Setup:
    """The same without its planted bug."""
    return replace(setup, plant=None)
