"""A drafter inside a compiled library: it proposes, ends greedy rounds and keeps its context itself (`dlab.h`, fused drafter)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oracle.models import Drafter, WindowResult
from oracle.speculation.drafting import ModelDrafter, Proposal
from oracle.speculation.judging import Greedy
from oracle.speculation.rounds import Session
from oracle.speculation.schedules import Schedule
from oracle.speculation.verification import Verified
from oracle.tensor import Array
from oracle.weights import Weight
from parity.native_drafter import fused_config, fused_weights, known

if TYPE_CHECKING:
    from native import Context


class NativeGreedy(Greedy):
    """The target's argmax and the accept rule, both as a library does them."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def first(self, logits: Array) -> int:
        return int(self._picks(logits[None])[0])

    def verify(self, drafts: Sequence[int], logits: Array) -> Verified:
        return Verified(*self.context.accept(np.asarray(drafts, np.int32), self._picks(logits)))

    def _picks(self, logits: Array) -> NDArray[np.int32]:
        return np.ascontiguousarray(self.context.top2(np.ascontiguousarray(logits, np.float32))[0][:, 0])


class FusedDrafter(ModelDrafter):
    """``drafter`` as the library of ``context`` runs it: append, propose, verify, truncate are its own."""

    def __init__(self, context: Context, drafter: Drafter, embedding: Weight, head: Weight, schedule: Schedule) -> None:
        super().__init__(drafter, embedding, head, schedule)
        config = known(fused_config(drafter), context.abi)
        self.library = context.drafter(config, fused_weights(drafter, embedding, head))
        self._length = 0
        self._verified: tuple[int, NDArray[np.float32]] | None = None

    @property
    def length(self) -> int:
        return self._length

    def propose(self, tokens: Sequence[int], drafts: int) -> Proposal:
        ids = self.block(tokens, drafts)
        block = self.library.propose(np.array(ids, np.int32), len(tokens) - 1)
        assert block.logits is not None
        chosen = self.library.drafts()[0] if "drafter_drafts" in self.library.entries else block.ids[self.first :]
        logits = block.logits[self.first : self.first + drafts].astype(np.float64)
        return self.proposal(tokens, ids, chosen[:drafts], logits)

    def verify(self, drafts: Sequence[int], out: WindowResult, position: int) -> Verified:
        """One call: the target's argmax, the accept rule, and the accepted rows become context from ``position`` on, the anchor's."""
        features = np.ascontiguousarray(out.features, np.float32)
        logits = np.ascontiguousarray(out.logits, np.float32)
        _, accepted, bonus = self.library.verify(np.asarray(drafts, np.int32), logits, features, position)
        self._length = position + accepted + 1
        self._verified = (position, features[: accepted + 1])
        return Verified(accepted, bonus)

    def commit(self, features: Array, start: int) -> None:
        """What `verify` has committed is only cut; any other rows are appended, in place of its own."""
        rows = np.ascontiguousarray(features, np.float32)
        verified, self._verified = self._verified, None
        if verified and verified[0] == start and np.array_equal(verified[1][: len(rows)], rows):
            self.library.truncate(start + len(rows))
        else:
            self.library.append(rows, start)
        self._length = start + len(rows)

    def saved(self) -> Any:
        return self._length

    def give_back(self, saved: Any) -> None:
        """A ring that has evicted rows since gives back what it still has of them."""
        self.library.truncate(saved)
        self._length, self._verified = saved, None

    def held(self) -> tuple[NDArray[np.int64], list[tuple[Array, Array]]]:
        layers = [self.library.context(i) for i in range(self.drafter.geometry.layers)]
        return layers[0][2], [(k.astype(np.float64), v.astype(np.float64)) for k, v, _ in layers]


class FusedSession(Session):
    """A session whose greedy rounds end in the library: one call for argmax, accept and context."""

    def verify(self, window: Sequence[int], out: WindowResult) -> Verified:
        assert isinstance(self.drafting, FusedDrafter)
        return self.drafting.verify(window[1:], out, self.context_start(len(self.tokens) - 1))
