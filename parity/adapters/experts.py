"""What a module that holds all its experts' matrices in one tensor computes inside: Transformers' eager experts, in one forward.

Such a module is called with (rows, selected [row, rank], weights) and takes the selected experts in ascending order, each with two
``torch.nn.functional.linear`` of the rows that chose it: gate and up in one, then down (``@use_experts_implementation`` classes).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock


class Experts:
    """Gives the inputs and results of these products as tensors [row, rank, dim], by ``give(name, tensor)``."""

    def __init__(self, give: Callable[[str, Any], None], path: str) -> None:
        self.give, self.path = give, path
        self.products: list[tuple[Any, Any]] = []
        self.patch: Any = None

    @staticmethod
    def fits(module: Any) -> bool:
        return all(getattr(getattr(module, name, None), "ndim", 0) == 3 for name in ("gate_up_proj", "down_proj"))

    def watch(self, module: Any) -> list[Any]:
        """The handles of the hooks that see one module."""
        return [module.register_forward_pre_hook(self._begin), module.register_forward_hook(self._end)]

    def _begin(self, module: Any, args: tuple[Any, ...]) -> None:
        import torch

        self.products.clear()
        original = torch.nn.functional.linear

        def seen(x: Any, *more: Any, **named: Any) -> Any:
            y = original(x, *more, **named)
            self.products.append((x, y))
            return y

        self.patch = mock.patch.object(torch.nn.functional, "linear", seen)
        self.patch.start()

    def _end(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        self.patch.stop()
        selected = args[1]
        hit = [(e, *(e == selected.T).nonzero(as_tuple=True)) for e in selected.unique().tolist() if e < module.gate_up_proj.shape[0]]
        if len(self.products) != 2 * len(hit) or any(len(self.products[2 * i][0]) != len(rows) for i, (_, _, rows) in enumerate(hit)):
            return
        for part, which, side in (("gate_up", 0, 1), ("act", 1, 0), ("down", 1, 1)):
            values = [self.products[2 * i + which][side] for i in range(len(hit))]
            whole = values[0].new_zeros((*selected.shape, values[0].shape[-1]))
            for (_, ranks, rows), value in zip(hit, values, strict=True):
                whole[rows, ranks] = value
            self.give(f"{self.path}:{part}", whole)
