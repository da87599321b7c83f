"""What a library call is handed where ids come from elsewhere, and how its refusal travels between processes."""

from __future__ import annotations

import pickle

import numpy as np

import native
from native import NativeError
from oracle.ops import OPS
from oracle.readings import Exact, Stage
from oracle.tensor import Tensor
from parity.native_reading import Native


def test_ids_that_come_as_floats_are_ids() -> None:
    """A fault edits the picks of a reduced vocabulary in the candidate's own dtype; nothing chosen is -1."""
    picks, table = Tensor(np.array([2.0, 0.0, np.nan, -1.0], np.float32), ("row",)), np.array([7, 3, 11], np.int64)
    stage = Stage("draft.drafts", OPS["to_target"], (picks, table), {}, 0)
    with native.open_library("cpu").context(1) as context:
        found = Native(context).apply(stage).data
    assert found.tolist() == Exact().apply(stage).data.tolist() == [11, 7, -1, -1]


def test_a_refusal_crosses_processes_whole() -> None:
    error = pickle.loads(pickle.dumps(NativeError("SHAPE", "linear: x has 3 values")))
    assert (error.status, error.text, str(error)) == ("SHAPE", "linear: x has 3 values", "linear: x has 3 values [SHAPE]")
