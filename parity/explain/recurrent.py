"""Recurrent parts: the delta rule's state and read-out, decay, short and dynamic convolutions, Markov heads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from oracle.ops.delta_state import widened
from oracle.ops.dynamic_conv import _channels, _taps
from oracle.ops.swiglu import sigmoid
from oracle.tensor import Array, Tensor
from oracle.weights import Weight
from parity.explain.base import Hypothesis, Suspect, become, like, with_arg, with_args, with_params
from parity.explain.gates import softplus

MAX_STATES = 24


def delta_state(s: Suspect) -> Iterator[Hypothesis]:
    start, k, v, decay, beta = s.stage.args
    yield Hypothesis("delta.decay", "no decay", with_arg(s.stage, 3, like(decay, np.zeros(decay.data.shape))))
    yield Hypothesis("delta.decay", "the decay applied twice", with_arg(s.stage, 3, like(decay, 2 * decay.data)))
    with np.errstate(all="ignore"):
        log = np.log(np.abs(decay.data))
    yield Hypothesis("delta.decay", "the log of the decay used as the decay", with_arg(s.stage, 3, like(decay, log)))
    other = np.roll(decay.data, 1, 0)
    yield Hypothesis("delta.decay", "the decay of the row before", with_arg(s.stage, 3, like(decay, other)))
    yield Hypothesis("delta.beta", "no learning rate: beta left out", with_arg(s.stage, 4, like(beta, np.ones(beta.data.shape))))
    yield Hypothesis("delta.beta", "beta applied twice", with_arg(s.stage, 4, like(beta, np.square(beta.data))))
    yield Hypothesis("delta.beta", "beta doubled", with_arg(s.stage, 4, like(beta, 2 * beta.data)))
    plain = (start.data, widened(k.data, start.data.shape[0]), v.data, decay.data, beta.data)
    for kind, text, rule in (
        ("delta.rule", "nothing subtracted: v written, not v - S k (gated linear attention)", "linear"),
        ("delta.order", "the memory read before the decay", "early"),
        ("delta.order", "the decay applied after the write", "late"),
        ("delta.rule", "beta on the value only, not on the difference", "value"),
    ):
        yield Hypothesis(kind, text, s.stage, become(_rolled(*plain, rule)))
    heads, groups = start.data.shape[0], k.data.shape[1]
    if 1 < groups < heads:
        index = np.arange(heads) % groups
        yield Hypothesis(
            "delta.heads", "value head h used key head h mod key heads, not h // group", with_arg(s.stage, 1, like(k, k.data[:, index]))
        )
    if start.data.any():
        yield Hypothesis(
            "delta.lost", "the state not carried over: it starts from zeros", with_arg(s.stage, 0, like(start, 0 * start.data))
        )
    yield from _other_starts(s, start)


def _rolled(start: Array, keys: Array, v: Array, decay: Array, beta: Array, rule: str) -> Array:
    """The recurrence with one step of it done otherwise: [row, head, key, dim]."""
    state, out = start, np.empty((len(keys), *start.shape))
    for t in range(len(keys)):
        before, e = state, np.exp(decay[t])[:, None, None]
        state = state if rule == "late" else state * e
        read = before if rule == "early" else state
        memory = np.einsum("hkd,hk->hd", read, keys[t])
        b = beta[t][:, None]
        d = {"linear": b * v[t], "value": b * v[t] - memory}.get(rule, b * (v[t] - memory))
        state = state + keys[t][:, :, None] * d[:, None]
        state = state * e if rule == "late" else state
        out[t] = state
    return out


def _other_starts(s: Suspect, start: Tensor) -> Iterator[Hypothesis]:
    """The state after another row of the steps before: a rollback that went too far, not far enough, or was left out."""
    tried = 0
    for step in range(s.stage.step - 1, -1, -1):
        after = s.world.recorded(step, s.stage.path)
        if after is None or after.shape[1:] != start.data.shape:
            continue
        for row in range(len(after) - 1, -1, -1):
            if tried >= MAX_STATES:
                return
            if np.array_equal(after[row], start.data) or not np.isfinite(after[row]).all():
                continue
            tried += 1
            left = step == s.stage.step - 1 and row == len(after) - 1
            kind, why = ("state.stale", "not taken back") if left else ("state.rollback", "taken back to another row")
            text = f"the state starts from row {row} of step {step} (of {len(after)} rows): {why}"
            yield Hypothesis(kind, text, with_arg(s.stage, 0, like(start, after[row])), parameters={"step": step, "row": row})


def delta_read(s: Suspect) -> Iterator[Hypothesis]:
    state, q = s.stage.args
    heads, groups = state.data.shape[1], q.data.shape[1]
    before = np.concatenate([np.zeros((1, *state.data.shape[1:])), state.data[:-1]])
    yield Hypothesis("delta.read", "read before the row's own write", with_arg(s.stage, 0, like(state, before)))
    if 1 < groups < heads:
        index = np.arange(heads) % groups
        yield Hypothesis(
            "delta.heads", "value head h read with query head h mod key heads", with_arg(s.stage, 1, like(q, q.data[:, index]))
        )
    if state.data.shape[2] == state.data.shape[3]:
        turned = state.data.swapaxes(-1, -2)
        yield Hypothesis("delta.transposed", "the state transposed: S q in place of S^T q", with_arg(s.stage, 0, like(state, turned)))
    root = state.data.shape[2] ** 0.5
    yield Hypothesis("delta.scale", "the query's factor left out", with_arg(s.stage, 1, like(q, q.data * root)))
    yield Hypothesis("delta.scale", "the query's factor applied twice", with_arg(s.stage, 1, like(q, q.data / root)))


def decay(s: Suspect) -> Iterator[Hypothesis]:
    a, a_log, dt_bias = s.stage.args
    raw, rate, bias = a.data, np.exp(a_log.array()), dt_bias.array()
    for kind, text, value in (
        ("bias", "dt_bias left out", -rate * softplus(raw)),
        ("bias", "the bias added after softplus", -rate * (softplus(raw) + bias)),
        ("form", "softplus left out", -rate * (raw + bias)),
        ("form", "A_log not exponentiated", -a_log.array() * softplus(raw + bias)),
        ("form", "A left out", -softplus(raw + bias)),
        ("sign", "the sign left out: the state grows", rate * softplus(raw + bias)),
        ("form", "sigmoid in place of softplus", -rate * sigmoid(raw + bias)),
        ("form", "already exponentiated: the decay, not its logarithm", np.exp(-rate * softplus(raw + bias))),
    ):
        yield Hypothesis(f"decay.{kind}", text, s.stage, become(value))


def short_conv(s: Suspect) -> Iterator[Hypothesis]:
    x, history, w = s.stage.args
    dilation = s.stage.params.get("dilation", 1)
    taps = w.array()
    yield Hypothesis(
        "short_conv.order", "the taps in reverse order", with_arg(s.stage, 2, Weight.of(taps[..., ::-1], w.axes, "f64", w.name))
    )
    if history.data.any():
        yield Hypothesis("short_conv.history", "the rows before taken as zeros", with_arg(s.stage, 1, like(history, 0 * history.data)))
    yield Hypothesis("short_conv.identity", "not convolved: the input", s.stage, become(x.data))
    last = taps * (np.arange(w.width) == w.width - 1)
    yield Hypothesis("short_conv.identity", "only the row's own tap", with_arg(s.stage, 2, Weight.of(last, w.axes, "f64", w.name)))
    rows = np.concatenate([history.data, x.data])
    for other in {1, 2, 3, w.width} - {dilation}:
        reach = (w.width - 1) * other
        if reach <= len(history.data):
            kept = like(history, history.data[len(history.data) - reach :])
            edited = with_params(with_arg(s.stage, 1, kept), dilation=other)
            yield Hypothesis("short_conv.dilation", f"dilation {other} in place of {dilation}", edited, parameters={"dilation": other})
    if len(history.data):
        late = rows[len(history.data) - 1 : len(rows) - 1]
        yield Hypothesis(
            "short_conv.shift", "every row one late", with_args(s.stage, like(x, late), like(history, np.roll(history.data, 1, 0)), w)
        )
        backward = history.data[::-1].copy()
        yield Hypothesis("short_conv.history", "the rows before in reverse order", with_arg(s.stage, 1, like(history, backward)))
    yield from _other_histories(s, history)


def _other_histories(s: Suspect, history: Tensor) -> Iterator[Hypothesis]:
    """The rows before, as they were at another row of the steps before: a trail that was not rolled back, or too far."""
    source = s.stage.path.rpartition(".")[2].removesuffix("_conv") + "_raw"
    path = f"{s.stage.path.rpartition('.')[0]}.{source}"
    reach, past = len(history.data), []
    for step in range(s.stage.step):
        rows = s.world.recorded(step, path)
        if rows is not None and rows.shape[1:] == history.data.shape[1:]:
            past.append(rows)
    if not past or not reach:
        return
    rows = np.concatenate(past)
    for end in range(len(rows), max(reach, len(rows) - MAX_STATES) - 1, -1):
        other = rows[end - reach : end]
        if len(other) == reach and not np.array_equal(other, history.data):
            back = len(rows) - end
            kind, why = ("state.rollback", "taken back to another row") if back else ("state.stale", "not taken back")
            text = f"its history ends {f'{back} before' if back else 'with'} the last row recorded: {why}"
            yield Hypothesis(kind, text, with_arg(s.stage, 1, like(history, other)), parameters={"end": end})


def dynamic_conv(s: Suspect) -> Iterator[Hypothesis]:
    x, kernel, base = s.stage.args
    side, dim = s.stage.params["side"], x.data.shape[1]
    seen, fixed, made = _taps(x.data, base.shape[1]), base.array()[side], _channels(kernel.data, side, dim)
    yield Hypothesis("conv.side", "the other side's kernel", with_params(s.stage, side=1 - side))
    groups = kernel.data.shape[-1]
    tiled = np.tile(kernel.data[:, side], dim // groups)
    for kind, text, value in (
        ("conv.kernel", "the generated kernel left out", (fixed * seen).sum(1)),
        ("conv.base", "the base left out", (made * seen).sum(1)),
        ("conv.taps", "the taps in reverse order", ((fixed + made)[:, ::-1] * seen).sum(1)),
        ("conv.identity", "not convolved: the input", x.data),
        ("conv.residual", "the input added", x.data + ((fixed + made) * seen).sum(1)),
        ("conv.groups", "channel c of group c mod groups, not c // size", ((fixed + tiled) * seen).sum(1)),
        ("conv.kernel", "the first row's kernel for every row", ((fixed + made[:1]) * seen).sum(1)),
    ):
        yield Hypothesis(kind, text, s.stage, become(value))
    wrapped = np.stack([np.roll(x.data, j, 0) for j in range(base.shape[1])], 1)
    yield Hypothesis("conv.history", "the block's last rows taken for those before it", s.stage, become(((fixed + made) * wrapped).sum(1)))


def markov_state(s: Suspect) -> Iterator[Hypothesis]:
    state, joint = (t.data for t in s.stage.args)
    g, t = sigmoid(joint[:, 0]), np.tanh(joint[:, 1])
    for text, value in (
        ("the gate's sides swapped: it lets the new in", g * t + (1 - g) * state),
        ("the state not kept", (1 - g) * t),
        ("the candidate not bounded by tanh", g * state + (1 - g) * joint[:, 1]),
        ("gate and candidate swapped", sigmoid(joint[:, 1]) * state + (1 - sigmoid(joint[:, 1])) * np.tanh(joint[:, 0])),
        ("the state of the row before handed on unchanged", state),
    ):
        yield Hypothesis("markov.state", text, s.stage, become(value))


def markov_output(s: Suspect) -> Iterator[Hypothesis]:
    joint = s.stage.args[0].data
    for index in range(joint.shape[1] - 1):
        yield Hypothesis(
            "markov.output", f"part {index} of the projection read out, not the last", s.stage, become(np.tanh(joint[:, index]))
        )
    yield Hypothesis("markov.output", "tanh left out", s.stage, become(joint[:, -1]))
