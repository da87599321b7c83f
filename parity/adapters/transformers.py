"""Hugging Face Transformers: a target's windows through the model's own classes on the CPU, every mapped module output recorded.

The model is loaded in float32 or bfloat16, with eager attention and experts; the key/value cache keeps every cell, sliding layers included.
"""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parity.adapters.hooks import Hooks
from parity.adapters.mapping import Mapping, load_mapping, shipped
from parity.adapters.placing import Placer
from parity.case import Case
from parity.errors import UsageError
from parity.models import open_case_model

if TYPE_CHECKING:
    from dumps import DumpWriter

NAME = "transformers"
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
DTYPES = {"f32": lambda torch: torch.float32, "bf16": lambda torch: torch.bfloat16}


def arithmetic(case: Case, dtype: str = "f32") -> str:
    """What the modules of the case's family round, and where (their modelling files of Transformers 5.24).

    In bf16 every operation of eager mode writes its result; norms compute in float32 and write once where they say ``(x * w).to``
    (Muse, Qwen), twice where they say ``w * x.to`` (Llama, Laguna). Routers and decays stay in float32.
    """
    if dtype == "f32":
        return "transformers-f32"
    store, inner = dict[str, str](), dict[str, str]()
    geometry = open_case_model(case).geometry
    if case.family == "laguna":
        store = {"*.router_scores": "f32", "*.expert_weights": "f32"} | ({"*.router_logits": "f32"} if geometry.get("router_cap") else {})
    elif case.family == "muse-glimmer":
        inner = {"*.q_norm": "bf16", **dict.fromkeys(("*norm", "*.xn", "*.xn_mlp"), "f32")}
    elif case.family == "qwen38-flash-next":
        delta = [f"target.L{i}." for i, sparse in enumerate(geometry["sparse"]) if not sparse]
        store = dict.fromkeys(("*.router_scores", "*.decay", "*.delta_state", "*.index_scores"), "f32")
        store |= {f"{layer}{name}": "f32" for layer in delta for name in ("q_norm", "k_norm")}
        inner = {"*.delta_norm": "bf16", **dict.fromkeys(("*norm", "*.xn", "*.ple_xn", "*.ple_key", "*.ple_query"), "f32")}
        inner |= {f"{layer}attn_gated": "f32" for layer in delta}
    changes = [
        f"{key}=" + "+".join(f"{pattern}:{to}" for pattern, to in (table | {"*": "bf16"}).items())
        for key, table in (("store", store), ("inner", inner))
        if table
    ]
    return ",".join(["transformers-bf16", *changes])


def run(case: Case, out: Path, threads: int = 0, mapping: Path | None = None, dtype: str = "f32") -> None:
    """Run ``case`` in Transformers in ``dtype`` (f32 or bf16), leave a dump at ``out``. `UsageError` for what it cannot run."""
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
        "dtype": dtype,
        "attention": "eager",
        "mapping": rules.file.name,
    }
    with DumpWriter(out, case.describe(), about) as writer:
        record(case, load(case.model, dtype), rules, writer)


def load(folder: Path, dtype: str = "f32") -> Any:
    """The model in a SafeTensors folder in ``dtype``, f32 or bf16 (its weights are rounded as they are loaded, rotary frequencies not).

    `UsageError` with the package's reason where it does not load.
    """
    import torch
    import transformers

    if not folder.is_dir():
        raise UsageError(f"candidate {NAME}: {folder} is no SafeTensors folder: convert the file first (parity convert FILE.gguf FOLDER)")
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        kind = getattr(transformers, (config.architectures or ["?"])[0], None)
        if kind is None:
            raise ValueError(f"it has no class {config.architectures}")
        model = kind.from_pretrained(folder, dtype=DTYPES[dtype](torch), **EAGER, local_files_only=True)
    except Exception as error:
        raise UsageError(f"{folder}: transformers does not load it: {' '.join(str(error).split())[:300]}") from None
    return model.eval()


def record(case: Case, model: Any, rules: Mapping, writer: DumpWriter) -> None:
    """Run the steps of ``case`` in ``model`` and put in the dump every mapped tensor, its picks, and a count of each unmapped one."""
    import torch
    cache, length = _cache(model), 0
    placer = Placer(case, rules, writer)
    name = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
    for index, step in enumerate(case.steps):
        if step.at < length:
            cache.crop(step.at - length)
        length = step.at + len(step.array)
        ids = torch.from_numpy(np.array(step.array))[None]
        with torch.inference_mode(), Hooks(model, partial(placer.take, index)).watching():
            out = model(ids, **{name: cache}, use_cache=True)
        placer.picks(index, "target.pick", out.logits[0].float().numpy())
    placer.finish()


def _cache(model: Any) -> Any:
    """A cache that keeps every cell, of sliding layers too, so that a cell's index is its position; layers of other kinds keep their
    own states."""
    from transformers import DynamicCache

    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    return DynamicCache(config=config) if kinds - {"full_attention", "sliding_attention"} else DynamicCache()
