"""Wrong operands end in an error that names the thing, and leave the outputs alone. Calls go to the C functions directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from native import Context, Library, NativeError, Stored
from native.tensors import ffi, tensor, view

Edit = Callable[[dict[str, Any]], None]


def ones(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ones(shape, np.float32)


def set_field(name: str, field: str, value: int, axis: int | None = None) -> Edit:
    def edit(t: dict[str, Any]) -> None:
        if axis is None:
            setattr(t[name], field, value)
        else:
            getattr(t[name], field)[axis] = value

    return edit


def null_data(name: str) -> Edit:
    return lambda t: setattr(t[name], "data", ffi.NULL)


def same_memory(name: str, other: str) -> Edit:
    return lambda t: setattr(t[name], "data", t[other].data)


LINEAR: list[tuple[Edit, str, str]] = [
    (set_field("x", "ndim", 3), "SHAPE", "linear: x has 3 dimensions"),
    (set_field("x", "ndim", 0), "SHAPE", "x has 0 dimensions, expected 1 to 4"),
    (set_field("x", "ndim", 2**31 - 1), "SHAPE", "x has 2147483647 dimensions"),
    (set_field("x", "dtype", 1), "DTYPE", "x has dtype 1 (F16), expected one of F32"),
    (set_field("w", "dtype", 26), "DTYPE", "w has dtype 26 (I32)"),
    (set_field("w", "dtype", 99), "DTYPE", "w has dtype 99 (unknown dtype)"),
    (set_field("w", "dtype", 12), "SHAPE", "w: rows of 8 values are not a multiple of the 256-value block of Q4_K"),
    (set_field("x", "shape", -1, 0), "SHAPE", "x: axis 0 has the size -1"),
    (set_field("x", "shape", 7, 1), "SHAPE", "w is F32 [5,8], expected rows of the 7 values of x"),
    (set_field("w", "shape", 2**61, 1), "SHAPE", "w: size overflows"),
    (set_field("w", "shape", 2**60, 0), "SHAPE", "w: size overflows"),
    (set_field("x", "stride_bytes", 28, 0), "SHAPE", "x: a row takes 32 bytes, but stride_bytes[0] is 28"),
    (set_field("x", "stride_bytes", -32, 0), "SHAPE", "x: a row takes 32 bytes, but stride_bytes[0] is -32"),
    (set_field("x", "stride_bytes", 8, 1), "UNSUPPORTED", "x: values inside a row must be dense"),
    (set_field("x", "stride_bytes", 33, 0), "UNSUPPORTED", "x: a stride of 33 bytes is not a multiple of 4"),
    (set_field("y", "shape", 4, 1), "SHAPE", "y is F32 [3,4], expected shape [3,5]"),
    (set_field("y", "dtype", 30), "DTYPE", "y has dtype 30 (BF16)"),
    (set_field("bias", "shape", 4, 0), "SHAPE", "bias is F32 [4], expected shape [5]"),
    (set_field("x", "place", 7), "ARG", "x: place 7 is unknown"),
    (null_data("w"), "ARG", "w is NULL"),
    (lambda t: setattr(t["x"], "data", t["x"].data + 1), "ARG", "x: the address is not a multiple of 4"),
    (same_memory("y", "x"), "ARG", "y overlaps x"),
    (same_memory("y", "w"), "ARG", "y overlaps w"),
]


@pytest.mark.parametrize(("edit", "status", "text"), LINEAR, ids=[text for *_, text in LINEAR])
def test_linear_names_what_is_wrong_and_writes_nothing(ctx: Context, edit: Edit, status: str, text: str) -> None:
    arrays = {"x": ones(3, 8), "w": ones(5, 8), "bias": ones(5), "y": np.full((3, 5), 7, np.float32)}
    tensors = {name: view(array) for name, array in arrays.items()}
    edit(tensors)
    with pytest.raises(NativeError) as caught:
        ctx._calls.call("linear", tensors["x"], tensors["w"], tensors["bias"], tensors["y"])
    assert caught.value.status == status
    assert caught.value.text.startswith("linear: ")
    assert text in caught.value.text
    assert (arrays["y"] == 7).all()
    assert all((a == 1).all() for name, a in arrays.items() if name != "y")


def test_leading_rows_may_be_strided(ctx: Context) -> None:
    wide_x, wide_y = np.random.default_rng(0).standard_normal((3, 12)).astype(np.float32), np.zeros((3, 9), np.float32)
    w = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)
    x, y = view(wide_x), view(wide_y)
    x.shape[1], y.shape[1] = 8, 5
    ctx._calls.call("linear", x, view(w), ffi.NULL, y)
    np.testing.assert_array_equal(wide_y[:, :5], ctx.linear(np.ascontiguousarray(wide_x[:, :8]), Stored.of(w)))
    assert (wide_y[:, 5:] == 0).all()


@pytest.mark.parametrize("name", ["add", "rope"])
def test_the_first_input_may_be_the_output(ctx: Context, name: str) -> None:
    if name == "add":
        a, b = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
        want = a + b
        ctx._calls.call("add", view(a), view(b), view(a))
    else:
        a = np.random.default_rng(0).standard_normal((3, 2, 4)).astype(np.float32)
        pos, freq = np.arange(3), np.array([1.0, 0.1])
        want = ctx.rope(a, pos, freq, 4, "neox")
        pointers = ffi.cast("int64_t*", pos.ctypes.data), ffi.cast("double*", freq.ctypes.data)
        ctx._calls.call("rope", view(a), *pointers, 4, 1, 1.0, view(a))
    np.testing.assert_array_equal(a, want)


@pytest.mark.parametrize(
    ("call", "status", "text"),
    [
        (lambda c: c.rms_norm(ones(2, 6), None, -1e-5), "ARG", "rms_norm: eps is -1e-05"),
        (lambda c: c.rms_norm(ones(2, 6), None, float("nan")), "ARG", "eps is nan"),
        (lambda c: c.rms_norm(ones(2, 6), None, 0.0, 0.0, 4), "ARG", "n_groups is 4, expected a divisor of the 6 values"),
        (lambda c: c.rms_norm(ones(2, 6), Stored.of(ones(5)), 0.0), "SHAPE", "w is F32 [5], expected shape [6]"),
        (lambda c: c.rope(ones(1, 1, 4), np.array([2**31 + 1]), np.ones(2), 4, "neox"), "ARG", "pos[0] is 2147483649"),
        (lambda c: c.rope(ones(1, 1, 4), np.array([-(2**63)]), np.ones(2), 4, "neox"), "ARG", "pos[0] is -9223372036854775808"),
        (lambda c: c.rope(ones(1, 1, 4), np.array([0]), np.ones(3), 6, "neox"), "SHAPE", "rot is 6, expected an even number in 2..4"),
        (lambda c: c.rope(ones(1, 1, 4), np.array([0]), np.array([1.0, np.inf]), 4, "neox"), "ARG", "inv_freq[1] is inf"),
        (lambda c: c.attention(ones(1, 3, 4), ones(5, 2, 4), ones(5, 2, 4), None, 1.0), "SHAPE", "q has 3 heads and k 2"),
        (lambda c: c.attention(ones(1, 2, 4), ones(5, 2, 3), ones(5, 2, 3), None, 1.0), "SHAPE", "k is F32 [5,2,3], expected shape [*,*,4"),
        (lambda c: c.attention(ones(1, 2, 4), ones(5, 2, 4), ones(6, 2, 4), None, 1.0), "SHAPE", "v is F32 [6,2,4], expected shape [5,2"),
        (lambda c: c.attention(ones(1, 2, 4), ones(5, 2, 4), ones(5, 2, 4), None, np.inf), "ARG", "scale is inf"),
        (lambda c: c.gate(ones(2, 3, 4), ones(2, 5), "sigmoid"), "SHAPE", "g is F32 [2,5], expected [2,3] (per head) or [2,12]"),
        (lambda c: c.swiglu(ones(2, 3), ones(2, 4)), "SHAPE", "gate is F32 [2,3] but up is F32 [2,4]"),
        (lambda c: c.add(ones(2, 3), ones(3, 3)), "SHAPE", "a is F32 [2,3] but b is F32 [3,3]"),
        (lambda c: c.gather(Stored.of(ones(4, 2)), np.array([0, 4], np.int32)), "ARG", "gather: ids[1] is 4, expected 0..3"),
        (lambda c: c.gather(Stored.of(ones(4, 2)), np.array([-1], np.int32)), "ARG", "ids[0] is -1, expected 0..3"),
        (lambda c: c.concat([ones(2, 3), ones(3, 3)]), "SHAPE", "parts[1] is F32 [3,3], expected shape [2,*]"),
        (lambda c: c.accept(np.array([-1], np.int32), np.array([-1, 0], np.int32)), "ARG", "drafts[0] is -1"),
        (lambda c: c._calls.call("swiglu", view(ones(1, 1)), view(ones(1, 1)), 9, view(ones(1, 1))), "ARG", "act 9 is unknown"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_operations_name_what_is_wrong(ctx: Context, call: Callable[[Context], Any], status: str, text: str) -> None:
    with pytest.raises(NativeError) as caught:
        call(ctx)
    assert caught.value.status == status
    assert text in caught.value.text


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.linear(np.ones((2, 3)), Stored.of(ones(2, 3))), "x is float64"),
        (lambda c: c.linear(ones(4, 3)[::2], Stored.of(ones(2, 3))), "not C-contiguous"),
        (lambda c: c.rope(ones(2, 1, 4), np.array([0, 1], np.int32), np.ones(2), 4, "neox"), "pos is int32"),
        (lambda c: c.rope(ones(1, 1, 4), np.array([0]), np.ones(1), 4, "neox"), "inv_freq has shape (1,), expected (2,)"),
        (lambda c: c.rope(ones(1, 1, 4), np.array([0]), np.ones(2), 4, "gptj"), "style='gptj': expected one of neox, interleaved"),
        (lambda c: c.attention(ones(1, 1, 4), ones(5, 1, 4), ones(5, 1, 4), np.ones((1, 4), bool), 1.0), "visible is bool (1, 4)"),
        (lambda c: c.accept(np.array([1], np.int32), np.array([1], np.int32)), "argmax has 1 rows"),
        (lambda c: Stored(np.zeros((2, 143), np.uint8), "q4_k", (2, 256)), "needs C-contiguous uint8 (2, 144)"),
        (lambda c: Stored(np.zeros((2, 144), np.uint8), "q4_k", (2, 255)), "multiple of 256"),
        (lambda c: Stored(np.zeros((2, 4), np.uint8), "q2_k", (2, 1)), "dtype 'q2_k'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arrays_are_checked_before_the_call(ctx: Context, call: Callable[[Context], Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        call(ctx)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [(b"threads=-1", "threads=-1: expected an integer in 0..256"), (b"threads=9999", "threads=9999"), (b"threads=", "threads=:"),
     (b"speed=11", "option 'speed' is unknown"), (b"threads", "expected key=value"),
     (b"isa=z80", "isa=z80: not built"), (b"threads=1\nthreads=1", "appears twice")],
)  # fmt: skip
def test_open_refuses_unknown_options(cpu: Library, options: bytes, text: str) -> None:
    out = ffi.new("dlab_ctx**")
    assert cpu._handle.dlab_open(options, out) in (1, 4)
    assert out[0] == ffi.NULL
    assert text in ffi.string(cpu._handle.dlab_last_error(ffi.NULL)).decode()


def test_null_contexts_and_tensors_are_errors(cpu: Library, ctx: Context) -> None:
    assert cpu._handle.dlab_add(ffi.NULL, ffi.NULL, ffi.NULL, ffi.NULL) == 1
    with pytest.raises(NativeError, match="a is NULL"):
        ctx._calls.call("add", ffi.NULL, ffi.NULL, ffi.NULL)


def test_handles_give_the_same_result_as_host_tensors(ctx: Context) -> None:
    x, w, y = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)[0], ones(5, 8), np.zeros((3, 5), np.float32)
    handles = [ffi.new("dlab_tensor*") for _ in range(3)]
    for array, handle in zip((x, w, y), handles, strict=True):
        ctx._calls.call("upload", view(array), handle)
    ctx._calls.call("linear", handles[0], handles[1], ffi.NULL, handles[2])
    back = np.zeros_like(y)
    ctx._calls.call("download", handles[2], view(back))
    np.testing.assert_array_equal(back, ctx.linear(x, Stored.of(w)))
    with pytest.raises(NativeError, match="expected F32"):
        ctx._calls.call("download", handles[2], tensor(back, "f32", (15,)))
    for handle in handles:
        ctx._calls.call("release", handle)
    with pytest.raises(NativeError, match="not made by dlab_upload"):
        ctx._calls.call("release", handles[0])
