"""Float64 in models that force float32: their shipped code runs unchanged, only the name float32 means float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import torch


class _WideTorch:
    """The torch module as the peer's file sees it: everything is torch's own except ``float32`` and ``float``."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def widened(*modules: ModuleType) -> Iterator[None]:
    """Within the block, casts to float32 in ``modules`` (norms, rotary tables, eager softmax) are casts to float64.

    `torch.Tensor.float` is widened too, since these files call it on tensors.
    """
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(mock.patch.object(module, "torch", _WideTorch()))
        stack.enter_context(mock.patch.object(torch.Tensor, "float", torch.Tensor.double))
        yield


@contextmanager
def shipped() -> Iterator[None]:
    """The peer as it is: the counterpart of `widened`."""
    yield
