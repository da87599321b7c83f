"""Norms: the eps that fits, 1 + w, a missing or doubled weight, another axis or grouping, a mean subtracted, a root left out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oracle.floats import BF16, F16
from oracle.tensor import Array, Tensor
from oracle.weights import Weight
from parity.explain.base import Hypothesis, Suspect, become, with_arg, with_params

USUAL = tuple(m * 10.0**k for k in range(-12, -1) for m in (1, 2, 5))


def rms(s: Suspect) -> Iterator[Hypothesis]:
    """rms_norm."""
    yield from _eps(s, s.stage.args[0].data.shape[-1])
    x, w, *_ = (*s.stage.args, None)
    offset, eps = s.stage.params.get("offset", 0.0), s.stage.params["eps"]
    text = "the weight taken as w, not 1 + w" if offset else "the weight taken as 1 + w"
    yield Hypothesis("norm.offset", text, with_params(s.stage, offset=0.0 if offset else 1.0))
    if w is not None:
        yield from _weight(s, x, w, offset)
    yield from _axis(s, x, w)
    scale = 1.0 if w is None else w.array() + offset
    mean = x.data.mean(-1, keepdims=True)
    r = 1 / np.sqrt(np.square(x.data).mean(-1, keepdims=True) + eps)
    centred = x.data - mean
    for kind, text, value in (
        ("norm.missing", "not normed: the weight alone was applied", x.data * scale),
        ("norm.missing", "not normed at all: the input", x.data),
        ("norm.mean", "the mean subtracted (layer norm)", centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + eps) * scale),
        (
            "norm.form",
            "the sum of squares in place of their mean",
            x.data / np.sqrt(np.square(x.data).sum(-1, keepdims=True) + eps) * scale,
        ),
        ("norm.form", "the root left out: divided by mean + eps", x.data * r**2 * scale),
        ("norm.form", "eps added outside the root", x.data / (np.sqrt(np.square(x.data).mean(-1, keepdims=True)) + eps) * scale),
    ):
        if np.shape(value) == s.c.shape:
            yield Hypothesis(kind, text, s.stage, become(value))
    yield from _cast(s, x.data * r, scale)


def _eps(s: Suspect, width: int) -> Iterator[Hypothesis]:
    x, eps, groups = s.stage.args[0], s.stage.params["eps"], s.stage.params.get("groups", 1)
    # Every group has a mean of its own, so each is a row to the fit.
    data, y, c = (v[s.rows].reshape(-1, v.shape[-1] // groups) for v in (x.data, s.y.data, s.c))
    found = fitted_eps(data, y, c, eps, width // groups if s.stage.op.name == "rms_norm" else 1)
    for value in nice(found):
        if value != eps:
            text, p = f"eps {value:.4g} in place of {eps:.4g}", {"eps": value, "declared": eps}
            yield Hypothesis("norm.eps", text, with_params(s.stage, eps=value), None, value == found, parameters=p)


def fitted_eps(x: Array, y: Array, c: Array, eps: float, width: int | None = None) -> float | None:
    """The eps under which the rows' scale is the candidate's: ``mean + eps' = (mean + eps) / s²``, s the ratio c / y of a row.

    ``width``: what the sum of squares is divided by (default: the last axis; 1 for a norm of the sum).
    """
    square = np.square(x).sum(-1) / (x.shape[-1] if width is None else width)
    with np.errstate(divide="ignore", invalid="ignore"):
        s = (c * y).sum(-1) / np.square(y).sum(-1)
        estimates = (square + eps) / np.square(s) - square
    good = np.isfinite(estimates)
    if not good.any():
        return None
    # Rows of small mean square tell eps best: weigh by how much of the denominator it is.
    weight = 1 / np.square(square[good] + eps)
    return float((estimates[good] * weight).sum() / weight.sum())


def nice(eps: float | None) -> list[float]:
    """The usual value nearest to the fit, then the fit itself, then none at all."""
    if eps is None or eps < 0:
        return [0.0] if eps is not None else []
    nearest = min(USUAL, key=lambda u: abs(np.log(u / max(eps, 1e-300))))
    return [nearest, eps, 0.0]


def _weight(s: Suspect, x: Tensor, w: Weight, offset: float) -> Iterator[Hypothesis]:
    yield Hypothesis("norm.weight", "the weight left out", with_params(with_arg(s.stage, 1, None), offset=0.0))
    total = w.array() + offset
    twice = Weight.of(np.square(total) - offset, w.axes, "f64", w.name)
    yield Hypothesis("norm.weight", "the weight applied twice", with_arg(s.stage, 1, twice))
    if offset:
        yield Hypothesis("norm.offset", "one added twice: the weight taken as 2 + w", with_params(s.stage, offset=2.0))
    for text, turned in (("reversed", total[::-1]), ("rolled by one", np.roll(total, 1))):
        yield Hypothesis("norm.weight", f"the weight {text}", with_arg(s.stage, 1, Weight.of(turned - offset, w.axes, "f64", w.name)))


def _axis(s: Suspect, x: Tensor, w: Weight | None) -> Iterator[Hypothesis]:
    """The square mean over other elements: all heads together, single groups, the rows."""
    eps, offset, groups = s.stage.params["eps"], s.stage.params.get("offset", 0.0), s.stage.params.get("groups", 1)
    scale = 1.0 if w is None else w.array() + offset
    square = np.square(x.data)
    if x.data.ndim > 2:
        whole = square.reshape(len(square), -1).mean(-1).reshape(-1, *([1] * (square.ndim - 1)))
        yield Hypothesis("norm.axis", "one mean over all heads of a row", s.stage, become(x.data / np.sqrt(whole + eps) * scale))
    by_rows = square.mean(0, keepdims=True)
    yield Hypothesis("norm.axis", "the mean over the rows, not over a row", s.stage, become(x.data / np.sqrt(by_rows + eps) * scale))
    if groups != 1:
        yield Hypothesis("norm.axis", f"one mean over the row, not over each of its {groups} groups", with_params(s.stage, groups=1))
    calls = s.world.target_hidden
    for count in {8, 16, 32, 64} | ({x.data.shape[-1] // calls} if calls else set()):
        if count not in (0, 1, groups) and x.data.shape[-1] % count == 0 and x.data.ndim == 2:
            yield Hypothesis("norm.axis", f"a mean over each of {count} groups, not over the row", with_params(s.stage, groups=count))


def _cast(s: Suspect, normed: Array, scale: Array | float) -> Iterator[Hypothesis]:
    """The normed value rounded before the weight is applied: another cast order."""
    for store in (BF16, F16):
        if np.shape(normed * scale) == s.c.shape:
            text = f"the normed value rounded to {store.name} before the weight is applied (another cast order)"
            yield Hypothesis("norm.cast", text, s.stage, become(store.round(normed) * scale))


def l2(s: Suspect) -> Iterator[Hypothesis]:
    """l2_norm."""
    yield from _eps(s, 1)
    x, eps, scale = s.stage.args[0].data, s.stage.params["eps"], s.stage.params.get("scale", 1.0)
    if scale != 1.0:
        yield Hypothesis("norm.scale", f"the factor {scale:.6g} left out", with_params(s.stage, scale=1.0))
        yield Hypothesis("norm.scale", f"the factor {scale:.6g} applied twice", with_params(s.stage, scale=scale * scale))
    else:
        yield Hypothesis("norm.scale", "the query's factor applied to it too", with_params(s.stage, scale=x.shape[-1] ** -0.5))
    mean = np.square(x).mean(-1, keepdims=True)
    yield Hypothesis("norm.form", "the mean of squares in place of their sum", s.stage, become(scale * x / np.sqrt(mean + eps)))
    yield Hypothesis("norm.missing", "not normed: the factor alone was applied", s.stage, become(scale * x))
    whole = np.square(x).reshape(len(x), -1).sum(-1).reshape(-1, *([1] * (x.ndim - 1)))
    yield Hypothesis("norm.axis", "one sum over all heads of a row", s.stage, become(scale * x / np.sqrt(whole + eps)))
