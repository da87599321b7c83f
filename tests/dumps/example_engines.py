"""The case that the example engines run, what is wrong with them when a line is changed, and the verdict on what they dumped."""

from __future__ import annotations

from pathlib import Path

from dumps import open_dump
from oracle import arithmetic as arithmetics
from parity.case import load
from parity.cli.build import seeded
from parity.comparing import compare_dump
from parity.exporting import export
from parity.making import drafter_case
from parity.report import Report

EXAMPLE = Path(__file__).parents[2] / "dumps" / "example"

# The line of each engine, the mistake in it, the stage where it shows, and the explanation ("": none has to be found).
MISTAKES = {
    "window": {
        "engine.c": ("llabs(apart) < g->window", "llabs(apart) <= g->window"),
        "block.cu": ("abs(query - key) < window", "abs(query - key) <= window"),
        "found": ("draft.L0.attn", "attention.window"),
    },
    "window-1": {
        "engine.c": ("llabs(apart) < g->window", "llabs(apart) < g->window - 1"),
        "block.cu": ("abs(query - key) < window", "abs(query - key) < window - 1"),
        "found": ("draft.L0.attn", "attention.window"),
    },
    "eps": {
        "engine.c": ("1 / sqrtf(sum / (float)n + eps)", "1 / sqrtf(sum / (float)n + 1e3f * eps)"),
        "block.cu": ("1 / sqrtf(sum / n + eps)", "1 / sqrtf(sum / n + 1e3f * eps)"),
        "found": ("draft.ctx", "norm.eps"),
    },
    "position": {
        "engine.c": ("(double)(at + r) * pow", "(double)(at + r + (h == 1)) * pow"),
        "block.cu": ("(at + static_cast<int>(blockIdx.x)) * pow", "(at + static_cast<int>(blockIdx.x + (blockIdx.y == 1))) * pow"),
        "found": ("draft.L0.ctx.k_rope", "rope.position"),
    },
    "heads": {
        "engine.c": ("int64_t offset = (int64_t)(h / (g->heads / g->kv)) * g->dim", "int64_t offset = (int64_t)(h % g->kv) * g->dim"),
        "block.cu": ("theirs = blockIdx.y / shared_by * dim", "theirs = blockIdx.y % kv_heads * dim"),
        "found": ("draft.L0.attn", ""),
    },
}


def exported_case(root: Path) -> Path:
    """The case as a folder below ``root``: three layers, two appends and three blocks with what was accepted of them between."""
    model, borrowed = seeded("qwen3", "bf16", 0, root)
    assert borrowed is not None
    # Longer than the window of 24, so that its edge is in the block.
    export(drafter_case(model, borrowed, appends=(20, 11), accepts=(2, 0), seed=1), root / "case", weights=True)
    return root / "case"


def changed(source: str, change: tuple[str, str] | None) -> str:
    """The text of an example engine, with ``change`` made in it."""
    text = (EXAMPLE / source).read_text()
    if change is not None:
        assert text.count(change[0]) == 1
        text = text.replace(*change)
    return text


def verdict(place: Path) -> Report:
    """The dump in a folder where an engine has run, against the oracle, stage by stage."""
    return compare_dump(load(place / "case"), open_dump(place / "dump"), arithmetics.named("f32"), mode="local")


def check_mistake(report: Report, mistake: str) -> None:
    """The first divergence is at the mistake's stage, and explained by it."""
    stage, kind = MISTAKES[mistake]["found"]
    assert report.verdict == "divergence" and report.divergences[0].stage == stage
    assert not kind or report.divergences[0].explanations[0]["kind"] == kind
