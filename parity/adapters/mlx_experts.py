"""What the experts of an mlx_lm model compute, by row and rank: their router leaves the selected experts in no order, and their products of
many rows lie sorted by expert."""

from __future__ import annotations

from typing import Any


class Ranked:
    """Puts a router's choice, and what is computed by it, in the order of descending weights: called with the arguments and the result of
    each module in turn, gives them so.

    A router gives (experts, weights), both [batch, row, rank]. A product of its experts (``SwitchLinear``) is called with (x, experts);
    it takes and gives [batch, row, rank, 1, dim], or [row * rank, 1, dim] in the order of the experts where there are many.
    """

    def __init__(self) -> None:
        self.chosen: Any = None
        self.ranks: Any = None

    def __call__(self, args: tuple[Any, ...], found: Any) -> tuple[tuple[Any, ...], Any]:
        import mlx.core as mx

        if isinstance(found, tuple) and len(found) == 2 and all(isinstance(f, mx.array) for f in found):
            experts, weights = found
            if experts.shape == weights.shape and mx.issubdtype(experts.dtype, mx.integer):
                self.chosen, self.ranks = experts, mx.argsort(-weights, axis=-1)
                return args, (self._in_order(experts), self._in_order(weights))
        if self.chosen is not None and isinstance(found, mx.array) and len(args) > 1 and self._by_expert(args[1], found):
            return (self._laid(args[0]), *args[1:]), self._laid(found)
        return args, found

    def _by_expert(self, experts: Any, found: Any) -> bool:
        """Whether a module was called for the experts last chosen and made one row for each of them."""
        size = getattr(experts, "size", 0)
        return bool(size == self.chosen.size and found.size == size * found.shape[-1] and found.shape[-2] == 1)

    def _laid(self, x: Any) -> Any:
        """[batch, row, rank, dim] of a tensor with a row for each rank; as it is where the ranks share a row."""
        import mlx.core as mx

        if x.size != self.chosen.size * x.shape[-1]:
            return x
        if x.ndim == 3:
            x = x[mx.argsort(mx.argsort(self.chosen.flatten()))]
        return self._in_order(x.reshape(*self.chosen.shape, x.shape[-1]))

    def _in_order(self, x: Any) -> Any:
        import mlx.core as mx

        return mx.take_along_axis(x, self.ranks if x.ndim == self.ranks.ndim else self.ranks[..., None], axis=2)
