"""Dump folders that something happened to: each is refused in a line, or judged; none passes unless it says what the healthy one does."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dumps import Dump, DumpError, DumpWriter, open_dump
from oracle import arithmetic as arithmetics
from oracle.artifacts import make_artifact
from oracle.readings import Rounded
from parity.case import Case
from parity.comparing import compare_dump
from parity.errors import UsageError
from parity.making import target_case
from parity.recording import record

F32 = arithmetics.named("f32")
SPLICES = [b'"', b"{", b"]", b"\n", b"\0", b"\xff", b"-1", b"1e400", b"NaN", b'"end":true,', b"99999999999999999999", b"../", b"f16"]
VALUES = (np.nan, np.inf, -np.inf, 0.0, 1e30, -1.0)


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    sizes = {"hidden": 16, "intermediate": 16, "heads": 2, "kv_heads": 1, "head_dim": 8, "vocab": 13, "layers": 1}
    return target_case(make_artifact("llama", "tiny", "f32", tmp_path_factory.mktemp("fuzz"), seed=3, **sizes)[0], prefill=3, block=0)


@pytest.fixture(scope="module")
def healthy(case, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "dump"
    with DumpWriter(folder, case.describe(), {"candidate": "f32"}) as writer:
        record(case, Rounded(F32), writer, F32)
    return folder


def bytes_changed(folder: Path, rng: np.random.Generator) -> None:
    """One to four places of one file: flipped, cut out, repeated, spliced."""
    file = sorted(folder.iterdir())[0 if rng.random() < 0.5 else rng.integers(len(list(folder.iterdir())))]
    file = folder / "manifest.jsonl" if rng.random() < 0.5 else file
    data = bytearray(file.read_bytes())
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(len(data) + 1))
        to = min(len(data), at + int(rng.integers(40)))
        what = rng.integers(5)
        if what == 0 and at < len(data):
            data[at] ^= 1 << rng.integers(8)
        elif what == 1:
            del data[at:to]
        elif what == 2:
            data[at:at] = data[at:to]
        elif what == 3:
            data[at:to] = SPLICES[rng.integers(len(SPLICES))]
        else:
            data[at:at] = rng.bytes(int(rng.integers(9)))
    file.write_bytes(bytes(data))


def files_moved(folder: Path, rng: np.random.Generator) -> None:
    """A file gone, in the place of another, a folder, empty, a link to nothing, or one too many."""
    files = sorted(folder.iterdir())
    one, other = (files[i] for i in rng.choice(len(files), 2, replace=False))
    what = rng.integers(6)
    if what == 0:
        one.unlink()
    elif what == 1:
        shutil.copy(one, other)
    elif what == 2:
        one.unlink()
        one.mkdir()
    elif what == 3:
        one.write_bytes(b"")
    elif what == 4:
        one.unlink()
        one.symlink_to(folder / "nowhere")
    else:
        (folder / f"{one.name}.more").write_bytes(one.read_bytes())


def lines_changed(folder: Path, rng: np.random.Generator) -> None:
    """A line of the manifest gone, twice, elsewhere, or with one of its fields another line's."""
    manifest = folder / "manifest.jsonl"
    lines = manifest.read_text().splitlines()
    one, other = (int(i) for i in rng.choice(len(lines), 2, replace=False))
    what = rng.integers(5)
    if what == 0:
        del lines[one]
    elif what == 1:
        lines.insert(other, lines[one])
    elif what == 2:
        lines[one], lines[other] = lines[other], lines[one]
    elif what == 3:
        del lines[one:]
    else:
        a, b = json.loads(lines[one]), json.loads(lines[other])
        key = sorted(set(a) | set(b))[rng.integers(len(set(a) | set(b)))]
        a[key] = b.get(key)
        lines[one] = json.dumps(a)
    manifest.write_text("\n".join(lines) + "\n")


def values_changed(folder: Path, rng: np.random.Generator) -> None:
    """A record with other values under a checksum that fits: an element far off, a row that is another's, all of them shifted."""
    manifest = folder / "manifest.jsonl"
    lines = [json.loads(line) for line in manifest.read_text().splitlines()]
    at = [i for i, line in enumerate(lines) if "file" in line][int(rng.integers(sum("file" in line for line in lines)))]
    file = folder / lines[at]["file"]
    x = np.load(file)
    what = rng.integers(4)
    if what == 0:
        x.reshape(-1)[rng.integers(x.size)] = VALUES[rng.integers(len(VALUES))] if x.dtype.kind == "f" else rng.integers(-1, 20)
    elif what == 1:
        x = np.roll(x, 1, 0)
    elif what == 2:
        x = (x * 1.01 + (0 if x.dtype.kind == "f" else 1)).astype(x.dtype)
    else:
        lines[at]["shape"] = lines[at]["shape"][::-1]
        x = x.T.copy()
    np.save(file, x)
    lines[at]["sha256"] = hashlib.sha256(x.tobytes()).hexdigest()
    manifest.write_text("\n".join(json.dumps(line) for line in lines) + "\n")


def values(dump: Dump) -> dict[tuple[int, str], bytes]:
    return {(step, stage): dump.get(step, stage).float64().tobytes() for step in dump.steps for stage in dump.stages(step)}


def fuzzed(case: Case, healthy: Path, folder: Path, seed: int) -> str:
    """What becomes of the dump: refused, or the verdict."""
    rng = np.random.default_rng(seed)
    shutil.copytree(healthy, folder)
    try:
        for change in rng.choice([bytes_changed, files_moved, lines_changed, values_changed], 1 + (rng.random() < 0.2)):
            try:
                change(folder, rng)
            except (ValueError, OSError, IndexError, KeyError, TypeError):
                break  # the first change left nothing that the second could be made on
        try:
            dump = open_dump(folder)
            report = compare_dump(case, dump, F32, mode="local", explained=0)
        except (DumpError, UsageError) as error:
            assert len(str(error)) < 1000 and "\n" not in str(error), (seed, error)
            return "refused"
        assert json.dumps(report.to_json())
        if report.verdict == "parity" and not report.unseen:
            assert values(dump) == values(open_dump(healthy)), f"seed {seed}: other values pass as parity"
        return report.verdict + (", less recorded" if report.unseen else "")
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_spoiled_folder_escapes_or_passes(count, case, healthy, tmp_path):
    found = [fuzzed(case, healthy, tmp_path / "d", seed) for seed in range(count)]
    assert {"refused", "divergence"} <= set(found) and found.count("refused") < count * 0.9, {f: found.count(f) for f in set(found)}


def test_a_change_within_rounding_under_its_own_checksum_is_what_this_test_could_not_tell(case, healthy):
    """The healthy dump passes: what is judged is the change."""
    report = compare_dump(case, open_dump(healthy), F32, mode="local")
    assert report.verdict == "parity" and not report.unseen
