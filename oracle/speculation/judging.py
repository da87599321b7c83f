"""Who decides a round: the target's argmax, a named rule over sampling laws, or Muser's float32 verification.

All of them draw from one stream in a fixed order: the drafts, then the verification (`specs/muse-glimmer.md` 7.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from oracle.ops.argmax import first_argmax
from oracle.speculation.drafting import Proposal
from oracle.speculation.laws import Sampling
from oracle.speculation.mt19937 import MT19937
from oracle.speculation.ordered import OrderedRow, OrderedSampling, verify_ordered
from oracle.speculation.verification import Drawn, Rule, Verified, greedy
from oracle.tensor import Array


class Judge(Protocol):
    name: str

    def first(self, logits: Array) -> int:
        """The token after a prompt, or of a plain decode: logits [vocab]."""
        ...

    def choose(self, proposal: Proposal, vocab: int) -> tuple[int, ...]:
        """The drafts of a proposal: its own where nothing is sampled."""
        ...

    def verify(self, drafts: Sequence[int], logits: Array) -> Verified:
        """``drafts`` as chosen last, logits [draft + 1, vocab] of the window's rows."""
        ...

    def mark(self) -> Any: ...

    def restore(self, mark: Any) -> None: ...

    @property
    def drawn(self) -> int:
        """Raw draws made so far."""
        ...


class Greedy:
    """Temperature 0: the first largest logit (`specs/dflash-generic.md` section 13)."""

    name = "greedy"
    drawn = 0

    def first(self, logits: Array) -> int:
        return int(first_argmax(logits))

    def choose(self, proposal: Proposal, vocab: int) -> tuple[int, ...]:
        return proposal.drafts

    def verify(self, drafts: Sequence[int], logits: Array) -> Verified:
        return greedy(drafts, [int(i) for i in first_argmax(logits)])

    def mark(self) -> Any:
        return None

    def restore(self, mark: Any) -> None:
        return


def draft_rows(proposal: Proposal, vocab: int) -> Array:
    """Logits of the draft's law [draft, vocab]: its own, widened from a reduced vocabulary; without any, all weight on the draft."""
    if proposal.logits is None:
        rows = np.full((len(proposal.drafts), vocab), -np.inf)
        rows[np.arange(len(rows)), list(proposal.drafts)] = 0.0
        return rows
    if proposal.target_ids is None:
        return proposal.logits
    ids = np.asarray(proposal.target_ids, np.int64)
    rows = np.full((len(proposal.logits), vocab), -np.inf)
    rows[:, ids] = proposal.logits
    return rows


@dataclass
class Sampled:
    """A named rule over ``sampling`` laws of target and draft in float64. ``coins``: a stream, or whatever explores a law."""

    rule: Rule
    sampling: Sampling
    coins: Any
    _last: tuple[list[Drawn], list[list[float]]] = field(default=([], []), repr=False)

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def drawn(self) -> int:
        return int(getattr(self.coins, "drawn", 0))

    def first(self, logits: Array) -> int:
        from oracle.speculation.coins import draw

        return draw(self.sampling.law(logits).tolist(), self.coins.uniform())

    def choose(self, proposal: Proposal, vocab: int) -> tuple[int, ...]:
        q = [self.sampling.law(row).tolist() for row in draft_rows(proposal, vocab)]
        self._last = ([self.rule.draft(self.coins, row) for row in q], q)
        return tuple(d.token for d in self._last[0])

    def verify(self, drafts: Sequence[int], logits: Array) -> Verified:
        drawn, q = self._last
        p = [self.sampling.law(row).tolist() for row in logits]
        return self.rule.verify(self.coins, drawn[: len(drafts)], q[: len(drafts)], p)

    def mark(self) -> Any:
        return self.coins.position() if isinstance(self.coins, MT19937) else None

    def restore(self, mark: Any) -> None:
        if mark is not None:
            self.coins.rewind(mark)


@dataclass
class Ordered:
    """`verify_ordered`: Muser's float32 rows and draws."""

    sampling: OrderedSampling
    stream: MT19937
    _q: list[OrderedRow] = field(default_factory=list, repr=False)
    name: str = "mt-ordered"

    @property
    def drawn(self) -> int:
        return self.stream.drawn

    def first(self, logits: Array) -> int:
        return self.sampling.row(logits).sample(self.stream)

    def choose(self, proposal: Proposal, vocab: int) -> tuple[int, ...]:
        self._q = [self.sampling.row(row) for row in draft_rows(proposal, vocab)]
        return tuple(row.sample(self.stream) for row in self._q)

    def verify(self, drafts: Sequence[int], logits: Array) -> Verified:
        rows = [self.sampling.row(row) for row in logits]
        return verify_ordered(drafts, [r.probabilities for r in self._q[: len(drafts)]], rows, self.stream)

    def mark(self) -> Any:
        return self.stream.position()

    def restore(self, mark: Any) -> None:
        self.stream.rewind(mark)
