"""The fused drafter of the CUDA library, on the emulator: equal to its own operations, and the same bits under every schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from native import Context, Library
from native.emulation import Emulation
from tests.native.composed_drafter import small_config, small_weights
from tests.native.test_drafter import DIALECTS, block, compare_rounds, taps

FEW = ("W_LE", "SINK_RING", "all the norms and gates")


@pytest.mark.parametrize("name", FEW)
def test_the_fused_drafter_equals_its_operations(ctx: Context, name: str) -> None:
    compare_rounds(ctx, small_config(**DIALECTS[name]), True)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in DIALECTS if n not in FEW])
def test_the_fused_drafter_equals_its_operations_in_every_dialect(ctx: Context, name: str) -> None:
    compare_rounds(ctx, small_config(**DIALECTS[name]), False)


def rounds(ctx: Context, config: dict[str, Any]) -> list[np.ndarray]:
    """Appends (one an overwrite) and proposals without a pause between them: logits, ids and the cells at the end."""
    out: list[np.ndarray] = []
    with ctx.drafter(config, small_weights(False, config)) as drafter:
        for start, count in ((0, 7), (7, 3), (8, 2)):
            drafter.append(taps(count, start), start)
            proposal = drafter.propose(block(4, start), start + count)
            assert proposal.logits is not None
            out += [proposal.logits, proposal.ids]
        drafter.append(taps(2, 10), 10)
        drafter.append(taps(2, 12), 12)
        out += list(drafter.context(1))
    return out


def same_under(ctx: Context, emulation: Emulation, schedules: list[str]) -> None:
    config = small_config(**DIALECTS["SINK_RING"])
    want = rounds(ctx, config)
    for schedule in schedules:
        emulation.schedule(schedule)
        for a, b in zip(rounds(ctx, config), want, strict=True):
            np.testing.assert_array_equal(a, b, schedule)
        assert emulation.findings() == []


def test_schedules_give_the_same_bits(ctx: Context, emulation: Emulation) -> None:
    same_under(ctx, emulation, ["late", "1"])


@pytest.mark.slow
def test_twenty_seeded_schedules_give_the_same_bits(ctx: Context, emulation: Emulation) -> None:
    same_under(ctx, emulation, [str(seed) for seed in range(2, 22)])


def test_f16_cells_are_dumped_as_they_are_stored(cpu: Library) -> None:
    config = small_config()
    seen: dict[str, str] = {}
    with cpu.context(cells="f16") as context:
        context.on_dump(lambda stage, row0, array, dtype: seen.__setitem__(stage, dtype), "*cells,*attn")
        with context.drafter(config, small_weights(False, config)) as drafter:
            drafter.append(taps(3), 0)
            drafter.propose(block(2), 3)
            keys, _, positions = drafter.context(0)
    assert seen["draft.L0.k_cells"] == "f16" and seen["draft.L0.attn"] == "f32"
    np.testing.assert_array_equal(keys.astype(np.float16).astype(np.float32), keys)
    assert positions.tolist() == [0, 1, 2]
