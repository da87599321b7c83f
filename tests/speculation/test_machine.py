"""State machines over a session: whatever happened, caches and context equal a rebuild from the committed tokens alone.

Steps: rounds with forced accept lengths, given tokens, plain decodes, rounds that fail at any stage, whole windows rejected, gates that
close and open; windows of 6 or 7 rows wrap within a few steps. Every family, every way to take rows back.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from oracle.speculation.caches import KINDS, RECURRENT, new_cache
from oracle.speculation.drafting import ModelDrafter, RandomDrafter
from oracle.speculation.gates import WindowedGate
from oracle.speculation.rounds import STAGES, Request, Session
from tests.speculation.tiny import BLOCK, FAMILIES, Forced, Pair, apart, pair, seen_rows

SOUND = [k for k in KINDS if k != "ring-without-slack"]
EXACT = 1e-9


class Failed(Exception):
    """What a test makes a stage raise."""


class Machine(RuleBasedStateMachine):
    """``family`` and ``kinds`` are set by the test; ``steps`` counts what was run."""

    family: ClassVar[str] = "llama"
    kinds: ClassVar[tuple[str, ...]] = ("dense",)
    steps: ClassVar[int] = 0
    fail_at: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.pair: Pair = pair(self.family)
        self.session: Any = None
        self.built: tuple[list[int], list[Any], list[Any]] = ([], [], [])

    @initialize(kind=st.integers(0, 7), prompt=st.integers(1, 9), seed=st.integers(0, 99), model=st.booleans())
    def start(self, kind: int, prompt: int, seed: int, model: bool) -> None:
        p = self.pair
        tokens = RandomDrafter(seed, p.vocab).propose(range(7), prompt).drafts
        drafting = ModelDrafter(p.drafter, p.target.embedding, p.target.head, p.schedule) if model else RandomDrafter(seed, p.vocab)
        length = BLOCK if p.schedule.unit == "rows" else BLOCK - 1
        name = self.kinds[kind % len(self.kinds)]
        self.session = Session(
            p.target, drafting, Request(tokens, 10**6, length, p.schedule), judge=Forced(), cache=new_cache(p.target, name, BLOCK),
            cache_name=name, gate=WindowedGate(), taps=p.drafter.tap_ids, hook=self.hook,
        )  # fmt: skip
        self.session.prefill()
        self.session.tokens[-1] %= p.vocab

    def hook(self, stage: str) -> None:
        if stage == self.fail_at:
            raise Failed(stage)

    def round(self, accepts: int) -> None:
        self.session.judge.accepts = accepts
        self.session.round()

    @rule(accepts=st.sampled_from((0, 1, 2, BLOCK)))
    def a_round(self, accepts: int) -> None:
        self.round(accepts)

    @rule(count=st.integers(1, BLOCK), seed=st.integers(0, 99))
    def given_tokens(self, count: int, seed: int) -> None:
        self.session.extend(list(RandomDrafter(seed, self.pair.vocab).propose(range(3), count).drafts))

    @rule(stage=st.sampled_from(STAGES), accepts=st.integers(0, BLOCK))
    def a_round_that_fails(self, stage: str, accepts: int) -> None:
        before = (list(self.session.tokens), list(self.session.emitted), self.session.gate.mark(), len(self.session.trace.rounds))
        self.fail_at = stage
        with pytest.raises(Failed):
            self.round(accepts)
        self.fail_at = None
        assert before == (self.session.tokens, self.session.emitted, self.session.gate.mark(), len(self.session.trace.rounds))

    @rule(rows=st.integers(1, BLOCK))
    def a_window_that_is_wholly_rejected(self, rows: int) -> None:
        cache, ids = self.session.cache, [t % self.pair.vocab for t in range(rows)]
        cache.begin(rows)
        cache.append(self.pair.target.window(ids, cache.state()).state, ids)
        cache.commit(0)

    @precondition(lambda self: self.session is not None and not self.session.gate.closed)
    @rule()
    def the_gate_closes(self) -> None:
        for _ in range(8):
            self.session.gate.update(15, 0, len(self.session.emitted))
        assert self.session.gate.closed

    @precondition(lambda self: self.session is not None and self.session.gate.closed)
    @rule()
    def the_gate_opens_again(self) -> None:
        self.session.gate.requalify_at = len(self.session.emitted)
        self.round(1)
        assert not self.session.gate.closed and not self.session.trace.rounds[-1].fallback

    @invariant()
    def everything_equals_a_rebuild(self) -> None:
        if self.session is None:
            return
        type(self).steps += 1
        s, p = self.session, self.pair
        rows = len(s.tokens) - 1
        assert s.cache.length == rows and set(s.cache.rows_by_layer()) == {rows}
        if self.built[0] != s.tokens:
            out = p.target.window(s.tokens[:-1], taps=p.drafter.tap_ids)
            context = p.drafter.new_context()
            context.append(out.features, start=0)
            cells = [x.data for layer in context.cells.layers for x in layer]
            self.built = (list(s.tokens), seen_rows(p.target, out.state, rows), cells)
        assert apart(seen_rows(p.target, s.cache.state(), rows), self.built[1]) < EXACT
        if isinstance(s.drafting, ModelDrafter):
            assert s.drafting.length == rows
            assert apart([x.data for layer in s.drafting.context.cells.layers for x in layer], self.built[2]) < EXACT


def run(family: str, examples: int, steps: int = 50, kinds: tuple[str, ...] = ()) -> int:
    kinds = kinds or (RECURRENT if family == "qwen38-flash-next" else tuple(SOUND) if family in ("muse-glimmer", "laguna") else ("dense",))
    machine = type(f"Machine_{family}", (Machine,), {"family": family, "kinds": kinds, "steps": 0})
    checks = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)
    # Without shrinking: a found failure is reported as it is, at once.
    chosen = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, derandomize=True, database=None,
        suppress_health_check=checks, phases=(Phase.generate,),
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=chosen)
    return machine.steps


@pytest.mark.parametrize("family", FAMILIES)
def test_a_thousand_steps(family: str):
    assert run(family, 50, 30) >= 1000


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_ten_thousand_steps(family: str):
    assert run(family, 400) >= 10_000


def test_the_ring_without_slack_loses_rows():
    """The negative control: the same machine finds what the window's own ring cannot give back."""
    with pytest.raises(AssertionError):
        run("laguna", 20, 30, ("ring-without-slack",))
