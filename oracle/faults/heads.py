"""Mistakes of DFlash 2 and DSpark: dynamic convolution, selector, Markov and confidence heads, reduced vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.faults.grammar import Options
from oracle.faults.kind import Kind, Plant, args, need, params
from oracle.readings import Stage
from oracle.tensor import Tensor
from oracle.weights import Weight

Values = NDArray[Any]


def _side(_: Options) -> Plant:
    return Plant(lambda s: params(s, side=1 - s.params["side"]))


def _base(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        x, kernel, base = stage.args
        return args(stage, x, kernel, Weight.of(np.zeros(base.shape), base.axes, "f32", base.name))

    return Plant(edit)


def _books(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        *given, before, after = stage.args
        return args(stage, *given, after, before)

    return Plant(edit)


def _pair(_: Options) -> Plant:
    """The candidates' own scores alone, without their fit to the token before."""

    def after(stage: Stage, y: Values) -> Values:
        logits, candidates = stage.args[0].data, np.asarray(stage.args[1].data, np.int64)
        return np.take_along_axis(logits, candidates, -1)

    return Plant(after=after)


def _vocabulary(o: Options) -> Plant:
    how = o.choice("how", "identity", "offset")

    def edit(stage: Stage) -> Stage:
        ids, target_ids = stage.args
        index = np.arange(len(target_ids))
        return args(stage, ids, index if how == "identity" else target_ids + index)

    return Plant(edit)


def _state(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        state, joint = stage.args
        need(np.any(state.data), "no state yet")
        return args(stage, Tensor(np.zeros_like(state.data), state.axes), joint)

    return Plant(edit)


def _join(_: Options) -> Plant:
    def edit(stage: Stage) -> Stage:
        need(len(stage.args) > 1, "a single part")
        return args(stage, *reversed(stage.args))

    return Plant(edit)


def _output(_: Options) -> Plant:
    """The second part read in place of the last."""
    return Plant(after=lambda stage, y: np.asarray(np.tanh(stage.args[0].data[:, 1])))


KINDS = (
    Kind(
        "conv.side",
        ("dynamic_conv",),
        "*",
        {},
        _side,
        "the convolutions before and after a sublayer exchanged",
        ("K15",),
        knobs={"side of the convolution": ""},
    ),
    Kind("conv.base", ("dynamic_conv",), "*", {}, _base, "the fixed part of the kernel left out", ("K15",), knobs={"fixed kernel": ""}),
    Kind(
        "selector.books",
        ("selector_scores",),
        "*",
        {},
        _books,
        "predecessor and successor codebooks exchanged",
        ("K15",),
        knobs={"codebooks": ""},
    ),
    Kind("selector.pair", ("selector_scores",), "*", {}, _pair, "the pair score left out", ("K15",), knobs={"pair score": ""}),
    Kind(
        "vocab.map",
        ("to_target",),
        "*",
        {"how": "identity"},
        _vocabulary,
        "draft ids taken as target ids, or as offsets added to them",
        ("K19",),
        "how",
        ("how=identity", "how=offset"),
        {"reduced vocabulary": ""},
    ),
    Kind(
        "markov.state", ("markov_state",), "*", {}, _state, "the Markov state lost between rows", ("K17", "K22"), knobs={"Markov state": ""}
    ),
    Kind("markov.output", ("markov_output",), "*", {}, _output, "the wrong part of the joint projection read out", ("K17", "K14")),
    Kind(
        "join.order", ("join",), "*", {}, _join, "the parts joined in the reverse order", ("K17", "K14"), knobs={"order of the parts": ""}
    ),
)
