"""RMS norm: the eps that fits, 1 + w, a missing or doubled weight, a mean taken over another axis."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oracle.tensor import Array
from oracle.weights import Weight
from parity.explain.base import Hypothesis, Suspect, with_args, with_params


def fitted_eps(x: Array, y: Array, c: Array, eps: float) -> float | None:
    """The eps under which the rows' scale is the candidate's: ``mean + eps' = (mean + eps) / s²``, s the ratio c / y of a row."""
    mean = np.square(x).mean(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        s = (c * y).sum(-1) / np.square(y).sum(-1)
        estimates = (mean + eps) / np.square(s) - mean
    good = np.isfinite(estimates)
    if not good.any():
        return None
    # Rows of small mean square tell eps best: weigh by how much of the denominator it is.
    weight = 1 / np.square(mean[good] + eps)
    return float((estimates[good] * weight).sum() / weight.sum())


def hypotheses(s: Suspect) -> Iterator[Hypothesis]:
    x, w, *_ = (*s.stage.args, None)
    eps, offset = s.stage.params["eps"], s.stage.params.get("offset", 0.0)
    found = fitted_eps(x.data[s.rows], s.y.data[s.rows], s.c[s.rows], eps)
    for value in _nice(found):
        if value != eps:
            as_found = value == found
            yield Hypothesis("norm.eps", f"eps {value:.4g} in place of {eps:.4g}", with_params(s.stage, eps=value), None, as_found)
    other = 0.0 if offset else 1.0
    text = "the weight taken as 1 + w" if not offset else "the weight taken as w, not 1 + w"
    yield Hypothesis("norm.offset", text, with_params(s.stage, offset=other))
    if w is not None:
        yield Hypothesis("norm.weight", "the weight left out", with_args(s.stage, x, None))
        squared = Weight.of(np.square(w.array()), w.axes, "f64", w.name)
        yield Hypothesis("norm.weight", "the weight applied twice", with_args(s.stage, x, squared))


def _nice(eps: float | None) -> list[float]:
    """The usual value nearest to the fit, then the fit itself."""
    if eps is None or eps < 0:
        return [0.0] if eps is not None else []
    usual = [m * 10.0**k for k in range(-12, -1) for m in (1, 2, 5)]
    nearest = min(usual, key=lambda u: abs(np.log(u / max(eps, 1e-300))))
    return [nearest, eps, 0.0]
