"""hc_write: a hyper-connection's write, ``x_s + i_s y`` for every stream s.

It adds to the streams as they are, not to the normed ones (`specs/qwen38-flash-next.md` 1.5 S5).
Noise: `specs/noise-rules.md` 5.12, the residual rule per stream.
"""

from __future__ import annotations

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.floats import F32
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, Where, axes_of_first, shape_of_first
from oracle.ops.hc_read import by_stream


def formula(F: Kit, x: Values, y: Values, inject: Values) -> Values:
    """x [row, stream * dim], y [row, dim], inject [row, stream] -> like x."""
    written = by_stream(F.cast(x), inject.shape[1]) + F.held(F.cast(inject)[:, :, None] * F.cast(y)[:, None], ulps=0)
    return np.asarray(written.reshape(x.shape))


def noise(A: Arithmetic, out: Array, x: Tensor, y: Tensor, inject: Tensor) -> Variance:
    i, d = inject.data[:, :, None], y.data[:, None]
    inherited = x.variance() + _flat(np.square(i) * y.variance()[:, None] + np.square(d) * inject.variance()[:, :, None], x)
    return Variance(inherited, np.square(F32.ulp(out)) / 12 + A.w3 * _flat(np.square(i * d), x))


def _flat(by_streams: Array, x: Tensor) -> Array:
    return by_streams.reshape(x.data.shape)


def bound(A: Arithmetic, out: Array, where: Where, x: Tensor, y: Tensor, inject: Tensor) -> Array:
    product = _flat(np.abs(inject.data[:, :, None] * y.data[:, None]), x)[where]
    return np.asarray(F32.ulp(out[where]) / 2 + 1.01 * F32.u * product)


hc_write = Operation("hc_write", "elementwise", axes_of_first, shape_of_first, formula, noise, bound)
