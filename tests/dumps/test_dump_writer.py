"""The writer refuses what the reader would refuse, and may be used from many threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dumps import DumpError, DumpWriter, open_dump

ROW = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"draft\.fc \(step 0, row 4\): row 4 of this step and stage is recorded already"),
        ({"row0": 5}, r"row 5\): expected rows not recorded before, found rows 5\.\.6 over 4\.\.5"),
        ({"row0": 3}, r"row 3\): expected rows not recorded before, found rows 3\.\.4 over 4\.\.5"),
        ({"row0": 9, "array": np.zeros((2, 4), np.float32)}, r"expected rows of shape \[3\] as in its other rows, found \[4\]"),
        ({"row0": 9, "array": np.zeros((2, 3, 1), np.float32)}, r"expected rows of shape \[3\] .* found \[3, 1\]"),
        ({"row0": 9, "array": np.zeros((2, 3))}, r"expected dtype f32 as in its other rows, found f64"),
        ({"row0": 9, "axes": ("row", "dim")}, r"expected axes None as in its other rows, found \('row', 'dim'\)"),
        ({"step": -1}, "expected step to be an integer from 0"),
        ({"step": "0"}, "expected step to be an integer .*, found '0'"),
        ({"step": True}, "expected step to be an integer .*, found True"),
        ({"row0": -2}, "expected row0 to be an integer from 0"),
        ({"stage": ""}, "expected stage to be a name"),
        ({"stage": "a\nb"}, r"expected stage to be a name of .*, found 'a\\nb'"),
        ({"stage": "x" * 201}, "expected stage to be a name of 1 to 200 printable characters"),
        ({"array": np.float32(3)}, r"expected rows as the leading axis, found a scalar; reshape it to \[1\]"),
        ({"array": np.zeros((1,) * 9)}, "expected shape to be a list of 1 to 8 sizes"),
        ({"array": np.zeros(3, np.uint16)}, "dtype uint16 is not one of .*; pass dtype='bf16' if these are bf16 bit patterns"),
        ({"array": np.zeros(3, np.int8)}, "dtype int8 is not one of .*; convert it first"),
        ({"array": np.array([{}])}, "expected numbers, found an array of dtype object"),
        ({"array": np.zeros(3, complex)}, "expected numbers, found an array of dtype complex128"),
        ({"dtype": "q8_0"}, "unknown dtype 'q8_0'; known: f64, f32, f16, bf16, i64, i32, u8"),
        ({"row0": 9, "axes": ("row",)}, "expected axes to give 2 different names"),
        ({"row0": 9, "axes": ("row", "row")}, "expected axes to give 2 different names"),
        ({"row0": 9, "axes": ("row", "two words")}, "expected axes to be a list of names"),
        ({"row0": 9, "axes": "ab"}, "expected axes to be a list of names"),
    ],
)
def test_a_bad_put_is_refused_and_changes_nothing(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with DumpWriter(tmp_path / "d", {}, {}) as writer:
        writer.put(0, "draft.fc", ROW, row0=4)
        before = (tmp_path / "d" / "manifest.jsonl").read_bytes()
        with pytest.raises(DumpError, match=message):
            writer.put(**({"step": 0, "stage": "draft.fc", "array": ROW, "row0": 4} | arguments))
        assert (tmp_path / "d" / "manifest.jsonl").read_bytes() == before
    assert len(open_dump(tmp_path / "d").pieces) == 1


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ([1], "expected case to be a JSON object, found list"),
        ({"eps": float("nan")}, r"header\.case\.eps: JSON has no nan"),
        ({"eps": np.float32(1)}, r"header\.case\.eps: expected plain JSON values, found float32"),
        ({1: 2}, r"header\.case: the key 1 must be a string"),
        ({"ids": {1, 2}}, "expected plain JSON values, found set"),
        ({"text": "x" * (17 << 20)}, "expected a case and provenance of at most"),
    ],
)
def test_a_case_that_json_cannot_say_is_refused(tmp_path: Path, case: Any, message: str) -> None:
    with pytest.raises(DumpError, match=message):
        DumpWriter(tmp_path / "d", case, {})
    assert not (tmp_path / "d").exists()


def test_a_cyclic_case_is_refused(tmp_path: Path) -> None:
    case: dict[str, Any] = {}
    case["self"] = case
    with pytest.raises(DumpError, match="nested deeper than 64 levels"):
        DumpWriter(tmp_path / "d", case, {})


def test_an_occupied_path_is_refused(tmp_path: Path) -> None:
    DumpWriter(tmp_path / "d", {}, {}).close()
    with pytest.raises(DumpError, match="expected an absent or empty directory"):
        DumpWriter(tmp_path / "d", {}, {})
    (tmp_path / "file").write_text("")
    with pytest.raises(DumpError, match="file: cannot be written"):
        DumpWriter(tmp_path / "file", {}, {})


def test_a_closed_writer_refuses_and_closes_twice(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path / "d", {}, {})
    writer.close()
    writer.close()
    with pytest.raises(DumpError, match=r"x \(step 0, row 0\): the dump is closed"):
        writer.put(0, "x", ROW)
    with pytest.raises(DumpError, match="the dump is closed"):
        writer.announce("x")
    assert open_dump(tmp_path / "d").complete


def test_a_failed_write_releases_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with DumpWriter(tmp_path / "d", {}, {}) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(np.lib.format, "write_array", full)
            with pytest.raises(DumpError, match=r"000000-x\.npy: x \(step 0, row 0\) cannot be written: No space left"):
                writer.put(0, "x", ROW)
        writer.put(0, "x", ROW)
    assert sorted(file.name for file in (tmp_path / "d").iterdir()) == ["000001-x.npy", "manifest.jsonl"]
    assert len(open_dump(tmp_path / "d").pieces) == 1


def test_numpy_integers_are_steps_and_rows(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "d", {}, {}) as writer:
        writer.put(np.int64(3), "x", ROW, row0=np.int32(2))
    record = open_dump(tmp_path / "d").get(3, "x")
    assert record is not None and record.row0 == 2


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads change places as often as the interpreter lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switching")
def test_threads_put_at_once(tmp_path: Path) -> None:
    threads, each = 8, 25
    start = threading.Barrier(threads)
    refused: list[DumpError] = []

    def work(thread: int) -> None:
        start.wait()
        for number in range(each):
            writer.announce(f"draft.L{thread}.xn")
            writer.put(number, f"draft.L{thread}.xn", np.full((2, 3), 100 * thread + number, np.float64), row0=2 * thread)
            writer.put(number, "shared", np.full((1, 2), thread, np.int32), row0=thread)
            try:
                writer.put(number, "once", np.full((1, 2), thread, np.int32))
            except DumpError as error:
                refused.append(error)

    with DumpWriter(tmp_path / "d", {}, {}) as writer, ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    dump = open_dump(tmp_path / "d")
    dump.verify()
    assert dump.complete and len(dump.pieces) == (2 * threads + 1) * each and len(refused) == (threads - 1) * each
    for number in range(each):
        shared = dump.get(number, "shared")
        assert shared is not None and shared.array()[:, 0].tolist() == list(range(threads))
        for thread in range(threads):
            record = dump.get(number, f"draft.L{thread}.xn")
            assert record is not None and (record.array() == 100 * thread + number).all()
