"""Every operation on random calls within the oracle's noise; the fused drafter on seeded models, stage by stage."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import native
from oracle.arithmetic import Arithmetic
from oracle.artifacts import make_artifact
from oracle.models import open_drafter, open_target
from oracle.readings import Noise, Stage
from oracle.tensor import Tensor
from parity import candidates, render
from parity.conformance.entry_calls import ENTRY_CALLS
from parity.conformance.named_calls import CALLS
from parity.flow import run_candidate
from parity.judge import Judge
from parity.making import drafter_case
from parity.native_drafter import fused_config, fused_weights
from parity.native_reading import Native

DRAWS = 12
IDS = {"to_target": (0,), "choose": (1,), "selector_scores": (1, 3), "expert_weights": (1,), "expert_linear": (1,)}
SMALL: dict[str, Any] = {
    "hidden": 48,
    "intermediate": 64,
    "heads": 6,
    "kv_heads": 2,
    "head_dim": 8,
    "vocab": 67,
    "block_size": 6,
    "mask_token_id": 66,
}


def lifted(made: Stage, reading: Native) -> Stage:
    """The stage with its tensors as the reading holds them: float32, ids as int32."""
    ids = IDS.get(made.op.name, ())
    args = (
        reading.lift(a.data.astype(np.int64) if i in ids else a.data, a.axes) if isinstance(a, Tensor) else a
        for i, a in enumerate(made.args)
    )
    return replace(made, args=tuple(args))


@pytest.mark.parametrize("op", [*ENTRY_CALLS, *CALLS])
def test_operation(context: native.Context, found: list[str], arithmetic: Arithmetic, op: str) -> None:
    """Healthy on random calls, nothing written outside a buffer, no input changed."""
    if op not in context.ops:
        pytest.skip(f"the library has no {op}")
    judged, refused = 0, ""
    for draw in range(DRAWS):
        made = (ENTRY_CALLS | CALLS)[op](np.random.default_rng([zlib.crc32(op.encode()), draw]))
        reading = Native(context)
        try:
            got = reading.apply(lifted(made, reading)).data.astype(np.float64)
        except native.NativeError as error:
            if error.status != "UNSUPPORTED":
                raise
            refused = error.text
            continue
        judged += 1
        verdict = Judge(arithmetic, max(got.size, 1000)).judge(made, Noise(arithmetic).apply(made), got)
        worst = float(verdict.row_ratio.max(initial=0.0))
        assert (verdict.row_ratio <= 1).all() and verdict.common <= 1, f"{op}: {worst:.3g} x tolerance on draw {draw}"
        assert not found, f"{op}: {'; '.join(found)}"
    if not judged:
        pytest.skip(f"{op}: {refused}")


@pytest.mark.parametrize("family", ["qwen3", "muse-glimmer"])
def test_fused_drafter(spec: str, library: native.Library, arithmetic: Arithmetic, tmp_path: Path, family: str) -> None:
    """A seeded drafter over two appends and a partial accept, in a process of its own: every stage it dumps agrees."""
    if "fused" not in library.info.flags:
        pytest.skip("the library declares no fused drafter")
    sizes: dict[str, Any] = SMALL | ({"window": 9} if family == "muse-glimmer" else {})
    make_artifact(family, "tiny", "f32", tmp_path / "made", seed=5, **sizes)
    names = ("draft.gguf", "target.gguf") if family == "muse-glimmer" else ("drafter", "target")
    case = drafter_case(*(tmp_path / "made" / name for name in names), family=family, appends=(12, 3), accepts=(2,), seed=1)
    report = run_candidate(case, candidates.parse(spec, "fused"), arithmetic, mode="local")
    assert report.verdict == "parity", render.text(report)


def test_fused_verify(context: native.Context, library: native.Library, tmp_path: Path) -> None:
    """One call ends a greedy round: its picks, accepts and context are those of argmax, the rule and an append, bit for bit."""
    if "fused" not in library.info.flags:
        pytest.skip("the library declares no fused drafter")
    draft, path = make_artifact("qwen3", "tiny", "f32", tmp_path / "made", seed=5, **SMALL)
    drafter, target = open_drafter(draft, family="qwen3"), open_target(path)
    parts = fused_config(drafter), fused_weights(drafter, target.embedding, target.head)
    width, vocab = len(drafter.tap_ids) * drafter.geometry.target_hidden, SMALL["vocab"]
    rng, position = np.random.default_rng(3), 7
    with context.drafter(*parts) as fused, context.drafter(*parts) as single:
        if "drafter_verify" not in fused.entries:
            pytest.skip("the library has no dlab_drafter_verify (ABI 1.2)")
        first = rng.standard_normal((position, width)).astype(np.float32)
        for d in (fused, single):
            d.append(first, 0)
        for wish in (0, 2, 5, 1):
            logits = rng.integers(0, 5, (6, vocab)).astype(np.float32)
            taps = rng.standard_normal((6, width)).astype(np.float32)
            drafts = logits.argmax(1)[:5].astype(np.int32)
            drafts[wish:] = (drafts[wish:] + 1) % vocab
            picks, accepted, bonus = fused.verify(drafts, logits, taps, position)
            assert (picks.tolist(), accepted, bonus) == (logits.argmax(1).tolist(), wish, int(logits[wish].argmax()))
            single.append(taps[: wish + 1], position)
            position += wish + 1
            for layer in range(drafter.geometry.layers):
                for a, b in zip(fused.context(layer), single.context(layer), strict=True):
                    np.testing.assert_array_equal(a, b)
