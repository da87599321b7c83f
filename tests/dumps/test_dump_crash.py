"""Wherever a writer stops, its dump opens as a prefix or is refused by name; no other exception ever escapes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dumps import DumpError, DumpWriter, announced, open_dump, pack

from .dump_strategies import CASE, PROVENANCE, tiny


def test_a_manifest_cut_at_any_byte_is_a_prefix(tmp_path: Path) -> None:
    dump = tiny(tmp_path / "d")
    manifest = dump / "manifest.jsonl"
    whole = manifest.read_bytes()
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    assert len(ends) == 5  # header, three records, end
    for cut in range(len(whole)):
        manifest.write_bytes(whole[:cut])
        if cut < ends[0]:
            with pytest.raises(DumpError, match=r"manifest\.jsonl: expected a header line"):
                open_dump(dump)
            continue
        found = open_dump(dump)
        lines = sum(end <= cut for end in ends)  # a whole line that lost its newline only is whole
        assert len(found.pieces) == min(lines - 1, 3)
        assert found.complete == (cut >= ends[-1])
        assert found.truncated_tail == (cut not in ends and cut - 1 not in ends)
        assert (found.case, found.provenance) == (CASE, PROVENANCE)
        found.verify()


@pytest.mark.parametrize("file", ["000000-draft.fc.npy", "000001-draft.fc.npy", "000002-draft.pick.npy"])
def test_a_record_file_cut_at_any_byte_is_refused_by_name(tmp_path: Path, file: str) -> None:
    dump = tiny(tmp_path / "d")
    whole = (dump / file).read_bytes()
    for cut in range(len(whole)):
        (dump / file).write_bytes(whole[:cut])
        with pytest.raises(DumpError, match=rf"{file}: draft\.\w+ \(step \d, row \d\): expected"):
            open_dump(dump)


def test_a_packed_file_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.safetensors"
    pack(tiny(tmp_path / "d"), file)
    whole = file.read_bytes()
    for cut in range(len(whole)):
        file.write_bytes(whole[:cut])
        with pytest.raises(DumpError, match=r"p\.safetensors: expected"):
            open_dump(file)


def test_a_record_without_its_line_is_not_part_of_the_dump(tmp_path: Path) -> None:
    dump = tiny(tmp_path / "d", complete=False)
    (dump / "000003-draft.final_norm.npy.part").write_bytes(b"\x93NUM")
    (dump / "000004-draft.final_norm.npy").write_bytes(b"whole, but its line never came")
    found = open_dump(dump)
    assert len(found.pieces) == 3 and not found.complete and not found.truncated_tail


def test_an_exception_in_the_block_leaves_an_incomplete_dump_and_the_announced_stage(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), DumpWriter(tmp_path / "d", {}, {}) as writer:
        writer.announce("draft.L0.attn_of_a_long_name")
        writer.announce("draft.L0.o")
        writer.put(0, "draft.L0.o", np.zeros((1, 2)))
        raise ZeroDivisionError
    found = open_dump(tmp_path / "d")
    assert not found.complete and found.announced == announced(tmp_path / "d") == "draft.L0.o"
    assert found.stages(0) == ("draft.L0.o",)
    assert (tmp_path / "d" / "current").read_text() == "draft.L0.o\n"


def test_closing_forgets_the_announced_stage(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "d", {}, {}) as writer:
        writer.announce("draft.fc")
        assert announced(tmp_path / "d") == "draft.fc"
    found = open_dump(tmp_path / "d")
    assert found.complete and found.announced is None and not (tmp_path / "d" / "current").exists()


def test_a_hostile_note_of_the_current_stage_is_no_stage(tmp_path: Path) -> None:
    dump = tiny(tmp_path / "d", complete=False)
    for content in (b"", b"draft.fc", b"\n", b"\xff\n", b"a\x1b[2J\n", b"x" * 10_000 + b"\n"):
        (dump / "current").write_bytes(content)
        assert open_dump(dump).announced is None
    (dump / "current").unlink()
    (dump / "current").symlink_to("manifest.jsonl")
    assert open_dump(dump).announced is None
    (dump / "current").unlink()
    os.mkfifo(dump / "current")
    assert open_dump(dump).announced is None


def test_a_killed_process_leaves_its_prefix_and_the_stage_it_died_in(tmp_path: Path) -> None:
    program = """
import os, signal, sys
import numpy as np
from dumps import DumpWriter
writer = DumpWriter(sys.argv[1], {}, {})
for layer in range(3):
    writer.announce(f"draft.L{layer}.xn")
    if layer == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    writer.put(0, f"draft.L{layer}.xn", np.full((2, 4), layer, np.float32))
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "d")], cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    found = open_dump(tmp_path / "d")
    assert found.stages(0) == ("draft.L0.xn", "draft.L1.xn") and found.announced == "draft.L2.xn"
    assert not found.complete and not found.truncated_tail
    found.verify()
