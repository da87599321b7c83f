"""State machines over a session: whatever happened, caches and context equal a rebuild from the committed tokens alone.

Steps: rounds with forced accept lengths, given tokens, proposals without a round, plain decodes, rounds that fail at any stage, whole
windows rejected, gates that close and open; windows of 6 or 7 rows wrap within a few steps. Every family, every way to take rows back,
every way a drafter keeps its context. What a run has really met is counted; what each check is for is planted.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from oracle.models import Drafter
from oracle.speculation.caches import KINDS, RECURRENT, RecurrentCache, Slots, layer_windows, new_cache
from oracle.speculation.drafting import ModelDrafter, RandomDrafter
from oracle.speculation.gates import WindowedGate
from oracle.speculation.rounds import STAGES, Request, Session
from tests.speculation.tiny import BLOCK, FAMILIES, Forced, Pair, apart, drafter_for, pair, seen_rows

SOUND = [k for k in KINDS if k != "ring-without-slack"]
EXACT = 1e-9


class Failed(Exception):
    """What a test makes a stage raise."""


class Machine(RuleBasedStateMachine):
    """``family`` and ``kinds`` are set by the test, ``planted`` parts of the session with them; ``met`` counts what was run."""

    family: ClassVar[str] = "llama"
    kinds: ClassVar[tuple[str, ...]] = ("dense",)
    planted: ClassVar[dict[str, Any]] = {}
    met: ClassVar[Counter[str]] = Counter()
    fail_at: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.pair: Pair = pair(self.family)
        self.session: Any = None
        self.built: tuple[list[int], list[Any], list[Any]] = ([], [], [])

    @initialize(kind=st.integers(0, 7), prompt=st.integers(1, 9), seed=st.integers(0, 99), who=st.integers(0, 3))
    def start(self, kind: int, prompt: int, seed: int, who: int) -> None:
        p, target = self.pair, self.pair.target
        tokens = RandomDrafter(seed, p.vocab).propose(range(7), prompt).drafts
        made = drafters(self.family)
        self.drafter = made[who % len(made)]
        drafting = ModelDrafter(self.drafter, target.embedding, target.head, p.schedule) if who < 3 else RandomDrafter(seed, p.vocab)
        length = BLOCK if p.schedule.unit == "rows" else BLOCK - 1
        name = self.kinds[kind % len(self.kinds)]
        cache = self.planted.get("cache", lambda target: new_cache(target, name, BLOCK))(target)
        self.session = self.planted.get("session", Session)(
            target, drafting, Request(tokens, 10**6, length, p.schedule), judge=Forced(), cache=cache,
            cache_name=name, gate=self.planted.get("gate", WindowedGate)(), taps=self.drafter.tap_ids, hook=self.hook,
        )  # fmt: skip
        self.session.prefill()
        self.session.tokens[-1] %= p.vocab
        self.met["drafter: " + self.drafter.dialect.window_rule] += isinstance(drafting, ModelDrafter)
        self.met["cache: " + name] += 1

    def hook(self, stage: str) -> None:
        if stage == self.fail_at:
            raise Failed(stage)

    def round(self, accepts: int) -> None:
        self.session.judge.accepts = accepts
        made = self.session.round()
        drafts = len(made.window) - 1
        kind = "plain" if made.fallback else {0: "refused", drafts: "whole"}.get(made.accepted, "part")
        self.met[f"round: {kind}"] += 1
        assert made.kept == made.accepted + 1 and made.context == tuple(range(made.kept)) and made.bonus == self.session.tokens[-1]

    def all_that_a_round_changes(self) -> tuple[Any, ...]:
        s = self.session
        return list(s.tokens), list(s.emitted), s.gate.mark(), len(s.trace.rounds), s.judge.mark(), s.drafting.length, s.cache.length

    @rule(accepts=st.sampled_from((0, 1, 2, BLOCK)))
    def a_round(self, accepts: int) -> None:
        self.round(accepts)

    @rule(count=st.integers(1, BLOCK), seed=st.integers(0, 99))
    def given_tokens(self, count: int, seed: int) -> None:
        self.session.extend(list(RandomDrafter(seed, self.pair.vocab).propose(range(3), count).drafts))
        self.met["given tokens"] += 1

    @rule(drafts=st.integers(1, BLOCK - 1))
    def a_proposal_that_nothing_comes_of(self, drafts: int) -> None:
        before = self.all_that_a_round_changes()
        first = self.session.propose(drafts)
        assert 0 < len(first.drafts) <= drafts and before == self.all_that_a_round_changes()
        if self.drafter.dialect.window_rule != "SINK_RING":  # which evicts at the end of a block
            assert self.session.propose(drafts).drafts == first.drafts
        self.met["proposal"] += 1

    @rule(stage=st.sampled_from(STAGES), accepts=st.integers(0, BLOCK))
    def a_round_that_fails(self, stage: str, accepts: int) -> None:
        before = self.all_that_a_round_changes()
        self.fail_at = stage
        with pytest.raises(Failed):
            self.round(accepts)
        self.fail_at = None
        assert before == self.all_that_a_round_changes()
        self.met.update(("failed", f"failed at {stage}"))

    @rule(rows=st.integers(1, BLOCK))
    def a_window_that_is_wholly_rejected(self, rows: int) -> None:
        cache, ids = self.session.cache, [t % self.pair.vocab for t in range(rows)]
        cache.begin(rows)
        cache.append(self.pair.target.window(ids, cache.state()).state, ids)
        cache.commit(0)
        self.met["rejected window"] += 1

    @precondition(lambda self: self.session is not None and not self.session.gate.closed)
    @rule()
    def the_gate_closes(self) -> None:
        for _ in range(8):
            self.session.gate.update(15, 0, len(self.session.emitted))
        assert self.session.gate.closed
        self.met["gate closed"] += 1

    @precondition(lambda self: self.session is not None and self.session.gate.closed)
    @rule()
    def the_gate_opens_again(self) -> None:
        self.session.gate.requalify_at = len(self.session.emitted)
        self.round(1)
        assert not self.session.gate.closed and not self.session.trace.rounds[-1].fallback
        self.met["gate opened"] += 1

    @invariant()
    def everything_equals_a_rebuild(self) -> None:
        if self.session is None:
            return
        self.met["step"] += 1
        s, p = self.session, self.pair
        rows = len(s.tokens) - 1
        assert s.cache.length == rows and set(s.cache.rows_by_layer()) == {rows}
        if self.built[0] != s.tokens:
            out = p.target.window(s.tokens[:-1], taps=self.drafter.tap_ids)
            context = self.drafter.new_context()
            context.append(out.features, start=0)
            cells = [x.data for layer in context.cells.layers for x in layer]
            self.built = (list(s.tokens), seen_rows(p.target, out.state, rows), cells)
        assert apart(seen_rows(p.target, s.cache.state(), rows), self.built[1]) < EXACT
        self.met["wrapped"] += any(w is not None and w < rows for w in layer_windows(p.target))
        if isinstance(s.drafting, ModelDrafter):
            assert s.drafting.length == rows
            positions, layers = s.drafting.held()
            held = positions.tolist()
            assert held == sorted(set(held)) and set(held) >= set(still_needed(self.drafter, rows))
            assert apart([x for layer in layers for x in layer], [x[positions] for x in self.built[2]]) < EXACT
            self.met["evicted"] += len(positions) < rows


def still_needed(drafter: Drafter, rows: int) -> list[int]:
    """Positions that a drafter of this window rule may not have given up: for a ring the first ``sink`` and the last ``window``."""
    d = drafter.dialect
    if d.window_rule != "SINK_RING" or d.window is None:
        return list(range(rows))
    return [i for i in range(rows) if i < d.sink or i >= rows - d.window]


def drafters(family: str) -> tuple[Drafter, ...]:
    """The family's own drafter; the generic one in every way to keep a context: whole, a sink and a ring, a rotating cache."""
    p = pair(family)
    if family != "llama":
        return (p.drafter,)
    return p.drafter, drafter_for(p.target, (0, 1), "SINK_RING", 5), drafter_for(p.target, (1, 0), "W_CACHE", 5, seed=12)


def run(family: str, examples: int, steps: int = 50, kinds: tuple[str, ...] = (), planted: dict[str, Any] | None = None) -> Counter[str]:
    """What the run met. AssertionError where something did not equal a rebuild."""
    kinds = kinds or (RECURRENT if family == "qwen38-flash-next" else tuple(SOUND) if family in ("muse-glimmer", "laguna") else ("dense",))
    met: Counter[str] = Counter()
    machine = type(f"Machine_{family}", (Machine,), {"family": family, "kinds": kinds, "met": met, "planted": planted or {}})
    checks = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
    # Without shrinking: a found failure is reported as it is, at once.
    chosen = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, derandomize=True, database=None,
        suppress_health_check=checks, phases=(Phase.generate,),
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=chosen)
    return met


def everything(family: str) -> set[str]:
    """What a run has to have met."""
    steps = {"given tokens", "proposal", "rejected window", "gate closed", "gate opened", "failed"}
    steps |= {f"round: {kind}" for kind in ("plain", "whole", "refused", "part")}
    steps |= {f"drafter: {d.dialect.window_rule}" for d in drafters(family)}
    if family in ("muse-glimmer", "laguna"):
        steps |= {"wrapped", *(f"cache: {k}" for k in SOUND)}
    return steps | ({"evicted"} if family == "llama" else set()) | ({f"cache: {k}" for k in RECURRENT} if "qwen38" in family else set())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_thousand_steps(family: str):
    met = run(family, 40, 30)
    assert met["step"] >= 1000 and not everything(family) - set(+met)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_ten_thousand_steps(family: str):
    met = run(family, 400)
    assert met["step"] >= 10_000 and not (everything(family) | {f"failed at {stage}" for stage in STAGES}) - set(+met)


def test_the_ring_without_slack_loses_rows():
    """The negative control: the same machine finds what the window's own ring cannot give back."""
    with pytest.raises(AssertionError):
        run("laguna", 20, 30, ("ring-without-slack",))


class OneRowTooMany(Session):
    def roll_back(self, kept: int) -> None:
        super().roll_back(min(kept + 1, self.window_rows))


class ContextOneRowLate(Session):
    def context_rows(self, kept: int) -> list[int]:
        return [min(i + 1, self.window_rows - 1) for i in range(kept)]


class ContextOneRowShort(Session):
    def context_rows(self, kept: int) -> list[int]:
        return list(range(max(kept - 1, 1)))


def forgetting(*parts: str) -> type[Session]:
    """A session whose failed rounds do not give back these parts."""

    class Forgetting(Session):
        def _undo(self, drafting: Any, judge: Any, gate: Any, tokens: int, emitted: int) -> None:
            now = {"cache": self.cache, "drafting": self.drafting.mark(), "judge": self.judge.mark()}
            if "cache" in parts:
                self.cache = _Deaf(now["cache"])
            kept = (now["drafting"] if "drafting" in parts else drafting, now["judge"] if "judge" in parts else judge)
            super()._undo(*kept, gate, tokens, emitted)
            self.cache = now["cache"]

    return Forgetting


class _Deaf:
    """A cache that is not told to give anything back."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache

    def abort(self) -> None:
        return


class GivingBackElsewhere(Slots):
    """What is put back into a slot is what its neighbour held."""

    def _put_back(self, slot: int) -> None:
        self._saved = tuple(np.roll(x, -1, 0) for x in self._saved)
        super()._put_back(slot)
        self._saved = tuple(np.roll(x, 1, 0) for x in self._saved)


def elsewhere(target: Any) -> Any:
    cache = new_cache(target, "saving-ring", BLOCK)
    cache.layers = [x if x.capacity is None else GivingBackElsewhere(x.capacity, saves=True) for x in cache.layers]
    return cache


class OneStateOn(RecurrentCache):
    """The state after one row more than was kept."""

    def commit(self, kept: int) -> None:
        super().commit(min(kept + 1, len(self._ids)))


class NeverOpens(WindowedGate):
    def fallback(self, committed: int) -> bool:
        return self.closed


class ForgetsWhenClosed(WindowedGate):
    def restore(self, mark: Any) -> None:
        return


PLANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "one rejected row stays": ("llama", {"session": OneRowTooMany}),
    "the context is fed one row late": ("laguna", {"session": ContextOneRowLate}),
    "the context misses the last row": ("llama", {"session": ContextOneRowShort}),
    "a failed round leaves its rows in the cache": ("laguna", {"session": forgetting("cache")}),
    "a failed round leaves its rows in the context": ("muse-glimmer", {"session": forgetting("drafting")}),
    "a failed round keeps its draws": ("llama", {"session": forgetting("judge")}),
    "overwritten rows are put back elsewhere": ("muse-glimmer", {"cache": elsewhere}),
    "a recurrent state one row on": ("qwen38-flash-next", {"cache": OneStateOn}),
    "a replay of one row more": ("qwen38-flash-next", {"cache": lambda target: OneStateOn(target, replay=True)}),
    "a gate that never opens": ("llama", {"gate": NeverOpens}),
    "a gate that a failed round moved": ("llama", {"gate": ForgetsWhenClosed}),
}


@pytest.mark.parametrize("name", PLANTS)
def test_the_machine_finds(name: str):
    family, planted = PLANTS[name]
    with pytest.raises(AssertionError):
        run(family, 40, 30, planted=planted)
