"""A configuration, a weight or a call that does not fit is refused by name; dumps and callbacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from native import Context, Library, NativeError, Stored
from tests.native.composed_drafter import GEOMETRY, small_config, small_weights
from tests.native.test_drafter import block, taps


def refusal(ctx: Context, config: dict[str, Any], weights: dict[str, Stored]) -> str:
    with pytest.raises(NativeError) as caught:
        ctx.drafter(config, weights)
    assert caught.value.text.startswith("drafter_create: ")
    return caught.value.text


@pytest.mark.parametrize("key", GEOMETRY)
def test_every_key_is_required(ctx: Context, key: str) -> None:
    assert f"config key '{key}' is missing" in refusal(ctx, {k: v for k, v in GEOMETRY.items() if k != key}, small_weights())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"colour": 1}, "config key 'colour' is unknown"),
        ({"hidden": 0}, "hidden=0: expected an integer in 1.."),
        ({"hidden": "12x"}, "hidden=12x"),
        ({"layers": "99999999999999999999"}, "layers=99999999999999999999"),
        ({"kv_heads": 3}, "heads=4 is not a multiple of kv_heads=3"),
        ({"mask_token_id": 37}, "mask_token_id=37: expected an integer in 0..36"),
        ({"block_size": 513}, "block_size=513: expected an integer in 1..512"),
        ({"eps": -1.0}, "eps=-1.0: expected a finite number of at least 0"),
        ({"eps": float("nan")}, "eps=nan"),
        ({"rope_theta": 0.0}, "rope.theta=0.0: expected a finite number above 0"),
        ({"rope_dim": 66}, "rope.dim=66: expected an integer in 2..64"),
        ({"rope_dim": 7}, "rope.dim=7: expected an even number"),
        ({"rope_style": "gptj"}, "rope.style=gptj: expected neox or interleaved"),
        ({"causal": [0]}, "causal=0: expected 2 values, one per layer"),
        ({"causal": "0,2"}, "causal=0,2: expected 0 or 1 per layer"),
        ({"sliding": "0,1,"}, "sliding=0,1,: expected 0 or 1 per layer"),
        ({"window_rule": "W_GT"}, "window_rule=W_GT is unknown"),
        ({"window_rule": "W_LT"}, "config key 'window' is missing"),
        ({"window": 5}, "config key 'window' is unknown, or has no place"),
        ({"window_rule": "W_LT", "window": 0}, "window=0: expected an integer in 1.."),
        ({"window_rule": "W_LT", "window": 5, "sink": 2}, "config key 'sink' is unknown, or has no place"),
        ({"window_rule": "SINK_RING", "window": 5, "sink": 2, "sliding": [1, 0]}, "layer 1 does not slide, but SINK_RING evicts"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_value_is_named(ctx: Context, changes: dict[str, Any], text: str) -> None:
    assert text in refusal(ctx, small_config(**changes), small_weights())


def test_weights_must_be_exactly_those_of_the_configuration(ctx: Context) -> None:
    weights = small_weights()
    for role in weights:
        assert f"weight '{role}' is missing" in refusal(ctx, small_config(), {r: w for r, w in weights.items() if r != role})
    extra = weights | {"layers.2.q": weights["layers.1.q"]}
    assert "weight 'layers.2.q' has no place" in refusal(ctx, small_config(), extra)
    for role in weights:
        wrong = Stored.of(np.ones(3 if role.endswith("norm") else (3, 3), np.float32))
        assert f"{role} is F32 [3" in refusal(ctx, small_config(), weights | {role: wrong})


def test_switches_bring_their_weights_and_take_only_their_values(ctx: Context) -> None:
    assert "weight 'tap_norm' is missing" in refusal(ctx, small_config(tap_norm=1), small_weights())
    assert "weight 'layers.0.attn_gate' is missing" in refusal(ctx, small_config(attn_gate="softplus"), small_weights())
    gated = small_weights(config={"attn_gate": "softplus"})
    assert "weight 'layers.0.attn_gate' has no place" in refusal(ctx, small_config(), gated)
    assert "attn_gate=tanh" in refusal(ctx, small_config(attn_gate="tanh"), small_weights())
    assert "tap_norm=2" in refusal(ctx, small_config(tap_norm=2), small_weights())


def test_describe_states_every_key_in_force(ctx: Context) -> None:
    config = small_config(window_rule="SINK_RING", window=2048, sink=64, eps=1e-6)
    with ctx.drafter(config, small_weights()) as drafter:
        described = drafter.describe()
    optional = {"tap_norm", "ctx_layernorm", "attn_gate", "anchor_layout", "draft_vocab", "markov", "confidence"}
    assert set(described) == set(config) | optional
    assert float(described["eps"]) == 1e-6
    assert (described["window"], described["sink"], described["sliding"]) == ("2048", "64", "1,1")


def test_calls_that_do_not_fit_are_refused_and_change_nothing(ctx: Context) -> None:
    with ctx.drafter(small_config(), small_weights()) as drafter:
        drafter.append(taps(4), 0)
        want = drafter.propose(block(8), 4).logits
        calls: list[tuple[Any, str, str]] = [
            (lambda: drafter.append(taps(1), 5), "STATE", "row 5 is beyond the 4 committed rows"),
            (lambda: drafter.append(taps(1), -1), "ARG", "pos0 is -1"),
            (lambda: drafter.append(taps(1)[:, :99].copy(), 4), "SHAPE", "taps is F32 [1,99], expected shape [*,256]"),
            (lambda: drafter.propose(block(8), -1), "ARG", "pos is -1"),
            (lambda: drafter.propose(block(8), 2**31), "ARG", "pos is 2147483648"),
            (lambda: drafter.propose(np.zeros(9, np.int32), 4), "ARG", "rows is 9, expected 1..8 (block_size)"),
            (lambda: drafter.propose(np.zeros(0, np.int32), 4), "ARG", "rows is 0"),
            (lambda: drafter.propose(np.array([0, 37], np.int32), 4), "ARG", "block_ids[1] is 37, expected 0..36"),
            (lambda: drafter.truncate(5), "STATE", "row 5 is beyond"),
            (lambda: drafter.truncate(-1), "ARG", "length is -1"),
            (lambda: drafter.context(2), "ARG", "layer is 2, expected 0..1"),
        ]
        for call, status, text in calls:
            with pytest.raises(NativeError) as caught:
                call()
            assert caught.value.status == status
            assert text in caught.value.text
        np.testing.assert_array_equal(drafter.propose(block(8), 4).logits, want)
    with pytest.raises(NativeError, match="the drafter is closed"):
        drafter.truncate(0)


def test_evicted_rows_cannot_be_gone_back_to(ctx: Context) -> None:
    with ctx.drafter(small_config(window_rule="SINK_RING", window=4, sink=2), small_weights()) as drafter:
        drafter.append(taps(9), 0)
        assert drafter.context(0)[2].tolist() == list(range(9))  # eviction is at the end of propose
        drafter.propose(block(8), 9)
        assert drafter.context(0)[2].tolist() == [0, 1, 5, 6, 7, 8]
        with pytest.raises(NativeError, match=r"cannot go back to 4 rows: rows 2\.\.4 were evicted"):
            drafter.append(taps(1), 4)
        drafter.truncate(7)
        assert drafter.context(1)[2].tolist() == [0, 1, 5, 6]
        drafter.truncate(2)
        drafter.append(taps(3), 2)
        assert drafter.context(1)[2].tolist() == [0, 1, 2, 3, 4]
        drafter.truncate(4)  # held again, so it may be gone back to
        assert drafter.context(1)[2].tolist() == [0, 1, 2, 3]


def test_only_the_wanted_stages_are_dumped(ctx: Context) -> None:
    seen: list[tuple[str, int, str]] = []
    ctx.on_dump(lambda stage, row0, array, dtype: seen.append((stage, row0, dtype)), "draft.L*.ctx.v,draft.pick")
    try:
        with ctx.drafter(small_config(), small_weights()) as drafter:
            drafter.append(taps(2), 0)
            drafter.append(taps(2), 2)
            drafter.propose(block(8), 4)
    finally:
        ctx.on_dump(None)
    stages = [(f"draft.L{layer}.ctx.v", row0, "f32") for row0 in (0, 2) for layer in (0, 1)]
    assert seen == [*stages, ("draft.pick", 0, "i32")]


@pytest.mark.parametrize("stage", ["draft.L1.ctx.k_rope", "draft.L0.attn", "draft.pick"])
def test_an_exception_in_the_callback_comes_out_and_nothing_is_committed(ctx: Context, stage: str) -> None:
    def raise_in_callback(*_: object) -> None:
        raise LookupError("from the callback")

    with ctx.drafter(small_config(window_rule="SINK_RING", window=2, sink=1), small_weights()) as drafter:
        drafter.append(taps(5), 0)
        ctx.on_dump(raise_in_callback, stage)
        try:
            with pytest.raises(LookupError) as caught:
                drafter.append(taps(2), 3)
                drafter.propose(block(8), 5)
        finally:
            ctx.on_dump(None)
        assert any(entry.name == "raise_in_callback" for entry in caught.traceback)
        assert len(drafter.context(0)[2]) == 5
        drafter.propose(block(8), 5)
        assert drafter.context(0)[2].tolist() == [0, 3, 4]


def test_a_call_from_inside_a_callback_is_refused(ctx: Context) -> None:
    def call_back(*_: object) -> None:
        ctx.softmax(np.ones((1, 2), np.float32))

    ctx.on_dump(call_back, "draft.fc")
    try:
        with ctx.drafter(small_config(), small_weights()) as drafter, pytest.raises(NativeError, match="in use by another call"):
            drafter.append(taps(1), 0)
    finally:
        ctx.on_dump(None)


def test_closing_the_context_closes_its_drafters(cpu: Library) -> None:
    ctx = cpu.context(1)
    drafter = ctx.drafter(small_config(), small_weights())
    ctx.close()
    drafter.close()
    with pytest.raises(NativeError, match="the drafter is closed"):
        drafter.describe()


def test_a_drafter_keeps_its_context_alive(cpu: Library) -> None:
    drafter = cpu.context(1).drafter(small_config(), small_weights())
    drafter.append(taps(2), 0)
    assert drafter.context(0)[2].tolist() == [0, 1]
