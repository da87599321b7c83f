"""The Muse Glimmer target as a case: from a family's role or a file, through a library and back, and beside its drafter."""

from __future__ import annotations

import numpy as np
import pytest

from oracle.artifacts import make_artifact
from oracle.artifacts.make_muse_target import full_every_fourth
from oracle.models import open_target
from parity.cli import main
from parity.errors import UsageError
from parity.making import drafter_case, target_case
from parity.models import declared_stages, open_case_model
from tests.parity.conftest import SMALL

SIZES = {k: v for k, v in SMALL.items() if k not in ("block_size", "mask_token_id")}


@pytest.fixture
def parity(capsys):
    """Run the command line in this process: (exit status, stdout, stderr)."""

    def run(*args: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in args])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Six layers, of which 1 and 5 are full; the prefill is longer than the window."""
    folder = tmp_path_factory.mktemp("target")
    sizes = {"hidden": 32, "intermediate": 48, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab": 67, "window": 5, "layers": 6}
    made = make_artifact("muse-glimmer", "tiny", "f32", folder, 6, "gguf", "target", sliding=full_every_fourth(6), **sizes)
    return target_case(made[0], prefill=8, block=4, seed=4)


def test_every_stage_agrees_in_float32(case, judged):
    report = judged(case, mode="both", members=2)
    assert report.verdict == "parity"
    seen = {s.stage for s in report.stages}
    own = ("embed_norm", "L0.attn_gate", "L5.attn_gated", "L5.post_attn_norm", "L3.post_mlp_norm", "head", "logits")
    assert {f"target.{name}" for name in own} <= seen


def test_full_layers_do_not_rotate(case):
    """Counted backward from the last (`specs/muse-glimmer.md` 1.2)."""
    roped = {path.split(".")[1] for (_, path), _, _ in declared_stages(case) if path.endswith("q_rope")}
    assert roped == {"L0", "L2", "L3", "L4"}


@pytest.mark.parametrize(
    ("fault", "stage"),
    [
        ("norm.eps:stage=target.L2.post_attn_norm,factor=1000", "target.L2.post_attn_norm"),
        ("attention.window:stage=target.L0.attn,delta=-1", "target.L0.attn"),
        ("rope.position:stage=target.L4.k_rope,row=0,offset=1", "target.L4.k_rope"),
    ],
)
def test_a_planted_mistake_is_found_where_it_is(case, judged, fault, stage):
    report = judged(case, fault=fault)
    assert report.divergences and {d.stage for d in report.divergences} == {stage}


def test_the_role_chooses_and_the_file_tells(parity, models):
    status, out, _ = parity("stages", "--family", "muse-glimmer", "--role", "target")
    assert status == 0 and "target.embed_norm" in out and "draft." not in out
    status, out, _ = parity("stages", "--family", "muse-glimmer")
    assert status == 0 and "draft.fc" in out and "target." not in out
    for family in ((), ("--family", "muse-glimmer")):
        status, out, _ = parity("stages", "--model", models / "muse/target.gguf", *family)
        assert status == 0 and "target.L9.post_mlp_norm" in out
    status, _, err = parity("stages", "--family", "qwen3", "--role", "target")
    assert status == 2 and "qwen3 role 'target': expected one of drafter" in err


def test_the_library_runs_it_op_by_op(parity, case):
    chosen = ("--model", case.model, "--context", 8, "--block", 4, "--members", 2)
    status, out, _ = parity("run", *chosen, "--candidate", "cpu")
    assert status == 0 and out.startswith("PARITY") and "muse-glimmer target" in out


def test_a_drafter_is_fed_the_taps_of_its_target(models, muse):
    target = open_target(models / "muse/target.gguf")
    assert muse.notes["features"] == "taps [1, 3, 5, 6, 8] of target.gguf"
    rng, vocab = np.random.default_rng(1), target.geometry.vocab
    candidates = [rng.integers(0, vocab, 18) for _ in range(2)]
    anchors = [int(s.array[0]) for s in muse.steps if s.kind == "propose"]
    ids = next(c for c in candidates if [c[15], c[17]] == anchors)
    taps = target.window(ids[:15], taps=(1, 3, 5, 6, 8)).features.astype(np.float32)
    assert np.array_equal(np.concatenate([s.array for s in muse.steps[:2]]), taps[:15])


def drafted(tmp_path, models, **changes):
    """The drafter of `models` beside a target with ``changes``."""
    other = make_artifact("muse-glimmer", "tiny", "f32", tmp_path, 6, "gguf", "target", **(SIZES | {"window": 9} | changes))
    return open_case_model(drafter_case(models / "muse/draft.gguf", other[0], context=3))


def test_a_target_that_fits_is_accepted(tmp_path, models):
    assert drafted(tmp_path, models).drafter is not None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": 64}, ["hidden width", "64", "48"]),
        ({"vocab": 80}, ["vocabulary", "80", "67"]),
        ({"layers": 7, "sliding": (True,) * 7}, ["layer 8", "7 layers"]),
    ],
    ids=["width", "vocabulary", "depth"],
)
def test_a_target_of_another_drafter_is_refused(tmp_path, models, changes, words):
    with pytest.raises(UsageError) as refused:
        drafted(tmp_path, models, **changes)
    assert all(w in str(refused.value) for w in words), str(refused.value)
