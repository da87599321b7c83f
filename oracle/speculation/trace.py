"""What a session did, round by round, as lines of JSON: enough to check every step and to run it again (`docs/round-trace.md`)."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from oracle.tensor import Array

SCHEMA = "dflash-rounds/1"
RECORDABLE = ("taps", "logits")


@dataclass(frozen=True)
class Header:
    """What does not change: who drafted and decided, in which sizes, after which prompt.

    ``context_rows``: the prompt rows whose features the drafter was given before the first round, by position; ``context_start``: the
    position it was given for the first of them. ``chooser``: what makes drafts of the drafter's logits, ``argmax`` or the name of a head.
    ``identity``: SHA-256 by file name of ``target`` and ``drafter``.
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
    context_start: int = 0
    chooser: str = "argmax"
    stops: tuple[int, ...] = ()
    cache: str = "dense"
    geometry: dict[str, Any] = field(default_factory=dict)
    identity: dict[str, dict[str, str]] = field(default_factory=dict)
    schema: str = SCHEMA


@dataclass(frozen=True)
class RoundRecord:
    """One round. ``position``: the anchor's; the window's row j is at ``position + j``.

    ``block``: ids fed to the drafter; ``proposals``: what it proposed; ``window``: ids the target verified; ``picks``: its choice after
    every row; ``accepted`` drafts and the ``bonus``; ``emitted``: what was published; ``kept``: rows committed to the target's cache;
    ``context``: rows of the window whose features became context, from position ``context_start`` on; ``target_rows``: what each layer's
    cache counts afterwards, ``draft_rows`` the drafter's context; ``drawn``: raw draws so far; ``fallback``: a plain decode while the
    gate was closed. Written only when asked for: ``draft_logits`` [draft, vocab] and ``target_logits`` [row, vocab]; ``taps``
    [row, taps * target hidden], the features that became context.
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
    taps: Array | None = field(default=None, compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.compare}


@dataclass
class Trace:
    """A header and its rounds; ``tokens``: everything known at the end, prompt included.

    ``taps`` [row, taps * target hidden]: the features of the prompt that became context. ``draft_ids`` [draft vocab]: the target's ids
    of a reduced draft vocabulary.
    """

    header: Header
    rounds: list[RoundRecord] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    taps: Array | None = None
    draft_ids: Any = None

    def lines(self, record: Collection[str] = ()) -> str:
        """JSON lines: the header, then a line per round. ``record``: which of `RECORDABLE` to write too, every number in full."""
        head = asdict(self.header) | ({"taps": _rows(self.taps)} if "taps" in record and self.taps is not None else {})
        return "".join(json.dumps(line) + "\n" for line in [head, *(r.to_json() | self._more(r, record) for r in self.rounds)])

    def _more(self, r: RoundRecord, record: Collection[str]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if "taps" in record and r.taps is not None:
            made["taps"] = _rows(r.taps)
        if "logits" in record:
            made["target_logits"] = None if r.target_logits is None else _rows(r.target_logits)
            rows = None if r.draft_logits is None else _rows(r.draft_logits)
            ids = None if self.draft_ids is None else [int(i) for i in self.draft_ids]
            made["draft_logits"] = rows if rows is None or ids is None else [{"ids": ids, "logits": row} for row in rows]
        return made

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


def _rows(x: Array) -> list[list[float]]:
    return [[float(v) for v in row] for row in x]
