"""MLX on the CPU: a target's windows through the classes of ``mlx_lm``, every mapped module's output recorded.

The model runs in float32 or bfloat16; the key/value cache keeps every cell, sliding layers included, so that a cell's index is its
position.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from parity.adapters.hooks import Hooks, Take
from parity.adapters.mapping import Mapping, load_mapping, shipped
from parity.adapters.mlx_experts import Ranked
from parity.adapters.placing import Placer
from parity.case import Case
from parity.errors import UsageError

if TYPE_CHECKING:
    from dumps import DumpWriter

NAME = "mlx"
ENGINE = "mlx_lm"
DTYPES = {"f32": "float32", "bf16": "bfloat16"}


def run(case: Case, out: Path, threads: int = 0, mapping: Path | None = None, dtype: str = "f32") -> None:
    """Run ``case`` in mlx_lm in ``dtype`` (f32 or bf16), leave a dump at ``out``. `UsageError` for what it cannot run."""
    from importlib import metadata

    import mlx.core as mx

    from dumps import DumpWriter

    if case.role != "target":
        raise UsageError(f"candidate {NAME}: the case {case.name} is a drafter's; only targets are driven")
    rules = load_mapping(mapping) if mapping else shipped(ENGINE, case.family, case.role)
    about = {
        "candidate": NAME,
        "where": "host",
        "library": f"mlx_lm {metadata.version('mlx-lm')}",
        "mlx": metadata.version("mlx"),
        "dtype": dtype,
        "mapping": rules.file.name,
    }
    with mx.stream(mx.cpu), DumpWriter(out, case.describe(), about) as writer:
        record(case, load(case.model, dtype), rules, writer)


def load(folder: Path, dtype: str = "f32") -> Any:
    """The model in a SafeTensors folder, its weights in ``dtype``, f32 or bf16. `UsageError` with the package's reason where it does not
    load."""
    import mlx.core as mx
    from mlx_lm.models.switch_layers import SwitchLinear

    if not folder.is_dir():
        raise UsageError(f"candidate {NAME}: {folder} is no SafeTensors folder: convert the file first (parity convert FILE.gguf FOLDER)")
    try:
        config = json.loads((folder / "config.json").read_text())
        module = import_module(f"mlx_lm.models.{config['model_type']}")
        model = module.Model(module.ModelArgs.from_dict(config))
        weights: dict[str, Any] = {}
        for file in sorted(folder.glob("*.safetensors")):
            loaded: Any = mx.load(str(file))
            weights |= loaded
        kind = getattr(mx, DTYPES[dtype])
        floats = {name: w.astype(kind) if mx.issubdtype(w.dtype, mx.floating) else w for name, w in _published(weights).items()}
        model.load_weights(list(model.sanitize(floats).items()))
        if dtype != "f32" and any(isinstance(module, SwitchLinear) for module in model.modules()):
            raise ValueError(f"MLX on a CPU multiplies experts in float32 only: name the candidate {NAME}")
    except Exception as error:
        raise UsageError(f"{folder}: mlx_lm does not load it: {' '.join(str(error).split())[:300]}") from None
    model.eval()
    return model


def _published(weights: dict[str, Any]) -> dict[str, Any]:
    """Weights as they are published and mlx_lm takes them, of a file that Transformers saved: without a vision tower, and each expert's
    matrices, which it joins, by themselves."""
    made: dict[str, Any] = {}
    for name, w in weights.items():
        if name.startswith("model.vision_"):
            continue
        head, joined, part = name.rpartition(".experts.")
        if joined and w.ndim == 3 and part in ("gate_up_proj", "down_proj"):
            half = w.shape[1] // 2
            rows = {"gate_proj": slice(half), "up_proj": slice(half, None)} if part == "gate_up_proj" else {"down_proj": slice(None)}
            made |= {f"{head}.experts.{e}.{p}.weight": w[e, at] for e in range(w.shape[0]) for p, at in rows.items()}
        else:
            made[name] = w
    return made


def record(case: Case, model: Any, rules: Mapping, writer: DumpWriter) -> None:
    """Run the steps of ``case`` in ``model`` and put in the dump every mapped tensor, its picks, and a count of each unmapped one."""
    import mlx.core as mx
    from mlx_lm.models.cache import KVCache

    caches, length = [KVCache() for _ in model.model.layers], 0
    placer = Placer(case, rules, writer)
    for index, step in enumerate(case.steps):
        for cache in caches if step.at < length else ():
            cache.trim(length - step.at)
        length = step.at + len(step.array)
        modules = Modules(model, partial(placer.take, index))
        with modules.watching():
            logits = model(mx.array(np.array(step.array, np.int32))[None], cache=caches)
            modules.give("logits", logits)
        placer.picks(index, "target.pick", np.array(logits[0].astype(mx.float32)))
    placer.finish()


class Modules(Hooks):
    """`Hooks` for modules of MLX: their classes' calls are wrapped within ``watching``; names as for PyTorch. What a mixture of experts
    makes lies by row and rank, ranks by descending weight."""

    def __init__(self, model: Any, take: Take) -> None:
        super().__init__(model, take)
        self.ranked = Ranked()

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.calls.clear()
        self.inside.clear()
        file = import_module(type(self.model).__module__)
        kinds = {type(module) for _, module in self.model.named_modules()}
        with ExitStack() as patched:
            for kind in kinds:
                patched.enter_context(mock.patch.object(kind, "__call__", self._called(kind.__call__)))
            attention = getattr(file, "scaled_dot_product_attention", None)
            if attention is not None:
                patched.enter_context(mock.patch.object(file, "scaled_dot_product_attention", self._attended(attention)))
            yield

    def _called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def seen(module: Any, *args: Any, **more: Any) -> Any:
            if id(module) not in self.paths:
                return original(module, *args, **more)
            self._entered(module, args)
            found = original(module, *args, **more)
            self._left(module, *self.ranked(args, found))
            return found

        return seen

    def _attended(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def seen(queries: Any, keys: Any, values: Any, *args: Any, **more: Any) -> Any:
            found = original(queries, keys, values, *args, **more)
            own = keys[..., -queries.shape[-2] :, :]
            for part, tensor in {"query": queries, "keys": keys, "values": values, "own_keys": own, "attn": found}.items():
                self.give(f"{self.inside[-1]}:{part}", tensor)
            return found

        return seen

    def give(self, name: str, tensor: Any) -> None:
        """Takes an array of the engine's."""
        import mlx.core as mx

        if not isinstance(tensor, mx.array):
            return
        kinds = {mx.float32: "f32", mx.bfloat16: "bf16", mx.uint32: "i64", mx.int32: "i64"}
        if tensor.dtype == mx.bfloat16:
            self.take(name, "bf16", np.array(tensor.view(mx.uint16)))
        elif tensor.dtype in kinds:
            kind = kinds[tensor.dtype]
            self.take(name, kind, np.array(tensor).astype(np.int64) if kind == "i64" else np.array(tensor))
