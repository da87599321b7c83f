"""What a PyTorch module computes, seen by forward hooks: outputs, inputs, and what eager attention is given. Needs torch.

Names: ``PATH`` a module's (first) output, ``PATH#2`` of its second call in a step, ``PATH:in`` its first input; of a module that calls the
modelling file's ``eager_attention_forward``: ``PATH:query``, ``PATH:keys``, ``PATH:values`` (all cells), ``PATH:own_keys`` (the new rows)
and ``PATH:attn``; ``logits`` of the whole model.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

Take = Callable[[str, str, NDArray[Any]], None]


class Hooks:
    """Calls ``take(name, dtype, values)`` for all that is computed within ``watching``. dtype: the dump's name; bf16 as uint16 words."""

    def __init__(self, model: Any, take: Take) -> None:
        self.model, self.take = model, take
        self.paths = {id(module): name for name, module in model.named_modules()}
        self.calls: Counter[str] = Counter()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block every forward of the model is one step."""
        self.calls.clear()
        handles = [m.register_forward_hook(self._seen) for m in self.model.modules()]
        modelling = sys.modules[type(self.model).__module__]
        eager = getattr(modelling, "eager_attention_forward", None)
        try:
            if eager is None:
                yield
            else:
                with mock.patch.object(modelling, "eager_attention_forward", self._attention(eager)):
                    yield
        finally:
            for handle in handles:
                handle.remove()

    def _seen(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        name = self.paths[id(module)]
        if not name:
            self._give("logits", getattr(output, "logits", None))
            return
        self.calls[name] += 1
        if self.calls[name] > 1:
            name = f"{name}#{self.calls[name]}"
        self._give(f"{name}:in", args[0] if args else None)
        self._give(name, output[0] if isinstance(output, tuple) else output)

    def _attention(self, eager: Callable[..., Any]) -> Callable[..., Any]:
        def seen(module: Any, query: Any, key: Any, value: Any, *args: Any, **more: Any) -> Any:
            name = self.paths[id(module)]
            found = eager(module, query, key, value, *args, **more)
            parts = {"query": query, "keys": key, "own_keys": key[..., -query.shape[-2] :, :], "values": value, "attn": found[0]}
            for part, tensor in parts.items():
                self._give(f"{name}:{part}", tensor)
            return found

        return seen

    def _give(self, name: str, tensor: Any) -> None:
        import torch

        kinds = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}
        if isinstance(tensor, torch.Tensor) and tensor.dtype in kinds:
            own = tensor.detach().cpu().contiguous()
            values: NDArray[Any] = own.view(torch.uint16).numpy() if tensor.dtype == torch.bfloat16 else own.numpy()
            self.take(name, kinds[tensor.dtype], values)


@contextmanager
def saved(model: Any, step: int, file: Path) -> Iterator[None]:
    """Record one step of ``model`` in a SafeTensors file that ``parity import transformers`` reads: tensors ``STEP/NAME``."""
    import torch
    from safetensors.torch import save_file

    kept: dict[str, Any] = {}

    def take(name: str, dtype: str, values: NDArray[Any]) -> None:
        tensor = torch.from_numpy(np.array(values))
        kept[f"{step}/{name}"] = tensor.view(torch.bfloat16) if dtype == "bf16" else tensor

    with Hooks(model, take).watching():
        yield
    save_file(kept, str(file), {"step": str(step)})
