"""to_target: token ids of a reduced draft vocabulary as the target's ids (`specs/dflash-generic.md` 11)."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracle.arithmetic import Arithmetic
from oracle.kit import Kit, Values
from oracle.ops.base import Array, Operation, Tensor, Variance, axes_of_first, shape_of_first
from oracle.ops.open_choices import chosen


def formula(F: Kit, ids: Values, target_ids: Any) -> Values:
    """ids [row] of the draft vocabulary, target_ids int64 [draft vocab] (absolute) -> target ids [row]; -1 stays no token."""
    index = np.nan_to_num(ids, nan=-1, posinf=-1, neginf=-1).astype(np.int64)
    inside = (index >= 0) & (index < len(target_ids))
    return np.where(inside, target_ids[np.where(inside, index, 0)], -1).astype(F.dtype)


def noise(A: Arithmetic, y: Array, ids: Tensor, target_ids: Any) -> Variance:
    return Variance(chosen(ids, y.shape), 0.0)


to_target = Operation("to_target", "structural", axes_of_first, shape_of_first, formula, noise)
