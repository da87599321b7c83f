"""Operands that stay on the device, for benchmarks (``dlab.h``, device memory)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from native.calls import Calls
from native.context import Context
from native.tensors import Stored, ffi, view


class OnDevice:
    """A dense copy of an array (float32) or of a stored weight in the memory of the library's device. Released with `release`."""

    def __init__(self, context: Context, values: NDArray[np.float32] | Stored) -> None:
        self._calls: Calls = context._calls
        self.tensor = ffi.new("dlab_tensor*")
        self._calls.call("upload", values.matrix() if isinstance(values, Stored) else view(values), self.tensor)
        self.shape = tuple(self.tensor.shape[i] for i in range(self.tensor.ndim))

    def download(self) -> NDArray[np.float32]:
        """The values of a float32 tensor, after all work that was issued."""
        out = np.empty(self.shape, np.float32)
        self._calls.call("download", self.tensor, view(out))
        return out

    def release(self) -> None:
        """Free it; safe to repeat."""
        if self.tensor.data != ffi.NULL:
            self._calls.call("release", self.tensor)


def copy(context: Context, x: OnDevice, y: OnDevice) -> None:
    """``y = x`` within the device, issued and not waited for. x, y [R, n] float32."""
    call: Any = context._calls.call
    call("concat", x.tensor, 1, y.tensor)


def linear(context: Context, x: OnDevice, w: OnDevice, y: OnDevice) -> None:
    """``y = x w^T``, issued and not waited for. x [M, K]; w [N, K]; y [M, N]."""
    call: Any = context._calls.call
    call("linear", x.tensor, w.tensor, ffi.NULL, y.tensor)
