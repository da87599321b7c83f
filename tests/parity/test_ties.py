"""`parity ties`: two logit files, every container; ties, divergences, and what cannot be told."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from oracle import arithmetic as arithmetics
from parity.cli import cli, main
from parity.logit_files import open_logits
from parity.ties import AMPLIFICATION, Ties, classify

U = 2.0**-24


def logits(rows: int = 12, vocab: int = 500, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, vocab))


def noisy(x: np.ndarray, scale: float, seed: int = 1) -> np.ndarray:
    return (x + np.random.default_rng(seed).normal(0, scale, x.shape)).astype(np.float32)


def judged(tmp_path: Path, a: np.ndarray, b: np.ndarray, arithmetic: str = "f32") -> Ties:
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    return classify(open_logits(tmp_path / "a.npy"), open_logits(tmp_path / "b.npy"), arithmetics.named(arithmetic))


def crossed(x: np.ndarray, row: int, gap: float) -> tuple[np.ndarray, np.ndarray, int, int]:
    """x with a runner-up just below the largest of ``row``, and the same with the two swapped."""
    a = x.copy()
    first, second = np.argsort(a[row])[::-1][:2]
    a[row, second] = a[row, first] - gap
    b = a.copy()
    b[row, first], b[row, second] = a[row, second], a[row, first]
    return a, b, int(first), int(second)


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([20 * U, 100 * U, 300 * U]), shift=st.floats(-50, 50))
@settings(max_examples=30, deadline=None)
def test_healthy_files_never_diverge(tmp_path_factory: pytest.TempPathFactory, seed: int, scale: float, shift: float) -> None:
    """A common shift of every logit (log-probabilities beside logits) is no difference of choice."""
    x = logits(seed=seed).astype(np.float32).astype(np.float64)
    a, b = noisy(x, scale * 3, seed + 1), noisy(x, scale * 3, seed + 2).astype(np.float64) + shift
    found = judged(tmp_path_factory.mktemp("t"), a, b)
    assert found.verdict == "parity" and all(c.verdict == "tie" for c in found.crossings), found.notes


def test_a_crossing_within_noise_is_a_tie_and_one_beyond_is_not(tmp_path: Path) -> None:
    scale = 1e-6
    for gap, verdict in ((1e-7, "tie"), (2e-6, "tie"), (1e-3, "divergence")):
        a, b, first, second = crossed(logits(), 5, gap)
        found = judged(tmp_path, noisy(a, scale), noisy(b, scale, 2))
        at = {c.row: c for c in found.crossings}
        assert found.exit_status == (verdict == "divergence")
        if gap > 1e-6:
            assert (at[5].a, at[5].b, at[5].verdict) == (first, second, verdict)
        if verdict == "divergence":
            assert at[5].gap_a == pytest.approx(gap, rel=0.1) and at[5].sigmas > 500 and at[5].probability < 1e-9 and at[5].ulps > 1000


def test_a_row_that_differs_more_than_the_others_is_named(tmp_path: Path) -> None:
    x = logits()
    b = noisy(x, 1e-6, 2)
    b[7] += np.random.default_rng(3).normal(0, 1e-3, b.shape[1])
    found = judged(tmp_path, noisy(x, 1e-6), b)
    assert found.noisy_rows == [7] and found.verdict == "inconclusive" and "rows 7 differ" in found.notes[0]
    b[7, int(x[7].argmin())] = x[7].max() + 1
    found = judged(tmp_path, noisy(x, 1e-6), b)
    assert found.exit_status == 1 and [c.row for c in found.crossings if c.verdict == "divergence"] == [7]


def test_files_that_differ_everywhere_are_no_two_runs_of_one_model(tmp_path: Path) -> None:
    x = logits()
    found = judged(tmp_path, x.astype(np.float32), noisy(x, 0.02))
    assert found.amplification > AMPLIFICATION and found.verdict == "inconclusive" and found.exit_status == 3
    assert judged(tmp_path, x.astype(np.float32), noisy(x, 0.02), "bf16").verdict == "parity"
    assert judged(tmp_path, x.astype(np.float32), noisy(x, 1.5), "bf16").verdict != "parity"


def test_a_nan_never_passes_and_a_masked_vocabulary_does(tmp_path: Path) -> None:
    a = logits().astype(np.float32)
    b = a.copy()
    b[3, 9] = np.nan
    found = judged(tmp_path, a, b)
    assert found.exit_status == 1 and found.crossings[0].reason == "B[9] is nan"
    a[:, 400:] = -np.inf
    b = a.copy()
    assert judged(tmp_path, a, b).verdict == "parity"
    assert judged(tmp_path, a, b).notes == ["all rows are bit-equal: are these two runs, or one file twice?"]


def llama_file(path: Path, x: np.ndarray, n_ctx: int) -> None:
    """The layout of llama.cpp's perplexity tool: 16-bit codes over the 16 nats below the largest logit."""
    per = n_ctx - 1 - n_ctx // 2
    chunks = len(x) // per
    out = [b"_logits_", struct.pack("<iii", n_ctx, x.shape[1], chunks), struct.pack(f"<{n_ctx * chunks}i", *([1] * n_ctx * chunks))]
    for row in x.astype(np.float64):
        top, low = row.max(), max(row.min(), row.max() - 16)
        scale = (top - low) / 65535
        codes = [round((v - low) / scale) if v > low else 0 for v in row]
        out += [struct.pack("<ff", scale, low - top - np.log(np.exp(row - top).sum())), struct.pack(f"<{len(codes)}H", *codes)]
        out.append(b"\0" * (2 * (len(codes) % 2)))
    path.write_bytes(b"".join(out))


@pytest.mark.parametrize("vocab", [500, 501])
def test_every_container_gives_the_same_logits(tmp_path: Path, vocab: int) -> None:
    x = logits(14, vocab).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", logits=x, other=x[:1])
    save_file({"logits": x[None]}, tmp_path / "x.safetensors")
    x.tofile(tmp_path / "x.bin")
    llama_file(tmp_path / "x.kld", x, 16)
    for name in ("x.npy", "x.npz", "x.safetensors", "x.bin"):
        opened = open_logits(tmp_path / name, vocab)
        assert (opened.rows, opened.vocab) == x.shape and all(np.array_equal(opened.row(i)[0], x[i]) for i in range(14))
    packed = open_logits(tmp_path / "x.kld")
    for i in range(14):
        values, half = packed.row(i)
        p = x[i] - x[i].max() - np.log(np.exp(x[i] - x[i].max()).sum())
        near = x[i] > x[i].max() - 16
        assert 0 < half < 2e-4 and np.abs(values - p)[near].max() < 1.01 * half + 1e-5
    found = classify(open_logits(tmp_path / "x.npy"), packed, arithmetics.named("f32"))
    assert found.verdict == "parity"


def test_a_crossing_in_a_llama_cpp_file_is_judged_by_its_codes(tmp_path: Path) -> None:
    """Within a code's width nothing can be told; beyond it a crossing is a divergence."""
    for gap, verdict in ((1e-5, "parity"), (0.05, "divergence")):
        a, b, _, _ = crossed(logits(14), 5, gap)
        np.save(tmp_path / "a.npy", a.astype(np.float32))
        llama_file(tmp_path / "b.kld", b, 16)
        assert classify(open_logits(tmp_path / "a.npy"), open_logits(tmp_path / "b.kld"), arithmetics.named("f32")).verdict == verdict


def bad_files(root: Path) -> list[tuple[str, str]]:
    x = logits(14).astype(np.float32)
    np.save(root / "ints.npy", x.astype(np.int32))
    np.save(root / "words.npy", x.astype(np.uint16))
    np.save(root / "flat.npy", np.zeros((2, 3, 4), np.float32))
    np.save(root / "empty.npy", np.zeros((0, 4), np.float32))
    np.save(root / "objects.npy", np.array([{}], object), allow_pickle=True)
    np.savez(root / "two.npz", a=x, b=x)
    (root / "torn.npy").write_bytes((root / "flat.npy").read_bytes()[:40])
    (root / "torn.npz").write_bytes((root / "two.npz").read_bytes()[:400])
    (root / "x.txt2").write_text("1 2 3")
    x.tofile(root / "x.bin")
    llama_file(root / "x.kld", x, 16)
    (root / "torn.kld").write_bytes((root / "x.kld").read_bytes()[:-2])
    (root / "head.kld").write_bytes(b"_logits_" + struct.pack("<ii", 16, 500))
    (root / "huge.kld").write_bytes(b"_logits_" + struct.pack("<iii", 2**31 - 1, -5, 3))
    save_file({"logits": x.astype(np.int64)}, root / "ints.safetensors")
    (root / "torn.safetensors").write_bytes((root / "ints.safetensors").read_bytes()[:50])
    return [
        ("ints.npy", "expected floating-point logits, found dtype int32"),
        ("words.npy", "expected floating-point logits, found dtype uint16"),
        ("flat.npy", "expected logits [row, vocab]"),
        ("empty.npy", "expected logits [row, vocab]"),
        ("objects.npy", "not a NumPy file of numbers"),
        ("two.npz", "name one with --array"),
        ("torn.npy", "not a NumPy file of numbers"),
        ("torn.npz", "not a NumPy file of numbers"),
        ("x.txt2", "expected .npy, .npz, .safetensors"),
        ("x.bin", "give the vocabulary with --vocab-size"),
        ("torn.kld", "its writer does not notice a full disk"),
        ("head.kld", "truncated: expected 20 bytes of header"),
        ("huge.kld", "out of range"),
        ("ints.safetensors", "expected floating-point logits, found dtype i64"),
        ("torn.safetensors", "torn.safetensors"),
        ("absent.npy", "cannot be read"),
    ]


def test_bad_files_are_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, message in bad_files(tmp_path):
        with pytest.raises(SystemExit) as ended:
            main(["ties", str(tmp_path / name), str(tmp_path / "x.kld")])
        err = capsys.readouterr().err
        assert ended.value.code == 2 and message in err and err.count("\n") == 1, (name, err)


def test_the_command_line_prints_margins_and_json(tmp_path: Path) -> None:
    a, b, first, second = crossed(logits(), 5, 1e-3)
    np.save(tmp_path / "a.npy", noisy(a, 1e-6))
    np.save(tmp_path / "b.npy", noisy(b, 1e-6, 2))
    names = [str(tmp_path / "a.npy"), str(tmp_path / "b.npy")]
    shown = CliRunner().invoke(cli, ["ties", *names], standalone_mode=False)
    assert shown.return_value == 1 and shown.output.startswith(f"DIVERGENCE first at row 5: {first} against {second}, crossed by")
    assert "smallest margin in A" in shown.output
    found = json.loads(CliRunner().invoke(cli, ["ties", *names, "--json", "-"], standalone_mode=False).output)
    assert found["schema"] == "dflash-parity-ties/1" and found["exit_status"] == 1 and found["crossings"][0]["row"] == 5
    quiet = CliRunner().invoke(cli, ["ties", names[0], names[0], "--quiet"], standalone_mode=False)
    assert quiet.return_value == 0 and quiet.output == "PARITY 12 of 12 rows choose alike, 0 differ at ties\n"


def test_other_shapes_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "a.npy", logits(3))
    np.save(tmp_path / "b.npy", logits(4))
    with pytest.raises(SystemExit) as ended:
        main(["ties", str(tmp_path / "a.npy"), str(tmp_path / "b.npy")])
    assert ended.value.code == 2 and "expected 3 rows of 500 logits" in capsys.readouterr().err
