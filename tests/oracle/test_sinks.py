"""Attention sinks (`specs/dflash-generic.md` 10): the operation against fifty digits, the drafter against plain loops, files."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from oracle.artifacts import make_artifact, open_borrowed, open_drafter_files
from oracle.artifacts.convert import by_role, convert_artifact
from oracle.drafters.dialect import DialectError
from oracle.kit import EXACT
from oracle.models import Drafter
from oracle.ops import OPS
from oracle.recipes import Visible
from oracle.weights import Weight
from tests.artifacts.test_artifact_heads import FEWER
from tests.oracle import golden_drafter as golden

FORMULA = OPS["sink_attention"].formula
SINKS = [[0.3 + 0.2 * h - 0.5 * n for h in range(golden.HEADS)] for n in range(golden.LAYERS)]


def numbers(*shape: int, phase: float = 0.0) -> Any:
    return np.sin(1.3 * np.arange(math.prod(shape)) + phase).reshape(shape)


def cells(rows: int, count: int) -> Visible:
    return Visible("none", True, None, np.arange(count - rows, count), np.arange(count), count - rows)


def by_digits(q: Any, k: Any, v: Any, sinks: list[float], scale: float, seen: Any) -> Any:
    """The definition, every number in fifty decimal digits."""
    out = np.zeros(q.shape)
    with localcontext() as context:
        context.prec = 50
        for r, h in np.ndindex(q.shape[:2]):
            kv = h // (q.shape[1] // k.shape[1])
            at = [c for c in range(len(k)) if seen[r, c]]
            z = [sum((Decimal(float(a)) * Decimal(float(b)) for a, b in zip(q[r, h], k[c, kv], strict=True)), Decimal(0)) for c in at]
            e = [(x * Decimal(scale)).exp() for x in z]
            total = sum(e, Decimal(0)) + Decimal(float(sinks[h])).exp()
            for d in range(q.shape[2]):
                out[r, h, d] = float(sum((w * Decimal(float(v[c, kv, d])) for w, c in zip(e, at, strict=True)), Decimal(0)) / total)
    return out


@pytest.mark.parametrize("sinks", [[-30.0, 0.4], [1.5, 40.0], [-0.2, 3.0]])
def test_the_operation_is_its_definition_to_the_last_digits(sinks: list[float]) -> None:
    q, k, v, visible = numbers(3, 2, 4), numbers(6, 1, 4, phase=0.7), numbers(6, 1, 4, phase=2.0), cells(3, 6)
    got = FORMULA(EXACT, q, k, v, Weight.of(sinks, ("head",), "f64"), visible=visible, scale=0.5)
    want = by_digits(q, k, v, sinks, 0.5, visible.matrix())
    assert np.abs(got - want).max() <= 4e-16


def test_a_sink_far_below_is_no_sink_and_one_far_above_takes_everything() -> None:
    q, k, v, visible = numbers(3, 2, 4), numbers(6, 1, 4, phase=0.7), numbers(6, 1, 4, phase=2.0), cells(3, 6)
    plain = OPS["attention"].formula(EXACT, q, k, v, visible=visible, scale=0.5)

    def one(value: float) -> Any:
        return FORMULA(EXACT, q, k, v, Weight.of([value] * 2, ("head",), "f64"), visible=visible, scale=0.5)

    assert np.array_equal(one(-800.0), plain)
    assert np.abs(one(800.0)).max() == 0.0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 30), sink=st.floats(-6, 6))
def test_it_is_attention_over_one_more_cell_without_a_value(seed: int, sink: float) -> None:
    """Counted once, whichever way the cells are split: the extra cell's key gives the sink's score, its value is zero."""
    rng = np.random.default_rng(seed)
    q, k, v = rng.standard_normal((3, 1, 4)), rng.standard_normal((5, 1, 4)), rng.standard_normal((5, 1, 4))
    five, six = (Visible("none", False, None, np.arange(3), np.arange(n), n) for n in (5, 6))
    got = FORMULA(EXACT, q, k, v, Weight.of([sink], ("head",), "f64"), visible=five, scale=0.5)
    wide_q = np.concatenate([q, np.ones((3, 1, 1))], 2)
    wide_k = np.concatenate([np.concatenate([k, np.zeros((5, 1, 1))], 2), np.array([[[0, 0, 0, 0, 2 * sink]]])])
    wide_v = np.concatenate([np.concatenate([v, np.zeros((5, 1, 1))], 2), np.zeros((1, 1, 5))])
    want = OPS["attention"].formula(EXACT, wide_q, wide_k, wide_v, visible=six, scale=0.5)[:, :, :4]
    assert np.allclose(got, want, rtol=1e-12, atol=1e-14)


def drafter(on: bool = True) -> Drafter:
    """The drafter of section 20 with sinks in both layers."""
    w = golden.weights()
    layers = tuple(replace(layer, sinks=Weight.of(SINKS[n], ("head",), "f64")) for n, layer in enumerate(w.layers))
    return Drafter(golden.geometry(), golden.dialect(sinks=on), replace(w, layers=layers))


def blocks(made: Drafter) -> list[Any]:
    """Hidden rows [row, dim] of two rounds."""
    context, out = made.new_context(), []
    for start, stop in ((0, 5), (5, 7)):
        context.append(golden.FEATURES[start:stop], start)
        ids = [golden.ANCHOR] + [golden.MASK] * (golden.BLOCK - 1)
        out.append(made.propose(context, ids, golden.EMBEDDING, golden.HEAD).hidden.data)
    return out


def rms(x: list[float], g: list[float]) -> list[float]:
    r = math.sqrt(math.fsum(a * a for a in x) / len(x) + 1e-6)
    return [a / r * b for a, b in zip(x, g, strict=True)]


def apply(m: Any, x: list[float]) -> list[float]:
    return [math.fsum(a * b for a, b in zip(row, x, strict=True)) for row in m.array().reshape(-1, m.width).tolist()]


def turned(x: list[float], norm: Any, p: int) -> list[list[float]]:
    """Every head normed and rotated to position p."""
    out, d = [], golden.DIM
    for at in range(0, len(x), d):
        y = rms(x[at : at + d], norm.array().tolist())
        turn = [p * 1e4 ** (-2 * i / d) for i in range(d // 2)]
        low = [y[i] * math.cos(t) - y[i + d // 2] * math.sin(t) for i, t in enumerate(turn)]
        out.append(low + [y[i + d // 2] * math.cos(t) + y[i] * math.sin(t) for i, t in enumerate(turn)])
    return out


def attend(q: list[float], keys: list[Any], values: list[Any], sink: float) -> list[float]:
    z = [math.fsum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(golden.DIM) for k in keys]
    top = max([*z, sink])
    e = [math.exp(a - top) for a in z]
    total = math.fsum([*e, math.exp(sink - top)])
    return [math.fsum(a * v[i] for a, v in zip(e, values, strict=True)) / total for i in range(golden.DIM)]


def added(x: list[float], y: list[float]) -> list[float]:
    return [s + t for s, t in zip(x, y, strict=True)]


def by_hand() -> list[Any]:
    """The same forward as plain loops over lists (sections 2 and 10), without NumPy's linear algebra."""
    w, d, rounds = golden.weights(), golden.DIM, []
    table = golden.EMBEDDING.array().tolist()
    for rows in (5, 7):
        context = [rms(apply(w.fc, f), w.hidden_norm.array().tolist()) for f in golden.FEATURES[:rows].tolist()]
        x = [list(table[i]) for i in [golden.ANCHOR] + [golden.MASK] * (golden.BLOCK - 1)]
        for n, layer in enumerate(w.layers):
            h = [rms(row, layer.input_norm.array().tolist()) for row in x]
            keys = [turned(apply(layer.k, c), layer.k_norm, p) for p, c in enumerate([*context, *h])]
            flat = [apply(layer.v, c) for c in [*context, *h]]
            values = [[v[at : at + d] for at in range(0, len(v), d)] for v in flat]
            for j, row in enumerate(h):
                q = turned(apply(layer.q, row), layer.q_norm, rows + j)
                a = [attend(q[i], [k[i // 2] for k in keys], [v[i // 2] for v in values], SINKS[n][i]) for i in range(golden.HEADS)]
                x[j] = added(x[j], apply(layer.o, [t for head in a for t in head]))
            for j, row in enumerate(x):
                m = rms(row, layer.post_norm.array().tolist())
                pairs = zip(apply(layer.gate, m), apply(layer.up, m), strict=True)
                x[j] = added(row, apply(layer.down, [g / (1 + math.exp(-g)) * u for g, u in pairs]))
        rounds.append([rms(row, w.norm.array().tolist()) for row in x])
    return rounds


def test_the_drafter_is_the_forward_written_out_by_hand() -> None:
    for got, want in zip(blocks(drafter()), by_hand(), strict=True):
        assert np.abs(got - np.array(want)).max() <= 2e-14


# Row 1 and the sum of the hidden rows in both rounds, as `by_hand` gives them.
GOLDEN_ROWS = [
    (
        [-0.380138345185, 1.63819132468, 0.675725975204, -0.424224649403, -0.680723459207, -0.972448687793, 0.660165082375, 1.87688781338],
        6.18001427326,
    ),
    (
        [-0.629956581909, 0.993322232519, 1.019778542, 0.0256266223388, -0.895386528525, -1.13169614316, 0.59607867746, 1.91475689382],
        8.3754752095,
    ),
]


@pytest.mark.parametrize("number", [0, 1])
def test_golden_numbers(number: int) -> None:
    row, total = GOLDEN_ROWS[number]
    hidden = blocks(drafter())[number]
    assert np.abs(hidden[1] - row).max() <= 1e-9 and abs(hidden.sum() - total) <= 1e-9
    assert np.abs(blocks(drafter(on=False))[number][1] - row).max() > 1e-2


def made(out: Path, container: str, sinks: str, weights: str = "bf16") -> list[Path]:
    return make_artifact("qwen3", "tiny", weights, out, 3, container, **FEWER, sinks=sinks)


@pytest.mark.parametrize("sinks", ["all", "sliding"])
def test_files_of_both_containers_hold_them_and_convert(sinks: str, tmp_path: Path) -> None:
    files = [open_drafter_files(made(tmp_path / kind, kind, sinks)[0]) for kind in ("gguf", "safetensors")]
    for f in files:
        assert f.dialect.sinks and [layer.sinks is not None for layer in f.weights.layers] == [True, sinks == "all"]
    back = open_drafter_files(convert_artifact(tmp_path / "gguf" / "draft.gguf", tmp_path / "folder").path)
    assert back.dialect == files[0].dialect
    for key, w in by_role(files[0].weights).items():
        assert w.raw.tobytes() == by_role(back.weights)[key].raw.tobytes(), key


def test_the_switch_turns_them_off_and_is_refused_where_there_are_none(tmp_path: Path) -> None:
    draft, target = made(tmp_path / "a", "safetensors", "all")
    lent, outs = open_borrowed(target), []
    for dialect in ({}, {"sinks": "off"}):
        one = oracle.open_drafter(draft, dialect)
        context = one.new_context()
        context.append(numbers(5, 3 * 64), 0)
        outs.append(one.propose(context, [4, 119, 119], lent.embedding, lent.head).logits.data)
    assert np.abs(outs[0] - outs[1]).max() > 1e-2
    with pytest.raises(DialectError, match="this checkpoint has no attention sinks"):
        oracle.open_drafter(made(tmp_path / "b", "safetensors", "none")[0], {"sinks": "on"})
