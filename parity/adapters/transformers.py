"""Hugging Face Transformers: a target's windows through the model's own classes on the CPU, every mapped module output recorded.

The model is loaded in float32 with eager attention; the key/value cache keeps every cell, sliding layers included.
"""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from parity.adapters.hooks import Hooks
from parity.adapters.mapping import Mapping, arranged, load_mapping, shipped
from parity.case import Case
from parity.errors import UsageError
from parity.models import declared_stages, rope_style

if TYPE_CHECKING:
    from dumps import DumpWriter

NAME = "transformers"


def run(case: Case, out: Path, threads: int = 0, mapping: Path | None = None) -> None:
    """Run ``case`` in Transformers, leave a dump at ``out``. `UsageError` for what it cannot run."""
    import torch
    import transformers

    from dumps import DumpWriter

    rules = load_mapping(mapping) if mapping else shipped(NAME, case.family, case.role)
    if case.role != "target":
        raise UsageError(f"candidate {NAME}: the case {case.name} is a drafter's; only targets are driven")
    if threads:
        torch.set_num_threads(threads)
    about = {
        "candidate": NAME,
        "where": "host",
        "library": f"transformers {transformers.__version__}",
        "torch": str(torch.__version__),
        "dtype": "f32",
        "attention": "eager",
        "mapping": rules.file.name,
    }
    with DumpWriter(out, case.describe(), about) as writer:
        record(case, load(case.model), rules, writer)


def load(folder: Path) -> Any:
    """The model in a SafeTensors folder, in float32. `UsageError` with the package's reason where it does not load."""
    import torch
    import transformers

    if not folder.is_dir():
        raise UsageError(f"candidate {NAME}: {folder} is no SafeTensors folder: convert the file first (parity convert FILE.gguf FOLDER)")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        kind = getattr(transformers, (config.architectures or ["?"])[0], None)
        if kind is None:
            raise ValueError(f"it has no class {config.architectures}")
        model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True)
    except Exception as error:
        raise UsageError(f"{folder}: transformers does not load it: {' '.join(str(error).split())[:300]}") from None
    return model.eval()


def record(case: Case, model: Any, rules: Mapping, writer: DumpWriter) -> None:
    """Run the steps of ``case`` in ``model`` and put in the dump every mapped tensor, its picks, and a count of each unmapped one."""
    import torch
    from transformers import DynamicCache

    stages = {key: (axes, shape) for key, axes, shape in declared_stages(case)}
    style, cache, absent = rope_style(case), DynamicCache(), Counter[str]()
    length = 0
    name = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
    for index, step in enumerate(case.steps):

        def take(name: str, dtype: str, values: NDArray[Any], index: int = index, kind: str = step.kind) -> None:
            place = rules.place(name, step=kind)
            if place is None:
                return
            if (index, place.path) not in stages:
                absent[f"{place.path} ({name})"] += 1
                return
            axes, shape = stages[index, place.path]
            writer.put(index, place.path, arranged(f"{rules.file.name}: {name}", values, place, axes, shape, style), dtype=dtype, axes=axes)

        if step.at < length:
            cache.crop(step.at - length)
        length = step.at + len(step.array)
        ids = torch.from_numpy(np.array(step.array))[None]
        with torch.inference_mode(), Hooks(model, take).watching():
            out = model(ids, **{name: cache}, use_cache=True)
        picks = out.logits[0].float().argmax(-1).numpy().astype(np.int32)
        writer.put(index, "target.pick", picks, dtype="i32", axes=("row",))
    for what, count in sorted((rules.unmapped + absent).items()):
        writer.put(0, f"unmapped: {what}"[:200], np.array([count], np.int64))
