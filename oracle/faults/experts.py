"""Mistakes of mixtures of experts: router scores, selection, weights, which expert's matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.faults.grammar import Options
from oracle.faults.kind import Kind, Plant, args, need, params
from oracle.faults.linear import other_weight
from oracle.kit import EXACT
from oracle.ops import OPS
from oracle.ops.expert_linear import indices
from oracle.ops.select import biased
from oracle.readings import Stage
from oracle.tensor import Tensor
from oracle.weights import Weight

Values = NDArray[Any]


def _scores(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        need(stage.args[0].axes[-1] == "expert", "no router")
        other = "softmax" if stage.op.name == "sigmoid" else "sigmoid"
        return replace(stage, op=OPS[other])

    return Plant(edit)


def _top_k(o: Options) -> Plant:
    delta = o.integer("delta")

    def edit(stage: Stage) -> Stage:
        k = stage.params["k"] + delta
        need(1 <= k <= stage.args[0].data.shape[-1] and stage.args[0].axes[-1] == "expert", "no router with as many experts")
        return params(stage, k=k)

    return Plant(edit)


def _normalise(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        need(stage.params.get("normalise", True), "no normalisation")
        return params(stage, normalise=False)

    return Plant(edit)


def _scale(o: Options) -> Plant:
    times = o.choice("times", "0", "2")

    def edit(stage: Stage) -> Stage:
        scale = stage.params.get("scale", 1.0)
        need(scale != 1, "no scaling factor")
        return params(stage, scale=1.0 if times == "0" else scale * scale)

    return Plant(edit)


def _bias(where: str) -> Plant:
    """The selection without its bias, or weights of score + bias: the same layer's selection, seen just before, has it."""
    biases: dict[str, Weight | None] = {}

    def edit(stage: Stage) -> Stage:
        if where == "selection":
            need(len(stage.args) > 1 and stage.args[1] is not None, "no selection bias")
            return args(stage, stage.args[0], None)
        bias = biases.get(stage.path.rpartition(".")[0])
        need(bias is not None, "no selection bias")
        scores, *rest = stage.args
        wrong = biased(EXACT, scores.data, bias).astype(scores.data.dtype)
        return args(stage, Tensor(wrong, scores.axes), *rest)

    def see(stage: Stage, _: Tensor) -> None:
        if stage.op.name == "select":
            biases[stage.path.rpartition(".")[0]] = stage.args[1] if len(stage.args) > 1 else None

    return Plant(edit, None, see)


def _order(_: Options) -> Plant:
    """The weights of the ranks turned by one."""

    def after(stage: Stage, y: Values) -> Values:
        need(y.shape[1] > 1, "a single expert")
        return np.roll(y, 1, 1)

    return Plant(after=after)


def _index(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        x, selected, experts = stage.args
        need(len(experts) > 1, "a single expert")
        index = indices(np.asarray(selected.data, np.float64), len(experts))
        return args(stage, x, Tensor(((index + 1) % len(experts)).astype(selected.data.dtype), selected.axes), experts)

    return Plant(edit)


def _last(_: Options) -> Plant:
    """The last rank left out of the sum."""

    def edit(stage: Stage) -> Stage:
        y, weights = stage.args
        need(weights.data.shape[1] > 1, "a single expert")
        fewer = np.array(weights.data)
        fewer[:, -1] = 0
        return args(stage, y, Tensor(fewer, weights.axes))

    return Plant(edit)


KINDS = (
    Kind(
        "router.scores",
        ("sigmoid", "softmax"),
        "*.router_scores",
        {},
        _scores,
        "sigmoid and softmax confused",
        ("K34",),
        knobs={"router scores": ""},
    ),
    Kind(
        "router.top_k",
        ("select",),
        "*.selected",
        {"delta": "-1"},
        _top_k,
        "another number of experts selected",
        ("K34",),
        "delta",
        ("delta=-1", "delta=1"),
        {"number of experts": "delta=-1"},
    ),
    Kind(
        "experts.renormalise",
        ("expert_weights",),
        "*.expert_weights",
        {},
        _normalise,
        "the selected weights not brought to a sum of one",
        ("K6", "K34"),
        knobs={"renormalisation": ""},
    ),
    Kind(
        "experts.scale",
        ("expert_weights",),
        "*.expert_weights",
        {"times": "0"},
        _scale,
        "the scaling factor left out, or applied twice",
        ("K6", "K34"),
        "times",
        ("times=0", "times=2"),
        {"scaling factor": "times=0"},
        ("values.scale",),
    ),
    Kind(
        "experts.order",
        ("expert_weights",),
        "*.expert_weights",
        {},
        _order,
        "the weights of the ranks turned by one",
        ("K14",),
        alike=("linear.permuted",),
    ),
    Kind(
        "experts.index",
        ("expert_linear",),
        "*.expert_gate",
        {},
        _index,
        "the next expert's matrix in place of the selected one's",
        ("K35", "K14"),
    ),
    Kind("experts.last", ("expert_sum",), "*.expert_out", {}, _last, "the last rank left out of the sum", ("K31", "K34")),
    Kind(
        "router.bias",
        ("select",),
        "*.selected",
        {},
        lambda o: _bias("selection"),
        "experts selected without the selection bias",
        ("K34",),
        knobs={"selection bias": ""},
    ),
    Kind(
        "experts.bias",
        ("expert_weights",),
        "*.expert_weights",
        {},
        lambda o: _bias("weights"),
        "the selection bias counted in the weights",
        ("K34",),
        knobs={"bias not in the weights": ""},
    ),
    Kind(
        "experts.other",
        ("expert_linear",),
        "*.expert_up",
        {"of": "any"},
        other_weight,
        "another projection's matrices, or the layer's before",
        ("K14", "K34"),
        "of",
        ("of=expert_gate", "of=layer"),
        alike=("linear.other",),
    ),
)
