"""The oracle's Laguna drafter under ``engine=mlx-vlm`` against that engine, and where the engine leaves the other readings."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from oracle.models import Drafter
from tests.peers import laguna_drafter_cases as laguna
from tests.peers import random_models as rm

pytestmark = pytest.mark.peers
TOLERANCE, MISS = 5e-6, 0.1
Z = laguna.SIZES
# The first commit, then commits of one row and of several, smaller and larger than the cache, and back to one.
COMMITS = {
    "a prompt, then rounds": tuple(a + 1 for a in laguna.ACCEPTED),
    "one row at a time": (1,) * 12,
    "commits larger than the window": (2, 11, 1, 9, 1, 1, 20, 3, 1, 8),
}
START = {"a prompt, then rounds": laguna.PROMPT, "one row at a time": 1, "commits larger than the window": 12}
by_schedule = pytest.mark.parametrize("name", COMMITS)


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    """The engine; imported only when a test of this module runs."""
    for package in ("mlx", "mlx_vlm", "PIL"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package} (pip install 'mlx[cpu]==0.32.4' pillow; pip install --no-deps mlx-vlm==0.7.10)")
    from tests.peers import mlx_vlm_peer

    return mlx_vlm_peer


def schedule(name: str) -> list[rm.Round]:
    return rm.schedule(Z, START[name], COMMITS[name], laguna.SEED)


def features(name: str) -> np.ndarray:
    rows = rm.feature_rows(Z, START[name] + sum(COMMITS[name]), laguna.SEED)
    for i, size in enumerate((0.2, 3.0, 40.0)):
        rows[:, i * laguna.TARGET_HIDDEN : (i + 1) * laguna.TARGET_HIDDEN] *= size
    return rows


def engine(which: str, window: int = laguna.WINDOW) -> Drafter:
    right = laguna.drafter()
    return replace(right, dialect=replace(right.dialect, window=window).override({"engine": which}))


def mine(made: Drafter, name: str) -> rm.Outputs:
    return rm.oracle_rounds(made, schedule(name), features(name), *rm.vocabulary(Z, laguna.SEED))


@pytest.mark.parametrize("window", [laguna.WINDOW, 5, 3])
@by_schedule
def test_every_round_agrees(name: str, window: int, peer: ModuleType) -> None:
    """Also where a commit larger than the cache leaves a gap in what is seen."""
    theirs = peer.outputs(schedule(name), features(name), window)
    assert len(theirs) >= 10
    assert rm.largest_difference(mine(engine("mlx-vlm", window), name), theirs) <= TOLERANCE


@by_schedule
@pytest.mark.parametrize("which", ["vllm", "mlxcel", "speculators"])
def test_no_other_engine_s_reading_is_it(which: str, name: str, peer: ModuleType) -> None:
    theirs = peer.outputs(schedule(name), features(name), laguna.WINDOW)
    assert min(per_round(mine(engine(which), name), theirs)) > MISS


def test_the_fixed_view_is_what_it_shows_after_one_row_or_a_prompt_and_nothing_else(peer: ModuleType) -> None:
    name = "a prompt, then rounds"
    counts = (laguna.PROMPT, *COMMITS[name])
    found = per_round(mine(engine("issue-1351"), name), peer.outputs(schedule(name), features(name), laguna.WINDOW))
    for count, difference in zip(counts, found, strict=True):
        assert difference <= TOLERANCE if count in (1, laguna.PROMPT) else difference > MISS


def test_inside_the_window_it_differs_from_the_served_reading_by_the_norm_of_the_context_alone(peer: ModuleType) -> None:
    name, wide = "a prompt, then rounds", 128
    theirs = peer.outputs(schedule(name), features(name), wide)
    served = engine("vllm", wide)
    without = replace(served, dialect=replace(served.dialect, ctx_layernorm=False))
    assert rm.largest_difference(mine(without, name), theirs) <= TOLERANCE
    assert min(per_round(mine(served, name), theirs)) > MISS


def test_a_window_of_two_is_one_it_cannot_run(peer: ModuleType) -> None:
    """The prompt is cut to one row, whose place in the cache is then computed from rows that were never kept."""
    with pytest.raises(ValueError, match="Negative dimensions"):
        peer.outputs(schedule("a prompt, then rounds"), features("a prompt, then rounds"), 2)


def per_round(some: rm.Outputs, others: rm.Outputs) -> list[float]:
    return [rm.largest_difference([a], [b]) for a, b in zip(some, others, strict=True)]
