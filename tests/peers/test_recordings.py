"""SafeTensors files that PyTorch and MLX saved themselves, imported: bf16 and f32, by a mapping and by stage names."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dumps import open_dump
from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from oracle.readings import Rounded
from parity.case import Case
from parity.comparing import compare_dump
from parity.importers import Imported, import_recording
from parity.making import target_case
from parity.memory import MemoryDump
from parity.recording import record
from parity.report import Report

pytestmark = pytest.mark.peers
MLX = pytest.mark.skipif(find_spec("mlx_lm") is None, reason="needs mlx-lm (the extra `mlx`)")
TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch (the extra `peers`)")
SIZES = {"hidden": 48, "intermediate": 64, "heads": 6, "kv_heads": 2, "head_dim": 8, "vocab": 67, "layers": 2}


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    return target_case(make_artifact("llama", "tiny", "bf16", tmp_path_factory.mktemp("llama"), seed=4, **SIZES)[0], prefill=20, block=6)


def saved_by_mlx(tensors: dict[str, tuple[str, NDArray[Any]]], file: Path) -> None:
    import mlx.core as mx

    made = {name: mx.array(x) for name, (_, x) in tensors.items()}
    mx.save_safetensors(str(file), {n: x.view(mx.bfloat16) if tensors[n][0] == "bf16" else x for n, x in made.items()}, {"by": "mlx"})


def saved_by_torch(tensors: dict[str, tuple[str, NDArray[Any]]], file: Path) -> None:
    import torch
    from safetensors.torch import save_file

    made = {name: torch.from_numpy(np.array(x, order="C")) for name, (_, x) in tensors.items()}
    save_file({n: x.view(torch.bfloat16) if tensors[n][0] == "bf16" else x for n, x in made.items()}, str(file), {"format": "pt"})


SAVERS = [pytest.param(saved_by_mlx, marks=MLX), pytest.param(saved_by_torch, marks=TORCH)]


def judged(case: Case, imported: Imported, folder: Path, arithmetic: str) -> Report:
    assert not imported.findings and not imported.unmapped and not imported.missing
    return compare_dump(case, open_dump(folder), arithmetics.named(arithmetic), mode="local", explained=0)


@pytest.mark.parametrize("save", SAVERS)
@pytest.mark.parametrize("arithmetic", ["f32", "bf16"])
def test_stages_by_their_own_names(save, arithmetic, case, tmp_path):
    """Picks as i32 beside floats; of bf16 each word is that of the file."""
    A, dump = arithmetics.named(arithmetic), MemoryDump(case.describe(), {})
    record(case, Rounded(A), dump, A)
    tensors: dict[str, tuple[str, NDArray[Any]]] = {}
    for step in dump.steps:
        for stage in dump.stages(step):
            made = dump.get(step, stage)
            values = np.asarray(made.float64())
            if made.dtype == "i32":
                tensors[f"{step}/{stage}"] = "i32", values.astype(np.int32)
            elif arithmetic == "bf16":
                tensors[f"{step}/{stage}"] = "bf16", (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            else:
                tensors[f"{step}/{stage}"] = "f32", values.astype(np.float32)
    save(tensors, tmp_path / "a.safetensors")
    done = import_recording("safetensors", tmp_path / "a.safetensors", case, tmp_path / "dump")
    assert judged(case, done, tmp_path / "dump", arithmetic).verdict == "parity"
    found = open_dump(tmp_path / "dump")
    for step in dump.steps:
        for stage in dump.stages(step):
            assert np.array_equal(found.get(step, stage).float64(), dump.get(step, stage).float64()), stage


@MLX
@pytest.mark.parametrize("save", SAVERS)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_modules_of_mlx_by_the_shipped_mapping(save, dtype, case, tmp_path):
    import mlx.core as mx

    from parity.adapters import mlx as adapter

    tensors: dict[str, tuple[str, NDArray[Any]]] = {}
    with mx.stream(mx.cpu):
        model = adapter.load(case.model, dtype)
        modules = adapter.Modules(model, lambda name, kind, values: tensors.update({f"0/{name}": (kind, np.array(values))}))
        with modules.watching():
            modules.give("logits", model(mx.array(np.array(case.steps[0].array, np.int32))[None]))
    save(tensors, tmp_path / "a.safetensors")
    done = import_recording("safetensors", tmp_path / "a.safetensors", case, tmp_path / "dump", mapping="mlx_lm")
    report = compare_dump(case, open_dump(tmp_path / "dump"), arithmetics.named(f"mlx-{dtype}"), mode="local", explained=0)
    assert not done.findings and not done.unmapped
    assert [d.stage for d in report.divergences] == []
    tensors["0/model.layers.1.mlp.up_proj"] = tensors["0/model.layers.1.mlp.gate_proj"]
    save(tensors, tmp_path / "b.safetensors")
    import_recording("safetensors", tmp_path / "b.safetensors", case, tmp_path / "wrong", mapping="mlx_lm")
    report = compare_dump(case, open_dump(tmp_path / "wrong"), arithmetics.named(f"mlx-{dtype}"), mode="local", explained=0)
    assert report.divergences[0].stage == "target.L1.mlp_up"
