"""What a session did, round by round, as lines of JSON: enough to check every step and to run it again (`docs/round-trace.md`)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from oracle.tensor import Array

SCHEMA = "dflash-rounds/1"


@dataclass(frozen=True)
class Header:
    """What does not change: who drafted and decided, in which sizes, after which prompt.

    ``context_rows``: the prompt rows whose features the drafter was given before the first round, by position.
    """

    family: str
    schedule: str
    layout: str
    drafter: str
    judge: str
    verify_length: int
    drafts: int
    block_size: int
    mask: int | None
    prompt: tuple[int, ...]
    first: int
    max_new: int
    context_rows: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()
    cache: str = "dense"
    geometry: dict[str, Any] = field(default_factory=dict)
    schema: str = SCHEMA


@dataclass(frozen=True)
class RoundRecord:
    """One round. ``position``: the anchor's; the window's row j is at ``position + j``.

    ``block``: ids fed to the drafter; ``proposals``: what it proposed; ``window``: ids the target verified; ``picks``: its choice after
    every row; ``accepted`` drafts and the ``bonus``; ``emitted``: what was published; ``kept``: rows committed to the target's cache;
    ``context``: rows of the window whose features became context, from position ``context_start`` on; ``target_rows``: what each layer's
    cache counts afterwards, ``draft_rows`` the drafter's context; ``drawn``: raw draws so far; ``fallback``: a plain decode while the
    gate was closed. ``draft_logits`` [draft, vocab] and ``target_logits`` [row, vocab] are kept in memory only.
    """

    round: int
    position: int
    anchor: int
    block: tuple[int, ...]
    proposals: tuple[int, ...]
    window: tuple[int, ...]
    picks: tuple[int, ...]
    accepted: int
    bonus: int
    emitted: tuple[int, ...]
    kept: int
    context_start: int
    context: tuple[int, ...]
    target_rows: tuple[int, ...]
    draft_rows: int
    drawn: int = 0
    fallback: bool = False
    draft_logits: Array | None = field(default=None, compare=False, repr=False)
    target_logits: Array | None = field(default=None, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if not f.name.endswith("_logits")}


@dataclass
class Trace:
    """A header and its rounds; ``tokens``: everything known at the end, prompt included."""

    header: Header
    rounds: list[RoundRecord] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)

    def lines(self) -> str:
        """JSON lines: the header, then a line per round."""
        return "".join(json.dumps(line) + "\n" for line in [asdict(self.header), *(r.to_json() for r in self.rounds)])

    def difference(self, other: Trace) -> str | None:
        """The first thing in which two traces differ, or None."""
        for f in fields(Header):
            if getattr(self.header, f.name) != getattr(other.header, f.name):
                return f"header {f.name}: {getattr(self.header, f.name)} and {getattr(other.header, f.name)}"
        for a, b in zip(self.rounds, other.rounds, strict=False):
            for f in fields(RoundRecord):
                if f.compare and getattr(a, f.name) != getattr(b, f.name):
                    return f"round {a.round} {f.name}: {getattr(a, f.name)} and {getattr(b, f.name)}"
        if len(self.rounds) != len(other.rounds):
            return f"{len(self.rounds)} rounds and {len(other.rounds)}"
        return None
