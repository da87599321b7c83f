"""The seed echo: does row 0 of a fill-in block, the anchor's own position, give the anchor back? (`specs/muse-glimmer.md` 3.3, 6.1)

A trained drafter nearly always does. One that does not was conditioned on other features, other positions or another
embedding than it was trained with, which the accepted tokens alone cannot show. It is information, never a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from oracle.drafters.dialect import Dialect
from oracle.drafters.forward import Block


def seed_echo(dialect: Dialect, block: Block, block_ids: Any) -> bool | None:
    """True where argmax(row 0) is the anchor ``block_ids[0]``; None for a layout whose row 0 predicts the next position."""
    if dialect.anchor_layout != "fill_in":
        return None
    return int(block.pick.data[0]) == int(np.asarray(block_ids)[0])


def echo_rate(echoes: Iterable[bool | None]) -> float | None:
    """Share of rounds whose anchor came back, or None without any that could."""
    told = [e for e in echoes if e is not None]
    return sum(told) / len(told) if told else None
