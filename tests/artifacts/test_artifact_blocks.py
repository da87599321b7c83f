"""Weight formats: bit equality with the reference package, encoder errors, seeded blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oracle.artifacts import blocks
from oracle.artifacts.gguf_file import GGML_TYPES

SINGLES = [n for n in blocks.FORMATS if n != "f64"]
BLOCK_FORMATS = [n for n in blocks.FORMATS if n not in blocks.PLAIN]
SPECIAL_F16 = np.array([0x0000, 0x8000, 0x0001, 0x03FF, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE01], "<u2")


def reference(raw: np.ndarray, stored: str) -> np.ndarray:
    gguf = pytest.importorskip("gguf")
    plain = {"f32": np.float32, "f16": np.float16}
    data = raw.view(plain[stored]) if stored in plain else raw
    with np.errstate(all="ignore"):
        out = gguf.dequantize(data, gguf.GGMLQuantizationType(blocks.FORMATS[stored].ggml_type))
    return np.asarray(out, np.float32)


def assert_same_bits(raw: np.ndarray, stored: str, width: int) -> None:
    want, got = reference(raw, stored), blocks.decode(raw, stored, width)
    with np.errstate(invalid="ignore"):
        single = got.astype(np.float32)
    nan = np.isnan(want)
    assert np.array_equal(nan, np.isnan(got))
    assert np.array_equal(want.view(np.uint32)[~nan], single.view(np.uint32)[~nan])
    assert np.array_equal(got[~nan], single[~nan].astype(np.float64)), "every value is an f32"


@pytest.mark.parametrize("stored", SINGLES)
def test_random_bytes_decode_to_the_bits_of_the_reference(stored: str) -> None:
    raw = np.random.default_rng(1).integers(0, 256, (64, blocks.row_bytes(stored, 1024)), np.uint8)
    assert_same_bits(raw, stored, 1024)


@pytest.mark.parametrize("stored", BLOCK_FORMATS)
def test_special_scales_and_payloads_decode_to_the_bits_of_the_reference(stored: str) -> None:
    f = blocks.FORMATS[stored]
    scales = {"q6_k": [208], "q4_k": [0, 2], "q5_k": [0, 2], "q4_1": [0, 2]}.get(stored, [0])
    rows = []
    for payload in (0x00, 0xFF, 0x80, 0x5A):
        for first in SPECIAL_F16:
            for second in SPECIAL_F16 if len(scales) > 1 else SPECIAL_F16[:1]:
                block = np.full(f.bytes, payload, np.uint8)
                for at, word in zip(scales, (first, second), strict=False):
                    block[at : at + 2] = np.array([word], "<u2").view(np.uint8)
                rows.append(block)
    assert_same_bits(np.stack(rows), stored, f.values)


@pytest.mark.parametrize("stored", blocks.FORMATS)
def test_a_strided_or_read_only_tile_decodes_like_a_copy(stored: str) -> None:
    width = 512
    raw = np.random.default_rng(2).integers(0, 256, (8, blocks.row_bytes(stored, width)), np.uint8)
    raw.flags.writeable = False
    assert np.array_equal(blocks.decode(raw[::2], stored, width), blocks.decode(raw[::2].copy(), stored, width), equal_nan=True)
    whole = blocks.decode(raw, stored, width)
    assert np.array_equal(whole[3:5], blocks.decode(raw[3:5], stored, width), equal_nan=True)


# Relative rms error on N(0, 0.02), `specs/native-backends.md` section 2.5; Q4_1 and the plain formats by the same run.
ERRORS = {
    "f64": 0.0,
    "f32": 0.0,
    "f16": 0.00021,
    "bf16": 0.00166,
    "q8_0": 0.0053,
    "q4_0": 0.0862,
    "q4_1": 0.078,
    "q5_0": 0.0428,
    "q4_k": 0.0784,
    "q5_k": 0.0382,
    "q6_k": 0.0188,
}


@pytest.mark.parametrize("stored", blocks.FORMATS)
def test_encoder_error_is_that_of_the_specification(stored: str) -> None:
    x = np.random.default_rng(3).standard_normal((64, 2048)) * 0.02
    x = x.astype(np.float32).astype(np.float64)
    error = blocks.decode(blocks.encode(x, stored), stored, 2048) - x
    assert np.sqrt(np.mean(error**2) / np.mean(x**2)) == pytest.approx(ERRORS[stored], rel=0.03, abs=1e-12)


def test_q6_k_spends_its_whole_scale_range_on_the_largest_sub_block() -> None:
    raw = blocks.encode(np.random.default_rng(8).standard_normal((16, 256)), "q6_k")
    assert (raw[:, 192:208].view(np.int8).min(axis=1) == -128).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("stored", ["q4_0", "q5_0", "q6_k", "q8_0"])
def test_the_largest_value_survives_whatever_its_sign(stored: str, sign: float) -> None:
    x = np.zeros((1, 256))
    x[0, 5] = sign * 2.0
    assert blocks.decode(blocks.encode(x, stored), stored, 256)[0, 5] == pytest.approx(sign * 2.0, rel=1e-3)


@pytest.mark.parametrize("stored", BLOCK_FORMATS)
def test_encoded_bytes_mean_the_same_to_the_reference(stored: str) -> None:
    x = np.random.default_rng(4).standard_normal((4, 512)) ** 3
    raw = blocks.encode(x, stored)
    assert np.array_equal(reference(raw, stored).astype(np.float64), blocks.decode(raw, stored, 512))


@pytest.mark.parametrize("stored", BLOCK_FORMATS)
def test_zero_rows_encode_to_zero(stored: str) -> None:
    assert not blocks.decode(blocks.encode(np.zeros((2, 256)), stored), stored, 256).any()


@pytest.mark.parametrize("stored", blocks.FORMATS)
def test_random_blocks_are_finite_seeded_and_of_the_size_asked_for(stored: str) -> None:
    def draw(seed: int) -> np.ndarray:
        return blocks.random_blocks(np.random.default_rng(seed), stored, 32, 2048, 0.02)

    values = blocks.decode(draw(5), stored, 2048)
    assert np.isfinite(values).all()
    assert 0.016 < values.std() < 0.032
    assert np.array_equal(draw(5), draw(5)) and not np.array_equal(draw(5), draw(6))
    assert len(np.unique(draw(5), axis=0)) == 32, "no two rows alike"


@given(st.floats(width=64, allow_nan=True, allow_infinity=True))
@example(1 + 2.0**-8 + 2.0**-40)
@example(-1 - 2.0**-8 - 2.0**-40)
@example(1 + 3 * 2.0**-8 - 2.0**-40)
@example(1 + 2.0**-11 + 2.0**-40)
def test_plain_formats_round_to_nearest_even_once(x: float) -> None:
    """Against exact comparison with the neighbours of the result, so that a second rounding would show."""
    for stored, largest in (("f32", float(np.finfo(np.float32).max)), ("bf16", 3.3895313892515355e38), ("f16", 65504.0)):
        values = np.array([[x]])
        try:
            raw = blocks.encode(values, stored)
        except ValueError as error:
            assert np.isfinite(x) and abs(x) > largest and stored in str(error)
            continue
        got = blocks.decode(raw, stored, 1)[0, 0]
        if not np.isfinite(x):
            assert np.isnan(got) if np.isnan(x) else got == x
            continue
        bits = int.from_bytes(raw.tobytes(), "little")
        for step in (-1, 1):
            other = (bits + step) % (1 << (8 * raw.size))
            near = blocks.decode(np.frombuffer(other.to_bytes(raw.size, "little"), np.uint8)[None], stored, 1)[0, 0]
            if np.isfinite(near) and np.sign(near) in (0, np.sign(got)):
                assert abs(x - got) < abs(x - near) or (abs(x - got) == abs(x - near) and bits % 2 == 0) or near == got


@pytest.mark.parametrize(("stored", "x"), [("f16", 65520.0), ("bf16", 3.4e38), ("f32", 1e39), ("q8_0", 1e9), ("q4_k", 1e9), ("q6_k", -1e9)])
def test_overflow_is_refused(stored: str, x: float) -> None:
    with pytest.raises(ValueError, match=f"overflows {'f16' if stored.startswith('q') else stored}"):
        blocks.encode(np.full((1, 256), x), stored)


@pytest.mark.parametrize("stored", BLOCK_FORMATS)
def test_block_formats_refuse_non_finite_values(stored: str) -> None:
    x = np.zeros((1, 256))
    x[0, 7] = np.nan
    with pytest.raises(ValueError, match="non-finite"):
        blocks.encode(x, stored)


def test_widths_must_fit_the_block() -> None:
    with pytest.raises(ValueError, match="multiple of 256"):
        blocks.row_bytes("q4_k", 128)
    with pytest.raises(ValueError, match=r"unknown weight format 'q9'.*q6_k"):
        blocks.row_bytes("q9", 256)
    with pytest.raises(ValueError, match=r"found \[2, 143\]"):
        blocks.decode(np.zeros((2, 143), np.uint8), "q4_k", 256)


def test_the_tables_agree_with_the_reference_package() -> None:
    constants = pytest.importorskip("gguf.constants")
    for f in blocks.FORMATS.values():
        assert GGML_TYPES[f.ggml_type] == (f.name, f.values, f.bytes)
    for number, (name, values, size) in GGML_TYPES.items():
        kind = constants.GGMLQuantizationType(number)
        assert (kind.name.lower(), *constants.GGML_QUANT_SIZES[kind]) == (name, values, size)
