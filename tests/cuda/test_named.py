"""The operations of ABI 1.1 in the CUDA library, on the emulator: within the noise of what it declares, a small mistake beyond it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from native import Context
from native.emulation import Emulation
from native.tensors import ffi, view
from oracle.arithmetic import Arithmetic
from oracle.kit import EXACT
from oracle.ops import OPS
from oracle.readings import Noise, Stage, values
from parity.conformance.entry_calls import ENTRY_CALLS
from parity.conformance.named_calls import CALLS
from parity.judge import Judge
from parity.native_reading import MOVES
from tests.native.test_named_ops import MISUSE, healthy, prefixes, run
from tests.native.test_named_ops import test_wrong_operands_are_named_and_nothing_is_written as _wrong_operands

COMPUTED = [n for n in CALLS if n not in MOVES]
EVERY = ENTRY_CALLS | {name: CALLS[name] for name in COMPUTED}
# A number also seeds the order of blocks and threads.
SCHEDULES = ("late", *map(str, range(1, 21)))
MINE = [m for m in MISUSE if m[0] not in (*MOVES, "silo")]


def fits(declared: Arithmetic, made: Stage, got: np.ndarray[Any, Any]) -> bool:
    return healthy(Judge(declared, max(got.size, 1000)).judge(made, Noise(declared).apply(made), got))


@pytest.mark.parametrize("name", COMPUTED)
def test_every_operation_is_within_its_declared_noise_and_a_small_mistake_beyond_it(ctx: Context, declared: Arithmetic, name: str) -> None:
    assert name in ctx.ops
    for seed in range(4):
        made = CALLS[name](np.random.default_rng(seed))
        got = run(ctx, made).astype(np.float64)
        if OPS[name].kind in ("structural", "choice"):
            assert np.array_equal(got, OPS[name].formula(EXACT, *values(made.args), **made.params), equal_nan=True)
            continue
        assert fits(declared, made, got)
        assert got.size < 12 or not fits(declared, made, got * (1 + 3e-5))


@pytest.mark.parametrize("name", [n for n in COMPUTED if n != "block_mean"])
def test_a_row_has_the_same_bits_whatever_follows_it(ctx: Context, name: str) -> None:
    for seed in range(2):
        made = CALLS[name](np.random.default_rng(seed))
        whole = run(ctx, made)
        for n, part in prefixes(made):
            np.testing.assert_array_equal(run(ctx, part), whole[:n], f"{name}, {n} rows")


@pytest.mark.parametrize("name", EVERY)
def test_an_operation_has_the_same_bits_under_every_schedule(ctx: Context, emulation: Emulation, name: str) -> None:
    made = EVERY[name](np.random.default_rng(5))
    want = run(ctx, made)
    for schedule in SCHEDULES:
        emulation.schedule(schedule)
        np.testing.assert_array_equal(run(ctx, made).view(np.uint32), want.view(np.uint32), f"{name}, {schedule}")


@pytest.mark.parametrize(("op", "operands", "params", "y", "status", "text"), MINE, ids=[f"{m[0]}: {m[-1]}" for m in MINE])
def test_wrong_operands_are_named(ctx: Context, op: str, operands: list[Any], params: list[float], y: Any, status: str, text: str) -> None:
    _wrong_operands(ctx, op, operands, params, y, status, text)


def test_ids_and_operands_may_lie_on_the_device(ctx: Context) -> None:
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal((3, 5)).astype(np.float32), rng.integers(0, 99, (3, 5)).astype(np.int64)]
    want = ctx.apply("choose", operands, [], np.empty(3, np.int32))
    tensors, y = ffi.new("dlab_tensor[2]"), np.empty(3, np.int32)
    for tensor, operand in zip(tensors, operands, strict=True):
        ctx._calls.call("upload", view(operand, {"f": "f32", "i": "i64"}[operand.dtype.kind]), ffi.addressof(tensor))
    ctx._calls.call("apply", b"choose", tensors, 2, ffi.new("double[1]"), 0, view(y, "i32"))
    for tensor in tensors:
        ctx._calls.call("release", ffi.addressof(tensor))
    np.testing.assert_array_equal(y, want)
