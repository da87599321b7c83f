"""The official drafter: package ``dflash`` (PyTorch on the CPU), its own model, mask, embeddings and output head in float32.

One forward takes the rows committed since the last block and the block; its cache keeps every cell, so that a cell's index is its position.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from parity.adapters.hooks import Hooks, Take
from parity.adapters.mapping import Mapping, load_mapping, shipped
from parity.adapters.placing import Placer
from parity.case import Case
from parity.errors import UsageError
from parity.models import open_case_model

if TYPE_CHECKING:
    from dumps import DumpWriter

NAME = "dflash"
#: Tensors whose rows are the committed ones; of `BOTH` the block's stand behind them.
CONTEXT = ("taps", "fc", "hidden_norm", "layers.*.k_proj", "layers.*.v_proj", "layers.*:context_keys")
BOTH = ("layers.*.k_norm",)


def run(case: Case, out: Path, threads: int = 0, mapping: Path | None = None) -> None:
    """Run ``case`` in the official drafter, leave a dump at ``out``. `UsageError` for what it cannot run."""
    import torch

    from dumps import DumpWriter

    if case.role != "drafter":
        raise UsageError(f"candidate {NAME}: the case {case.name} is a target's; only drafters are driven")
    rules = load_mapping(mapping) if mapping else shipped(NAME, case.family, case.role)
    if threads:
        torch.set_num_threads(threads)
    versions = {name: metadata.version(name) for name in ("torch", "transformers")}
    about = {"candidate": NAME, "where": "host", "library": f"dflash {metadata.version('dflash')}", "dtype": "f32", **versions}
    with DumpWriter(out, case.describe(), about | {"mapping": rules.file.name}) as writer:
        record(case, load(case.model), rules, writer)


def load(folder: Path) -> Any:
    """The drafter in a SafeTensors folder, in float32. `UsageError` with the package's reason where it does not load."""
    import torch
    from dflash import model as official

    if not folder.is_dir():
        raise UsageError(f"candidate {NAME}: {folder} is no SafeTensors folder: convert the file first (parity convert FILE.gguf FOLDER)")
    try:
        config = official.Qwen3Config.from_pretrained(folder, local_files_only=True)
        kind = getattr(official, (config.architectures or ["?"])[0], None)
        if kind is None or not issubclass(kind, official.DFlashDraftModel):
            raise ValueError(f"it has no drafter {config.architectures}")
        model = kind.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    except Exception as error:
        raise UsageError(f"{folder}: dflash does not load it: {' '.join(str(error).split())[:300]}") from None
    return model.eval()


def record(case: Case, model: Any, rules: Mapping, writer: DumpWriter) -> None:
    """Run the steps of ``case`` and put in the dump every mapped tensor, the picks, and a count of each unmapped one."""
    import torch
    from dflash import model as official
    from transformers import DynamicCache

    cache, placer, target = DynamicCache(), Placer(case, rules, writer), _target(case)
    scale = float(official._draft_value(model.config, "input_embedding_scale", 1.0))
    waiting: list[int] = []
    for index, step in enumerate(case.steps):
        if step.kind == "append":
            waiting.append(index)
            continue
        rows = np.concatenate([case.steps[i].array for i in waiting]) if waiting else np.zeros((0, model.fc.in_features), np.float32)
        start = step.at - len(rows)
        forward = Forward(case, placer, tuple(waiting), index)
        with torch.inference_mode(), Watched(model, forward.take, len(rows)).watching():
            ids = torch.from_numpy(np.array(step.array))[None]
            embedded = official._raw_input_embeddings(target, ids, scale)
            forward.take("taps", "f32", rows[None])
            forward.take("embed", "f32", embedded.numpy())
            hidden = model(
                target_hidden=torch.from_numpy(rows)[None],
                noise_embedding=embedded,
                position_ids=torch.arange(start, step.at + len(step.array))[None],
                past_key_values=cache,
                use_cache=True,
            )
            logits = model.compute_logits(hidden, official._output_head(target))
        official._crop_to(cache, step.at)
        forward.take("logits", "f32", logits.numpy())
        placer.picks(index, "draft.pick", logits[0].numpy())
        waiting = []
    placer.finish()


def _target(case: Case) -> Any:
    """The two parts of a target that the drafter borrows."""
    import torch

    model = open_case_model(case)
    embedding, head = (torch.from_numpy(w.array().astype(np.float32)) for w in (model.embedding, model.head))
    lookup = torch.nn.Embedding(*embedding.shape, _weight=embedding)
    linear = torch.nn.Linear(head.shape[1], head.shape[0], bias=False)
    linear.load_state_dict({"weight": head})
    return SimpleNamespace(get_input_embeddings=lambda: lookup, lm_head=linear)


class Forward:
    """Gives each part of one forward's tensors to the step it belongs to: committed rows to their appends, the block's to the block."""

    def __init__(self, case: Case, placer: Placer, appends: tuple[int, ...], block: int) -> None:
        self.placer, self.appends, self.block = placer, appends, block
        self.counts = [len(case.steps[i].array) for i in appends]

    def take(self, name: str, dtype: str, values: NDArray[Any]) -> None:
        """A tensor [1, row, …], of attention [1, head, row, …]."""
        axis = 2 if name.partition(":")[2] in ("query", "own_keys", "context_keys", "keys", "values") else 1
        both = any(fnmatchcase(name, p) for p in BOTH)
        if both or any(fnmatchcase(name, p) for p in CONTEXT):
            *parts, rest = np.split(values, np.cumsum(self.counts), axis)
            for step, part in zip(self.appends, parts, strict=True):
                self.placer.take(step, name, dtype, part)
            values = rest
        if both or not any(fnmatchcase(name, p) for p in CONTEXT):
            self.placer.take(self.block, name, dtype, values)


class Watched(Hooks):
    """`Hooks` that see the package's attention too, from a table of functions; ``committed`` rows stand before the block's."""

    def __init__(self, model: Any, take: Take, committed: int) -> None:
        super().__init__(model, take)
        self.committed = committed

    @contextmanager
    def watching(self) -> Iterator[None]:
        from dflash import model as official

        table = official.ALL_ATTENTION_FUNCTIONS
        seen = {name: self._attention(table[name]) for name in ("sdpa",)}
        with mock.patch.object(official, "ALL_ATTENTION_FUNCTIONS", seen), super().watching():
            yield

    def _attention(self, original: Any) -> Any:
        def seen(module: Any, query: Any, key: Any, value: Any, *args: Any, **more: Any) -> Any:
            found, name, rows = original(module, query, key, value, *args, **more), self.paths[id(module)], query.shape[-2]
            self.give(f"{name}:query", query)
            self.give(f"{name}:keys", key)
            self.give(f"{name}:values", value)
            self.give(f"{name}:context_keys", key[..., -rows - self.committed : -rows, :])
            self.give(f"{name}:own_keys", key[..., -rows:, :])
            self.give(f"{name}:attn", found[0])
            return found

        return seen
