"""What is put into a dump comes out of both of its forms, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dumps import Dump, DumpError, DumpWriter, open_dump, pack, unpack
from dumps.dtypes import STORED, encode, widen

from .dump_strategies import CASE, PROVENANCE, Stage, bits, stages, tiny, write


def check(dump: Dump, recorded: list[Stage], complete: bool) -> None:
    assert (dump.case, dump.provenance) == (CASE, PROVENANCE)
    assert dump.complete == complete and not dump.truncated_tail
    assert dump.steps == tuple(sorted({stage.step for stage in recorded}))
    for step in dump.steps:
        assert dump.stages(step) == tuple(stage.name for stage in recorded if stage.step == step)
    assert [(r.step, r.stage) for r in dump.records()] == [(s.step, s.name) for s in recorded]
    for stage in recorded:
        record = dump.get(stage.step, stage.name)
        assert record is not None
        assert (record.row0, record.rows, record.dtype, record.axes) == (stage.row0, len(stage.stored), stage.dtype, stage.axes)
        assert record.shape == stage.stored.shape == record.array().shape
        assert record.array().dtype == STORED[stage.dtype] and not record.array().flags.writeable
        assert bits(record.array()) == bits(stage.stored)
        assert record.contiguous and record.row_ids.tolist() == list(range(stage.row0, stage.row0 + record.rows))


@given(stages(), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_dtype_shape_layout_and_order_of_pieces(recorded: list[Stage], checksums: bool, complete: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root / "a", recorded, checksums=checksums, complete=complete)
        first = open_dump(root / "a")
        check(first, recorded, complete)
        pack(root / "a", root / "a.safetensors")
        packed = open_dump(root / "a.safetensors")
        check(packed, recorded, complete)
        unpack(root / "a.safetensors", root / "b")
        second = open_dump(root / "b")
        check(second, recorded, complete)
        assert first.sha256 == packed.sha256 == second.sha256
        pack(root / "b", root / "b.safetensors")
        assert (root / "a.safetensors").read_bytes() == (root / "b.safetensors").read_bytes()


@given(hnp.arrays(np.uint16, st.integers(1, 40)))
def test_bf16_and_f16_widen_exactly(patterns: np.ndarray) -> None:  # type: ignore[type-arg]
    as_bf16 = (patterns.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        assert np.array_equal(widen(patterns, "bf16"), as_bf16.astype(np.float64), equal_nan=True)
        assert np.array_equal(widen(patterns.view(np.float16), "f16"), patterns.view(np.float16).astype(np.float64), equal_nan=True)


def test_every_bf16_pattern_survives_the_way_through_float32() -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    values = widen(patterns, "bf16")
    dtype, back = encode(values.astype(np.float32), "bf16", "all")
    finite = ~np.isnan(values)
    assert dtype == "bf16" and np.array_equal(back[finite], patterns[finite])
    assert np.isnan(widen(back[~finite], "bf16")).all()
    low_payload = np.array([0x7F800001, 0xFFFFFFFF, 0xFF800001], np.uint32).view(np.float32)
    assert np.isnan(widen(encode(low_payload, "bf16", "low")[1], "bf16")).all()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([1 + 2.0**-9], np.float32), "bf16"),
        (np.array([1e300]), "bf16"),
        (np.array([1 + 2.0**-11], np.float32), "f16"),
        (np.array([70000.0], np.float32), "f16"),
        (np.array([0.1]), "f32"),
        (np.array([2**24 + 1]), "f32"),
        (np.array([2**53 + 1]), "f64"),
        (np.array([2**31]), "i32"),
        (np.array([2**63], np.uint64), "i64"),
        (np.array([0.5]), "i32"),
        (np.array([np.nan]), "i64"),
        (np.array([-1]), "u8"),
    ],
)
def test_a_conversion_that_would_round_is_refused(values: np.ndarray, dtype: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(DumpError, match=rf"draft\.fc.*do not all fit {dtype} exactly"):
        encode(values, dtype, "draft.fc")


def test_exact_conversions_are_made() -> None:
    for values, dtype, stored in [
        (np.array([1.5, -np.inf]), "bf16", np.array([0x3FC0, 0xFF80], np.uint16)),
        (np.array([1.5, np.nan]), "f16", np.array([1.5, np.nan], np.float16)),
        (np.array([True, False]), "i32", np.array([1, 0], np.int32)),
        (np.array([3], np.uint16), "i64", np.array([3])),
        (np.array([2.0]), "u8", np.array([2], np.uint8)),
    ]:
        name, found = encode(values, dtype, "x")
        assert name == dtype and found.dtype == stored.dtype and np.array_equal(found, stored, equal_nan=dtype == "f16")


def test_an_i64_beyond_float64_is_not_widened_silently(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "d", {}, {}) as writer:
        writer.put(0, "positions", np.array([2**53, 2**53 + 1]))
        writer.put(0, "ids", np.array([2**53, -(2**63)]))
    dump = open_dump(tmp_path / "d")
    positions, ids = dump.get(0, "positions"), dump.get(0, "ids")
    assert positions is not None and ids is not None
    with pytest.raises(DumpError, match=r"positions \(step 0\): an i64 value has no exact float64; use array\(\)"):
        positions.float64()
    assert positions.array().tolist() == [2**53, 2**53 + 1] and ids.float64().tolist() == [2.0**53, -(2.0**63)]


def test_rows_absent_between_pieces_show_in_row_ids(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "d", {}, {}) as writer:
        writer.put(0, "x", np.full((2, 1), 5.0), row0=5)
        writer.put(0, "x", np.full((1, 1), 2.0), row0=2)
    record = open_dump(tmp_path / "d").get(0, "x")
    assert record is not None and not record.contiguous
    assert record.row_ids.tolist() == [2, 5, 6] and record.float64().ravel().tolist() == [2.0, 5.0, 5.0]


def test_the_whole_digest_sees_every_part(tmp_path: Path) -> None:
    def variant(
        name: str, case: dict, value: float = 1.0, stage: str = "x", row0: int = 0, complete: bool = True, axes: tuple = ("row",)
    ) -> str:  # type: ignore[type-arg]
        with DumpWriter(tmp_path / name, case, {}, checksums=name != "again") as writer:
            writer.put(0, stage, np.array([value]), row0=row0, axes=axes)
            writer.close(complete=complete)
        return open_dump(tmp_path / name).sha256

    base = variant("base", {})
    assert variant("again", {}) == base
    others = [
        variant("case", {"seed": 1}),
        variant("value", {}, value=-1.0),
        variant("stage", {}, stage="y"),
        variant("row", {}, row0=1),
        variant("incomplete", {}, complete=False),
        variant("axes", {}, axes=("cell",)),
    ]
    assert len({base, *others}) == 7


def test_numpy_reads_the_directory_and_safetensors_the_packed_file(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    numpy_loader = pytest.importorskip("safetensors.numpy")
    values = {dtype: (np.arange(6).reshape(2, 3) % 2).astype(STORED[dtype]) for dtype in STORED}
    with DumpWriter(tmp_path / "d", CASE, PROVENANCE) as writer:
        for dtype, array in values.items():
            writer.put(0, f"stage.{dtype}", array, dtype=dtype)
    for number, (dtype, array) in enumerate(values.items()):
        assert np.array_equal(np.load(tmp_path / "d" / f"{number:06d}-stage.{dtype}.npy", allow_pickle=False), array)

    pack(tmp_path / "d", tmp_path / "all.safetensors")
    raw = dict(safetensors.deserialize((tmp_path / "all.safetensors").read_bytes()))
    assert raw["0/stage.bf16@0"]["dtype"] == "BF16" and bytes(raw["0/stage.bf16@0"]["data"]) == values["bf16"].tobytes()

    with DumpWriter(tmp_path / "e", CASE, PROVENANCE) as writer:
        for dtype in values.keys() - {"bf16"}:  # NumPy has no bf16, so neither has the loader
            writer.put(0, f"stage.{dtype}", values[dtype], row0=4)
    pack(tmp_path / "e", tmp_path / "e.safetensors")
    loaded = numpy_loader.load_file(tmp_path / "e.safetensors")
    assert loaded.keys() == {f"0/stage.{dtype}@4" for dtype in values.keys() - {"bf16"}}
    for dtype in values.keys() - {"bf16"}:
        assert np.array_equal(loaded[f"0/stage.{dtype}@4"], values[dtype]) and loaded[f"0/stage.{dtype}@4"].dtype == STORED[dtype]


def test_what_numpy_saves_is_read(tmp_path: Path) -> None:
    """Fortran order, booleans and the header versions 2.0 and 3.0, as other writers leave them."""
    with DumpWriter(tmp_path / "d", {}, {}, checksums=False) as writer:
        for stage in ("v1", "v2", "v3"):
            writer.put(0, stage, np.zeros((2, 3), np.float32))
        writer.put(0, "flags", np.zeros((2, 3), np.uint8))
    values = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    for number in range(3):
        with (tmp_path / "d" / f"{number:06d}-v{number + 1}.npy").open("wb") as file:
            np.lib.format.write_array(file, values, version=(number + 1, 0))
    np.save(tmp_path / "d" / "000003-flags.npy", values > 2)
    dump = open_dump(tmp_path / "d")
    for stage, expected in [("v1", values), ("v2", values), ("v3", values), ("flags", values > 2)]:
        record = dump.get(0, stage)
        assert record is not None and np.array_equal(record.array(), expected)
    pack(dump, tmp_path / "p.safetensors")
    assert open_dump(tmp_path / "p.safetensors").sha256 == dump.sha256


def test_values_are_mapped_not_loaded(tmp_path: Path) -> None:
    record = open_dump(tiny(tmp_path / "d")).get(1, "draft.pick")
    assert record is not None
    base = record.array()
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        assert base.base is not None
        base = base.base  # type: ignore[assignment]
    assert isinstance(base, np.memmap)
