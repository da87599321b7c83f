"""Mistakes of the round loop, each one step of a `Session` replaced: planted to see them found, and tried as explanations of a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from oracle.models import Target, WindowResult
from oracle.speculation.caches import LayeredCache, Slots, TargetCache, layer_windows
from oracle.speculation.rounds import Session
from oracle.speculation.verification import Verified
from parity.errors import UsageError


class WindowZeros(Session):
    """The window is filled with token 0 instead of the proposals."""

    def window(self, drafts: Sequence[int]) -> list[int]:
        return [self.tokens[-1], *(0 for _ in drafts)]


class WindowSlot(Session):
    """Proposals enter the window one slot early: the first one is lost, the last slot repeats the last."""

    def window(self, drafts: Sequence[int]) -> list[int]:
        return super().window([*drafts[1:], *drafts[-1:]])


class BonusByValue(Session):
    """The bonus row is found by the value of the last accepted token: with a repeated token, an earlier row."""

    def verify(self, window: Sequence[int], out: WindowResult) -> Verified:
        made = super().verify(window, out)
        row = list(window).index(window[made.accepted])
        return made if row == made.accepted else Verified(made.accepted, self.judge.first(out.logits[row]))


class ContextProposals(Session):
    """The features of the proposal rows become context, not those of the committed ones: one row late."""

    def context_rows(self, kept: int) -> list[int]:
        last = self.window_rows - 1
        return [min(i + 1, last) for i in range(kept)]


class CropOffByOne(Session):
    """One rejected row stays in the target's cache."""

    def roll_back(self, kept: int) -> None:
        super().roll_back(min(kept + 1, self.window_rows))


class ContextFirstLast(Session):
    """Only the last prompt row becomes context before the first round, and all later rows follow it directly."""

    def first_context(self, rows: int) -> list[int]:
        return [rows - 1]

    def first_start(self, rows: Sequence[int]) -> int:
        return 0

    def context_start(self, position: int) -> int:
        return self.drafting.length or position


class ProposalsRow(Session):
    """Drafts are read one row off: the anchor layout taken for the other one."""

    def propose(self, drafts: int) -> Any:
        made = super().propose(drafts)
        shifted = (*made.drafts[1:], *made.drafts[-1:])
        return type(made)(shifted, made.block, made.logits, made.target_ids)


class WrongRing(LayeredCache):
    """Rows that a block overwrote are put back into the next sliding layer's ring."""

    def __init__(self, target: Target, rows: int) -> None:
        super().__init__(layer_windows(target), "saving-ring", rows)

    def commit(self, kept: int) -> None:
        rings = [x for x in self.layers if isinstance(x, Slots) and x.capacity is not None]
        saved = [x._saved for x in rings]
        for ring, other in zip(rings, saved[1:] + saved[:1], strict=True):
            if other and ring._saved and other[0].shape == ring._saved[0].shape:
                ring._saved = other
        super().commit(kept)


class NoRollback(LayeredCache):
    """Lengths are taken back, the rows that a block overwrote are not."""

    def __init__(self, target: Target, rows: int) -> None:
        super().__init__(layer_windows(target), "ring-without-slack", rows)


class CropCache(LayeredCache):
    """`CropOffByOne` without a session: one row more than asked is kept."""

    def __init__(self, target: Target, rows: int) -> None:
        super().__init__(layer_windows(target), "dense", rows)
        self._rows = 0

    def begin(self, rows: int) -> None:
        self._rows = rows
        super().begin(rows)

    def commit(self, kept: int) -> None:
        super().commit(min(kept + 1, self._rows))


@dataclass(frozen=True)
class Bug:
    """``check``: the check of `checks` that names it; ``session`` or ``cache`` carries it. ``drafts``: it changes what is proposed."""

    name: str
    about: str
    check: str
    session: type[Session] | None = None
    cache: Callable[[Target, int], TargetCache] | None = None
    drafts: bool = False

    def possible(self, target: Target) -> bool:
        """Whether this target has what the bug acts on."""
        if self.cache is None:
            return True
        sliding = sum(w is not None for w in layer_windows(target))
        return sliding >= (2 if self.name == "rollback.ring" else 1)


BUGS = {
    b.name: b
    for b in (
        Bug("window.zeros", "the verify window is filled with token 0", "window.filled", WindowZeros),
        Bug("window.slot", "proposals sit one slot early in the verify window", "window.slot", WindowSlot),
        Bug("bonus.by-value", "the bonus row is found by the last accepted token's value", "bonus", BonusByValue),
        Bug("context.proposals", "the context is given the proposal rows", "context.rows", ContextProposals, drafts=True),
        Bug("context.first", "only the last prompt row becomes context", "context.first", ContextFirstLast, drafts=True),
        Bug("crop.off-by-one", "one rejected row stays in the target's cache", "crop", CropOffByOne),
        Bug("proposals.row", "drafts are read one row off", "proposals", ProposalsRow, drafts=True),
        Bug("rollback.ring", "overwritten rows are put back into another layer's ring", "rollback", None, WrongRing),
        Bug("rollback.none", "overwritten rows of a ring are not put back", "rollback", None, NoRollback),
    )
}


def bug(name: str, target: Target) -> Bug:
    """`UsageError` for an unknown bug, or one that this target has nothing for."""
    if name not in BUGS:
        raise UsageError(f"--plant {name}: expected one of {', '.join(BUGS)}")
    if not BUGS[name].possible(target):
        need = "two sliding layers" if name == "rollback.ring" else "a sliding layer"
        raise UsageError(
            f"--plant {name}: needs {need}, this {target.geometry.family} target's layers have windows {layer_windows(target)}"
        )
    return BUGS[name]
