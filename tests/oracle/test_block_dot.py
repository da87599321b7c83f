"""Products of quantised weights and activations: the policy by weight against kernels in integers and float32, written out here."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from oracle import arithmetic as arithmetics
from oracle import policies
from oracle.artifacts import blocks
from oracle.block_dot import BlockDot, seen
from oracle.ops.linear import linear
from oracle.readings import Exact, Noise, Sampled, Stage, consumed
from oracle.tensor import Tensor
from oracle.weights import Weight

ROWS, OUT, WIDTH = 5, 24, 512
GGML = arithmetics.named("llama.cpp-cpu")
Single = np.float32


def weight(stored: str, seed: int = 1) -> Weight:
    return Weight.of(np.random.default_rng(seed).standard_normal((OUT, WIDTH)) * 0.05, ("dim", "in"), stored)


def activations(seed: int = 2) -> np.ndarray:
    """A few channels rule their blocks, as in real models; one block is zero."""
    x = np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype(Single)
    x[:, 7::101] *= 30
    x[1, 32:64] = 0
    return x


def halves(raw: np.ndarray, at: int) -> np.ndarray:
    return raw[..., at : at + 2].copy().view("<f2")[..., 0].astype(Single)


def nibbles(raw: np.ndarray) -> np.ndarray:
    return np.concatenate([raw & 15, raw >> 4], -1).astype(np.int64)


def q8(x: np.ndarray, *, simd: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One row's blocks of 32: (d as float16, q, float16 of d times the sum of q), the x86 kernel's way or the scalar one's."""
    b = x.reshape(-1, 32)
    peak = np.abs(b).max(-1)
    d = peak / Single(127)
    with np.errstate(divide="ignore"):
        inverse = np.where(peak > 0, Single(127) / peak if simd else Single(1) / d, 0).astype(Single)
    scaled = b * inverse[:, None]
    q = np.rint(scaled) if simd else np.trunc(scaled + np.copysign(Single(0.5), scaled))
    q = q.astype(np.int64)
    return d.astype(np.float16).astype(Single), q, (d * q.sum(-1).astype(Single)).astype(np.float16).astype(Single)


def q4_1(x: np.ndarray, w: Weight, *, simd: bool = True) -> np.ndarray:
    raw = w.raw.reshape(OUT, -1, 20)
    d, m, q = halves(raw, 0), halves(raw, 2), nibbles(raw[..., 4:])
    a, p, s = q8(x, simd=simd)
    total, least = np.zeros(OUT, Single), np.zeros(OUT, Single)
    for i in range(WIDTH // 32):
        total = total + d[:, i] * a[i] * (q[:, i] @ p[i]).astype(Single)
        least = least + m[:, i] * s[i]
    return total + least


def q8_0(x: np.ndarray, w: Weight, *, simd: bool = True) -> np.ndarray:
    raw = w.raw.reshape(OUT, -1, 34)
    d, q = halves(raw, 0), raw[..., 2:].view(np.int8).astype(np.int64)
    a, p, _ = q8(x, simd=simd)
    total = np.zeros(OUT, Single)
    for i in range(WIDTH // 32):
        total = total + d[:, i] * a[i] * (q[:, i] @ p[i]).astype(Single)
    return total


def q4_0(x: np.ndarray, w: Weight, *, simd: bool = True) -> np.ndarray:
    raw = w.raw.reshape(OUT, -1, 18)
    d, q = halves(raw, 0), nibbles(raw[..., 2:]) - 8
    a, p, _ = q8(x, simd=simd)
    total = np.zeros(OUT, Single)
    for i in range(WIDTH // 32):
        total = total + d[:, i] * a[i] * (q[:, i] @ p[i]).astype(Single)
    return total


def q4_k(x: np.ndarray, w: Weight, *, simd: bool = True) -> np.ndarray:
    raw = w.raw.reshape(OUT, -1, 144)
    d, dmin, s = halves(raw, 0), halves(raw, 2), raw[..., 4:16].astype(np.int64)
    low, high = s[..., :4], s[..., 4:8]
    scale = np.concatenate([low & 63, (s[..., 8:] & 15) | ((low >> 6) << 4)], -1)
    least = np.concatenate([high & 63, (s[..., 8:] >> 4) | ((high >> 6) << 4)], -1)
    q = np.stack([raw[..., 16:].reshape(OUT, -1, 4, 32) & 15, raw[..., 16:].reshape(OUT, -1, 4, 32) >> 4], 3)
    q = q.reshape(OUT, -1, 8, 32).astype(np.int64)
    total = np.zeros(OUT, Single)
    for i, block in enumerate(x.reshape(-1, 256)):
        peak = block[np.abs(block).argmax()]
        inverse = Single(-127) / peak
        p = np.minimum(np.rint(inverse * block), 127).astype(np.int64).reshape(8, 32)
        a = Single(1) / inverse
        total = total + d[:, i] * a * (scale[:, i] * (q[:, i] * p).sum(-1)).sum(-1).astype(Single)
        total = total - dmin[:, i] * a * (least[:, i] * p.sum(-1)).sum(-1).astype(Single)
    return total


KERNELS = {"q4_1": q4_1, "q8_0": q8_0, "q4_0": q4_0, "q4_k": q4_k}


def product(x: np.ndarray, w: Weight) -> Stage:
    return Stage("target.L0.q_raw", linear, (Tensor(x.astype(np.float64), ("row", "dim")), w), {})


def standardised(stored: str, arithmetic: arithmetics.Arithmetic, **how: bool) -> np.ndarray:
    """(kernel - oracle) over the predicted standard deviation, [row, out]."""
    w, x = weight(stored), activations()
    y = Noise(arithmetic).apply(product(x, w))
    c = np.stack([KERNELS[stored](row, w, **how) for row in x])
    return np.asarray((c - y.data) / np.sqrt(y.var))


@pytest.mark.parametrize("stored", KERNELS)
def test_the_policy_of_a_weight_is_what_a_kernel_in_integers_does(stored):
    z = standardised(stored, GGML)
    assert 0.1 < np.sqrt(np.square(z).mean()) < 1.2
    assert np.abs(z).max() < 6


def in_lanes(x: np.ndarray, w: Weight) -> np.ndarray:
    """Q4_1 as a vector kernel sums it: eight lanes of four neighbours per block, joined at the end."""
    raw = w.raw.reshape(OUT, -1, 20)
    d, m, q = halves(raw, 0), halves(raw, 2), nibbles(raw[..., 4:])
    a, p, s = q8(x, simd=True)
    lanes, least = np.zeros((OUT, 8), Single), np.zeros(OUT, Single)
    for i in range(WIDTH // 32):
        lanes = lanes + (d[:, i] * a[i])[:, None] * (q[:, i] * p[i]).reshape(OUT, 8, 4).sum(-1).astype(Single)
        least = least + m[:, i] * s[i]
    while lanes.shape[1] > 1:
        lanes = lanes[:, : lanes.shape[1] // 2] + lanes[:, lanes.shape[1] // 2 :]
    return lanes[:, 0] + least


def test_what_cancels_between_lanes_counts():
    """Activations that change sign from lane to lane: every block's sum is small, what its lanes carry is not."""
    w, rng = weight("q4_1"), np.random.default_rng(5)
    signs = np.tile(np.repeat([1.0, -1.0] * 4, 4), WIDTH // 32)
    x = (signs * (1 + 0.02 * rng.standard_normal((40, WIDTH)))).astype(Single)
    y = Noise(GGML).apply(product(x, w))
    z = (np.stack([in_lanes(row, w) for row in x]) - y.data) / np.sqrt(y.var)
    assert 0.1 < np.sqrt(np.square(z).mean()) < 1.2 and np.sqrt(np.square(z).mean(1)).max() < 2


@pytest.mark.parametrize("stored", KERNELS)
def test_without_the_policy_the_same_kernel_is_far_off(stored):
    assert np.abs(standardised(stored, arithmetics.named("f32"))).max() > 300


@pytest.mark.parametrize("stored", ["q4_1", "q8_0"])
def test_the_scalar_and_the_vector_rounding_are_told_apart(stored):
    """A value at the edge of two integers goes one way in each: seen in the one result, and only under the other's declaration."""
    w, x = weight(stored), activations()
    found = [k for k in range(2000) if not np.array_equal(q8(activations(k)[0], simd=True)[1], q8(activations(k)[0], simd=False)[1])]
    x[0] = activations(found[0])[0]
    c = KERNELS[stored](x[0], w, simd=False)
    scalar, vector = (Noise(arithmetics.named(n)).apply(product(x[:1], w)) for n in ("llama.cpp-scalar", "llama.cpp-cpu"))
    assert np.abs((c - scalar.data[0]) / np.sqrt(scalar.var[0])).max() < 6
    assert np.abs((c - vector.data[0]) / np.sqrt(vector.var[0])).max() > 100


@pytest.mark.parametrize(("stored", "wrong"), [("q4_1", "q8_0-simd"), ("q4_k", "q8_0-simd"), ("q8_0", "q8_k"), ("q4_1", "f16")])
def test_a_wrong_policy_is_seen(stored, wrong):
    z = standardised(stored, arithmetics.named(f"llama.cpp-cpu,use={wrong}"))
    assert np.abs(z).max() > 20


def test_q4_1_meets_the_sum_that_q8_1_keeps():
    """The sum of a block is a float16 of its own, not the sum of the block's values: without it the same kernel is off."""
    w, x = weight("q4_1"), activations()
    stage = consumed(GGML, product(x, w))
    values, wide = stage.args
    assert isinstance(wide, BlockDot) and wide.width == WIDTH + WIDTH // 32
    bare = np.stack([q4_1(row, w) for row in x]) - values.data[:, :WIDTH] @ w.array().T
    z = bare / np.sqrt(Noise(GGML).apply(product(x, w)).var)
    assert np.abs(z).max() > 50
    assert np.abs(bare - values.data[:, WIDTH:] @ wide.minima(0, OUT).T).max() < 1e-4


@pytest.mark.parametrize("stored", ["q4_1", "q4_k", "q5_k", "q4_0", "q6_k"])
def test_minima_are_what_a_block_decodes_to_without_its_quants(stored):
    w = BlockDot.read(weight(stored), "q8_k")
    minima = w.minima(0, OUT)
    scaled = w.inner.array() - np.repeat(minima, 32, 1)
    assert bool(minima.any()) == (stored in ("q4_1", "q4_k", "q5_k"))
    # A group whose smallest value is its minimum has a quant of zero there.
    if stored in ("q4_1", "q4_k", "q5_k"):
        assert np.abs(scaled.reshape(OUT, -1, 32)).min(-1).max() < 1e-2 * np.abs(w.inner.array()).max()


@pytest.mark.parametrize("stored", blocks.DECODABLE)
def test_every_format_that_can_be_read_has_a_policy(stored):
    for table in policies.BY_WEIGHT.values():
        assert table[stored] in policies.PLAIN


TABLE = {"f32": "f32", "f16": "f16", "bf16": "bf16", "q8_0": "q8_0", "q4_1": "q8_1", "q6_k": "q8_k"}


@pytest.mark.parametrize(("stored", "policy"), TABLE.items())
def test_the_table_is_that_of_ggml(stored, policy):
    assert policies.resolved("ggml-scalar", stored) == policy
    assert policies.resolved("ggml", stored).removesuffix("-simd") == policy


def test_a_consumed_stage_is_consumed_once():
    for stored in KERNELS:
        once = consumed(GGML, product(activations(), weight(stored)))
        again = consumed(GGML, once)
        assert again.args[0] is once.args[0] and again.args[1] is once.args[1]


def test_scalar_q8_0_is_that_of_the_gguf_package():
    x = activations()
    stored = gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(policies.apply("q8_0", x.astype(np.float64)), gguf.quants.dequantize(stored, gguf.GGMLQuantizationType.Q8_0))


def test_an_input_with_an_error_of_its_own_flips_what_it_may():
    """The drawn runs of `Sampled` scatter as `Noise` says they do, flips of the quantised input among them."""
    w, x = weight("q4_1"), activations()
    error = 4e-3
    noisy = Tensor(x.astype(np.float64), ("row", "dim"), np.full(x.shape, error**2))
    predicted = Noise(GGML).apply(Stage("target.L0.q_raw", linear, (noisy, w), {})).var
    rng, exact = np.random.default_rng(3), Noise(GGML).apply(product(x, w)).data
    drawn = [x + error * rng.standard_normal(x.shape) for _ in range(24)]
    runs = [Sampled({}, 0, GGML).apply(product(d, w)).data for d in drawn]
    assert 0.5 < np.sqrt(np.mean([np.square(r - exact) / predicted for r in runs])) < 1.5


def test_a_row_that_is_no_whole_number_of_blocks_is_refused():
    with pytest.raises(ValueError, match="row of 48 is not a multiple of its block of 32"):
        seen("q8_1", Tensor(np.ones((1, 48)), ("row", "dim")), Weight.of(np.ones((2, 48)), ("dim", "in")))


def test_exact_ignores_policies():
    w, x = weight("q4_1"), activations()
    assert np.array_equal(Exact().apply(product(x, w)).data, x.astype(np.float64) @ w.array().T)
