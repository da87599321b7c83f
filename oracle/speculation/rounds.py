"""The round loop: draft, verify in one window, accept, add the target's own token, commit exactly what was accepted.

Source: `specs/dflash-generic.md` section 3, `specs/muse-glimmer.md` 5.7 and 6.2, `specs/qwen38-flash-next.md` 3.4, `specs/laguna.md` 5.1.
Every step is a method of its own, so that a planted bug is one method replaced. A round is a transaction: whatever fails in it, target
cache, drafter, stream, gate and tokens are as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from oracle.models import Target, WindowResult
from oracle.readings import Reading
from oracle.speculation.caches import TargetCache, new_cache
from oracle.speculation.drafting import Drafting, ModelDrafter, Proposal
from oracle.speculation.judging import Greedy, Judge, Ordered, Sampled
from oracle.speculation.schedules import SCHEDULES, Schedule, ScheduleError
from oracle.speculation.trace import Header, RoundRecord, Trace
from oracle.speculation.verification import Verified
from oracle.tensor import Array

T = TypeVar("T")
STAGES = ("propose", "verify", "append", "commit", "context", "record")


class Gate(Protocol):
    """Whether to speculate at all (`gates`)."""

    def fallback(self, committed: int) -> bool: ...

    def update(self, drafted: int, accepted: int, committed: int) -> None: ...

    def mark(self) -> Any: ...

    def restore(self, mark: Any) -> None: ...


@dataclass(frozen=True)
class Request:
    """``verify_length`` in the schedule's unit, at most ``max_new`` published tokens, cut after the first of ``stops``."""

    prompt: tuple[int, ...]
    max_new: int
    verify_length: int
    schedule: Schedule = SCHEDULES["z-lab"]
    stops: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ScheduleError("an empty prompt: there is no row whose pick could be the first anchor")


class Session:
    """One sequence. `prefill` once, then `round` until `done`; ``trace`` keeps every round.

    ``hook(stage)`` is called before each of `STAGES` (a test makes it fail there). ``reading``: what the target is read as.
    """

    def __init__(
        self,
        target: Target,
        drafting: Drafting,
        request: Request,
        *,
        judge: Judge | None = None,
        cache: TargetCache | None = None,
        cache_name: str = "dense",
        gate: Gate | None = None,
        taps: Sequence[int] = (),
        reading: Reading | None = None,
        hook: Callable[[str], None] = lambda stage: None,
    ) -> None:
        self.target, self.drafting, self.request = target, drafting, request
        self.judge: Judge = judge or Greedy()
        if request.schedule.greedy_only and isinstance(self.judge, (Sampled, Ordered)):
            raise ScheduleError(f"judge {self.judge.name}: {request.schedule.name} speculates greedily only; its sampled requests do not")
        self.cache, self.cache_name = cache or new_cache(target, cache_name if cache_name != "dense" else None), cache_name
        self.gate, self.reading, self.hook = gate, reading, hook
        self.taps = tuple(taps) or (drafting.drafter.tap_ids if isinstance(drafting, ModelDrafter) else ())
        geometry = drafting.drafter.geometry if isinstance(drafting, ModelDrafter) else None
        self.drafts = request.schedule.drafts(request.verify_length, geometry)
        self.tokens: list[int] = list(request.prompt)
        self.emitted: list[int] = []
        self.trace: Trace | None = None
        self.window_rows = 0

    @property
    def done(self) -> bool:
        return len(self.emitted) >= self.request.max_new or any(t in self.request.stops for t in self.emitted)

    def prefill(self) -> None:
        """Process the whole prompt; the first token is known, every prompt row is context."""
        prompt = self.request.prompt
        self.cache.begin(len(prompt))
        out = self.target.window(prompt, self.cache.state(), self.taps, reading=self.reading)
        self.cache.append(out.state, prompt)
        self.cache.commit(len(prompt))
        rows = self.first_context(len(prompt))
        self.drafting.commit(out.features[rows], self.first_start(rows))
        first = self.judge.first(out.logits[-1])
        self.tokens.append(first)
        if self.request.schedule.publishes == "picks":
            self.emitted.append(first)
        model = self.drafting if isinstance(self.drafting, ModelDrafter) else None
        ids = model.drafter.weights.target_ids if model else None
        self.trace = Trace(self._header(first, rows), [], self.tokens, self.emitted, out.features[rows] if model else None, ids)

    def round(self) -> RoundRecord:
        """One round; raises what fails in it, with everything as before."""
        assert self.trace is not None, "prefill first"
        number = len(self.trace.rounds)
        record = self._whole(self.drafts + 1, lambda: self._round(number))
        self.trace.rounds.append(record)
        return record

    def extend(self, tokens: Sequence[int]) -> None:
        """Tokens that are given, not generated (another turn): the anchor and all but the last of them are committed."""
        self._whole(len(tokens), lambda: self._extend(list(tokens)))

    def _whole(self, rows: int, step: Callable[[], T]) -> T:
        """``step`` wholly or not at all."""
        marks = (self.drafting.mark(), self.judge.mark(), self.gate.mark() if self.gate else None, len(self.tokens), len(self.emitted))
        self.cache.begin(rows)
        try:
            return step()
        except BaseException:
            self._undo(*marks)
            raise

    def _extend(self, tokens: list[int]) -> None:
        window, position = [self.tokens[-1], *tokens[:-1]], len(self.tokens) - 1
        self.hook("verify")
        out = self.target.window(window, self.cache.state(), self.taps, reading=self.reading)
        self.cache.append(out.state, window)
        self.hook("commit")
        self.cache.commit(len(window))
        self.hook("context")
        self.drafting.commit(out.features, position)
        self.tokens.extend(tokens)

    def run(self) -> Trace:
        """Prefill and all rounds."""
        self.prefill()
        while not self.done:
            self.round()
        assert self.trace is not None
        return self.trace

    # The steps of a round, in order.

    def room(self) -> int:
        """Drafts that the remaining budget still has use for."""
        left = self.request.max_new - len(self.emitted)
        return left if self.request.schedule.publishes == "picks" else left - 1

    def propose(self, drafts: int) -> Proposal:
        return self.drafting.propose(self.tokens, drafts)

    def window(self, drafts: Sequence[int]) -> list[int]:
        """Ids the target verifies: the anchor, then every draft; nothing behind a stop token.

        A greedy window ends before a draft that the target cannot embed, which it would refuse; a sampled one must not depend on it.
        """
        if self.judge.name == "greedy":
            drafts = drafts[: next((i for i, t in enumerate(drafts) if not self._readable(t)), len(drafts))]
        ids = [self.tokens[-1], *drafts]
        stop = next((i for i, t in enumerate(ids) if t in self.request.stops), len(ids))
        return ids[: stop + 1]

    def verify(self, window: Sequence[int], out: WindowResult) -> Verified:
        """``out``: what the target made of the window's rows."""
        return self.judge.verify(window[1:], out.logits)

    def publish(self, window: Sequence[int], out: Verified) -> tuple[list[int], list[int]]:
        """(tokens now known beyond the anchor, tokens published), both cut at the budget and after a stop."""
        known = [*window[1 : out.accepted + 1], out.bonus]
        if self.request.schedule.publishes == "picks":
            known = _cut(known, self.request.max_new - len(self.emitted), self.request.stops)
            return known, known
        published = _cut(list(window[: out.accepted + 1]), self.request.max_new - len(self.emitted), self.request.stops)
        return known[: len(published)], published

    def kept(self, known: Sequence[int]) -> int:
        """Rows of the window that are committed: the anchor's and those of the accepted drafts, one per token now known."""
        return len(known)

    def roll_back(self, kept: int) -> None:
        self.cache.commit(kept)

    def context_rows(self, kept: int) -> list[int]:
        """Rows of the window whose features become context: exactly the committed ones."""
        return list(range(kept))

    def first_context(self, rows: int) -> list[int]:
        """Prompt rows whose features become context: every one."""
        return list(range(rows))

    def first_start(self, rows: Sequence[int]) -> int:
        """The position of the first of them."""
        return rows[0]

    def _round(self, number: int) -> RoundRecord:
        position = len(self.tokens) - 1
        start = self.context_start(position)
        closed = self.gate is not None and self.gate.fallback(len(self.emitted))
        count = 0 if closed else min(self.drafts, max(self.room(), 0))
        self.hook("propose")
        proposal = self.propose(count) if count else Proposal(())
        drafts = self.judge.choose(proposal, self.target.geometry.vocab)
        window = self.window(drafts)
        self.window_rows = len(window)
        self.hook("verify")
        out = self.target.window(window, self.cache.state(), self.taps, reading=self.reading, step=number + 1)
        self.hook("append")
        self.cache.append(out.state, window)
        verified = self.verify(window, out) if len(window) > 1 else Verified(0, self.judge.first(out.logits[0]))
        known, published = self.publish(window, verified)
        kept = self.kept(known)
        self.hook("commit")
        self.roll_back(kept)
        rows = self.context_rows(kept)
        self.hook("context")
        self.drafting.commit(out.features[rows], start)
        anchor = self.tokens[-1]
        self.tokens.extend(known)
        self.emitted.extend(published)
        if self.gate is not None and not closed:
            self.gate.update(len(drafts), verified.accepted, len(self.emitted))
        self.hook("record")
        return RoundRecord(
            number, position, anchor, proposal.block, tuple(drafts), tuple(window), tuple(int(i) for i in out.pick), verified.accepted,
            verified.bonus, tuple(published), kept, start, tuple(rows), self.cache.rows_by_layer(), self.drafting.length,
            self.judge.drawn, closed, proposal.logits, out.logits, out.features[rows] if self.taps else None,
        )  # fmt: skip

    def context_start(self, position: int) -> int:
        """The position of the first context row of a round: the anchor's."""
        return position

    def _readable(self, token: int) -> bool:
        return 0 <= token < self.target.geometry.vocab and token not in getattr(self.target.geometry, "placeholders", ())

    def _undo(self, drafting: Any, judge: Any, gate: Any, tokens: int, emitted: int) -> None:
        self.cache.abort()
        self.drafting.restore(drafting)
        self.judge.restore(judge)
        if self.gate is not None:
            self.gate.restore(gate)
        del self.tokens[tokens:], self.emitted[emitted:]

    def _header(self, first: int, rows: Sequence[int]) -> Header:
        r, model = self.request, self.drafting.drafter if isinstance(self.drafting, ModelDrafter) else None
        g = model.geometry if model else None
        return Header(
            self.target.geometry.family, r.schedule.name, model.dialect.anchor_layout if model else r.schedule.layout or "fill_in",
            type(self.drafting).__name__, self.judge.name, r.verify_length, self.drafts, g.block_size if g else self.drafts + 1,
            g.mask_token_id if g else None, r.prompt, first, r.max_new, tuple(rows), self.first_start(rows),
            self.drafting.chooser if isinstance(self.drafting, ModelDrafter) else "argmax", r.stops, self.cache_name,
            _plain(asdict(replace(g)) | asdict(model.dialect)) if g and model else {},
        )  # fmt: skip


def _cut(tokens: list[int], room: int, stops: Sequence[int]) -> list[int]:
    stop = next((i for i, t in enumerate(tokens) if t in stops), len(tokens))
    return tokens[: min(room, stop + 1)]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value.item() if isinstance(value, np.generic) else value


def decode(
    target: Target, prompt: Sequence[int], max_new: int, reading: Reading | None = None, stops: Sequence[int] = ()
) -> tuple[list[int], Array]:
    """The target alone, one token per window: (new tokens, the logits each was chosen from [token, vocab])."""
    out = target.window(prompt, reading=reading)
    tokens, rows = [int(out.pick[-1])], [out.logits[-1]]
    while len(tokens) < max_new and tokens[-1] not in stops:
        out = target.window(tokens[-1:], out.state, reading=reading, step=len(tokens))
        tokens.append(int(out.pick[0]))
        rows.append(out.logits[0])
    return tokens, np.array(rows)
