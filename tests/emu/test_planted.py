"""Every planted mistake is found, with its kind and the lines it is made of; the same code without it is clean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cffi import FFI

from native.emulation import Emulation
from native.errors import NativeError
from tests.emu.conftest import line

SCHEDULES = ("eager", "late", *map(str, range(1, 21)))
ffi = FFI()

KERNELS = [
    (0, "race", {"barrier.read", "barrier.write"}, "no barrier between them"),
    (1, "out-of-bounds", {"bounds"}, "byte 256 of __shared__ part"),
    (2, "uninitialised", {"uninitialised.shared"}, "of __shared__ part"),
    (3, "uninitialised", {"uninitialised.device"}, "of the 256 bytes of device memory allocated at planted.cu"),
    (4, "divergent-sync", {"shuffle", "shuffle.others"}, "__shfl_xor_sync"),
    (5, "divergent-sync", {"barrier.first", "barrier.second"}, "two different barriers"),
    (6, "uninitialised", {"early"}, "of __shared__ part"),
]


@pytest.mark.parametrize(("which", "kind", "marks", "says"), KERNELS, ids=[f"{k[1]}-{k[0]}" for k in KERNELS])
def test_a_mistake_in_a_kernel_is_found_where_it_is_made(planted_process: Any, which: int, kind: str, marks: set[str], says: str) -> None:
    status, found = planted_process("run_kernel", which, 1)
    first = found[0]
    assert first["kind"] == kind
    assert set(first["places"]) == {line(m) for m in marks}
    assert says in first["text"] and "thread (" in first["text"]
    assert (status != 0) == (which in (1, 4))


@pytest.mark.parametrize("which", [k[0] for k in KERNELS])
@pytest.mark.parametrize("schedule", ["eager", "late", "5", "6"])
def test_the_same_kernel_without_the_mistake_is_clean(planted: Any, emulation: Emulation, which: int, schedule: str) -> None:
    emulation.schedule(schedule)
    assert planted.run_kernel(which, 0) == 0
    assert emulation.findings() == []


def staged(planted: Any, how: str, rows: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Offsets of the positions used from the right first one: queries [layers, rows, 24], keys [layers, rows, 2]."""
    layers, heads, kv_heads, first = 5, 24, 2, 120
    q, k = np.zeros((layers, rows, heads), np.int32), np.zeros((layers, rows, kv_heads), np.int32)
    kinds = ("shared", "once", "wait", "disjoint", "device")
    pointers = [ffi.cast("int*", a.ctypes.data) for a in (q, k)]
    assert planted.stage_positions(kinds.index(how), layers, rows, heads, kv_heads, first, *pointers) == 0
    return q - first, k - first


def right(rows: int, heads: int) -> np.ndarray:
    return np.broadcast_to(np.arange(rows)[:, None], (rows, heads))


def test_shared_staging_runs_late_as_the_strata_report_says(planted: Any, emulation: Emulation) -> None:
    """Row 0, heads 0..2K-1 hold the keys' positions, in every layer; the other rows are right."""
    emulation.schedule("late")
    q, k = staged(planted, "shared")
    overwritten = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6] + [0] * 10
    assert all(layer[0].tolist() == overwritten for layer in q)
    assert all((layer[1:] == right(7, 24)[1:]).all() for layer in q)
    assert (k == right(7, 2)).all()


def test_a_layout_written_once_is_wrong_from_the_second_layer_on_even_when_copies_run_at_once(planted: Any, emulation: Emulation) -> None:
    q, _ = staged(planted, "once")
    assert (q[0] == right(7, 24)).all()
    assert all((layer != right(7, 24)).any() for layer in q[1:])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_shared_staging_is_a_hazard_in_every_schedule(planted: Any, emulation: Emulation, schedule: str) -> None:
    """Whether or not this order of events shows wrong numbers."""
    emulation.schedule(schedule)
    staged(planted, "shared")
    found = [f for f in emulation.findings() if list(f.places) == [line("strata.copy"), line("strata.rewrite")]]
    assert [f.kind for f in found] == ["hazard"]
    assert "copy of 672 bytes" in found[0].text and "bytes 8..52 changed" in found[0].text


@pytest.mark.parametrize("how", ["wait", "disjoint", "device"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_three_corrections_are_clean_and_right(planted: Any, emulation: Emulation, how: str, schedule: str) -> None:
    emulation.schedule(schedule)
    q, k = staged(planted, how)
    assert (q == right(7, 24)).all() and (k == right(7, 2)).all()
    assert emulation.findings() == []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_metadata_rewritten_while_a_chunk_is_in_flight(planted: Any, emulation: Emulation, schedule: str) -> None:
    emulation.schedule(schedule)
    out = np.zeros((3, 8), np.int32)
    assert planted.append_chunks(0, 3, ffi.cast("int*", out.ctypes.data)) == 0
    assert out.tolist() == np.arange(24).reshape(3, 8).tolist()
    assert emulation.findings() == []
    assert planted.append_chunks(1, 3, ffi.cast("int*", out.ctypes.data)) == 0
    first = emulation.findings()[0]
    assert first.kind == "hazard"
    assert list(first.places) == [line("append.copy"), line("append.rewrite")]
    if schedule == "late":
        assert out.tolist() == [list(range(16, 24))] * 3


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_event_wait_left_out_between_two_streams(planted: Any, emulation: Emulation, schedule: str) -> None:
    emulation.schedule(schedule)
    out = np.zeros(32, np.float32)
    assert planted.two_streams(0, ffi.cast("float*", out.ctypes.data)) == 0
    assert (out == 42).all() and emulation.findings() == []
    assert planted.two_streams(1, ffi.cast("float*", out.ctypes.data)) == 0
    first = emulation.findings()[0]
    assert first.kind == "race" and "no event or synchronisation orders the two" in first.text
    assert set(first.places) == {line("event.write"), line("event.read")}
    if schedule == "late":
        assert (out == 1).all()  # the reader ran first


def test_a_schedule_that_is_none_is_refused(emulation: Emulation) -> None:
    with pytest.raises(NativeError, match="expected eager, late, or a number"):
        emulation.schedule("soon")


def test_a_library_without_an_emulator_is_refused() -> None:
    from native.sources import library_path

    with pytest.raises(NativeError, match="not an emulated library"):
        Emulation(library_path("cpu"))
