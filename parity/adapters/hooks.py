"""What a PyTorch module computes, seen by forward hooks: outputs, inputs, and what functions of its modelling file are given. Needs torch.

Names: ``PATH`` a module's (first) output, ``PATH:1`` the second of a tuple, ``PATH#2`` of its second call in a step, ``PATH:in`` its first
input. Of a module that calls them: the arguments of functions that `FUNCTIONS` lists, as ``PATH:PART``; ``PATH:attn`` and
``PATH:own_keys`` (the new rows) of eager attention; of a module that holds its experts' matrices as one tensor (`parity.adapters.experts`)
``PATH:gate_up``, ``PATH:act`` and ``PATH:down`` by row and rank. ``logits`` of the whole model.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from parity.adapters.experts import Experts

Take = Callable[[str, str, NDArray[Any]], None]

#: Functions of Transformers' modelling files -> argument -> the part it is called.
FUNCTIONS = {
    "eager_attention_forward": {"query": "query", "key": "keys", "value": "values"},
    "apply_rotary_pos_emb": {"q": "unrotated_query", "k": "unrotated_key"},
    "torch_chunk_gated_delta_rule": {n: f"delta_{n}" for n in ("query", "key", "value", "g", "beta")},
    "torch_recurrent_gated_delta_rule": {n: f"delta_{n}" for n in ("query", "key", "value", "g", "beta")},
}
ATTENTION = "eager_attention_forward"


class Hooks:
    """Calls ``take(name, dtype, values)`` for all that is computed within ``watching``. dtype: the dump's name; bf16 as uint16 words,
    truth values as i32."""

    def __init__(self, model: Any, take: Take) -> None:
        self.model, self.take = model, take
        self.paths = {id(module): name for name, module in model.named_modules()}
        self.calls: Counter[str] = Counter()
        self.inside: list[str] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block every forward of the model is one step."""
        self.calls.clear()
        self.inside.clear()
        handles = [m.register_forward_hook(self._left) for m in self.model.modules()]
        handles += [m.register_forward_pre_hook(self._entered) for m in self.model.modules()]
        handles += [h for m in self.model.modules() if Experts.fits(m) for h in Experts(self.give, self.paths[id(m)]).watch(m)]
        modelling = sys.modules[type(self.model).__module__]
        try:
            with ExitStack() as patched:
                for name in FUNCTIONS:
                    if hasattr(modelling, name):
                        patched.enter_context(mock.patch.object(modelling, name, self._watched(name, getattr(modelling, name))))
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _entered(self, module: Any, args: tuple[Any, ...]) -> None:
        self.inside.append(self.paths[id(module)])

    def _left(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        name = self.inside.pop()
        if not name:
            self.give("logits", getattr(output, "logits", None))
            return
        self.calls[name] += 1
        if self.calls[name] > 1:
            name = f"{name}#{self.calls[name]}"
        self.give(f"{name}:in", args[0] if args else None)
        first, *others = output if isinstance(output, tuple) else (output,)
        self.give(name, first)
        for i, other in enumerate(others, 1):
            self.give(f"{name}:{i}", other)

    def _watched(self, function: str, original: Callable[..., Any]) -> Callable[..., Any]:
        signature, parts = inspect.signature(original), FUNCTIONS[function]

        def seen(*args: Any, **more: Any) -> Any:
            name, given = self.inside[-1], signature.bind(*args, **more).arguments
            found = original(*args, **more)
            for argument, part in parts.items():
                self.give(f"{name}:{part}", given.get(argument))
            if function == ATTENTION:
                self.give(f"{name}:own_keys", given["key"][..., -given["query"].shape[-2] :, :])
                self.give(f"{name}:attn", found[0])
            return found

        return seen

    def give(self, name: str, tensor: Any) -> None:
        import torch

        kinds = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64"}
        if isinstance(tensor, torch.Tensor) and tensor.dtype in (*kinds, torch.bool):
            own = tensor.detach().cpu().contiguous()
            if own.dtype == torch.bool:
                own, kind = own.to(torch.int32), "i32"
            else:
                kind = kinds[own.dtype]
            values: NDArray[Any] = own.view(torch.uint16).numpy() if kind == "bf16" else own.numpy()
            self.take(name, kind, values)


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
