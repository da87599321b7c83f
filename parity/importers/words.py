"""16-bit words misread on their way: f16 read as bf16, or bf16 as f16, told by the range the oracle expects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oracle.floats import BF16, F16
from oracle.readings import Exact
from oracle.tensor import Array
from parity.case import Case
from parity.models import run

if TYPE_CHECKING:
    from dumps import Dump, StageRecord
    from parity.importers import Imported

# A drifting but right recording is near the oracle nearly everywhere; a misread one almost nowhere.
NEAR, RIGHT, WRONG = 0.1, 0.9, 0.5


def misread(case: Case, dump: Dump, done: Imported) -> list[str]:
    """One line for every stage whose words, read as the other 16-bit type, are the oracle's values, and as they are, are not."""
    suspects = {(r.step, r.stage): found for r in dump.records() if (found := readings(r))}
    if not suspects:
        return []
    lines: list[str] = []

    def tape(stage: Any, value: Any, reading: Any) -> Any:
        record = dump.get(stage.step, stage.path)
        for text, again in suspects.get(stage.key, ()):
            assert record is not None
            expected = value.data[record.row_ids]
            if near(again, expected) >= RIGHT and near(record.float64(), expected) < WRONG:
                names = ", ".join(done.placed.get(stage.key, ()))
                lines.append(f"{names} ({stage.step}:{stage.path}): {text}; read again they are the oracle's values: repair the recorder")
        return value

    run(case, Exact(), tape)
    return lines


def readings(record: StageRecord) -> list[tuple[str, Array]]:
    """(what happened, the words read the other way) for each 16-bit type that all values of a record fit."""
    if record.dtype not in ("f32", "f16", "bf16") or not record.rows:
        return []
    with np.errstate(all="ignore"):
        values = record.float64()
        found = []
        if BF16.holds(values).all():
            words = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
            found.append(("f16 words were read as bf16", words.view(np.float16).astype(np.float64)))
        if F16.holds(values).all():
            bits = values.astype(np.float16).view(np.uint16).astype(np.uint32) << np.uint32(16)
            found.append(("bf16 words were read as f16", bits.view(np.float32).astype(np.float64)))
        return found


def near(found: Array, expected: Array) -> float:
    """Share of elements that are near the expected ones, on the scale of the stage."""
    if found.shape != expected.shape or not expected.size:
        return 0.0
    with np.errstate(all="ignore"):
        rms = np.sqrt(np.mean(np.square(expected)))
        close: NDArray[np.bool_] = np.abs(found - expected) <= NEAR * (np.abs(expected) + 0.5 * rms)
        return float(close.mean())
