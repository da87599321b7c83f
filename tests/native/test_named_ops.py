"""Operations by name: within the oracle's own noise on random calls, a small mistake beyond it, the same bits in every batch and thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from native import Context, Library, NativeError, Stored
from native.sources import HEADER
from oracle.arithmetic import named
from oracle.kit import EXACT
from oracle.ops import OPS
from oracle.readings import Noise, Stage, values
from oracle.tensor import Array, Tensor
from parity.conformance.named_calls import CALLS
from parity.judge import Judge, Verdict
from parity.native_reading import BINDINGS, GIVEN, Native

ROUNDED = named("cpu,fma=0")
seeds = st.integers(0, 2**32 - 1)
NOT_ROW_BY_ROW = ("cells", "block_mean")
INTEGERS = {"to_target": (0,), "choose": (1,), "selector_scores": (1, 3), "expert_weights": (1,), "expert_linear": (1,)}


def lifted(made: Stage, native: Native) -> Stage:
    """The stage with its tensors as the reading holds them: float32, ids as int32."""
    ids = INTEGERS.get(made.op.name, ())
    args = (
        native.lift(a.data.astype(np.int64) if i in ids else a.data, a.axes) if isinstance(a, Tensor) else a
        for i, a in enumerate(made.args)
    )
    return replace(made, args=tuple(args))


def run(ctx: Context, made: Stage) -> np.ndarray[Any, Any]:
    native = Native(ctx)
    return native.apply(lifted(made, native)).data


def judged(made: Stage, got: Array) -> Verdict:
    """Under the arithmetic of a processor without fused multiply-adds, which leaves the most room."""
    return Judge(ROUNDED, max(got.size, 1000)).judge(made, Noise(ROUNDED).apply(made), got)


def healthy(verdict: Verdict) -> bool:
    return bool((verdict.row_ratio <= 1).all()) and verdict.common <= 1


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_every_operation_is_within_its_own_noise(ctx: Context, name: str, seed: int) -> None:
    made = CALLS[name](np.random.default_rng(seed))
    got = run(ctx, made).astype(np.float64)
    if OPS[name].kind in ("structural", "choice"):
        assert np.array_equal(got, OPS[name].formula(EXACT, *values(made.args), **made.params), equal_nan=True)
        return
    verdict = judged(made, got)
    assert healthy(verdict), (verdict.row_ratio.max(initial=0), verdict.common)


@pytest.mark.parametrize("name", [n for n in CALLS if OPS[n].kind not in ("structural", "choice")])
def test_a_small_mistake_is_beyond_it(ctx: Context, name: str) -> None:
    """Without this the verdicts above would prove nothing: 3e-5 of a row, and the rows one too far."""
    made = next(m for m in (CALLS[name](np.random.default_rng(s)) for s in range(99)) if np.prod(m.op.shape(*m.args, **m.params)) >= 12)
    got = run(ctx, made).astype(np.float64)
    assert healthy(judged(made, got))
    assert not healthy(judged(made, got * (1 + 3e-5)))
    assert not healthy(judged(made, np.roll(got.reshape(-1), 1).reshape(got.shape)))


NOT_ROWS = {"to_target": (1,), "short_conv": (1,), "ngram": (2,)}


def prefixes(made: Stage) -> Iterator[tuple[int, Stage]]:
    """The call with only the first rows of every operand that has rows."""

    def has_rows(at: int, a: Any) -> bool:
        if at in NOT_ROWS.get(made.op.name, ()):
            return False
        return a.axes[0] == "row" if isinstance(a, Tensor) else isinstance(a, np.ndarray)

    rowed = [has_rows(i, a) for i, a in enumerate(made.args)]
    rows = next(len(a.data if isinstance(a, Tensor) else a) for a, has in zip(made.args, rowed, strict=True) if has)
    for n in {1, rows // 2, rows - 1} - {0}:
        cut = [(a.rows(0, n) if isinstance(a, Tensor) else a[:n]) if has else a for a, has in zip(made.args, rowed, strict=True)]
        yield n, replace(made, args=tuple(cut))


@pytest.mark.parametrize("name", [n for n in CALLS if n not in NOT_ROW_BY_ROW])
def test_a_row_has_the_same_bits_whatever_follows_it_and_for_any_number_of_threads(cpu: Library, name: str) -> None:
    with cpu.context(1) as one, cpu.context(3) as three:
        for seed in range(8):
            made = CALLS[name](np.random.default_rng(seed))
            whole = run(one, made)
            np.testing.assert_array_equal(run(three, made), whole)
            for n, part in prefixes(made):
                np.testing.assert_array_equal(run(three, part), whole[:n], f"{name}, {n} rows")


def test_the_library_has_every_operation_of_the_oracle_and_the_header_lists_each(cpu: Library) -> None:
    by_name = set(OPS) - set(BINDINGS) - {GIVEN}
    assert set(CALLS) == by_name <= cpu.ops
    text = HEADER.read_text().split("operations by name (1.1)")[1].split("dlab_apply(")[0]
    listed = {line.split()[1] for line in text.splitlines() if line.startswith(" *   ") and not line.startswith(" *    ") and "->" in text}
    assert by_name <= listed, by_name - listed


def ones(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


def numbers(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


W = Stored.of(ones(3, 4))
MISUSE: list[tuple[str, list[Any], list[float], Any, str, str]] = [
    ("silo", [ones(1, 2)], [1.0], ones(1, 2), "UNSUPPORTED", "operation 'silo' is unknown; known: replicate,"),
    ("silu", [], [1.0], ones(1, 2), "ARG", "silu: n_in is 0, expected the operands x"),
    ("silu", [ones(1, 2)] * 2, [1.0], ones(1, 2), "ARG", "n_in is 2"),
    ("silu", [ones(1, 2)], [], ones(1, 2), "ARG", "n_params is 0, expected 1 (scale)"),
    ("silu", [ones(1, 2)], [np.nan], ones(1, 2), "ARG", "scale is nan"),
    ("silu", [ones(1, 2)], [1.0], ones(1, 3), "SHAPE", "y is F32 [1,3], expected the shape of x, F32 [1,2]"),
    ("silu", [ones(1, 2)], [1.0], np.ones((1, 2), np.int32), "DTYPE", "y has dtype 26 (I32), expected one of F32"),
    ("silu", [W], [1.0], ones(3, 4), "OK", ""),
    ("silu", [Stored.of(np.ones((3, 4)), "f16")], [1.0], ones(3, 4), "DTYPE", "x has dtype 1 (F16)"),
    ("replicate", [ones(2, 3)], [1.5], ones(2, 3), "ARG", "copies is 1.5, expected a whole number"),
    ("join", [ones(2, 3), ones(3, 3)], [], ones(2, 6), "SHAPE", "x[1] is F32 [3,3], expected shape [2,*]"),
    ("cells", [ones(2, 1, 3), ones(1, 1, 4)], [], ones(3, 1, 3), "SHAPE", "x[1] is F32 [1,1,4], expected shape [*,1,3]"),
    ("part", [ones(1, 1, 4)], [2, 5], ones(1, 1, 3), "ARG", "stop is 5, expected a whole number in 2..4"),
    ("ngram", [W, numbers(1), numbers(2), numbers(3, 5), numbers(7), numbers(2)], [9], ones(1, 4), "ARG", "beyond the 3 rows of the table"),
    ("ngram", [W, numbers(1), numbers(2), numbers(3), numbers(7), numbers(0)], [9], ones(1, 4), "SHAPE", "multipliers is I64 [1]"),
    ("ngram", [W, numbers(1), numbers(2), numbers(3, 5), numbers(0), numbers(0)], [9], ones(1, 4), "ARG", "sizes[0] is 0"),
    ("to_target", [ones(2), numbers(1, 2)], [], np.ones(2, np.int32), "DTYPE", "ids has dtype 0 (F32), expected one of I32, I64"),
    ("decay", [ones(2, 3), Stored.of(ones(3)), Stored.of(ones(2))], [], ones(2, 3), "SHAPE", "dt_bias is F32 [2], expected shape [3]"),
    ("l2_norm", [ones(2, 3)], [-1.0, 1.0], ones(2, 3), "ARG", "eps is -1"),
    ("hc_read", [ones(2, 5), ones(2, 5)], [2], ones(2, 2), "SHAPE", "x is F32 [2,5], expected a multiple of 2 streams"),
    ("hc_write", [ones(2, 6), ones(2, 2), ones(2, 2)], [], ones(2, 6), "SHAPE", "v is F32 [2,2], expected shape [2,3]"),
    ("ple_gate", [ones(2, 6), ones(2, 5)], [2], ones(2, 2), "SHAPE", "query is F32 [2,5], expected shape [2,6]"),
    ("short_conv", [ones(2, 3), ones(1, 3), W], [1], ones(2, 3), "SHAPE", "history is F32 [1,3], expected 3 rows of 3 values"),
    ("short_conv", [ones(2, 3), ones(3, 3), W], [0], ones(2, 3), "ARG", "dilation is 0"),
    ("dynamic_conv", [ones(2, 4), ones(2, 2, 1, 3), Stored.of(ones(2, 4))], [0], ones(2, 4), "SHAPE", "kernel has 3 groups"),
    ("dynamic_conv", [ones(2, 4), ones(2, 2, 1, 2), Stored.of(ones(2, 4))], [2], ones(2, 4), "ARG", "side is 2"),
    ("delta_state", [ones(3, 4, 5), ones(2, 2, 4), ones(2, 3, 5), ones(2, 3), ones(2, 3)], [], ones(2, 3, 4, 5), "SHAPE", "heads and k 2"),
    ("delta_read", [ones(2, 3, 4, 5), ones(2, 1, 5)], [], ones(2, 3, 5), "SHAPE", "q is F32 [2,1,5], expected shape [2,*,4]"),
    ("block_mean", [ones(5, 1, 3)], [2], ones(3, 1, 3), "SHAPE", "y is F32 [3,1,3], expected shape [2,1,3]"),
    ("index_scores", [ones(1, 2, 3), ones(4, 2, 3), numbers(1)], [2, 1.0], ones(1, 4), "SHAPE", "k is F32 [4,2,3], expected shape [*,1,3]"),
    ("index_scores", [ones(1, 2, 3), ones(4, 1, 3), numbers(-1)], [2, 1.0], ones(1, 4), "ARG", "pos[0] is -1"),
    ("select_cells", [ones(1, 3), numbers(4)], [5, 2, 4], np.ones((1, 5), np.int32), "SHAPE", "scores has 3 blocks, expected at most 2"),
    ("select", [ones(1, 3)], [4], np.ones((1, 4), np.int32), "ARG", "k is 4, expected a whole number in 1..3"),
    ("select", [ones(1, 3)], [2], ones(1, 2), "DTYPE", "y has dtype 0 (F32), expected one of I32"),
    ("choose", [ones(1, 3), np.ones((1, 2), np.int32)], [], np.ones(1, np.int32), "SHAPE", "candidates is I32 [1,2], expected shape [1,3]"),
    ("expert_weights", [ones(1, 3), np.array([[3]], np.int32)], [1, 1], ones(1, 1), "ARG", "selected[0,0] is 3, expected 0..2"),
    ("expert_linear", [ones(1, 4), np.array([[1]], np.int32), W], [], ones(1, 1, 3), "ARG", "selected[0,0] is 1, expected 0..0"),
    ("expert_linear", [ones(1, 4), np.array([[1]], np.int32), W, Stored.of(ones(2, 4))], [], ones(1, 1, 3), "SHAPE", "w[1] is F32 [2,4]"),
    ("expert_sum", [ones(1, 2, 3), ones(1, 3)], [], ones(1, 3), "SHAPE", "weights is F32 [1,3], expected shape [1,2]"),
    ("markov_state", [ones(1, 2), ones(1, 2, 2)], [], ones(1, 2), "SHAPE", "joint is F32 [1,2,2], expected shape [1,3,2]"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "operands", "params", "y", "status", "text"), MISUSE, ids=[f"{m[0]}: {m[-1]}" for m in MISUSE])
def test_wrong_operands_are_named_and_nothing_is_written(
    ctx: Context, op: str, operands: list[Any], params: list[float], y: Any, status: str, text: str
) -> None:
    call = Context.apply if op in ctx.ops else unchecked
    y = np.full_like(y, 7)
    if status == "OK":
        call(ctx, op, operands, params, y)
        return
    with pytest.raises(NativeError) as caught:
        call(ctx, op, operands, params, y)
    assert caught.value.status == status
    assert text in caught.value.text and caught.value.text.startswith((f"{op}: ", "apply: "))
    assert (y == 7).all()


def unchecked(ctx: Context, op: str, operands: list[Any], params: list[float], y: Any) -> None:
    """`Context.apply` past its own look at what the library has."""
    known, ctx.ops = ctx.ops, ctx.ops | {op}
    try:
        ctx.apply(op, operands, params, y)
    finally:
        ctx.ops = known


@pytest.mark.parametrize("name", CALLS)
def test_the_output_may_not_lie_in_an_operand(ctx: Context, name: str) -> None:
    made = next(m for m in (CALLS[name](np.random.default_rng(s)) for s in range(99)) if np.prod(m.op.shape(*m.args, **m.params)))
    native = Native(ctx)
    caught: list[NativeError] = []

    def into_the_first(op: str, operands: list[Any], params: list[float], y: Any) -> Any:
        first = operands[0]
        memory = first.raw if isinstance(first, Stored) else first
        room = np.zeros(memory.nbytes + y.nbytes, np.uint8)
        inside: Any = room[: memory.nbytes].view(memory.dtype).reshape(memory.shape)
        inside[...] = memory
        if isinstance(first, Stored):
            inside = Stored(inside, first.dtype, first.shape)
        with pytest.raises(NativeError, match="y overlaps") as error:
            ctx.apply(op, [inside, *operands[1:]], params, room[: y.nbytes].view(y.dtype).reshape(y.shape))
        caught.append(error.value)
        return y

    native.context = type("Redirected", (), {"ops": ctx.ops, "apply": staticmethod(into_the_first)})()  # type: ignore[assignment]
    native.apply(lifted(made, native))
    assert caught and caught[0].status == "ARG"


def test_null_pointers_are_errors(ctx: Context) -> None:
    from native.tensors import ffi, view

    x, y, params = ones(1, 2), ones(1, 2), ffi.new("double[]", [1.0])
    for arguments, text in (
        ((ffi.NULL, view(x), 1, params, 1, view(y)), "op is NULL"),
        ((b"silu", ffi.NULL, 1, params, 1, view(y)), "in is NULL"),
        ((b"silu", view(x), 1, ffi.NULL, 1, view(y)), "params is NULL"),
        ((b"silu", view(x), 1, params, 1, ffi.NULL), "y is NULL"),
        ((b"silu", view(x), -1, params, 1, view(y)), "n_in is -1"),
    ):
        with pytest.raises(NativeError, match=text):
            ctx._calls.call("apply", *arguments)
    missing = view(x)
    missing.data = ffi.NULL
    with pytest.raises(NativeError, match="x is NULL"):
        ctx._calls.call("apply", b"silu", missing, 1, params, 1, view(y))
