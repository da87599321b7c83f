"""MLX and the official drafter as candidates: every stage that they show, in their cage, and one module patched wrong at a time."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dumps import DumpWriter, open_dump
from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from oracle.readings import Noise
from parity import candidates
from parity.adapters import ADAPTERS
from parity.adapters.mapping import shipped
from parity.case import Case
from parity.errors import UsageError
from parity.flow import run_candidate
from parity.judge import Judge
from parity.local import Local
from parity.making import drafter_case, target_case
from parity.models import run

SIZES = {"hidden": 48, "intermediate": 64, "heads": 6, "kv_heads": 2, "head_dim": 8, "vocab": 67}
MLX = pytest.mark.skipif(find_spec("mlx_lm") is None, reason="needs mlx-lm (the extra `mlx`)")
DFLASH = pytest.mark.skipif(find_spec("dflash") is None, reason="needs dflash (the extra `peers`)")
pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Case:
    made = make_artifact("llama", "tiny", "bf16", tmp_path_factory.mktemp("llama"), seed=4, layers=2, **SIZES)
    return target_case(made[0], prefill=20, block=6, seed=0)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory) -> Case:
    made = make_artifact("qwen3", "tiny", "bf16", tmp_path_factory.mktemp("qwen3"), seed=5, block_size=6, mask_token_id=66, **SIZES)
    return drafter_case(made[0], made[1], family="qwen3", appends=(25, 4), accepts=(2, 0, 1), seed=1)


@pytest.mark.parametrize("name", [pytest.param("mlx", marks=MLX), pytest.param("dflash", marks=DFLASH)])
def test_the_engine_in_its_cage_agrees_at_every_stage(name, llama, drafter):
    """The drafter's sliding layers past their window, its committed rows in one append and in several."""
    report = run_candidate(llama if name == "mlx" else drafter, candidates.parse(name), mode="local")
    assert report.verdict == "parity" and not report.unseen and not report.extra, report.findings


@pytest.mark.parametrize("name", [pytest.param("mlx", marks=MLX), pytest.param("dflash", marks=DFLASH)])
def test_the_other_role_is_refused(name, llama, drafter, tmp_path):
    with pytest.raises(UsageError, match=r"only (targets|drafters) are driven"):
        ADAPTERS[name].run(drafter if name == "mlx" else llama, tmp_path / "dump")


def first_divergence(name: str, engine: str, case: Case, folder: Path, patch: Any) -> str:
    from importlib import import_module

    adapter = import_module(ADAPTERS[name].module)
    model = adapter.load(case.model)
    patch(model)
    with DumpWriter(folder / "dump", case.describe(), {}) as writer:
        adapter.record(case, model, shipped(engine, case.family, case.role), writer)
    A = arithmetics.named(ADAPTERS[name].arithmetic)
    tape = Local(open_dump(folder / "dump"), A, Judge(A, 100_000), explained=0)
    run(case, Noise(A), tape)
    return tape.divergences[0].stage


def scaled(path: str, factor: float = 1.01) -> Any:
    """A weight times a factor, in a model of either engine."""

    def patch(model: Any) -> None:
        module = model
        *modules, name = path.split(".")
        for part in modules:
            module = module[int(part)] if part.isdecimal() else getattr(module, part)
        weight = getattr(module, name)
        if hasattr(weight, "data"):
            weight.data *= factor
        else:
            setattr(module, name, weight * factor)

    return patch


def changed(layer: int, name: str, factor: float) -> Any:
    def patch(model: Any) -> None:
        attention = getattr(model, "model", model).layers[layer].self_attn
        setattr(attention, name, getattr(attention, name) * factor)

    return patch


MLX_PATCHES = {
    "target.L0.xn": scaled("model.layers.0.input_layernorm.weight"),
    "target.L0.k_raw": scaled("model.layers.0.self_attn.k_proj.weight"),
    "target.L1.attn": changed(1, "scale", 1.02),
    "target.L1.o": scaled("model.layers.1.self_attn.o_proj.weight"),
    "target.L1.mlp_down": scaled("model.layers.1.mlp.down_proj.weight"),
    "target.final_norm": scaled("model.norm.weight"),
}
DFLASH_PATCHES = {
    "draft.fc": scaled("fc.weight"),
    "draft.ctx": scaled("hidden_norm.weight"),
    "draft.L1.ctx.v": scaled("layers.1.self_attn.v_proj.weight"),
    "draft.L0.ctx.k_norm": scaled("layers.0.self_attn.k_norm.weight"),
    "draft.L0.ctx.k_rope": scaled("rotary_emb.inv_freq", 1.02),
    "draft.L1.q_norm": scaled("layers.1.self_attn.q_norm.weight"),
    "draft.L0.attn": changed(0, "sliding_window", 2),
    "draft.L2.mlp_act": lambda model: model.layers[2].mlp.act_fn.register_forward_hook(lambda *call: call[2].relu()),
    "draft.final_norm": scaled("norm.weight"),
}


@MLX
@pytest.mark.parametrize("stage", MLX_PATCHES)
def test_a_module_of_mlx_patched_wrong_is_named(stage, llama, tmp_path):
    import mlx.core as mx

    with mx.stream(mx.cpu):
        assert first_divergence("mlx", "mlx_lm", llama, tmp_path, MLX_PATCHES[stage]) == stage


@DFLASH
@pytest.mark.parametrize("stage", DFLASH_PATCHES)
def test_a_module_of_the_official_drafter_patched_wrong_is_named(stage, drafter, tmp_path):
    assert first_divergence("dflash", "dflash", drafter, tmp_path, DFLASH_PATCHES[stage]) == stage
