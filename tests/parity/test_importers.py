"""Importing tensors of other engines: by mapping or by stage name, with nothing passed over and misread words named."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from dumps import DumpError, open_dump
from dumps.importers import read_npz, read_safetensors
from oracle import arithmetic as arithmetics
from oracle.readings import Rounded
from parity.case import Case
from parity.cli import cli
from parity.comparing import compare_dump
from parity.errors import UsageError
from parity.importers import import_recording
from parity.models import run

MAPPING = """
schema = "dflash-parity-mapping/1"
engine = "mine"
family = "llama"
role = "target"
layer_base = 1
[[map]]
name = "layers.{layer}.qkv"
stage = ["target.L{layer}.q_raw", "target.L{layer}.k_raw", "target.L{layer}.v"]
axes = ["row", "head.dim"]
[[map]]
name = "layers.{layer}.q_rope"
pairs = "interleaved"
stage = "target.L{layer}.q_rope"
axes = ["head", "row", "dim"]
[[map]]
name = "layers.{layer}.keys"
stage = "target.L{layer}.k_cells"
axes = ["head", "cell", "dim"]
[[map]]
name = "logits"
stage = "target.logits"
axes = ["row", "vocab"]
[[ignore]]
name = "{any}.bias"
reason = "a weight"
[[unseen]]
stage = "target.L{layer}.o"
reason = "fused with the residual"
"""


@pytest.fixture
def stages(target: Case) -> dict[tuple[int, str], np.ndarray]:
    """Every stage of a healthy f32 run."""
    found = {}

    def tape(stage, value, reading):
        found[stage.key] = value.data.astype(np.int32 if stage.op.kind == "choice" else np.float32)
        return value

    run(target, Rounded(arithmetics.named("f32")), tape)
    return found


def named(stages) -> dict[str, np.ndarray]:
    return {f"{step}/{path}": values for (step, path), values in stages.items()}


def theirs(stages) -> dict[str, np.ndarray]:
    """As an engine of one's own lays them out: layers from one, fused products, neighbouring pairs, a cache with spare cells."""
    made = {}
    for step in (0, 1):
        for layer in (0, 1):

            def at(name, step=step, layer=layer):
                return stages[step, f"target.L{layer}.{name}"]

            q = at("q_rope")
            half = q.shape[-1] // 2
            pairs = np.stack([q[..., :half], q[..., half:]], -1).reshape(q.shape)
            keys = at("k_cells").transpose(1, 0, 2)
            root = f"{step}/layers.{layer + 1}"
            made[f"{root}.qkv"] = np.concatenate([at(n).reshape(len(q), -1) for n in ("q_raw", "k_raw", "v")], 1)[None]
            made[f"{root}.q_rope"] = pairs.transpose(1, 0, 2)
            made[f"{root}.keys"] = np.concatenate([keys, np.full((len(keys), 3, keys.shape[2]), 7, np.float32)], 1)
        made[f"{step}/logits"] = stages[step, "target.logits"]
    return made


def mapping(tmp_path: Path, old: str = "", new: str = "") -> str:
    assert old in MAPPING
    (tmp_path / "m.toml").write_text(MAPPING.replace(old, new))
    return str(tmp_path / "m.toml")


def imported(target: Case, tmp_path: Path, tensors, rules: str | None = None, form: str = "npz", **how):
    source = tmp_path / f"recording.{form}"
    if form == "npz":
        np.savez_compressed(source, **tensors)
    else:
        save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, source)
    return import_recording(form, source, target, tmp_path / "dump", rules, **how)


def judged(target: Case, tmp_path: Path):
    return compare_dump(target, open_dump(tmp_path / "dump"), arithmetics.named("f32"), mode="local")


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_a_recording_under_the_labs_own_names_agrees_at_every_stage(form, target, stages, tmp_path):
    done, report = imported(target, tmp_path, named(stages), form=form), judged(target, tmp_path)
    assert report.verdict == "parity" and not report.unseen and not report.extra
    assert len(done.placed) == len(stages) and not (done.unmapped or done.missing or done.findings)


def test_a_mapped_recording_agrees_and_what_is_left_out_is_named(target, stages, tmp_path):
    tensors = theirs(stages) | {"0/layers.1.bias": np.zeros(3), "1/stray": np.zeros(3)}
    done, report = imported(target, tmp_path, tensors, mapping(tmp_path)), judged(target, tmp_path)
    assert report.verdict == "parity" and report.extra == ["0:unmapped: 1/stray"]
    assert {p for _, p in done.placed} >= {"target.L0.v", "target.L1.k_cells", "target.logits"}
    assert done.unmapped == ["1/stray"] and not done.findings
    assert done.unseen == ["0:target.L{n}.o (2 layers)", "1:target.L{n}.o (2 layers)"]
    assert "0:target.L{n}.attn (2 layers)" in done.missing and not any(".o " in line for line in done.missing)


def test_fused_products_in_another_order_are_found_at_the_product(target, stages, tmp_path):
    rules = mapping(tmp_path, '"target.L{layer}.k_raw", "target.L{layer}.v"', '"target.L{layer}.v", "target.L{layer}.k_raw"')
    imported(target, tmp_path, {name: x for name, x in theirs(stages).items() if name == "0/layers.1.qkv"}, rules)
    report = judged(target, tmp_path)
    assert report.first_divergence.stage == "target.L0.k_raw"


@pytest.mark.parametrize(
    ("old", "new", "stage"),
    [('pairs = "interleaved"\n', "", "target.L0.q_rope"), ('["head", "row", "dim"]', '["row", "head", "dim"]', None)],
)
def test_a_wrong_permutation_or_axis_order_is_found(old, new, stage, target, stages, tmp_path):
    if stage is None:
        with pytest.raises(UsageError, match="its axis row has 6 entries"):
            imported(target, tmp_path, theirs(stages), mapping(tmp_path, old, new))
    else:
        tensors = {name: x for name, x in theirs(stages).items() if name == "0/layers.1.q_rope"}
        imported(target, tmp_path, tensors, mapping(tmp_path, old, new))
        assert judged(target, tmp_path).first_divergence.stage == stage


def test_layers_counted_from_the_wrong_one_are_named(target, stages, tmp_path):
    with pytest.raises(UsageError, match=r"layers.2.qkv.npy': is mapped to target.L2.q_raw, which step 0 of the case has not"):
        imported(target, tmp_path, theirs(stages), mapping(tmp_path, "layer_base = 1", "layer_base = 0"))


def test_the_step_comes_from_the_name_or_is_asked_for(target, stages, tmp_path):
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    logits = stages[1, "target.logits"]
    with pytest.raises(UsageError, match="'logits' names no step; expected STEP/NAME, or --step; the case's steps: 0 window, 1 window"):
        imported(target, folders[0], {"logits": logits}, mapping(tmp_path))
    assert list(imported(target, folders[1], {"logits": logits}, mapping(tmp_path), step=1).placed) == [(1, "target.logits")]
    with pytest.raises(UsageError, match="is of step 7; the case has 2"):
        imported(target, folders[2], {"7/logits": logits}, mapping(tmp_path))


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"0/target.logits": np.zeros((9, 66), np.float32)}, r"has shape \[9, 66\], target.logits has \[9, 67\] \(row, vocab\)"),
        ({"0/target.logits": np.zeros((9, 67), np.complex64)}, "its dtype is none of a dump"),
        ({"0/other": np.zeros(3)}, "none of its tensors is a stage of the case .*: 0/other"),
        ({}, "none of its tensors is a stage of the case .*: it holds none"),
    ],
)
def test_what_does_not_fit_is_refused(tensors, says, target, tmp_path):
    with pytest.raises(UsageError, match=says):
        imported(target, tmp_path, tensors)


def as_bf16(words: np.ndarray) -> np.ndarray:
    return (words.astype(np.uint32) << 16).view(np.float32)


def bf16_words(x: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) + 0x8000 >> 16).astype(np.uint16)


@pytest.mark.parametrize("stage", ["target.L0.k_cells", "target.L1.q_rope", "target.logits"])
@pytest.mark.parametrize("kind", ["widened", "stored"])
def test_f16_words_read_as_bf16_and_the_reverse_are_named(stage, kind, target, stages, tmp_path):
    """Misread while they were widened to f32, or kept as words under the wrong type."""
    values = stages[1, stage]
    f16, bf16 = values.astype(np.float16).view(np.uint16), bf16_words(values)
    wrong = {
        "f16 words were read as bf16": as_bf16(f16) if kind == "widened" else f16,
        "bf16 words were read as f16": bf16.view(np.float16).astype(np.float32) if kind == "widened" else bf16.view(np.float16),
    }
    for number, (text, tensor) in enumerate(wrong.items()):
        (tmp_path / str(number)).mkdir()
        done = imported(target, tmp_path / str(number), {f"1/{stage}": tensor})
        assert len(done.findings) == 1 and done.findings[0].startswith(f"1/{stage} (1:{stage}): {text}")


@pytest.mark.parametrize("narrow", [lambda x: x.astype(np.float16), lambda x: as_bf16(bf16_words(x)), lambda x: x * 0])
def test_words_that_were_read_rightly_are_not_called_misread(narrow, target, stages, tmp_path):
    done = imported(target, tmp_path, {name: narrow(x) for name, x in named(stages).items() if x.dtype == np.float32})
    assert not done.findings


def test_the_command_reports_and_its_status_says_how_it_went(target, stages, tmp_path):
    target.save(tmp_path / "case")
    np.savez(tmp_path / "good.npz", **theirs(stages), **{"0/stray": np.zeros(2)})
    np.savez(tmp_path / "bad.npz", **{"0/target.logits": as_bf16(stages[0, "target.logits"].astype(np.float16).view(np.uint16))})

    def called(name: str, out: str, *more: str):
        args = ["import", "npz", str(tmp_path / name), "--case", str(tmp_path / "case"), "--out", str(tmp_path / out), *more]
        return CliRunner().invoke(cli, args, standalone_mode=False)

    good = called("good.npz", "one", "--mapping", mapping(tmp_path))
    assert good.return_value == 0 and "no rule: 0/stray" in good.output and "missing: 0:target.L{n}.attn (2 layers)" in good.output
    assert "cannot be seen: 0:target.L{n}.o (2 layers)" in good.output
    assert called("good.npz", "two", "--mapping", mapping(tmp_path), "--require", "*.attn").return_value == 3
    bad = called("bad.npz", "three")
    assert bad.return_value == 1 and "finding: 0/target.logits (0:target.logits): f16 words were read as bf16" in bad.output
    assert isinstance(called("none.npz", "four").exception, DumpError)


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def npy(shape: str = "(2,)", descr: str = "'<f4'", data: bytes = bytes(8)) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"a.txt": b"x"}, "expected only .npy members"),
        ({"a.npy": b"x"}, "expected a .npy file"),
        ({"a.npy": npy("(3,)")}, "expected .* 12 of elements"),
        ({"a.npy": npy("(99999999999, 99999999)")}, "expected at most .* bytes, found shape"),
        ({"a.npy": npy("(1,)*9")}, "expected a .npy header"),
    ],
)
def test_a_broken_npz_is_refused_before_it_is_read(members, says, tmp_path):
    with pytest.raises(DumpError, match=says):
        read_npz(write_zip(tmp_path / "a.npz", members))


def test_what_is_no_container_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"not a container at all")
    for read in (read_npz, read_safetensors):
        with pytest.raises(DumpError, match="expected"):
            read(tmp_path / "a")
        with pytest.raises(DumpError, match="cannot be read"):
            read(tmp_path / "none")


def test_a_safetensors_file_may_hold_what_no_stage_is(tmp_path):
    header = json.dumps({"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}, "__metadata__": {"format": "pt"}}).encode()
    (tmp_path / "a").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert [(t.name, t.dtype) for t in read_safetensors(tmp_path / "a")] == [("a", None)]


def flat(x: np.ndarray) -> np.ndarray:
    """[row, head, dim] as a module gives it: [row, head * dim]."""
    return x.reshape(len(x), -1)


def vllm(s: dict[str, np.ndarray], layer: int) -> dict[str, np.ndarray]:
    """A layer of a llama as vLLM's modules give it: fused products, rope on flat heads, norms that add the residual first."""
    p, at = f"model.layers.{layer}.", lambda name: s[f"target.L{layer}.{name}"]
    return {
        f"{p}input_layernorm": at("xn"),
        f"{p}self_attn.qkv_proj": np.concatenate([flat(at(n)) for n in ("q_raw", "k_raw", "v")], -1),
        f"{p}self_attn.rotary_emb": flat(at("q_rope")),
        f"{p}self_attn.rotary_emb:1": flat(at("k_rope")),
        f"{p}self_attn.attn": flat(at("attn")),
        f"{p}self_attn.o_proj": at("o"),
        f"{p}post_attention_layernorm": at("xn_mlp"),
        f"{p}post_attention_layernorm:1": at("h_attn"),
        f"{p}mlp.gate_up_proj": np.concatenate([at("mlp_gate"), at("mlp_up")], -1),
        f"{p}mlp.act_fn": at("mlp_act"),
        f"{p}mlp.down_proj": at("mlp_down"),
        f"{p}self_attn": at("o"),
    }


def mlx_lm(s: dict[str, np.ndarray], layer: int) -> dict[str, np.ndarray]:
    """As MLX's modules give it, a batch of one in front; attention by head."""
    p, at = f"model.layers.{layer}.", lambda name: s[f"target.L{layer}.{name}"]
    by_head = {"query": "q_rope", "own_keys": "k_rope", "keys": "k_cells", "values": "v_cells", "attn": "attn"}
    rows = {
        "input_layernorm": "xn", "self_attn.q_proj": "q_raw", "self_attn.k_proj": "k_raw", "self_attn.v_proj": "v", "self_attn.o_proj": "o",
        "post_attention_layernorm:in": "h_attn", "post_attention_layernorm": "xn_mlp", "mlp.gate_proj": "mlp_gate", "mlp.up_proj": "mlp_up",
        "mlp.down_proj:in": "mlp_act", "mlp.down_proj": "mlp_down",
    }  # fmt: skip
    made = {f"{p}self_attn:{part}": at(stage).swapaxes(0, 1)[None] for part, stage in by_head.items()}
    return made | {p + name: flat(at(stage))[None] for name, stage in rows.items()} | {p[:-1]: at("h_mlp")[None]}


LAYOUTS = {
    "vllm": (vllm, "logits_processor", {"k_cells", "v_cells", "h_mlp"}),
    "mlx_lm": (mlx_lm, "lm_head", set()),
    "transformers": (mlx_lm, "lm_head", set()),
}


@pytest.mark.parametrize("engine", LAYOUTS)
def test_tensors_under_an_engine_s_own_names_are_its_stages(engine, target, stages, tmp_path):
    layout, head, hidden = LAYOUTS[engine]
    tensors: dict[str, np.ndarray] = {}
    for step in {step for step, _ in stages}:
        own = {path: values for (at, path), values in stages.items() if at == step}
        ends = {"model.embed_tokens": "target.embed", "model.norm": "target.final_norm", head: "target.logits"}
        parts = {name: own[path] for name, path in ends.items()} | layout(own, 0) | layout(own, 1)
        tensors |= {f"{step}/{name}": np.ascontiguousarray(values) for name, values in parts.items()}
    if engine == "transformers":
        tensors = {n: np.ascontiguousarray(x.swapaxes(1, 2)) if n.endswith(":attn") else x for n, x in tensors.items()}
    save_file(tensors, tmp_path / "a.safetensors")
    done = import_recording("safetensors", tmp_path / "a.safetensors", target, tmp_path / "dump", mapping=engine)
    assert not done.findings and not done.unmapped and {m.partition(":")[2] for m in done.missing} <= {"target.pick"}
    assert {u.rpartition(".")[2].partition(" ")[0] for u in done.unseen} == hidden
    assert compare_dump(target, open_dump(tmp_path / "dump"), arithmetics.named("f32"), mode="local").verdict == "parity"
