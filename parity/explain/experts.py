"""Mixture of experts: score function, bias in the weights, normalisation, factor, too few experts, other experts, ranks out of order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from oracle.ops.expert_linear import indices
from oracle.tensor import Array, Tensor
from oracle.weights import Weight
from parity.explain.base import Hypothesis, Suspect, become, shortened, with_arg, with_params
from parity.explain.gates import ACTIVATIONS

MAX_EXPERTS = 64


def softmax(s: Suspect) -> Iterator[Hypothesis]:
    """softmax over experts (or any last axis)."""
    x = s.stage.args[0].data
    yield Hypothesis("router.scores", "sigmoid in place of softmax", s.stage, become(ACTIVATIONS["sigmoid"](x)))
    yield Hypothesis("router.scores", "the logits themselves", s.stage, become(x))
    e = np.exp(x - x.max(-1, keepdims=True))
    yield Hypothesis("softmax.form", "not divided by the sum", s.stage, become(e))
    yield Hypothesis(
        "softmax.form", "the logarithm of softmax", s.stage, become(x - x.max(-1, keepdims=True) - np.log(e.sum(-1, keepdims=True)))
    )
    two = np.exp2(x - x.max(-1, keepdims=True))
    yield Hypothesis("softmax.form", "powers of two in place of e", s.stage, become(two / two.sum(-1, keepdims=True)))


def _bias(s: Suspect) -> Weight | None:
    """The selection bias of the layer's router, or None."""
    path = s.stage.path.rpartition(".")[0] + ".selected"
    found = s.world.argument(path, 1)
    return found if isinstance(found, Weight) else None


def expert_weights(s: Suspect) -> Iterator[Hypothesis]:
    scores, chosen = s.stage.args
    scale, normalise = s.stage.params.get("scale", 1.0), s.stage.params.get("normalise", True)
    text = "not normalised to a sum of 1" if normalise else "normalised to a sum of 1"
    yield Hypothesis("experts.renormalise", text, with_params(s.stage, normalise=not normalise))
    if scale != 1.0:
        yield Hypothesis("experts.scale", f"the factor {scale:g} left out", with_params(s.stage, scale=1.0))
        yield Hypothesis("experts.scale", f"the factor {scale:g} applied twice", with_params(s.stage, scale=scale * scale))
        both = with_params(s.stage, scale=1.0, normalise=not normalise)
        yield Hypothesis("experts.scale", f"the factor {scale:g} left out, and {text}", both, fallback=True)
    bias = _bias(s)
    picked = np.take_along_axis(scores.data, indices(chosen.data, scores.data.shape[-1]), -1)
    if bias is not None:
        biased = Tensor(scores.data + bias.array(), scores.axes)
        yield Hypothesis("experts.bias", "the selection bias used in the weights", with_arg(s.stage, 0, biased))
        alone = with_params(with_arg(s.stage, 0, biased), normalise=not normalise)
        yield Hypothesis("experts.bias", f"the selection bias used in the weights, {text}", alone, fallback=True)
    e = np.exp(picked - picked.max(-1, keepdims=True))
    yield Hypothesis("router.scores", "a softmax over the selected scores", s.stage, become(scale * e / e.sum(-1, keepdims=True)))
    logits = s.world.recorded(s.stage.step, s.stage.path.rpartition(".")[0] + ".router_logits")
    if logits is not None and logits.shape == scores.data.shape:
        z = np.take_along_axis(logits, indices(chosen.data, logits.shape[-1]), -1)
        e = np.exp(z - z.max(-1, keepdims=True))
        yield Hypothesis("router.scores", "a softmax over the selected logits", s.stage, become(scale * e / e.sum(-1, keepdims=True)))
    total = scores.data.sum(-1, keepdims=True)
    yield Hypothesis("experts.renormalise", "normalised over all experts, not the selected", s.stage, become(scale * picked / total))
    yield Hypothesis("experts.weights", "all experts weighted alike", s.stage, become(np.full(s.c.shape, scale / s.c.shape[-1])))
    yield from _ranks(s, picked)


def _ranks(s: Suspect, picked: Array) -> Iterator[Hypothesis]:
    """The weights of one rank given to another."""
    y = s.y.data
    for text, value in (
        ("in reverse order of ranks", y[:, ::-1]),
        ("in ascending order of their experts, not by rank", np.take_along_axis(y, np.argsort(s.stage.args[1].data, -1), -1)),
        ("one rank off", np.roll(y, 1, -1)),
    ):
        yield Hypothesis("experts.order", f"the weights {text}", s.stage, become(value))
    k = picked.shape[-1]
    for fewer in range(1, min(k, 8)):
        cut = np.where(np.arange(k) < fewer, picked, 0.0)
        scale = s.stage.params.get("scale", 1.0)
        yield Hypothesis(
            "experts.last", f"only the first {fewer} of {k} experts weighted", s.stage, become(scale * cut / cut.sum(-1, keepdims=True))
        )


def expert_sum(s: Suspect) -> Iterator[Hypothesis]:
    y, w = (t.data for t in s.stage.args)
    k = w.shape[1]
    for kind, text, value in (
        ("experts.weights", "the experts summed without their weights", y.sum(1)),
        ("experts.weights", "the mean of the experts", y.mean(1)),
        ("experts.renormalise", "the weights normalised once more", (y * (w / w.sum(1, keepdims=True))[..., None]).sum(1)),
        ("experts.weights", "the weights applied twice", (y * np.square(w)[..., None]).sum(1)),
        ("experts.order", "the weights in reverse order of ranks", (y * w[:, ::-1, None]).sum(1)),
        ("experts.order", "the weights one rank off", (y * np.roll(w, 1, 1)[..., None]).sum(1)),
        ("experts.last", "the largest weight's expert alone", (y * np.where(w == w.max(1, keepdims=True), w, 0)[..., None]).sum(1)),
    ):
        yield Hypothesis(kind, text, s.stage, become(value))
    parts = y * w[..., None]
    for rank in range(min(k, 16)):
        rest = parts.sum(1) - parts[:, rank]
        yield Hypothesis("experts.last", f"the expert of rank {rank} left out", s.stage, become(rest), parameters={"rank": rank})
    for fewer in range(2, min(k - 1, 8)):
        yield Hypothesis(
            "experts.last", f"only the first {fewer} of {k} experts", s.stage, become(parts[:, :fewer].sum(1)), parameters={"k": fewer}
        )


def expert_linear(s: Suspect) -> Iterator[Hypothesis]:
    """Which expert's matrix every diverging row and rank really met, and the mistakes that are no other expert."""
    chosen, experts = s.stage.args[1:]
    ids, count = indices(chosen.data, len(experts)), len(experts)
    for text, other in (
        ("the expert before the selected one", (ids - 1) % count),
        ("the expert after the selected one", (ids + 1) % count),
        ("experts by rank (0, 1, …), not the selected ones", np.broadcast_to(np.arange(ids.shape[1]) % count, ids.shape)),
        ("the selected experts in reverse order", ids[:, ::-1]),
    ):
        yield Hypothesis("experts.index", text, with_arg(s.stage, 1, Tensor(np.asarray(other, float), chosen.axes)))
    solved = _solved_experts(s) if count <= MAX_EXPERTS else None
    if solved is not None and not np.array_equal(solved, ids):
        moved = [f"row {r} rank {j}: expert {solved[r, j]}, not {ids[r, j]}" for r, j in np.argwhere(solved != ids)]
        edited = with_arg(s.stage, 1, Tensor(solved.astype(float), chosen.axes))
        yield Hypothesis("experts.index", shortened("; ".join(moved)), edited, fallback=True, parameters={"experts": solved.tolist()})
    for name in ("expert_gate", "expert_up"):
        path = f"{s.stage.path.rpartition('.')[0]}.{name}"
        other = s.world.argument(path, 2)
        if path != s.stage.path and other is not None and other[0].shape == experts[0].shape:
            yield Hypothesis("experts.other", f"the experts' matrices of {name}", with_arg(s.stage, 2, other), parameters={"of": path})
    for path, others in s.world.other_experts(s.stage, experts):
        text = f"the experts' matrices of {path.rpartition('.')[0]}"
        yield Hypothesis("experts.other", text, with_arg(s.stage, 2, others), parameters={"of": path})
    turned = tuple(_turned(w) for w in experts) if experts[0].row_count == experts[0].width else None
    if turned is not None:
        yield Hypothesis("linear.transposed", "every expert's matrix transposed", with_arg(s.stage, 2, turned))


def _turned(w: Weight) -> Weight:
    return Weight.of(w.array().T, w.axes, "f64", w.name)


def _solved_experts(s: Suspect) -> NDArray[np.int64] | None:
    """For every diverging (row, rank) the expert whose product is nearest, int64 [row, rank]."""
    x, chosen, experts = s.stage.args
    solved = indices(chosen.data, len(experts)).copy()
    places = [(int(r), int(j)) for r, j in np.argwhere(s.where.any(-1))]
    if not places or len(places) * len(experts) * experts[0].row_count * experts[0].width > 1 << 30:
        return None
    rows, ranks = (np.array(p) for p in zip(*places, strict=True))
    inputs = x.data[rows] if x.data.ndim == 2 else x.data[rows, ranks]
    cost = np.stack([np.square(inputs @ w.tile(0, w.row_count).T - s.c[rows, ranks]).sum(1) for w in experts])
    solved[rows, ranks] = cost.argmin(0)
    return solved
