"""The two arms of `parity greedy`: the target alone, and with a drafter; compiled candidates run in a process of their own."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oracle.models import Target
from oracle.readings import Reading
from oracle.speculation.drafting import ModelDrafter
from oracle.speculation.rounds import Session, decode
from oracle.speculation.trace import Trace
from oracle.targets.state import State
from oracle.tensor import Array
from parity.errors import CandidateError
from parity.speculating.setup import KNOWING, Models, Setup, caged, forced, found_by_emulator, open_models, reading_of, session


@dataclass(frozen=True, eq=False)
class Arms:
    """``alone``: the target's own new tokens; ``chain`` [token, vocab]: its logits one row at a time *along the session's tokens*.

    ``trace``: the session. ``failure``: what a round raised, with the rounds before it in the trace. ``cache_gap`` and ``context_gap``: the
    largest difference of the target's cache (by layer) and of the drafter's context (by layer) from one built in one go, at the end;
    None where there is nothing to compare. ``misuse``: what the emulator of an emulated library found, one line each.
    """

    alone: list[int]
    chain: Array
    repeated: bool
    trace: Trace
    forced: tuple[int | None, ...]
    failure: str | None = None
    cache_gap: dict[int, float] = field(default_factory=dict)
    context_gap: dict[int, float] = field(default_factory=dict)
    misuse: list[str] = field(default_factory=list)


def run(setup: Setup, timeout: float = 600.0) -> Arms:
    """Both arms. `CandidateError` where compiled code crashes or hangs; `UsageError` for what does not fit."""
    if not caged(setup.candidate):
        return arms(setup)
    pool = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    try:
        return pool.submit(arms, setup).result(timeout)
    except concurrent.futures.process.BrokenProcessPool:
        raise CandidateError(f"candidate {setup.candidate}: its process died") from None
    except concurrent.futures.TimeoutError:
        for process in list(getattr(pool, "_processes", {}).values()):
            process.kill()
        raise CandidateError(f"candidate {setup.candidate}: did not finish within {timeout:g} s") from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def arms(setup: Setup) -> Arms:
    """Both arms in this process."""
    models = open_models(setup)
    with reading_of(setup.candidate, setup.threads) as reading:
        ahead = models.schedule.drafts(models.length) + 1
        alone, rows = decode(models.target, setup.prompt, setup.max_new + (ahead if setup.drafter in KNOWING else 0), reading)
        again, second = decode(models.target, setup.prompt, min(setup.max_new, 16), reading)
        repeated = again == alone[: len(again)] and np.array_equal(second, rows[: len(second)])
        made = session(setup, models, alone, reading)
        failure = _run(made)
        new = made.tokens[len(setup.prompt) :]
        chain = rows[: len(new)] if new == alone[: len(new)] else along(models.target, setup.prompt, new, reading)
        gaps = (cache_gap(models, made, reading), context_gap(models, made, reading)) if failure is None else ({}, {})
        alone = _cut(alone[: setup.max_new], setup.stops)
        known = forced(setup) if setup.drafter in KNOWING else ()
        assert made.trace is not None
        return Arms(alone, chain, repeated, made.trace, known, failure, *gaps, found_by_emulator(setup.candidate))


def _cut(tokens: list[int], stops: Sequence[int]) -> list[int]:
    end = next((i + 1 for i, t in enumerate(tokens) if t in stops), len(tokens))
    return tokens[:end]


def _run(made: Session) -> str | None:
    """All rounds; what a round raised instead of a traceback (a planted bug may well do that)."""
    made.prefill()
    try:
        while not made.done:
            made.round()
    except Exception as e:
        from native.errors import NativeError

        if not isinstance(e, ValueError | IndexError | NativeError):
            raise
        return f"round {len(made.trace.rounds) if made.trace else 0}: {type(e).__name__}: {e}"
    return None


def along(target: Target, prompt: Sequence[int], tokens: Sequence[int], reading: Reading) -> Array:
    """The logits that each of ``tokens`` follows, one row per window [token, vocab]."""
    out = target.window(prompt, reading=reading)
    rows = [out.logits[-1]]
    for step, token in enumerate(tokens[:-1], 1):
        out = target.window([token], out.state, reading=reading, step=step)
        rows.append(out.logits[0])
    return np.array(rows)


def cache_gap(m: Models, s: Session, reading: Reading) -> dict[int, float]:
    """Per layer, the largest difference of the visible rows from those of one window over all committed tokens."""
    from oracle.speculation.caches import layer_windows

    state, length = s.cache.state(), len(s.tokens) - 1
    if not isinstance(state, State) or s.cache.length != length:
        return {} if not isinstance(state, State) else dict.fromkeys(range(len(state.layers)), float("inf"))
    built = m.target.window(s.tokens[:-1], reading=reading).state
    gaps = {}
    for i, (window, mine, true) in enumerate(zip(layer_windows(m.target), state.layers, built.layers, strict=True)):
        first = 0 if window is None else max(length - window + 1, 0)
        gaps[i] = max(_largest(a.data[first:length], b.data[first:length]) for a, b in zip(mine, true, strict=True))
    return gaps


def context_gap(m: Models, s: Session, reading: Reading) -> dict[int, float]:
    """Per drafter layer, the largest difference of its context from one appended in one go."""
    if m.drafter is None or not isinstance(s.drafting, ModelDrafter):
        return {}
    positions, layers = s.drafting.held()
    features = m.target.window(s.tokens[:-1], taps=m.drafter.tap_ids, reading=reading).features
    context = m.drafter.new_context(reading)
    context.append(features, 0)
    keep = {int(p): i for i, p in enumerate(context.cells.positions)}
    if any(int(p) not in keep for p in positions) or (m.drafter.dialect.window_rule != "SINK_RING" and len(positions) != len(keep)):
        return dict.fromkeys(range(len(layers)), float("inf"))
    rows = [keep[int(p)] for p in positions]
    pairs = zip(layers, context.cells.layers, strict=True)
    return {i: max(_largest(a, b.data[rows]) for a, b in zip(mine, true, strict=True)) for i, (mine, true) in enumerate(pairs)}


def _largest(a: Any, b: Any) -> float:
    if a.shape != b.shape:
        return float("inf")
    return float(np.abs(a.astype(np.float64) - b).max(initial=0.0)) / max(1.0, float(np.abs(b).max(initial=0.0)))
