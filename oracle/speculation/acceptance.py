"""Acceptance as three engines count it, and a drafter's accuracy along a reference it does not steer.

Source: `specs/muse-glimmer.md` 6.2, `specs/qwen38-flash-next.md` section 9, `specs/laguna.md` 5.1, 5.2 and 6.3. The numbers of two engines
are compared only after recounting both traces by one definition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from oracle.models import Drafter, Target
from oracle.speculation.drafting import ModelDrafter
from oracle.speculation.schedules import Schedule
from oracle.speculation.trace import RoundRecord


class Counted(Protocol):
    """What is counted of a round."""

    @property
    def fallback(self) -> bool: ...

    @property
    def proposals(self) -> Sequence[int]: ...

    @property
    def window(self) -> Sequence[int]: ...

    @property
    def accepted(self) -> int: ...

    @property
    def kept(self) -> int: ...


class Rounds(Protocol):
    """A trace, as far as counting goes."""

    @property
    def rounds(self) -> Sequence[Counted]: ...


@dataclass(frozen=True)
class Acceptance:
    """``rate``: accepted / drafted; ``tokens_per_round``: as the engine prints it. None where nothing was counted."""

    engine: str
    rounds: int
    drafted: int
    accepted: int
    tokens: int

    @property
    def rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_round(self) -> float | None:
        return self.tokens / self.rounds if self.rounds else None


def muser(trace: Rounds) -> Acceptance:
    """Speculative rounds only; drafts before the stop cut; committed tokens: the seed and the accepted drafts, no bonus."""
    spoken = [r for r in trace.rounds if not r.fallback]
    accepted = sum(r.accepted for r in spoken)
    return Acceptance("muser", len(spoken), sum(len(r.proposals) for r in spoken), accepted, sum(r.kept for r in spoken))


def strata(trace: Rounds) -> Acceptance:
    """Every verify window is a round, the bootstrap window of the last prompt token too; a round's tokens are accepted + 1, uncut."""
    rounds, accepted = 1 + len(trace.rounds), sum(r.accepted for r in trace.rounds)
    return Acceptance("strata", rounds, sum(len(r.window) - 1 for r in trace.rounds), accepted, accepted + rounds)


def mlxcel(trace: Rounds) -> Acceptance:
    """Rounds of the loop; accepted before the budget cut; tokens: accepted drafts and one bonus per round, without the first token."""
    accepted = sum(r.accepted for r in trace.rounds)
    return Acceptance("mlxcel", len(trace.rounds), sum(len(r.window) - 1 for r in trace.rounds), accepted, accepted + len(trace.rounds))


DEFINITIONS: dict[str, Callable[[Rounds], Acceptance]] = {"muser": muser, "strata": strata, "mlxcel": mlxcel}


def counts(trace: Rounds) -> list[dict[str, Any]]:
    """Every definition's figures, as plain values."""
    made = (count(trace) for count in DEFINITIONS.values())
    return [asdict(a) | {"rate": a.rate, "tokens_per_round": a.tokens_per_round} for a in made]


def differences(trace: Rounds) -> list[str]:
    """Why the definitions disagree on this trace, one line each."""
    fallback = sum(r.fallback for r in trace.rounds)
    cut = sum(len(r.proposals) - (len(r.window) - 1) for r in trace.rounds)
    lost = sum(r.accepted + 1 - r.kept for r in trace.rounds)
    told = ["strata counts the bootstrap window as a round without drafts, muser and mlxcel do not"]
    if fallback:
        told.append(f"{fallback} plain decodes while the gate was closed are rounds for strata and mlxcel, not for muser")
    if cut:
        told.append(f"{cut} drafts behind a stop token are drafted for muser, not for strata and mlxcel")
    if lost:
        told.append(f"{lost} tokens were cut at the budget or a stop: strata and mlxcel count them, muser does not")
    return told


@dataclass(frozen=True)
class Shadow:
    """Accuracy of a drafter along a reference path: every round continues the reference, whatever was proposed.

    ``hits [draft]``: rounds in which draft i was right, whatever came before it; ``prefixes``: per round, how many were right from the
    first on. Not loop acceptance, whose rounds start where the last draft missed.
    """

    hits: tuple[int, ...]
    prefixes: tuple[int, ...]

    @property
    def rounds(self) -> int:
        return len(self.prefixes)

    @property
    def rates(self) -> tuple[float, ...]:
        return tuple(h / self.rounds for h in self.hits)

    @property
    def survival(self) -> tuple[float, ...]:
        """Share of rounds whose first i + 1 drafts were all right; their sum is `mean_prefix`."""
        return tuple(sum(p > i for p in self.prefixes) / self.rounds for i in range(len(self.hits)))

    @property
    def mean_prefix(self) -> float:
        return sum(self.prefixes) / self.rounds


def shadow_of(proposed: Sequence[Sequence[int]], reference: Sequence[Sequence[int]]) -> Shadow:
    """From the proposals and the true tokens of every round, equally many in all rounds. ValueError for none or ragged ones."""
    right = np.asarray(proposed) == np.asarray(reference)
    if right.ndim != 2 or not right.size:
        raise ValueError("a shadow needs at least one round, all with equally many drafts")
    return Shadow(tuple(int(h) for h in right.sum(0)), tuple(int(p) for p in np.cumprod(right, 1).sum(1)))


def shadow(target: Target, drafter: Drafter, schedule: Schedule, prompt: Sequence[int], reference: Sequence[int], drafts: int) -> Shadow:
    """Run ``drafter`` beside the target along ``prompt`` and ``reference``, its continuation: drafts and bonus advance in every round."""
    model = ModelDrafter(drafter, target.embedding, target.head, schedule)
    whole = [*prompt, *reference]
    features = target.window(whole[:-1], taps=drafter.tap_ids).features
    proposed, true, position = [], [], len(prompt)
    done = 0
    while position + 1 + drafts <= len(whole):
        model.commit(features[done:position], done)
        done = position
        proposed.append(model.propose(whole[: position + 1], drafts).drafts)
        true.append(whole[position + 1 : position + 1 + drafts])
        position += drafts + 1
    return shadow_of(proposed, true)


def accepted_lengths(rounds: Sequence[RoundRecord]) -> list[int]:
    """Accepted drafts of every speculative round."""
    return [r.accepted for r in rounds if not r.fallback]
