"""How an engine sizes a round: verify lengths in its own unit, the block its drafter is fed, what a round publishes.

Source: `specs/dflash-generic.md` sections 3 and 12, `specs/muse-glimmer.md` 3.5 and 6.1, `specs/qwen38-flash-next.md` 3.4 and 5.1,
`specs/laguna.md` 5.1.
"""

from __future__ import annotations

from dataclasses import dataclass

from oracle.drafters.dialect import Dialect, Geometry

UNITS = ("drafts", "candidates", "rows")


class ScheduleError(ValueError):
    """A verify length that the engine does not have."""


@dataclass(frozen=True)
class Schedule:
    """One engine's rounds. ``greedy_only``: a sampled request is refused, or decoded without the drafter.

    ``unit``: what its verify length counts: ``drafts`` or ``candidates`` (a window has one row more) or ``rows`` of the window.
    ``lengths``: the allowed ones, None for 1 draft up to what the drafter's block gives. ``narrows``: the block is as wide as the
    window; else the drafter is always fed its whole block and only the reading is cut. ``publishes``: the ``picks`` of a round (accepted
    drafts and bonus) or its ``window`` (the anchor and the accepted drafts: the bonus is the next round's seed).
    """

    name: str
    unit: str
    lengths: tuple[int, ...] | None
    narrows: bool
    publishes: str
    layout: str | None = None
    greedy_only: bool = False

    def drafts(self, length: int, g: Geometry | None = None) -> int:
        """Drafts of a window of verify length ``length``. `ScheduleError` for a length that this engine, or the drafter, has not."""
        count = length - 1 if self.unit == "rows" else length
        most = None if g is None else self.most(g)
        if (self.lengths is not None and length not in self.lengths) or count < 1 or (most is not None and count > most):
            allowed = self.lengths or tuple(n + (self.unit == "rows") for n in range(1, (most or 0) + 1))
            told = ", ".join(map(str, allowed)) if len(allowed) < 8 else f"{allowed[0]} to {allowed[-1]}"
            raise ScheduleError(f"verify length {length}: {self.name} takes {told or 'at least one draft'} {self.unit}")
        return count

    def most(self, g: Geometry) -> int:
        """The most drafts that one block of this drafter gives."""
        return g.block_size if self.layout == "predict_next" else g.block_size - 1

    def block_rows(self, drafts: int, g: Geometry) -> int:
        """Rows the drafter is fed for ``drafts`` drafts: the anchor and masks."""
        if not self.narrows:
            return g.block_size
        return drafts if self.layout == "predict_next" else drafts + 1


SCHEDULES = {
    s.name: s
    for s in (
        Schedule("z-lab", "rows", None, True, "picks", "fill_in"),
        Schedule("transformers", "rows", None, False, "picks", "fill_in"),
        Schedule("llama.cpp", "drafts", None, True, "picks", "fill_in"),
        Schedule("muser", "drafts", (3, 7, 15), False, "window", "fill_in"),
        Schedule("strata", "candidates", tuple(range(1, 8)), True, "picks", "predict_next", True),
        Schedule("mlxcel", "rows", None, True, "picks", "fill_in", True),
    )
}
BY_FAMILY = {"muse-glimmer": "muser", "qwen38-flash-next": "strata", "laguna": "mlxcel", "qwen3": "z-lab"}


def schedule_of(family: str, dialect: Dialect | None = None) -> Schedule:
    """The engine that the lab's chapter on this family describes; a DeepSpec layout of another family is scheduled as Strata does."""
    if dialect is not None and dialect.anchor_layout == "predict_next":
        return SCHEDULES["strata"]
    return SCHEDULES[BY_FAMILY.get(family, "z-lab")]
