"""Gates that stop speculating where it does not pay: Muser's windowed gate, and the one-way latch that it replaced.

Source: `specs/muse-glimmer.md` 6.3 (constants, state machine), 6.4 b (a verify length that cannot close it), section 9 row 2 (the latch).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WINDOW, WARM_UP, PROPOSALS, FLOOR = 8, 2, 32, 0.25
COOLDOWN, MOST_DOUBLINGS, LONGEST = 64, 3, 512


@dataclass
class WindowedGate:
    """Closes when fewer than a quarter of the last 8 rounds' drafts were accepted; opens again after a cooldown that doubles.

    ``update`` after every speculative round, ``fallback(committed)`` before every round: True means decode plainly. ``committed`` counts
    tokens. ``floor_round``: rounds before it are forgotten. ``closed_at``: tokens committed at every closing.
    """

    rounds: list[tuple[int, int]] = field(default_factory=list)
    closed: bool = False
    requalify_at: int = 0
    floor_round: int = 0
    closed_at: list[int] = field(default_factory=list)

    def acceptance(self) -> float | None:
        """Accepted over drafted in the window; None below 32 proposals."""
        recent = self.rounds[max(len(self.rounds) - WINDOW, self.floor_round) :]
        drafted = sum(d for d, _ in recent)
        return None if not recent or drafted < PROPOSALS else sum(a for _, a in recent) / drafted

    def update(self, drafted: int, accepted: int, committed: int) -> None:
        if self.closed:
            return
        self.rounds.append((drafted, accepted))
        now = self.acceptance()
        if len(self.rounds) <= WARM_UP or now is None or now >= FLOOR:
            return
        self.closed = True
        self.closed_at.append(committed)
        self.requalify_at = committed + min(COOLDOWN << min(len(self.closed_at) - 1, MOST_DOUBLINGS), LONGEST)

    def fallback(self, committed: int) -> bool:
        if self.closed and committed >= self.requalify_at:
            self.closed, self.floor_round = False, len(self.rounds)
        return self.closed

    def mark(self) -> Any:
        return list(self.rounds), self.closed, self.requalify_at, self.floor_round, list(self.closed_at)

    def restore(self, mark: Any) -> None:
        rounds, self.closed, self.requalify_at, self.floor_round, closed_at = mark
        self.rounds, self.closed_at = list(rounds), list(closed_at)


@dataclass
class LatchGate:
    """Closes for good when the request's cumulative acceptance falls below the floor: while it is closed nothing can raise it."""

    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    closed: bool = False
    closed_at: list[int] = field(default_factory=list)

    def update(self, drafted: int, accepted: int, committed: int) -> None:
        if self.closed:
            return
        self.rounds, self.drafted, self.accepted = self.rounds + 1, self.drafted + drafted, self.accepted + accepted
        if self.rounds > WARM_UP and self.drafted >= PROPOSALS and self.accepted < FLOOR * self.drafted:
            self.closed = True
            self.closed_at.append(committed)

    def fallback(self, committed: int) -> bool:
        return self.closed

    def mark(self) -> Any:
        return self.drafted, self.accepted, self.rounds, self.closed, list(self.closed_at)

    def restore(self, mark: Any) -> None:
        self.drafted, self.accepted, self.rounds, self.closed, closed_at = mark
        self.closed_at = list(closed_at)


GATES = {"windowed": WindowedGate, "latch": LatchGate}


def finding(drafts: int) -> str | None:
    """What the geometry alone says of a windowed gate over rounds of ``drafts`` drafts; None where it can close."""
    most = WINDOW * drafts
    if most >= PROPOSALS:
        return None
    told = f"{WINDOW} rounds of {drafts} drafts are {most}, fewer than the {PROPOSALS} it asks for"
    return f"verify length {drafts}: the gate can never close, {told}"
