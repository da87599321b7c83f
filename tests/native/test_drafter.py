"""The fused drafter equals the composition of the same library's operations, stage by stage and bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from native import Context, Drafter, Library
from native.drafter import config_text
from native.tensors import ffi, view
from tests.native.composed_drafter import GEOMETRY, Composed, Stages, small_config, small_weights

DIALECTS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": [True, True]},
    "mixed layers": {"causal": [True, False], "sliding": [False, True], "window_rule": "W_LT", "window": 4},
    "W_LT": {"window_rule": "W_LT", "window": 5},
    "W_LT causal": {"window_rule": "W_LT", "window": 5, "causal": [True, True]},
    "W_LT_left": {"window_rule": "W_LT_left", "window": 5},
    "W_LE": {"window_rule": "W_LE", "window": 5},
    "W_LE narrower than the block": {"window_rule": "W_LE", "window": 2},
    "W_LT_ctx": {"window_rule": "W_LT_ctx", "window": 5},
    "W_ANCHOR": {"window_rule": "W_ANCHOR", "window": 5},
    "W_ANCHOR causal": {"window_rule": "W_ANCHOR", "window": 5, "causal": [True, True]},
    "W_RING": {"window_rule": "W_RING", "window": 5},
    "SINK_RING": {"window_rule": "SINK_RING", "window": 4, "sink": 2},
    "SINK_RING without sinks": {"window_rule": "SINK_RING", "window": 4, "sink": 0},
    "partial interleaved rope": {"rope_dim": 32, "rope_style": "interleaved", "rope_theta": 1e4},
    "a norm per tap": {"tap_norm": 1},
    "input norm on the context": {"ctx_layernorm": 1},
    "gate per head": {"attn_gate": "softplus"},
    "gate per channel": {"attn_gate": "sigmoid"},
    "all the norms and gates": {"tap_norm": 1, "ctx_layernorm": 1, "attn_gate": "softplus", "causal": [True, True]},
    "scales and cap": {"embed_scale": 16.0, "output_multiplier": 0.196, "softcap": 20.0, "attn_scale": 0.3, "eps": 1e-6},
}


def taps(rows: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, GEOMETRY["n_taps"] * GEOMETRY["target_hidden"])).astype(np.float32)


def block(rows: int, seed: int = 0) -> NDArray[np.int32]:
    ids = np.full(rows, GEOMETRY["mask_token_id"], np.int32)
    ids[0] = seed % GEOMETRY["vocab"]
    return ids


def same_stages(got: Stages, want: Stages) -> None:
    assert set(got) == set(want)
    for key, value in want.items():
        assert got[key].dtype == value.dtype and got[key].shape == value.shape, key
        np.testing.assert_array_equal(got[key].view(np.uint32), value.view(np.uint32), str(key))


def compare_rounds(ctx: Context, config: dict[str, Any], biases: bool) -> None:
    """Three rounds of appends (one of them an overwrite) and proposals of different widths, all stages of each compared."""
    weights = small_weights(biases, config)
    dumped: Stages = {}
    ctx.on_dump(lambda stage, row0, array, dtype: dumped.__setitem__((stage, row0), array))
    try:
        with ctx.drafter(config, weights) as drafter:
            composed = Composed(ctx, config, weights)
            for start, count, rows in ((0, 7, 8), (7, 1, 8), (7, 3, 5), (10, 9, 8)):
                dumped.clear()
                composed.stages.clear()
                drafter.append(taps(count, start), start)
                composed.append(taps(count, start), start)
                got = drafter.propose(block(rows, start), start + count)
                logits = composed.propose(block(rows, start), start + count)
                same_stages(dumped, composed.stages)
                ids, top2 = ctx.top2(logits)
                np.testing.assert_array_equal(got.logits, logits)
                np.testing.assert_array_equal(got.ids, ids[:, 0])
                np.testing.assert_array_equal(got.top2, top2)
                same_context(drafter, composed)
    finally:
        ctx.on_dump(None)


def same_context(drafter: Drafter, composed: Composed) -> None:
    for layer, (want_k, want_v) in enumerate(composed.cells):
        k, v, positions = drafter.context(layer)
        assert positions.tolist() == composed.positions
        np.testing.assert_array_equal(k, want_k)
        np.testing.assert_array_equal(v, want_v)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_equals_the_composition(ctx: Context, dialect: str) -> None:
    compare_rounds(ctx, small_config(**DIALECTS[dialect]), biases=False)


def test_biases_reach_context_and_block(ctx: Context) -> None:
    compare_rounds(ctx, small_config(), biases=True)


def test_the_dialects_differ(ctx: Context) -> None:
    """Otherwise the comparison above would prove nothing about them."""
    seen: dict[bytes, str] = {}
    for name, changes in DIALECTS.items():
        config = small_config(**changes)
        with ctx.drafter(config, small_weights(config=config)) as drafter:
            drafter.append(taps(7), 0)
            drafter.propose(block(8), 7)
            drafter.append(taps(5, 1), 7)
            key = drafter.propose(block(8), 12).logits.tobytes()  # type: ignore[union-attr]
        assert key not in seen, f"{name} and {seen[key]} give the same logits"
        seen[key] = name


def test_threads_and_batches_of_context_do_not_change_a_bit(cpu: Library) -> None:
    results = []
    for threads, sizes in ((1, (12,)), (3, (5, 7)), (2, (1,) * 12)):
        with cpu.context(threads) as ctx, ctx.drafter(small_config(), small_weights()) as drafter:
            start = 0
            for size in sizes:
                drafter.append(taps(12)[start : start + size], start)
                start += size
            results.append(drafter.propose(block(8), 12).logits)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_truncating_and_appending_again_is_as_if_it_never_happened(ctx: Context) -> None:
    with ctx.drafter(small_config(), small_weights()) as drafter:
        drafter.append(taps(9), 0)
        first = drafter.propose(block(8), 9).logits
        drafter.append(taps(4, 1), 9)
        drafter.truncate(6)
        assert drafter.context(0)[2].tolist() == list(range(6))
        drafter.append(taps(9)[6:], 6)
        np.testing.assert_array_equal(drafter.propose(block(8), 9).logits, first)


def test_a_proposal_leaves_the_context_alone(ctx: Context) -> None:
    with ctx.drafter(small_config(), small_weights()) as drafter:
        drafter.append(taps(3), 0)
        first, second = (drafter.propose(block(8), 3).logits for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert drafter.propose(block(4), 3, logits=False).logits is None


def test_copied_weights_may_be_freed(ctx: Context, cpu: Library) -> None:
    """Without DLAB_BORROW the library keeps its own copy."""
    weights = small_weights()
    with ctx.drafter(small_config(), weights) as borrowing:
        borrowing.append(taps(3), 0)
        want = borrowing.propose(block(8), 3)
    names = [ffi.new("char[]", role.encode()) for role in weights]
    table = ffi.new("dlab_named_tensor[]", len(weights))
    for entry, name, (role, weight) in zip(table, names, weights.items(), strict=True):
        entry.name, entry.tensor = name, (weight.vector() if role.endswith("norm") else weight.matrix())[0]
    out = ffi.new("dlab_drafter**")
    ctx._calls.call("drafter_create", config_text(small_config()).encode(), table, len(weights), 0, out)
    for weight in weights.values():
        weight.raw[...] = 0xFF
    try:
        rows, ids = taps(3), np.empty(8, np.int32)
        ctx._calls.check(cpu._handle.dlab_drafter_append(out[0], view(rows), 0), "append")
        block_ids = block(8)
        pointers = ffi.cast("int32_t*", block_ids.ctypes.data), 8, 3, ffi.cast("int32_t*", ids.ctypes.data)
        ctx._calls.check(cpu._handle.dlab_drafter_propose(out[0], *pointers, ffi.NULL, ffi.NULL), "propose")
        np.testing.assert_array_equal(ids, want.ids)
    finally:
        cpu._handle.dlab_drafter_destroy(out[0])
