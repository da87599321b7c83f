"""Kinds of bad dump, each made from a good one; the message names the record and file and what is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dumps import DumpError, open_dump, pack, schema, unpack

from .dump_strategies import edit_line, edit_packed, edit_records, tiny

FIRST = "000000-draft.fc.npy"
Edit = Callable[[dict[str, Any]], Any]


def setting(**values: Any) -> Edit:
    return lambda line: line.update(values)


def without(key: str) -> Edit:
    return lambda line: line.pop(key) and None


HEADER = [
    (lambda _: [1], 'expected the header .*"dflash-stage-dump".*found'),
    (setting(format="npz"), "expected the header .*, found 'npz'"),
    (setting(version=2), "expected version 1, found 2; read it with the release that wrote it"),
    (setting(version=True), "expected version 1, found True"),
    (without("version"), "expected version 1, found None"),
    (without("case"), "expected the key 'case', found only"),
    (setting(extra=1), "unknown key 'extra'"),
    (setting(case=[]), r"expected case to be a JSON object, found \[\]"),
    (setting(provenance="cpu"), "expected provenance to be a JSON object, found 'cpu'"),
]

RECORD = [
    (lambda _: 3, "expected a record"),
    (without("dtype"), "expected the key 'dtype'"),
    (setting(shap=[1]), "unknown key 'shap'"),
    (setting(step=-1), "expected step to be an integer from 0 to 2147483647, found -1"),
    (setting(step=1.0), "expected step to be an integer .*, found 1.0"),
    (setting(step=2**31), "expected step to be an integer"),
    (setting(row0=True), "expected row0 to be an integer .*, found True"),
    (setting(row0=2**62), "expected row0 to be an integer"),
    (setting(row0=2**62 - 1), "expected rows up to"),
    (setting(stage=7), "expected stage to be a name .*, found 7"),
    (setting(stage="\x1b[2J"), "expected stage to be a name"),
    (setting(stage="\ud800"), "expected stage to be a name"),
    (setting(dtype="float32"), "expected dtype to be one of f64, .*, found 'float32'"),
    (setting(dtype=["f32"]), r"expected dtype to be one of .*, found \['f32'\]"),
    (setting(dtype="f64"), "expected elements <f8 for the dtype f64 of the manifest, found '<f4'"),
    (setting(dtype="bf16"), "expected elements <u2 for the dtype bf16 of the manifest, found '<f4'"),
    (setting(shape=[]), r"expected shape to be a list of 1 to 8 sizes, rows first, found \[\]"),
    (setting(shape="2,3"), "expected shape to be a list"),
    (setting(shape=[2, -3]), "expected every size of shape to be an integer .*, found -3"),
    (setting(shape=[2, 3.0]), "expected every size of shape to be an integer .*, found 3.0"),
    (setting(shape=[1] * 9), "expected shape to be a list of 1 to 8 sizes"),
    (setting(shape=[2**40, 2**40]), "expected at most 70368744177664 bytes, found shape"),
    (setting(shape=[3, 2]), r"expected the shape \[3, 2\] of the manifest, found \[2, 3\]"),
    (setting(axes=["row"]), "expected axes to give 2 different names"),
    (setting(axes=None), "expected axes to be a list of names, found None"),
    (setting(axes=["row", 1]), "expected axes to be a list of names"),
    (setting(sha256="00"), "expected sha256 to be 64 lower-case hexadecimal digits, found '00'"),
    (setting(sha256=None), "expected sha256 to be 64 lower-case hexadecimal digits, found None"),
    (setting(file=None), "expected file to be a name, found None"),
    (setting(file="../000000-draft.fc.npy"), "expected a .npy file inside the dump directory, found '../000000"),
    (setting(file="/etc/hostname.npy"), "expected a .npy file inside the dump directory, found '/etc/hostname.npy'"),
    (setting(file="a\0.npy"), "expected a .npy file inside the dump directory"),
    (setting(file="manifest.jsonl"), "expected a .npy file inside the dump directory, found 'manifest.jsonl'"),
    (setting(file="absent.npy"), ".*'absent.npy' cannot be read: No such file"),
    (setting(file="x" * 300 + ".npy"), ".*cannot be read: File name too long"),
    (setting(file="000001-draft.fc.npy"), r"expected the shape \[2, 3\] of the manifest, found \[1, 3\]"),
    (setting(row0=1), r"expected rows not recorded before, found rows 2\.\.2 over 1\.\.2"),
    (setting(row0=2), r"row 2 of this step and stage is recorded already"),
    (setting(axes=["row", "cell"]), r"expected axes \('row', 'cell'\) as in its other rows, found \('row', 'dim'\)"),
    (setting(end=True), "expected the end line"),
]


@pytest.mark.parametrize(("edit", "message"), HEADER)
def test_a_bad_header(tmp_path: Path, edit: Edit, message: str) -> None:
    edit_line(tiny(tmp_path / "d"), 1, edit)
    with pytest.raises(DumpError, match=r"d/manifest\.jsonl, line 1: .*" + message):
        open_dump(tmp_path / "d")


@pytest.mark.parametrize(("edit", "message"), RECORD)
def test_a_bad_record(tmp_path: Path, edit: Edit, message: str) -> None:
    edit_line(tiny(tmp_path / "d"), 2, edit)
    with pytest.raises(
        DumpError, match=rf"d/(manifest\.jsonl, line [23](, draft\.fc.*)?|0000\d\d-draft\.fc\.npy: draft\.fc .*): {message}"
    ):
        open_dump(tmp_path / "d")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"step":0,"step":1}', "line 3: expected strict JSON, but the key 'step' appears twice"),
        ('{"step":NaN}', "line 3: expected strict JSON, but NaN is not JSON"),
        ('{"step":1e999}', "line 3: expected strict JSON, but the number '1e999' does not fit"),
        ('{"step":' + "9" * 5000 + "}", "line 3: expected strict JSON, but"),
        ("[" * 100 + "]" * 100, "line 3: expected strict JSON, but it is nested deeper than 4 levels"),
        ("[" * 60_000, "nested deeper than 4 levels"),
        ('{"' + '\\"' * 30_000 + "[" * 5, "line 3: expected JSON, found"),
        ('{"step":0', r"line 3: expected JSON, found '' \(Expecting ',' delimiter"),
        ("", "line 3: expected JSON, found ''"),
        ("{} {}", r"line 3: expected JSON, found '\{\}' \(Extra data"),
        ('{"stage":"' + "x" * 70_000 + '"}', "line 3: expected a line of at most 65536 bytes"),
        ('{"end":true,"records":3}', "line 3: the end line declares 3 records, found 1"),
        ('{"end":1,"records":1}', "line 3: expected the end line"),
        ('{"end":true}', "line 3: expected the end line"),
        ('{"end":true,"records":1}', "line 4: expected nothing after the end line"),
    ],
)
def test_a_bad_line_in_the_middle(tmp_path: Path, text: str, message: str) -> None:
    manifest = tiny(tmp_path / "d") / "manifest.jsonl"
    lines = manifest.read_text().splitlines()
    manifest.write_text("\n".join([*lines[:2], text, *lines[2:]]) + "\n")
    with pytest.raises(DumpError, match=message):
        open_dump(tmp_path / "d")


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    manifest = tiny(tmp_path / "d") / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes().replace(b"draft.pick", b"draft.\xffick"))
    with pytest.raises(DumpError, match="line 4: expected UTF-8 JSON, found the byte 0xff at offset"):
        open_dump(tmp_path / "d")


def test_a_torn_line_is_a_tail_only_at_the_end_and_never_after_the_end_line(tmp_path: Path) -> None:
    manifest = tiny(tmp_path / "d", complete=False) / "manifest.jsonl"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole + b'{"step":1,"sta')
    assert open_dump(tmp_path / "d").truncated_tail and len(open_dump(tmp_path / "d").pieces) == 3
    manifest.write_bytes(whole + b'{"step":1,"sta\n')
    with pytest.raises(DumpError, match="line 5: expected JSON"):
        open_dump(tmp_path / "d")
    manifest.write_bytes(whole + b'{"end":true,"records":3}\n{"step"')
    with pytest.raises(DumpError, match="line 6: expected nothing after the end line"):
        open_dump(tmp_path / "d")


def npy(header: bytes, data: bytes = bytes(24), version: bytes = b"\x01\x00") -> bytes:
    width = 2 if version == b"\x01\x00" else 4
    return b"\x93NUMPY" + version + len(header).to_bytes(width, "little") + header + data


GOOD = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a .npy file"),
        (b"\x93NUMPX\x01\x00", r"expected a .npy file \(magic"),
        (b"PK\x03\x04 an npz archive", "expected a .npy file"),
        (npy(GOOD, version=b"\x04\x00"), "expected .npy version 1.0, 2.0 or 3.0, found 4.0"),
        (npy(GOOD, version=b"\x01\x01"), "expected .npy version 1.0, 2.0 or 3.0, found 1.1"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "expected a .npy header of 1 to 4096 bytes, found 4294967295"),
        (b"\x93NUMPY\x01\x00\x00\x00", "expected a .npy header of 1 to 4096 bytes, found 0"),
        (npy(GOOD)[:40], r"expected a .npy header of \d+ bytes, found 30 \(truncated\)"),
        (npy(GOOD, bytes(23)), "expected 94 bytes .70 of header, 24 of elements., found 93"),
        (npy(GOOD, bytes(25)), "expected 94 bytes .70 of header, 24 of elements., found 95"),
        (npy(GOOD.replace(b"<f4", b">f4")), "expected elements <f4 for the dtype f32 of the manifest, found '>f4'"),
        (npy(GOOD.replace(b"<f4", b"|O")), "expected elements <f4 .*, found '|O'"),
        (npy(GOOD.replace(b"'<f4'", b"[('a', '<f4')]")), "no pickled or structured dtype"),
        (npy(GOOD.replace(b"<f4", b"<i4")), "expected elements <f4 .*, found '<i4'"),
        (npy(GOOD.replace(b"(2, 3)", b"(3, 2)")), r"expected the shape \[2, 3\] of the manifest, found \[3, 2\]"),
        (npy(GOOD.replace(b"(2, 3)", b"(-2, 3)")), "simple descr, fortran_order and shape"),
        (npy(GOOD.replace(b"(2, 3)", b"(6)")), "simple descr, fortran_order and shape"),
        (npy(GOOD.replace(b"(2, 3)", b"()")), r"expected the shape \[2, 3\] of the manifest, found \[\]"),
        (npy(GOOD.replace(b"(2, 3)", b"(2,,3)")), "simple descr, fortran_order and shape"),
        (npy(GOOD.replace(b"(2, 3)", b"[2, 3]")), "simple descr, fortran_order and shape"),
        (npy(GOOD.replace(b"(2, 3)", b"(" + b"9" * 300 + b", 3)")), "simple descr, fortran_order and shape"),
        (npy(GOOD.replace(b"False", b"0")), "simple descr, fortran_order and shape"),
        (npy(GOOD.replace(b"'shape'", b"'descr'")), "simple descr, fortran_order and shape"),
        (npy(GOOD.replace(b"False", b"False, 'descr': '<f4'")), "simple descr, fortran_order and shape"),
        (npy(GOOD.replace(b"False", b"False, 'x': 1")), "simple descr, fortran_order and shape"),
        (npy(GOOD.replace(b", 'fortran_order': False", b"")), "simple descr, fortran_order and shape"),
        (npy(b"__import__('os').getcwd()"), "simple descr, fortran_order and shape"),
        (npy(b"(" * 4000), "simple descr, fortran_order and shape"),
        (npy(GOOD.replace(b"<f4", b"\xff")), "expected an ASCII .npy header"),
    ],
)
def test_a_bad_npy_file(tmp_path: Path, content: bytes, message: str) -> None:
    (tiny(tmp_path / "d") / FIRST).write_bytes(content)
    with pytest.raises(DumpError, match=rf"{FIRST}: draft\.fc \(step 0, row 0\): .*{message}"):
        open_dump(tmp_path / "d")


def test_the_good_npy_header_of_these_cases_is_good(tmp_path: Path) -> None:
    """So that no case above is refused for another reason than its own."""
    dump = tiny(tmp_path / "d")
    edit_line(dump, 2, without("sha256"))
    for content in (npy(GOOD), npy(GOOD, version=b"\x02\x00"), npy(GOOD.replace(b"'", b'"').replace(b", }", b"}"))):
        (dump / FIRST).write_bytes(content)
        record = open_dump(dump).get(0, "draft.fc")
        assert record is not None and not record.array()[:2].any()


def test_links_and_special_files(tmp_path: Path) -> None:
    dump = tiny(tmp_path / "d")
    whole = (dump / FIRST).read_bytes()
    (tmp_path / "outside.npy").write_bytes(whole)
    (dump / FIRST).unlink()
    (dump / FIRST).symlink_to(tmp_path / "outside.npy")
    with pytest.raises(DumpError, match=r"draft\.fc \(step 0, row 0\): expected a file inside the dump directory, found .* a link to"):
        open_dump(dump)
    (dump / FIRST).unlink()
    (dump / FIRST).symlink_to(FIRST)
    with pytest.raises(DumpError, match="cannot be read"):
        open_dump(dump)
    (dump / FIRST).unlink()
    os.mkfifo(dump / FIRST)
    with pytest.raises(DumpError, match="expected a regular file"):
        open_dump(dump)
    (dump / FIRST).unlink()
    (dump / FIRST).mkdir()
    with pytest.raises(DumpError, match="expected a regular file"):
        open_dump(dump)
    (dump / FIRST).rmdir()
    (dump / "inside.npy").write_bytes(whole)
    (dump / FIRST).symlink_to("inside.npy")
    open_dump(dump).verify()


def test_two_records_may_not_share_a_file(tmp_path: Path) -> None:
    dump = tiny(tmp_path / "d")
    edit_line(dump, 4, setting(file="./" + FIRST, dtype="f32", shape=[2, 3]))
    with pytest.raises(DumpError, match=r"line 4, draft\.pick .*: expected a file of its own, found .* of line 2 again"):
        open_dump(dump)


def test_paths_that_are_no_dump(tmp_path: Path) -> None:
    for path, message in [
        (tmp_path / "absent", "absent: cannot be read: No such file"),
        (tmp_path, "expected a dump directory with a manifest.jsonl, found none"),
        ("a\0b", "not a path"),
        ("/dev/null", "expected a dump directory or a packed .safetensors file, found neither"),
    ]:
        with pytest.raises(DumpError, match=message):
            open_dump(path)
    tiny(tmp_path / "d")
    (tmp_path / "d" / "manifest.jsonl").rename(tmp_path / "m.jsonl")
    (tmp_path / "d" / "manifest.jsonl").symlink_to(tmp_path / "m.jsonl")
    with pytest.raises(DumpError, match="expected a regular file inside the dump directory"):
        open_dump(tmp_path / "d")


def test_sizes_are_bounded_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = tiny(tmp_path / "d") / "manifest.jsonl"
    os.truncate(manifest, schema.MAX_MANIFEST_BYTES + 1)
    with pytest.raises(DumpError, match=f"expected at most {schema.MAX_MANIFEST_BYTES} bytes"):
        open_dump(tmp_path / "d")
    os.truncate(manifest, schema.MAX_HEADER_BYTES + 1)
    manifest.write_bytes(b" " * (schema.MAX_HEADER_BYTES + 1))
    with pytest.raises(DumpError, match=f"line 1: expected a line of at most {schema.MAX_HEADER_BYTES} bytes"):
        open_dump(tmp_path / "d")
    monkeypatch.setattr("dumps.reader.MAX_RECORDS", 2)
    with pytest.raises(DumpError, match="line 4: expected at most 2 records"):
        open_dump(tiny(tmp_path / "e"))


def test_changed_elements_are_found_when_read(tmp_path: Path) -> None:
    dump = tiny(tmp_path / "d")
    pack(dump, tmp_path / "p.safetensors")
    for file in (dump / FIRST, tmp_path / "p.safetensors"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        found = open_dump(dump if file.parent == dump else file)
        stage = "draft.fc" if file.parent == dump else "draft.pick"
        record = next(record for record in found.records() if record.stage == stage)
        for read in (record.array, record.float64, found.verify, lambda found=found: found.sha256):
            with pytest.raises(DumpError, match=rf"{file.name}: {stage} .*: expected elements of SHA-256 .*; the file was changed"):
                read()
    with pytest.raises(DumpError, match="the file was changed"):
        unpack(tmp_path / "p.safetensors", tmp_path / "e")
    assert not open_dump(tmp_path / "e").complete


def test_a_file_that_shrank_after_opening(tmp_path: Path) -> None:
    dump = open_dump(tiny(tmp_path / "d"))
    os.truncate(tmp_path / "d" / FIRST, 130)
    with pytest.raises(DumpError, match="the file has shrunk since"):
        dump.verify()
    (tmp_path / "d" / FIRST).unlink()
    with pytest.raises(DumpError, match=rf"{FIRST}: draft\.fc .*: cannot be read: No such file"):
        dump.verify()


NAME = "0/draft.fc@0"


def leave_a_hole(file: Path) -> None:
    edit_packed(file, lambda header: header["1/draft.pick@0"].update(data_offsets=[40, 44]))
    file.write_bytes(file.read_bytes() + bytes(4))


PACKED: list[tuple[Callable[[Path], Any], str]] = [
    (leave_a_hole, r"tensor '1/draft\.pick@0': expected its bytes to start at 36 .no hole, no overlap., found 40"),
    (lambda file: file.write_bytes(b""), "expected a packed dump .SafeTensors., found a header of 0 bytes in a file of 0"),
    (lambda file: file.write_bytes(b"\xff" * 64), "found a header of 18446744073709551615 bytes in a file of 64"),
    (lambda file: file.write_bytes((2).to_bytes(8, "little") + b"[]"), "expected the header to be a JSON object"),
    (lambda file: file.write_bytes((2).to_bytes(8, "little") + b"{}"), "a packed stage dump., found None"),
    (lambda file: edit_packed(file, lambda h: h["__metadata__"].update(format="pt")), "found {'format': 'pt'"),
    (lambda file: edit_packed(file, lambda h: h["__metadata__"].update(version="2")), "expected version \"1\", found '2'"),
    (lambda file: edit_packed(file, lambda h: h["__metadata__"].pop("records")), "expected the strings case, complete"),
    (lambda file: edit_packed(file, lambda h: h["__metadata__"].update(more="")), "expected the strings case, complete"),
    (lambda file: edit_packed(file, lambda h: h["__metadata__"].update(complete="yes")), 'expected complete to be "true" or "false"'),
    (lambda file: edit_packed(file, lambda h: h["__metadata__"].update(case="[1]")), "expected case to be a JSON object"),
    (lambda file: edit_packed(file, lambda h: h["__metadata__"].update(case='{"a":1,"a":1}')), "case: .*the key 'a' appears twice"),
    (lambda file: edit_packed(file, lambda h: h["__metadata__"].update(case="\ud800")), "case: expected UTF-8 JSON"),
    (lambda file: edit_packed(file, lambda h: h["__metadata__"].update(records="{}")), "expected records to be a list"),
    (lambda file: edit_packed(file, lambda h: h.update({NAME: 1})), "tensor '0/draft.fc@0': expected dtype, shape and data_offsets"),
    (lambda file: edit_packed(file, lambda h: h[NAME].update(dtype="F8_E4M3")), "expected dtype to be one of F64, .* found 'F8_E4M3'"),
    (lambda file: edit_packed(file, lambda h: h[NAME].update(shape=[-2, -3])), "expected non-negative sizes"),
    (lambda file: edit_packed(file, lambda h: h[NAME].update(data_offsets=[0])), "expected non-negative sizes and two data_offsets"),
    (
        lambda file: edit_packed(file, lambda h: h[NAME].update(shape=[2, 4])),
        r"expected 32 bytes for F32 \[2, 4\], found data_offsets \[0, 24\]",
    ),
    (
        lambda file: edit_packed(file, lambda h: h[NAME].update(shape=[3, 2])),
        r"record 0, draft.fc .*: expected the tensor to be F32 \[2, 3\]",
    ),
    (
        lambda file: edit_packed(file, lambda h: h[NAME].update(data_offsets=[12, 36])),
        r"expected its bytes to start at \d+ .no hole, no overlap.",
    ),
    (
        lambda file: edit_packed(file, lambda h: h.update(x={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]})),
        "one record per tensor, found the tensor 'x'",
    ),
    (lambda file: file.write_bytes(file.read_bytes() + b"x"), "expected 40 bytes of tensors after the header, found 41"),
    (lambda file: edit_records(file, lambda r: r[0].pop("sha256")), "record 0, draft.fc .*: expected a sha256, found none"),
    (lambda file: edit_records(file, lambda r: r[0].update(tensor="y")), "record 0, draft.fc .*: expected a tensor 'y' of its own"),
    (
        lambda file: edit_records(file, lambda r: r[1].update(tensor=NAME)),
        "record 1, draft.fc .*: expected a tensor .* taken by another record",
    ),
    (lambda file: edit_records(file, lambda r: r[0].update(file="x.npy")), "record 0: unknown key 'file'"),
    (
        lambda file: edit_records(file, lambda r: r[1].update(row0=1)),
        r"record 1, draft.fc \(step 0, row 1\): expected rows not recorded before",
    ),
    (lambda file: edit_records(file, lambda r: r[2].update(dtype="f16")), "record 2, draft.pick .*: expected the tensor to be F16"),
    (lambda file: edit_records(file, lambda r: r.pop()), "expected one record per tensor, found the tensor '1/draft.pick@0' without one"),
]


@pytest.mark.parametrize(("spoil", "message"), PACKED)
def test_a_bad_packed_file(tmp_path: Path, spoil: Callable[[Path], Any], message: str) -> None:
    file = tmp_path / "p.safetensors"
    pack(tiny(tmp_path / "d"), file)
    open_dump(file).verify()
    spoil(file)
    with pytest.raises(DumpError, match=r"p\.safetensors: .*" + message):
        open_dump(file)


def test_non_finite_values_are_data(tmp_path: Path) -> None:
    record = open_dump(tiny(tmp_path / "d")).get(1, "draft.pick")
    assert record is not None and record.float64().tolist() == [1.0, -np.inf]
