"""Who proposes: a DFlash drafter, a drafter that knows the reference, prompt lookup, chance. All of them only propose.

Source: `specs/laguna.md` 5.4 (the oracle drafter and its forced accept lengths, always by index, never by value).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from oracle.models import Drafter
from oracle.readings import Reading
from oracle.speculation.schedules import Schedule
from oracle.tensor import Array
from oracle.weights import Weight


@dataclass(frozen=True, eq=False)
class Proposal:
    """``drafts``: token ids; ``block``: the ids fed to the drafter, or nothing; ``logits`` [draft, vocab] of the drafted rows or None.

    ``target_ids`` [draft vocab] int64: what a reduced vocabulary's logits stand for.
    """

    drafts: tuple[int, ...]
    block: tuple[int, ...] = ()
    logits: Array | None = None
    target_ids: Any = None


class Drafting(Protocol):
    """One sequence's drafter. ``commit`` takes the features of rows the target has processed and accepted, in order."""

    @property
    def length(self) -> int:
        """Committed rows, 0 where none are kept."""
        ...

    def propose(self, tokens: Sequence[int], drafts: int) -> Proposal:
        """Up to ``drafts`` drafts for the positions after ``tokens``; the last token is the anchor."""
        ...

    def commit(self, features: Array, start: int) -> None: ...

    def mark(self) -> Any:
        """What `restore` needs to undo everything after it."""
        ...

    def restore(self, mark: Any) -> None: ...


class ModelDrafter:
    """A DFlash drafter with its context, fed blocks as ``schedule`` has them, in a reading (default: the oracle).

    ``steer``: whose drafts are sent in place of its own, so that rounds accept what a drafter without training would not.
    """

    steer: OracleDrafter | None = None

    def __init__(self, drafter: Drafter, embedding: Weight, head: Weight, schedule: Schedule, reading: Reading | None = None) -> None:
        self.drafter, self.embedding, self.head, self.schedule = drafter, embedding, head, schedule
        self.context = drafter.new_context(reading)

    @property
    def length(self) -> int:
        return self.context.length

    def propose(self, tokens: Sequence[int], drafts: int) -> Proposal:
        ids = self.block(tokens, drafts)
        block = self.drafter.propose(self.context, ids, self.embedding, self.head, len(tokens) - 1)
        return self.proposal(tokens, ids, block.drafts.data[:drafts], block.logits.data[self.first : self.first + drafts])

    def proposal(self, tokens: Sequence[int], block: tuple[int, ...], drafts: Any, logits: Array) -> Proposal:
        """What is sent of a block's drafts [draft] and their logits [draft, vocab]."""
        sent = self.steer.propose(tokens, len(drafts)).drafts if self.steer else tuple(int(i) for i in drafts)
        return Proposal(sent, block, logits[: len(sent)], self.drafter.weights.target_ids)

    @property
    def chooser(self) -> str:
        """What makes drafts of the logits."""
        return "steered" if self.steer else self.drafter.dialect.chooser

    def block(self, tokens: Sequence[int], drafts: int) -> tuple[int, ...]:
        """Ids fed to the drafter: the anchor and masks."""
        g = self.drafter.geometry
        return (int(tokens[-1]), *[g.mask_token_id] * (self.schedule.block_rows(drafts, g) - 1))

    @property
    def first(self) -> int:
        """The first row of a block that drafts."""
        return 1 if self.drafter.dialect.anchor_layout == "fill_in" else 0

    def held(self) -> tuple[NDArray[np.int64], list[tuple[Array, Array]]]:
        """Positions [cell] of the cells held, and per layer their keys and values [cell, head, dim]."""
        cells = self.context.cells
        return cells.positions, [(k.data, v.data) for k, v in cells.layers]

    def commit(self, features: Array, start: int) -> None:
        self.context.append(features, start)

    def mark(self) -> Any:
        return self.saved(), self.steer.mark() if self.steer else 0

    def restore(self, mark: Any) -> None:
        self.give_back(mark[0])
        if self.steer:
            self.steer.restore(mark[1])

    def saved(self) -> Any:
        """The context, for `give_back`."""
        return replace(self.context.cells, layers=list(self.context.cells.layers))

    def give_back(self, saved: Any) -> None:
        self.context.cells = replace(saved, layers=list(saved.layers))


class Contextless:
    """A drafter that keeps nothing but the round it is in."""

    def __init__(self) -> None:
        self.round = 0

    @property
    def length(self) -> int:
        return 0

    def commit(self, features: Array, start: int) -> None:
        return

    def mark(self) -> Any:
        return self.round

    def restore(self, mark: Any) -> None:
        self.round = mark


class OracleDrafter(Contextless):
    """Proposes the reference, found by index, with one entry spoiled so that round i accepts ``accepts[i]`` drafts (None: all).

    ``reference``: prompt and continuation; beyond its end nothing is proposed. A spoiled token is the next id, modulo ``vocab``.
    """

    def __init__(self, reference: Sequence[int], accepts: Sequence[int | None], vocab: int) -> None:
        super().__init__()
        self.reference, self.accepts, self.vocab = [int(t) for t in reference], tuple(accepts) or (None,), vocab

    def propose(self, tokens: Sequence[int], drafts: int) -> Proposal:
        out = self.reference[len(tokens) : len(tokens) + drafts]
        forced = self.accepts[self.round % len(self.accepts)]
        self.round += 1
        if forced is not None and forced < len(out):
            out[forced] = (out[forced] + 1) % self.vocab
        return Proposal(tuple(out))


class LookupDrafter(Contextless):
    """Prompt lookup: what followed the last time the longest suffix of at most ``longest`` tokens occurred; perhaps nothing."""

    def __init__(self, longest: int = 4) -> None:
        super().__init__()
        self.longest = longest

    def propose(self, tokens: Sequence[int], drafts: int) -> Proposal:
        known = [int(t) for t in tokens]
        for n in range(min(self.longest, len(known) - 1), 0, -1):
            suffix = known[-n:]
            for at in range(len(known) - n - 1, -1, -1):
                if known[at : at + n] == suffix:
                    return Proposal(tuple(known[at + n : at + n + drafts]))
        return Proposal(())


class RandomDrafter(Contextless):
    """Seeded chance: a function of the seed and the position alone."""

    def __init__(self, seed: int, vocab: int) -> None:
        super().__init__()
        self.seed, self.vocab = seed, vocab

    def propose(self, tokens: Sequence[int], drafts: int) -> Proposal:
        return Proposal(tuple(int(i) for i in np.random.default_rng([self.seed, len(tokens)]).integers(0, self.vocab, drafts)))
