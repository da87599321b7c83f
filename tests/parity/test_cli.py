"""The command line: verdict first, exit statuses of DESIGN section 7, one clear line for bad input and never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from parity.cli import main


@pytest.fixture
def parity(capsys):
    """Run the command line in this process: (exit status, stdout, stderr)."""

    def run(*args: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in args])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def options(models):
    return ("--model", models / "qwen3/drafter", "--borrowed", models / "qwen3/target", "--family", "qwen3", "--context", 5, "--members", 2)


def test_parity_is_exit_0_and_the_first_line(parity, models):
    status, out, _ = parity("run", *options(models), "--candidate", "f32", "--accepts", "1,0")
    assert status == 0
    assert out.startswith("PARITY") and "draft.L*.attn" in out and "margins" in out


def test_a_divergence_is_exit_1_and_says_where(parity, models, tmp_path):
    fault = "rope.position:stage=draft.L1.q_rope,row=0,heads=2-3,offset=1"
    report, junit = tmp_path / "out/report.json", tmp_path / "junit.xml"
    status, out, _ = parity("run", *options(models), "--candidate", "f32", "--fault", fault, "--json", report, "--junit", junit)
    assert status == 1
    assert out.splitlines()[0].startswith("DIVERGENCE first at draft.L1.q_rope, step 1, row 0, heads 2-3")
    found = json.loads(report.read_text())
    assert (
        found["verdict"] == "divergence"
        and found["first_divergence"]["extent"]["heads"] == [2, 3]
        and found["first_divergence"]["layer"] == 1
    )
    assert found["geometry"]["window_source"] == "file" and len(found["case"]["identity"]) >= 3
    root = ET.parse(junit).getroot()
    failed = [c for c in root.iter("testcase") if c.find("failure") is not None]
    assert {c.get("name") for c in failed if "[local]" in c.get("name")} == {"draft.L1.q_rope [local]"}


def test_json_to_stdout_is_nothing_but_json(parity, models):
    status, out, _ = parity("run", *options(models), "--candidate", "f32", "--json", "-")
    assert status == 0 and json.loads(out)["schema"] == "dflash-parity-report/1"


def test_required_but_unrecorded_is_exit_3(parity, models):
    status, out, _ = parity("run", *options(models), "--candidate", "cpu", "--entry", "fused", "--require", "draft.*.attn")
    assert status == 0, out
    status, out, _ = parity("run", *options(models), "--candidate", f"{__name__}:sparse", "--require", "draft.*.attn")
    assert status == 3 and out.startswith("INCONCLUSIVE")


def sparse(case_folder, out):
    """A candidate that records the logits only."""
    from oracle import arithmetic
    from oracle.readings import Rounded
    from parity import open_writer
    from parity.case import load
    from parity.models import run
    from parity.recording import Recorder

    case = load(case_folder)
    with open_writer(out, case, "sparse") as writer:
        record = Recorder(writer, arithmetic.named("f32"))
        run(case, Rounded(arithmetic.named("f32")), lambda s, v, r: record(s, v, r) if s.path.endswith("logits") else v)


def dies(case_folder, out):
    import os

    from parity import open_writer
    from parity.case import load

    writer = open_writer(out, load(case_folder), "dies")
    writer.announce("draft.L1.attn")
    os.abort()


def hangs(case_folder, out):
    import threading

    threading.Event().wait()


def leaves_nothing(case_folder, out):
    pass


def raises(case_folder, out):
    raise RuntimeError("a bug of the candidate's own")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dies", "signal 6 (SIGABRT) in stage draft.L1.attn"),
        ("leaves_nothing", "without leaving a dump"),
        ("raises", "a bug of the candidate's own"),
        ("hangs", "did not finish within 3 s"),
    ],
)
def test_a_candidate_that_dies_is_exit_4(parity, models, name, said):
    timeout = 3 if name == "hangs" else 60
    status, text, err = parity("run", *options(models), "--candidate", f"{__name__}:{name}", "--timeout", timeout)
    assert status == 4 and said in " ".join(text.split()) and "Traceback" not in text + err


BAD = {
    "no model and no family": (("run",), "--family"),
    "an absent model": (("run", "--model", "nowhere.gguf", "--borrowed", "x"), "nowhere.gguf"),
    "an unknown candidate": (("run", "--family", "llama", "--candidate", "quantum"), "quantum"),
    "an unknown arithmetic": (("run", "--family", "llama", "--arithmetic", "f99"), "f99"),
    "a bad arithmetic option": (("run", "--family", "llama", "--arithmetic", "f32,order=zigzag"), "zigzag"),
    "a policy whose blocks do not fit": (("run", "--family", "llama", "--arithmetic", "f32,use=q8_k"), "target.L0.q_rope reads rows of 32"),
    "an unknown fault": (("run", "--family", "llama", "--fault", "gremlin"), "gremlin"),
    "a fault of a bad expression": (("run", "--family", "llama", "--fault", "rope.position:offset=__import__('os')"), "expression"),
    "an unknown dialect switch": (("run", "--family", "qwen3", "--dialect", "flux=1"), "flux"),
    "a bad dialect value": (("run", "--family", "muse-glimmer", "--dialect", "window_rule=W_MAYBE"), "W_MAYBE"),
    "a dialect without a value": (("run", "--family", "qwen3", "--dialect", "window"), "window"),
    "a block wider than the drafter's": (("run", "--family", "qwen3", "--block", "99"), "99"),
    "an accept beyond the block": (("run", "--family", "qwen3", "--accepts", "99"), "99"),
    "accepts that are not numbers": (("run", "--family", "qwen3", "--accepts", "a,b"), "a,b"),
    "a mode that does not exist": (("run", "--family", "qwen3", "--mode", "sideways"), "sideways"),
    "an absent library": (("run", "--family", "qwen3", "--candidate", "./nowhere.so"), "nowhere.so"),
    "an absent case": (("run", "--case", "nowhere"), "nowhere"),
    "an absent dump": (("compare", "nowhere"), "nowhere"),
    "an absent module": (("run", "--family", "llama", "--candidate", "no_such_module:f"), "no_such_module"),
    "an absent prompt": (("run", "--family", "llama", "--prompt-file", "nowhere.txt"), "nowhere"),
    "a target's fused entry": (("run", "--family", "llama", "--entry", "fused"), "fused"),
    "an unknown command": (("dance",), "dance"),
    "a fault that matches nothing": (("run", "--family", "llama", "--fault", "norm.eps:stage=draft.xn"), "draft.xn"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_usage_is_exit_2_and_one_clear_line(parity, what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args, said = BAD[what]
    status, out, err = parity(*args)
    assert status == 2 and said in err and "Traceback" not in err + out
    assert not out or what in ("no model and no family",)


def test_case_make_show_and_compare_travel(parity, models, tmp_path):
    status, out, _ = parity("case", "make", *options(models)[:-2], "--out", tmp_path / "case")
    assert status == 0 and "2 steps" in out
    status, out, _ = parity("case", "show", tmp_path / "case")
    assert status == 0 and json.loads(out)["steps"][0] == {"kind": "append", "at": 0, "rows": 5}
    status, out, _ = parity(
        "run", "--case", tmp_path / "case", "--candidate", "f32", "--keep", tmp_path / "kept", "--members", 2, "--quiet"
    )
    assert status == 0 and out.count("\n") == 1
    status, out, _ = parity("compare", tmp_path / "kept/dump", "--mode", "local")
    assert status == 0 and out.startswith("PARITY")
    status, _, err = parity("case", "make", *options(models)[:-2], "--out", tmp_path / "case")
    assert status == 2 and "not empty" in err


def test_a_changed_artifact_is_the_verdict(parity, models, tmp_path):
    import shutil

    shutil.copytree(models / "qwen3", tmp_path / "qwen3")
    made = ("--model", tmp_path / "qwen3/drafter", "--borrowed", tmp_path / "qwen3/target", "--family", "qwen3", "--context", 3)
    assert parity("case", "make", *made, "--out", tmp_path / "case")[0] == 0
    file = tmp_path / "qwen3/drafter/model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    from parity import models as opened

    opened._CACHE.clear()
    status, out, _ = parity("run", "--case", tmp_path / "case", "--candidate", "f32")
    assert status == 1 and out.startswith("IDENTITY-MISMATCH") and "the artifact has changed" in out
    status, out, _ = parity("run", "--case", tmp_path / "case", "--candidate", "f32", "--json", "-")
    assert status == 1 and json.loads(out)["verdict"] == "identity-mismatch"
    assert parity("run", "--case", tmp_path / "case", "--candidate", "f32", f"--json={tmp_path / 'r.json'}")[0] == 1
    assert json.loads((tmp_path / "r.json").read_text())["exit_status"] == 1


def test_explain_names_the_mistake_from_the_dump_alone(parity, models, tmp_path):
    fault = "norm.eps:stage=draft.L1.xn,factor=1000"
    parity("run", *options(models), "--candidate", "f32", "--mode", "local", "--keep", tmp_path / "kept", "--fault", fault)
    status, out, _ = parity("explain", tmp_path / "kept/dump")
    assert status == 1 and "explained by norm.eps: eps 0.001 in place of 1e-06" in out
    status, out, _ = parity("explain", tmp_path / "kept/dump", "--json", "-")
    assert json.loads(out)["first_divergence"]["explanations"][0]["kind"] == "norm.eps"
    parity("run", *options(models), "--candidate", "f32", "--mode", "local", "--keep", tmp_path / "clean")
    status, out, _ = parity("explain", tmp_path / "clean/dump")
    assert status == 0 and out.startswith("PARITY") and out.count("\n") == 1


def test_diff_tells_same_different_and_absent(parity, models, tmp_path):
    for name, fault in (("a", None), ("b", None), ("c", "norm.eps:stage=draft.L1.xn,factor=100,rows=1")):
        extra = ("--fault", fault) if fault else ()
        parity("run", *options(models), "--candidate", "f32", "--mode", "local", "--keep", tmp_path / name, *extra)
    status, out, _ = parity("diff", tmp_path / "a/dump", tmp_path / "b/dump")
    assert status == 0 and out.startswith("SAME")
    status, out, _ = parity("diff", tmp_path / "a/dump", tmp_path / "c/dump")
    assert status == 1 and out.startswith("DIFFERENT first at draft.L1.xn, step 1: rows 1,")
    status, out, _ = parity("diff", tmp_path / "a/dump", tmp_path / "c/dump", "--json", "-")
    assert json.loads(out)["stages"][0]["verdict"] == "same"


def test_inspect_stages_faults_and_backends(parity, models, tmp_path):
    status, out, _ = parity("inspect", models / "muse/draft.gguf")
    assert status == 0 and out.startswith("VALID muse-glimmer drafter gguf") and "SHA-256" in out and "at most 46,720 bytes (sink 64" in out
    broken = tmp_path / "broken.gguf"
    broken.write_bytes((models / "muse/draft.gguf").read_bytes()[:5000])
    status, out, _ = parity("inspect", broken)
    assert status == 2 and out.startswith("INVALID") and "problem" in out
    status, out, _ = parity("stages", "--family", "qwen3")
    assert status == 0 and "draft.L2.ctx.k_rope" in out
    status, out, _ = parity("faults", "list")
    assert status == 0 and "rope.position" in out
    status, out, _ = parity("backends", "--json")
    ready = {b["name"]: b["ready"] for b in json.loads(out)}
    assert status == 0 and ready["cpu"] and ready["f64"]


def test_help_imports_no_numpy():
    code = "import sys\nfrom parity.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit: pass\nsys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
