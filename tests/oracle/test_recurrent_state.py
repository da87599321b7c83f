"""A recurrent state that is kept in 16 bits: between the calls of a forward, or from every row to the next."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle import faults
from oracle.arithmetic import STATES, DeclarationError, named
from oracle.floats import BF16, FORMATS
from oracle.readings import Exact, Faulty, Noise, Rounded, Stage
from oracle.tensor import Array, Tensor
from tests.oracle.calls import HEADS, f32, read, stage

NARROW = [s for s in STATES if s != "f32"]


def call(seed: int, rows: int = 12, repeated: bool = False) -> Stage:
    """Two key heads of 16, four value heads of 6; a state that is already there."""
    rng = np.random.default_rng(seed)
    k = rng.standard_normal((rows, 2, 16))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    decay = np.full((rows, 4), -0.125) if repeated else -rng.exponential(0.3, (rows, 4))
    scalars = (Tensor(f32(x), ("row", "head")) for x in (decay, rng.uniform(0, 1, (rows, 4))))
    start = Tensor(f32(rng.standard_normal((4, 16, 6))), ("head", "key", "dim"))
    return stage("delta_state", start, Tensor(f32(k), HEADS), Tensor(f32(rng.standard_normal((rows, 4, 6))), HEADS), *scalars)


def states(made: Stage) -> Array:
    return read(Exact(), made).data


def by_single_rows(made: Stage, kept: str) -> Array:
    """Every row a call of its own, which starts from what was kept of the one before."""
    start, *rest = made.args
    state, out = start.data, []
    for t in range(len(rest[0].data)):
        row = (Tensor(r.data[t : t + 1], r.axes) for r in rest)
        out.append(states(stage("delta_state", Tensor(FORMATS[kept].round(state), start.axes), *row))[0])
        state = out[-1]
    return np.array(out)


@pytest.mark.parametrize("kept", ["bf16", "f16"])
def test_from_row_to_row_is_row_by_row(kept: str) -> None:
    made = call(1)
    assert Noise(named(f"f32,state={kept}-rows")).apply(made).data.tolist() == by_single_rows(made, kept).tolist()
    start, *rest = made.args
    once = stage("delta_state", Tensor(FORMATS[kept].round(start.data), start.axes), *rest)
    assert Noise(named(f"f32,state={kept}")).apply(made).data.tolist() == states(once).tolist()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), state=st.sampled_from(STATES), repeated=st.booleans(), order=st.sampled_from(["sequential", "pairwise"])
)  # fmt: skip
def test_a_healthy_state_is_within_its_noise_and_its_bound(seed: int, state: str, repeated: bool, order: str) -> None:
    A, made = named(f"f32,order={order},state={state}"), call(seed, repeated=repeated)
    rule, rounded = read(Noise(A), made), read(Rounded(A), made).data
    error = np.abs(rounded - rule.data)
    assert (error <= 10 * np.sqrt(rule.variance())).all()
    where = tuple(i.ravel() for i in np.indices(error.shape))
    between, rows = A.kept()
    start, *rest = made.args
    more = {} if rows is None else {"rows": rows}
    assert (error[where] <= made.op.bound(A, rule.data, where, Tensor(FORMATS[between].round(start.data), start.axes), *rest, **more)).all()


@pytest.mark.parametrize("state", NARROW)
def test_a_state_kept_otherwise_than_declared_is_beyond_the_noise(state: str) -> None:
    made = call(2)
    for declared, ran in ((state, "f32"), ("f32", state), (state, "f16" if state.startswith("bf16") else "bf16")):
        rule = read(Noise(named(f"f32,state={declared}")), made)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.abs(read(Rounded(named(f"f32,state={ran}")), made).data - rule.data) / np.sqrt(rule.variance())
        assert np.nanmax(z) > 100


def test_a_start_with_an_error_flips_where_it_may() -> None:
    made, A = call(3, rows=1), named("f32,state=bf16")
    start, *rest = made.args
    data = start.data.copy()
    data[0, 0, 0] = 1 + 2.0**-8
    data[0, 0, 1] = 1 + 2.0**-9
    noisy = Tensor(data, start.axes, np.full(data.shape, 1e-14))
    inherited = Noise(A).judged(stage("delta_state", noisy, *rest))[2].inherited[0]
    assert inherited[0, :, 0].max() > 1e-6 and inherited[0, :, 1].max() < 1e-8


@pytest.mark.parametrize("every", ["step", "row"])
def test_the_fault_is_the_arithmetic(every: str) -> None:
    made = call(4)
    wrong = read(Faulty(Exact(), faults.parse(f"delta.kept:dtype=bf16,every={every}")), made).data
    state = "bf16-rows" if every == "row" else "bf16"
    assert wrong.tolist() == (read(Noise(named(f"f32,state={state}")), made).data).tolist()


@pytest.mark.parametrize("state", ["q8_0", "bf16-row", ""])
def test_a_dtype_that_no_state_has_is_refused(state: str) -> None:
    with pytest.raises(DeclarationError, match=f"state='{state}': expected one of f32, bf16"):
        named(f"f32,state={state}")


def test_only_the_state_of_the_delta_rule_is_touched() -> None:
    A = named("f32,state=bf16")
    x = Tensor(np.array([[1 + 2.0**-12]]), ("row", "dim"))
    assert Noise(A).apply(stage("add", x, x)).data.tolist() == [[2 + 2.0**-11]]
    assert not BF16.holds(2 + 2.0**-11)
