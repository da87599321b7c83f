"""What a Laguna block may see under each engine (`specs/laguna.md` 3.3 and 3.4, rows A to D), and the drafter's invariants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracle.drafters.dialect import ENGINES
from oracle.models import Drafter
from oracle.readings import Reading, Stage
from oracle.recipes import Visible
from oracle.tensor import Array, Tensor
from oracle.weights import Weight
from tests.oracle import golden_laguna as tiny

W, P, BLOCK = 9, 30, 4
EMBEDDING, HEAD = (
    Weight.of(np.random.default_rng(seed).standard_normal((tiny.VOCAB, tiny.HIDDEN)), ("vocab", "in"), "f64") for seed in (1, 2)
)
FEATURES: Array = np.random.default_rng(3).standard_normal((P, 2 * tiny.HIDDEN))


def drafter(engine: str = "vllm", window: int = W) -> Drafter:
    made = tiny.drafter(0x3333)
    return replace(made, dialect=replace(made.dialect, window=window).override({"engine": engine}))


def appended(made: Drafter, portions: tuple[int, ...]) -> Any:
    context = made.new_context()
    for count in portions:
        context.append(FEATURES[context.length : context.length + count], context.length)
    return context


def logits(made: Drafter, portions: tuple[int, ...], ids: tuple[int, ...] = (5, 31, 31, 31)) -> Array:
    return np.asarray(made.propose(appended(made, portions), ids, EMBEDDING, HEAD).logits.data)


def seen(engine: str, portions: tuple[int, ...]) -> list[list[int]]:
    """Positions that each block row sees in the first layer."""
    made, found = drafter(engine), list[Visible]()

    def tape(stage: Stage, value: Tensor, reading: Reading) -> Tensor:
        if stage.path == "draft.L0.attn":
            found.append(stage.params["visible"])
        return value

    made.propose(appended(made, portions), (5, 31, 31, 31), EMBEDDING, HEAD, tape=tape)
    return [found[0].k_pos[row].tolist() for row in found[0].matrix()]


def block(row: int) -> list[int]:
    """Inside the block attention is causal under every engine."""
    return list(range(P, P + row + 1))


@pytest.mark.parametrize("engine", ["vllm", "mlxcel"])
def test_a_window_per_query(engine: str) -> None:
    rows = seen(engine, (P,))
    assert rows == [list(range(P + j - W + 1, P)) + block(j) for j in range(BLOCK)]
    assert all(len(r) == W for r in rows)


@pytest.mark.parametrize("last", [1, 2, 5])
def test_b_what_a_rotating_cache_exposes_depends_on_the_last_append(last: int) -> None:
    rows = seen("mlx-vlm", (P - last, last))
    assert rows == [list(range(P - (W - 2 + last), P)) + block(j) for j in range(BLOCK)]


def test_b_of_a_prompt_only_the_last_rows_that_the_cache_has_room_for_are_read() -> None:
    """Stage D0 comes before the cache: as `mlx_vlm` has it (`tests/peers/test_mlx_vlm.py`)."""
    assert seen("mlx-vlm", (P,)) == [list(range(P - W + 1, P)) + block(j) for j in range(BLOCK)]


def test_b_a_commit_larger_than_the_cache_leaves_a_gap_before_it() -> None:
    """W - 2 rows of what was there, then the last W - 1 of what came."""
    assert seen("mlx-vlm", (12, P - 12))[0] == list(range(5, 12)) + list(range(P - W + 1, P)) + block(0)


def test_b_rows_taken_back_are_no_longer_exposed() -> None:
    made = drafter("mlx-vlm")
    context = appended(made, (P - 4,))
    context.append(FEATURES[P - 4 :], P - 4)
    context.truncate(P - 3)
    assert context.cells.exposed.tolist() == list(range(P - 4 - (W - 2), P - 3))


def test_c_the_training_mask_has_one_window_before_the_anchor() -> None:
    assert seen("speculators", (P,)) == [list(range(21, 30)) + block(j) for j in range(BLOCK)]


def test_d_the_fixed_view_has_one_row_less() -> None:
    assert seen("issue-1351", (P,)) == [list(range(22, 30)) + block(j) for j in range(BLOCK)]


def test_every_engine_has_a_test_of_its_own() -> None:
    assert set(ENGINES["laguna"]) == {"vllm", "mlxcel", "mlx-vlm", "speculators", "issue-1351"}


def test_engines_agree_within_the_window_and_part_beyond_it() -> None:
    """The context's input norm is turned alike here: it differs by itself."""
    made = {e: drafter(e, 16) for e in ENGINES["laguna"]}
    made = {e: replace(d, dialect=replace(d.dialect, ctx_layernorm=True)) for e, d in made.items()}
    near = [logits(d, (16 - BLOCK,)) for d in made.values()]
    assert all(np.array_equal(near[0], other) for other in near[1:])
    far = {e: logits(d, (P - 3, 3)) for e, d in made.items()}
    for one, other in (("vllm", "mlx-vlm"), ("vllm", "speculators"), ("vllm", "issue-1351"), ("mlx-vlm", "speculators")):
        assert np.abs(far[one] - far[other]).max() > 1e-2, (one, other)


@pytest.mark.parametrize("portions", [(1,) * 12, (5, 7), (11, 1)])
def test_appending_in_pieces_is_one_append(portions: tuple[int, ...]) -> None:
    """Section 3.5."""
    assert logits(drafter(), portions) == pytest.approx(logits(drafter(), (12,)), abs=1e-13)


def test_a_block_token_reaches_its_own_row_and_later_ones_only() -> None:
    one, other = logits(drafter(), (P,), (5, 31, 31, 31)), logits(drafter(), (P,), (5, 31, 7, 31))
    differs = np.abs(one - other).max(-1) > 1e-9
    assert differs.tolist() == [False, False, True, True]


def test_rows_beyond_the_window_of_every_query_leave_no_trace() -> None:
    """W - 1 rows of context are all that row 0 needs: dropping older features is neutral (stage D0)."""
    made = drafter()
    context = made.new_context()
    context.append(np.concatenate([7 * FEATURES[: P - W + 1], FEATURES[P - W + 1 :]]), 0)
    block_ids = (5, 31, 31, 31)
    assert made.propose(context, block_ids, EMBEDDING, HEAD).logits.data == pytest.approx(logits(made, (P,)), abs=1e-13)
