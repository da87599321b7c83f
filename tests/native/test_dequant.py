"""Decoding is exact: bit-equal to the gguf package on random bytes (the exactness lemma of the block formats)."""

from __future__ import annotations

import numpy as np
import pytest

from native import DTYPES, Context, Stored
from tests.native.stored_blocks import WEIGHT_TYPES, decoded


@pytest.mark.parametrize("dtype", WEIGHT_TYPES)
def test_any_bytes_decode_to_the_same_bits(ctx: Context, dtype: str) -> None:
    kind = DTYPES[dtype]
    width = 2 * kind.block if kind.block > 1 else 300
    raw = np.random.default_rng(5).integers(0, 256, (700, width // kind.block * kind.bytes), dtype=np.uint8)
    weight = Stored(raw, dtype, (700, width))
    with np.errstate(all="ignore"):
        want = decoded(weight)
    got = ctx.dequant(weight)
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], want.view(np.uint32)[~nan])


def test_every_half_converts_exactly(ctx: Context) -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):
        want = halves.astype(np.float32)
    np.testing.assert_array_equal(ctx.convert(halves, "f32"), want)


def test_f32_rounds_to_half_and_bfloat_as_numpy_and_gguf_do(ctx: Context) -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 200_000, dtype=np.uint32)
    edges = np.array([0x33000000, 0x33000001, 0x477FEFFF, 0x477FF000, 0x387FFFFF, 0x38800000, 0x7F7FFFFF, 0x80000001], np.uint32)
    values = np.concatenate([bits, edges]).view(np.float32)
    values = values[~np.isnan(values)]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(ctx.convert(values, "f16").view(np.uint16), values.astype(np.float16).view(np.uint16))
    wide = values.view(np.uint32).astype(np.uint64)
    np.testing.assert_array_equal(ctx.convert(values, "bf16"), ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_nan_stays_nan(ctx: Context, dtype: str) -> None:
    nans = np.array([0x7F800001, 0x7FC00000, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(ctx.convert(ctx.convert(nans, dtype), "f32")).all()
