"""Gates, activations, caps and residual sums: swapped or missing inputs, another activation, a factor left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy.special import erf

from oracle.ops.hc_read import by_stream
from oracle.ops.swiglu import sigmoid
from oracle.tensor import Array
from parity.explain.base import Hypothesis, Suspect, become, rounder, with_args, with_params

Activation = Callable[[Array], Array]


def softplus(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3))))


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + erf(x / np.sqrt(2))))


def silu_of(x: Array) -> Array:
    return x * sigmoid(x)


ACTIVATIONS: dict[str, Activation] = {
    "SiLU": silu_of,
    "GELU": gelu,
    "GELU (tanh)": gelu_tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "squared ReLU": lambda x: np.square(np.maximum(x, 0)),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "softplus": softplus,
    "exp": lambda x: np.exp(np.minimum(x, 700)),
}


def swiglu(s: Suspect) -> Iterator[Hypothesis]:
    gate, up = s.stage.args
    yield Hypothesis("swiglu.swapped", "gate and up swapped", with_args(s.stage, up, gate))
    g, u = gate.data.reshape(s.c.shape), up.data.reshape(s.c.shape)
    yield Hypothesis("swiglu.activation", "no activation at all", s.stage, become(g * u))
    yield Hypothesis("swiglu.activation", "the up branch left out", s.stage, become(silu_of(g)))
    yield Hypothesis("swiglu.activation", "the gate branch left out", s.stage, become(u))
    yield Hypothesis("swiglu.activation", "both branches activated", s.stage, become(silu_of(g) * silu_of(u)))
    for name, f in ACTIVATIONS.items():
        if name != "SiLU":
            yield Hypothesis("swiglu.activation", f"{name} in place of SiLU", s.stage, become(f(g) * u), parameters={"activation": name})


def gate(s: Suspect) -> Iterator[Hypothesis]:
    x, g = s.stage.args
    z = g.data[..., None] if g.data.ndim < x.data.ndim and g.data.shape == x.data.shape[:-1] else g.data.reshape(x.data.shape)
    declared = s.stage.params["kind"]
    yield Hypothesis("gate.missing", "the gate left out", s.stage, become(x.data))
    yield Hypothesis("gate.activation", "the gate not activated", s.stage, become(x.data * z))
    for name, f in ACTIVATIONS.items():
        if name != declared:
            yield Hypothesis(
                "gate.activation", f"{name} in place of {declared}", s.stage, become(x.data * f(z)), parameters={"activation": name}
            )
    act = ACTIVATIONS[declared]
    yield Hypothesis("gate.activation", f"1 - {declared}", s.stage, become(x.data * (1 - act(z))))
    yield Hypothesis("gate.activation", f"twice the {declared}", s.stage, become(x.data * 2 * act(z)))
    yield Hypothesis("gate.twice", "the gate applied twice", s.stage, become(x.data * act(z) ** 2))
    if x.data.ndim == 3:
        for shift in (1, -1):
            text = f"each head gated by head {-shift:+d} from it"
            yield Hypothesis("gate.order", text, s.stage, become(x.data * act(np.roll(z, shift, 1))))
        mean = z.mean((1, 2), keepdims=True)
        yield Hypothesis("gate.heads", "one gate for all heads: their mean", s.stage, become(x.data * act(mean)))
        if z.shape == x.data.shape:
            turned = g.data.reshape(len(z), z.shape[2], z.shape[1]).transpose(0, 2, 1)
            yield Hypothesis("gate.layout", "the gate read as [dim, head]", s.stage, become(x.data * act(turned)))
            yield Hypothesis("gate.heads", "each head gated by its first channel", s.stage, become(x.data * act(z[..., :1])))


def softcap(s: Suspect) -> Iterator[Hypothesis]:
    x, scale, cap = s.stage.args[0], s.stage.params["scale"], s.stage.params["cap"]
    if scale != 1.0:
        yield Hypothesis("softcap.multiplier", "the output multiplier left out", with_params(s.stage, scale=1.0))
        yield Hypothesis("softcap.multiplier", "the output multiplier applied twice", with_params(s.stage, scale=scale * scale))
        yield Hypothesis("softcap.multiplier", "divided by the output multiplier", with_params(s.stage, scale=1 / scale))
    if cap is not None:
        yield Hypothesis("softcap.cap", "no cap", with_params(s.stage, cap=None))
        for other in (30.0, 20.0, 50.0, 15.0):
            if other != cap:
                yield Hypothesis(
                    "softcap.cap", f"cap {other:g} in place of {cap:g}", with_params(s.stage, cap=other), parameters={"cap": other}
                )
        yield Hypothesis("softcap.order", "the cap before the multiplier", s.stage, become(scale * cap * np.tanh(x.data / cap)))
        yield Hypothesis("softcap.form", "not multiplied by the cap again", s.stage, become(np.tanh(scale * x.data / cap)))
        yield Hypothesis("softcap.form", "clipped at the cap, not bent", s.stage, become(np.clip(scale * x.data, -cap, cap)))
        largest = float(np.abs(s.c[s.region]).max(initial=0.0))
        if largest > cap * 1.001:
            yield from _fitted_cap(s, scale, cap)


def _fitted_cap(s: Suspect, scale: float, cap: float) -> Iterator[Hypothesis]:
    """Another cap, by bisection on the largest value."""
    z = scale * s.stage.args[0].data[s.region]
    at = int(np.abs(z).argmax())
    low, high, want = cap, 100 * cap, abs(float(s.c[s.region][at]))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if abs(middle * np.tanh(z[at] / middle)) < want else (low, middle)
    for value, fallback in rounder(low):
        edited = with_params(s.stage, cap=value)
        yield Hypothesis("softcap.cap", f"cap {value:g} in place of {cap:g}", edited, None, fallback, parameters={"cap": value})


def add(s: Suspect) -> Iterator[Hypothesis]:
    a, b = (t.data for t in s.stage.args)
    for text, value in (
        ("the residual left out", b),
        ("the branch left out", a),
        ("the branch subtracted", a - b),
        ("the branch added twice", a + 2 * b),
        ("the residual added twice", 2 * a + b),
        ("half of the sum", (a + b) / 2),
        ("multiplied, not added", a * b),
    ):
        yield Hypothesis("add.terms", text, s.stage, become(value))
    rest = (s.c - a)[s.region]
    energy = float(b[s.region] @ b[s.region])
    factor = float(rest @ b[s.region]) / energy if energy else 1.0
    for value, fallback in rounder(factor):
        if value not in (0.0, 1.0, -1.0, 2.0):
            yield Hypothesis(
                "add.scale", f"the branch times {value:.6g}", s.stage, become(a + value * b), fallback, parameters={"factor": value}
            )


def activation(s: Suspect) -> Iterator[Hypothesis]:
    """silu, sigmoid and squash: another activation, its inner scale or gain left out."""
    x, p = s.stage.args[0].data, s.stage.params
    scale, gain, name = p.get("scale", 1.0), p.get("gain", 1.0), "SiLU" if s.stage.op.name == "silu" else "sigmoid"
    if scale != 1.0:
        yield Hypothesis(f"{s.stage.op.name}.scale", f"the inner factor {scale:.6g} left out", with_params(s.stage, scale=1.0))
        yield Hypothesis(
            f"{s.stage.op.name}.scale",
            f"the factor {scale:.6g} applied to the result, not inside",
            s.stage,
            become(scale * gain * ACTIVATIONS[name](x)),
        )
    if gain != 1.0:
        yield Hypothesis("squash.gain", f"the gain {gain:.6g} left out", with_params(s.stage, gain=1.0))
    yield Hypothesis(
        "sigmoid.missing" if s.stage.op.name == "sigmoid" else f"{s.stage.op.name}.activation",
        "not activated",
        s.stage,
        become(gain * scale * x),
    )
    for other, f in ACTIVATIONS.items():
        if other != name:
            yield Hypothesis(
                f"{s.stage.op.name}.activation",
                f"{other} in place of {name}",
                s.stage,
                become(gain * f(scale * x)),
                parameters={"activation": other},
            )
    if x.ndim == 2 and s.y.axes[-1] == "expert":
        e = np.exp(x - x.max(-1, keepdims=True))
        yield Hypothesis("router.scores", "softmax over the experts in place of sigmoid", s.stage, become(e / e.sum(-1, keepdims=True)))


def stream_gate(s: Suspect) -> Iterator[Hypothesis]:
    x, g = (t.data for t in s.stage.args)
    copies = np.repeat(x[:, None], g.shape[1], 1)
    for text, factor in (
        ("the gate left out", np.ones_like(g)),
        ("the gate not activated", g),
        ("tanh in place of sigmoid", np.tanh(g)),
        ("softplus in place of sigmoid", softplus(g)),
        ("1 - sigmoid", 1 - sigmoid(g)),
        ("the streams in reverse order", sigmoid(g[:, ::-1])),
        ("one gate for all streams: the first", np.repeat(sigmoid(g[:, :1]), g.shape[1], 1)),
    ):
        kind = f"stream_gate.{'missing' if 'left out' in text else 'activation' if 'place' in text or '-' in text else 'streams'}"
        yield Hypothesis(kind, text, s.stage, become(copies * factor[..., None]))


def hc_read(s: Suspect) -> Iterator[Hypothesis]:
    x, g, streams = s.stage.args[0].data, s.stage.args[1].data, s.stage.params["streams"]
    n, z = by_stream(x, streams), by_stream(g, streams)
    for kind, text, value in (
        ("hc.gate", "the gate left out: the mean of the streams", n.mean(1)),
        ("hc.gate", "the gate not activated", (n * z).mean(1)),
        ("hc.sum", "the sum of the streams, not their mean", (n * sigmoid(z)).sum(1)),
        ("hc.gate", "softmax over the streams in place of sigmoids", (n * _softmax(z)).sum(1)),
        ("hc.gate", "twice the sigmoid", (n * 2 * sigmoid(z)).mean(1)),
        ("hc.order", "the gates in reverse order of streams", (n * sigmoid(z[:, ::-1])).mean(1)),
        ("hc.order", "streams and dims interleaved (read as [dim, stream])", _interleaved(x, g, streams)),
        ("hc.streams", "only the first stream read", n[:, 0] * sigmoid(z[:, 0])),
    ):
        yield Hypothesis(kind, text, s.stage, become(value))


def _softmax(z: Array) -> Array:
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def _interleaved(x: Array, g: Array, streams: int) -> Array:
    n, z = (a.reshape(len(a), -1, streams) for a in (x, g))
    return np.asarray((n * sigmoid(z)).mean(-1))


def hc_write(s: Suspect) -> Iterator[Hypothesis]:
    x, y, i = (t.data for t in s.stage.args)
    streams = by_stream(x, i.shape[1])
    for kind, text, value in (
        ("hc.write", "the write strengths left out: added to every stream as it is", streams + y[:, None]),
        ("hc.write", "nothing written", streams),
        ("hc.residual", "the streams left out", i[:, :, None] * y[:, None] + 0 * streams),
        ("hc.streams", "the write strengths in reverse order of streams", streams + i[:, ::-1, None] * y[:, None]),
        ("hc.streams", "only the first stream written", streams + (np.arange(i.shape[1]) == 0)[None, :, None] * i[:, :, None] * y[:, None]),
        ("hc.write", "the write strengths halved", streams + i[:, :, None] * y[:, None] / 2),
    ):
        yield Hypothesis(kind, text, s.stage, become(value))
