"""The round loop: greedy output is the target's own whatever is proposed, in every engine's rounds and every cache."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from oracle.speculation.acceptance import DEFINITIONS, differences, shadow, shadow_of
from oracle.speculation.caches import KINDS, CacheError, new_cache
from oracle.speculation.coins import outcomes
from oracle.speculation.drafting import LookupDrafter, ModelDrafter, OracleDrafter, Proposal, RandomDrafter
from oracle.speculation.gates import LatchGate, WindowedGate
from oracle.speculation.judging import Ordered, Sampled, draft_rows
from oracle.speculation.laws import Sampling
from oracle.speculation.mt19937 import MT19937
from oracle.speculation.ordered import OrderedSampling
from oracle.speculation.rounds import Request, Session, decode
from oracle.speculation.schedules import SCHEDULES, ScheduleError
from oracle.speculation.verification import RULES
from tests.oracle import golden_laguna
from tests.speculation.tiny import BLOCK, FAMILIES, pair, shallow

PROMPT = (3, 17, 9, 25, 4, 12, 30, 7)
ACCEPTS = (0, 2, 1, None, 0, 1, 2)


def drafters(family: str, reference: list[int]):
    p = pair(family)
    vocab = p.target.geometry.vocab
    yield ModelDrafter(p.drafter, p.target.embedding, p.target.head, p.schedule)
    yield OracleDrafter([*PROMPT, *reference], ACCEPTS, vocab)
    yield LookupDrafter()
    yield RandomDrafter(5, p.vocab)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_output_is_the_target_s_own_whoever_drafts(family: str):
    p = pair(family)
    reference, rows = decode(p.target, PROMPT, 24)
    for drafting in drafters(family, reference):
        length = BLOCK if p.schedule.unit == "rows" else BLOCK - 1
        session = Session(p.target, drafting, Request(PROMPT, 20, length, p.schedule), taps=p.drafter.tap_ids)
        trace = session.run()
        assert session.emitted == reference[:20], type(drafting).__name__
        for r in trace.rounds:
            for j in range(r.accepted + 1):
                assert np.abs(r.target_logits[j] - rows[r.position + j + 1 - len(PROMPT)]).max() < 1e-10


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_engine_s_rounds_and_its_own_unit(name: str):
    schedule = SCHEDULES[name]
    p = pair("llama")
    reference, _ = decode(p.target, PROMPT, 40)
    for length in range(17):
        try:
            drafts = schedule.drafts(length)
        except ScheduleError:
            continue
        assert drafts == length - (schedule.unit == "rows") >= 1
        session = Session(p.target, OracleDrafter([*PROMPT, *reference], (None,), 40), Request(PROMPT, 9, length, schedule))
        trace = session.run()
        assert session.emitted == reference[:9]
        assert all(len(r.window) <= drafts + 1 and r.accepted == len(r.window) - 1 for r in trace.rounds)


def test_lengths_that_an_engine_does_not_have():
    for name, good, bad in (("muser", (3, 7, 15), (1, 4, 16)), ("strata", range(1, 8), (0, 8)), ("mlxcel", range(2, 17), (0, 1))):
        assert [SCHEDULES[name].drafts(n) for n in good]
        for n in bad:
            with pytest.raises(ScheduleError, match=f"verify length {n}: {name} takes"):
                SCHEDULES[name].drafts(n)
    g = pair("laguna").drafter.geometry
    with pytest.raises(ScheduleError, match="takes 2, 3, 4, 5 rows"):
        SCHEDULES["mlxcel"].drafts(6, g)
    assert (
        SCHEDULES["muser"].block_rows(3, g) == 5 and SCHEDULES["mlxcel"].block_rows(3, g) == 4 and SCHEDULES["strata"].block_rows(3, g) == 3
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_laguna_chapter_s_forced_accepts_over_its_window(kind: str):
    """`specs/laguna.md` 5.4: window 6, block 4; only the window's own ring loses rows, at round 6."""
    target = golden_laguna.target(None)
    reference, _ = decode(target, golden_laguna.PROMPT, 44)
    drafting = OracleDrafter([*golden_laguna.PROMPT, *reference], (0, 2, 1, None, 0, 1, 2), golden_laguna.VOCAB)
    request = Request(tuple(golden_laguna.PROMPT), 40, 4, SCHEDULES["mlxcel"])
    trace = Session(target, drafting, request, cache=new_cache(target, kind, 4)).run()
    if kind != "ring-without-slack":
        assert trace.emitted == reference[:40]
        assert [r.accepted for r in trace.rounds] == [0, 2, 1, 3, 0, 1, 2, 0, 2, 1, 3, 0, 1, 2, 0, 2, 1, 1]
        return
    first = next(i for i, (a, b) in enumerate(zip(trace.emitted, reference, strict=False)) if a != b)
    made = np.cumsum([1, *(len(r.emitted) for r in trace.rounds)])
    assert int(np.searchsorted(made, first, "right")) == 6


@pytest.mark.parametrize("family", ("muse-glimmer", "laguna"))
def test_a_trace_replays_and_depends_on_no_sound_cache(family: str):
    p = pair(family)
    length = BLOCK if p.schedule.unit == "rows" else BLOCK - 1

    def run(kind: str):
        drafting = ModelDrafter(p.drafter, p.target.embedding, p.target.head, p.schedule)
        cache = new_cache(p.target, kind, BLOCK)
        return Session(p.target, drafting, Request(PROMPT, 16, length, p.schedule), cache=cache).run()

    first = run("dense")
    for kind in KINDS:
        if kind != "ring-without-slack":
            assert first.difference(run(kind)) is None
    other = run("dense")
    other.rounds[3] = other.rounds[2]
    assert str(first.difference(other)).startswith("round 3 round: 3 and 2")
    assert len(first.lines().splitlines()) == len(first.rounds) + 1


def test_a_stop_token_ends_the_text_and_everything_behind_it():
    p = pair("llama")
    reference, _ = decode(p.target, PROMPT, 24)
    stop = reference[6]
    end = reference.index(stop) + 1
    for schedule, length in (("z-lab", 5), ("muser", 7)):
        session = Session(
            p.target, OracleDrafter([*PROMPT, *reference], (None,), 40), Request(PROMPT, 24, length, SCHEDULES[schedule], (stop,))
        )
        session.run()
        assert session.emitted == reference[:end]


def test_a_gate_in_the_loop_costs_speed_and_never_the_text():
    p = pair("llama")
    reference, _ = decode(p.target, PROMPT, 60)
    drafting = RandomDrafter(5, p.vocab)
    for gate, reopened in ((WindowedGate(), False), (LatchGate(), False)):
        gate_session = Session(p.target, drafting, Request(PROMPT, 60, 15, SCHEDULES["muser"]), gate=gate)
        trace = gate_session.run()
        assert gate_session.emitted == reference and any(r.fallback for r in trace.rounds) and gate.closed is not reopened


@pytest.mark.parametrize("rule", [n for n, r in RULES.items() if r.lossless and n != "floored-ratio"])
def test_the_law_of_a_whole_session_is_the_target_s(rule: str):
    """Every random stream of prefill and rounds, a model drafter with a context, laws cut to two tokens."""
    p = pair("laguna")
    sampling, prompt = Sampling(top_k=2), PROMPT[:3]

    def play(coins):
        schedule = SCHEDULES["z-lab"]
        drafting = ModelDrafter(p.drafter, p.target.embedding, p.target.head, schedule)
        session = Session(p.target, drafting, Request(prompt, 3, 2, schedule), judge=Sampled(RULES[rule], sampling, coins))
        session.run()
        return tuple(session.emitted)

    expected = {(): Fraction(1)}
    for _ in range(3):
        longer = {}
        for tokens, w in expected.items():
            law = sampling.law(p.target.window([*prompt, *tokens]).logits[-1])
            longer |= {(*tokens, int(i)): w * law[i] for i in np.flatnonzero(law)}
        expected = longer
    found = outcomes(play)
    assert found.keys() == expected.keys() and max(abs(float(found[t]) - float(expected[t])) for t in found) < 1e-12


def test_a_reduced_vocabulary_s_drafts_are_judged_as_target_ids():
    logits = np.array([[0.0, 3.0, 1.0]])
    rows = draft_rows(Proposal((5,), (), logits, np.array([2, 5, 7])), 9)
    assert rows.shape == (1, 9) and rows[0, [2, 5, 7]].tolist() == [0, 3, 1] and np.isneginf(rows[0, [0, 1, 3, 4, 6, 8]]).all()
    judge = Sampled(RULES["leviathan"], Sampling(), MT19937(3))
    assert set(judge.choose(Proposal((5,), (), np.repeat(logits, 30, 0), np.array([2, 5, 7])), 9)) <= {2, 5, 7}
    one_hot = draft_rows(Proposal((4, 1)), 6)
    assert [int(np.flatnonzero(np.isfinite(r))[0]) for r in one_hot] == [4, 1]


def test_muser_s_ordered_rounds_replay_from_their_seed():
    p = pair("muse-glimmer")

    def run(seed: int):
        drafting = ModelDrafter(p.drafter, p.target.embedding, p.target.head, p.schedule)
        return Session(p.target, drafting, Request(PROMPT, 12, 4, p.schedule), judge=Ordered(OrderedSampling(top_k=3), MT19937(seed))).run()

    a, b = run(7), run(7)
    assert a.difference(b) is None and a.emitted != run(8).emitted
    drawn = [2, *(r.drawn for r in a.rounds)]
    for before, r in zip(drawn, a.rounds, strict=False):
        drafts = len(r.window) - 1
        verify = (drafts + 2 if r.accepted == drafts else r.accepted + 3) if drafts else 2
        assert r.drawn - before == 2 * len(r.proposals) + verify


def test_acceptance_in_three_definitions_and_why_they_differ():
    p = pair("llama")
    reference, _ = decode(p.target, PROMPT, 30)
    session = Session(p.target, OracleDrafter([*PROMPT, *reference], ACCEPTS, 40), Request(PROMPT, 24, 5, SCHEDULES["z-lab"]))
    trace = session.run()
    counts = {n: d(trace) for n, d in DEFINITIONS.items()}
    accepted = sum(r.accepted for r in trace.rounds)
    assert counts["strata"].rounds == counts["mlxcel"].rounds + 1 == counts["muser"].rounds + 1
    assert counts["mlxcel"].tokens + 1 >= len(session.emitted) == 24
    assert counts["strata"].tokens_per_round == (accepted + counts["strata"].rounds) / counts["strata"].rounds
    assert all(c.accepted == accepted and c.rate == accepted / c.drafted for c in counts.values())
    assert any("bootstrap" in line for line in differences(trace))


def test_a_shadow_counts_positions_on_their_own_and_prefixes_together():
    s = shadow_of([[1, 2, 3], [1, 9, 3], [9, 2, 3]], [[1, 2, 3]] * 3)
    assert s.hits == (2, 2, 3) and s.prefixes == (3, 1, 0) and s.mean_prefix == pytest.approx(sum(s.survival))
    p = pair("laguna")
    reference, _ = decode(p.target, PROMPT, 20)
    real = shadow(p.target, p.drafter, p.schedule, PROMPT, reference, 4)
    assert real.rounds == 4 and len(real.hits) == 4
    for bad in ([], [[1], [1, 2]]):
        with pytest.raises(ValueError):
            shadow_of(bad, bad)


def test_a_draft_that_the_target_cannot_read_is_not_sent_and_costs_nothing_but_speed():
    p = pair("llama")
    reference, _ = decode(p.target, PROMPT, 12)
    spoiled = OracleDrafter([*PROMPT, *reference[:3], -1, *reference[4:]], (None,), 40)
    session = Session(p.target, spoiled, Request(PROMPT, 12, 5))
    session.run()
    assert session.emitted == reference


@pytest.mark.parametrize("family", ["laguna", "qwen38-flash-next"])
def test_engines_that_speculate_greedily_refuse_to_sample(family: str):
    """`specs/laguna.md` 4, `specs/qwen38-flash-next.md` 5.1: else a sampled request would get the greedy text."""
    p = pair(family)
    drafting = ModelDrafter(p.drafter, p.target.embedding, p.target.head, p.schedule)
    for judge in (Sampled(RULES["leviathan"], Sampling(), None), Ordered(OrderedSampling(), MT19937(1))):
        with pytest.raises(ScheduleError, match=f"{p.schedule.name} speculates greedily only"):
            Session(p.target, drafting, Request(PROMPT, 3, 2, p.schedule), judge=judge)
    Session(p.target, drafting, Request(PROMPT, 3, 2, p.schedule))


def test_an_empty_prompt_is_refused():
    with pytest.raises(ScheduleError, match="an empty prompt"):
        Request((), 3, 2)


def test_caches_refuse_what_they_cannot_do():
    t = pair("llama").target
    with pytest.raises(CacheError, match="expected one of dense"):
        new_cache(t, "paged")
    with pytest.raises(CacheError, match="recurrent layers; expected kept-rows or replay"):
        new_cache(pair("qwen38-flash-next").target, "dense")
    cache = new_cache(pair("laguna").target, "saving-ring", 16)
    cache.begin(3)
    cache.append(pair("laguna").target.window([1, 2, 3]).state, [1, 2, 3])
    with pytest.raises(CacheError, match="a window of 3 rows cannot keep 4"):
        cache.commit(4)
    cache.commit(3)
    with pytest.raises(CacheError, match="at most 16 rows"):
        cache.begin(17)
    assert shallow(t, 1).geometry.layers == 1
