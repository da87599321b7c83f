"""A case that travels: exported, moved, run by engines in C and Rust, compared."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from oracle import arithmetic as arithmetics
from oracle.readings import Rounded
from parity.case import Case, load
from parity.cli import main
from parity.cli.build import WEIGHTS, seeded
from parity.comparing import compare_dump
from parity.errors import UsageError
from parity.exporting import export, named_weights
from parity.making import drafter_case, target_case
from parity.models import declared_stages, open_case_model
from parity.recording import record
from parity.report import Report
from tests.dumps.example_engines import EXAMPLE, MISTAKES, changed, check_mistake, exported_case, verdict

FAMILIES = [("qwen3", None), ("muse-glimmer", None), ("laguna", None), ("qwen38-flash-next", None), ("llama", None), ("laguna", "target")]


def tiny(family: str, root: Path, role: str | None = None) -> Case:
    model, borrowed = seeded(family, WEIGHTS[family], 0, root, role)
    if borrowed is None or role == "target":
        return target_case(model, prefill=5, block=3, seed=1)
    return drafter_case(model, borrowed, family=family, appends=(9, 5), accepts=(2,), seed=1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported_case(tmp_path_factory.mktemp("export"))


@pytest.mark.parametrize(("family", "role"), FAMILIES)
def test_every_family_travels(tmp_path: Path, family: str, role: str | None) -> None:
    """Moved to another place, with the models it was made from gone: the same case, and a dump of it is judged."""
    case = tiny(family, tmp_path / "made", role)
    export(case, tmp_path / "out", weights=True)
    stages, described = declared_stages(case), case.describe()
    weights = {name: w.array() for name, w in named_weights(open_case_model(case))}
    shutil.rmtree(tmp_path / "made")
    (tmp_path / "out").rename(tmp_path / "far away")
    moved = load(tmp_path / "far away" / "case")
    assert moved.identity == described["identity"] and moved.describe()["steps"] == described["steps"]
    lines = (tmp_path / "far away" / "stages.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[:2] for line in lines] == [[str(k[0]), k[1]] for k, _, _ in stages]
    table = [line.split("\t") for line in (tmp_path / "far away" / "weights.tsv").read_text().splitlines()[1:]]
    for name, axes, shape, _, file in table:
        if name in weights:
            array = np.load(tmp_path / "far away" / file)
            assert array.dtype == np.float32 and np.array_equal(array, weights[name]) and len(axes.split(",")) == len(shape.split(","))
    assert weights.keys() <= {row[0] for row in table}
    for i, step in enumerate(case.steps):
        assert np.array_equal(np.load(next((tmp_path / "far away" / "inputs").glob(f"{i:03d}-*"))), step.array)
    from dumps import DumpWriter, open_dump

    text = json.loads((tmp_path / "far away" / "dump-case.json").read_text())
    with DumpWriter(tmp_path / "far away" / "dump", text, {"candidate": "f32"}) as writer:
        record(moved, Rounded(arithmetics.named("f32")), writer, arithmetics.named("f32"))
    report = compare_dump(moved, open_dump(tmp_path / "far away" / "dump"), arithmetics.named("f32"), mode="local")
    assert report.verdict == "parity"


def built(tmp_path: Path, source: str, change: tuple[str, str] | None = None) -> Path:
    """An example engine, compiled; ``change`` is made in its source first."""
    compiler = shutil.which("cc" if source.endswith(".c") else "rustc")
    if compiler is None or shutil.which("cc") is None:
        pytest.skip(f"no compiler for {source}")
    (tmp_path / source).write_text(changed(source, change))
    include, program = f"-I{EXAMPLE.parent}", tmp_path / "engine"
    if source.endswith(".c"):
        strict = ["-std=c99", "-pedantic", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-O2", "-ffp-contract=off"]
        subprocess.run([compiler, *strict, include, str(tmp_path / source), "-lm", "-o", str(program)], check=True)
        return program
    shim = tmp_path / "stage_dump_abi.o"
    subprocess.run(["cc", "-c", include, str(EXAMPLE / "stage_dump_abi.c"), "-o", str(shim)], check=True)
    rust = [compiler, "-O", "--edition", "2021", "-D", "warnings", str(tmp_path / source), "-C", f"link-arg={shim}", "-o", str(program)]
    subprocess.run(rust, check=True, cwd=tmp_path)
    return program


def judged(program: Path, exported: Path, tmp_path: Path) -> Report:
    place = tmp_path / "place"
    shutil.copytree(exported, place)
    subprocess.run([program, place], check=True)
    return verdict(place)


@pytest.mark.parametrize("source", ["engine.c", "engine.rs"])
def test_an_engine_without_python_is_in_parity(exported: Path, tmp_path: Path, source: str) -> None:
    report = judged(built(tmp_path, source), exported, tmp_path)
    assert report.verdict == "parity" and not report.missing and not report.unseen and not report.extra


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_engine_is_found_at_its_stage(exported: Path, tmp_path: Path, mistake: str) -> None:
    check_mistake(judged(built(tmp_path, "engine.c", MISTAKES[mistake]["engine.c"]), exported, tmp_path), mistake)


@pytest.mark.parametrize("source", ["engine.c", "engine.rs"])
def test_an_engine_refuses_what_it_does_not_do(tmp_path: Path, source: str) -> None:
    export(tiny("muse-glimmer", tmp_path / "made"), tmp_path / "out")
    done = subprocess.run([built(tmp_path, source), tmp_path / "out"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "this engine" in done.stderr


def test_compare_needs_nothing_but_the_dump(exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "place"
    shutil.copytree(exported, place)
    subprocess.run([built(tmp_path, "engine.c"), place], check=True)
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(place / "dump"), "--mode", "local", "--quiet"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("PARITY")
    other = shutil.copytree(place, tmp_path / "other")
    weights = other / "artifact" / "drafter" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(other / "dump"), "--quiet"])
    assert ended.value.code == 1 and "the artifact has changed" in capsys.readouterr().out


def test_without_artifacts_the_readme_names_them(tmp_path: Path) -> None:
    case = tiny("llama", tmp_path / "made")
    export(case, tmp_path / "out", artifacts=False)
    text = (tmp_path / "out" / "README.md").read_text()
    assert not (tmp_path / "out" / "artifact").exists() and all(sha in text for sha in case.identity.values())
    assert load(tmp_path / "out" / "case").identity == case.identity


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    case = tiny("llama", tmp_path / "made")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    with pytest.raises(UsageError, match="expected an absent or empty folder"):
        export(case, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine"]
