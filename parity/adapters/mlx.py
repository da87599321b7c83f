"""MLX on the CPU: a target's windows through the classes of ``mlx_lm`` in float32, every mapped module's output recorded."""

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

from parity.adapters.hooks import Hooks
from parity.adapters.mapping import Mapping, load_mapping, shipped
from parity.adapters.placing import Placer
from parity.case import Case
from parity.errors import UsageError

if TYPE_CHECKING:
    from dumps import DumpWriter

NAME = "mlx"
ENGINE = "mlx_lm"


def run(case: Case, out: Path, threads: int = 0, mapping: Path | None = None) -> None:
    """Run ``case`` in mlx_lm, leave a dump at ``out``. `UsageError` for what it cannot run."""
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
        "dtype": "f32",
        "mapping": rules.file.name,
    }
    with mx.stream(mx.cpu), DumpWriter(out, case.describe(), about) as writer:
        record(case, load(case.model), rules, writer)


def load(folder: Path) -> Any:
    """The model in a SafeTensors folder, its weights in float32. `UsageError` with the package's reason where it does not load."""
    import mlx.core as mx

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
        floats = {name: w.astype(mx.float32) if mx.issubdtype(w.dtype, mx.floating) else w for name, w in weights.items()}
        model.load_weights(list(model.sanitize(floats).items()))
    except Exception as error:
        raise UsageError(f"{folder}: mlx_lm does not load it: {' '.join(str(error).split())[:300]}") from None
    model.eval()
    return model


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
        with Modules(model, partial(placer.take, index)).watching():
            logits = model(mx.array(np.array(step.array, np.int32))[None], cache=caches)
        placer.picks(index, "target.pick", np.array(logits[0].astype(mx.float32)))
    placer.finish()


class Modules(Hooks):
    """`Hooks` for modules of MLX: their classes' calls are wrapped within ``watching``; names as for PyTorch."""

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
            self._left(module, args, found)
            return found

        return seen

    def _attended(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def seen(queries: Any, keys: Any, values: Any, *args: Any, **more: Any) -> Any:
            found = original(queries, keys, values, *args, **more)
            own = keys[..., -queries.shape[-2] :, :]
            for part, tensor in {"query": queries, "keys": keys, "values": values, "own_keys": own, "attn": found}.items():
                self._give(f"{self.inside[-1]}:{part}", tensor)
            return found

        return seen

    def _give(self, name: str, tensor: Any) -> None:
        import mlx.core as mx

        if isinstance(tensor, mx.array) and mx.issubdtype(tensor.dtype, mx.floating):
            self.take(name, "f32", np.array(tensor.astype(mx.float32)))
