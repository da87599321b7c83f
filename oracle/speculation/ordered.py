"""Muser's sampled verification in its float32 arithmetic and order of draws: ``verify_full_speculative_mt_ordered``.

Source: `specs/muse-glimmer.md` 7.2 to 7.4. The law it has in exact arithmetic is the rule ``leviathan`` of `verification`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.speculation.laws import LawError
from oracle.speculation.mt19937 import MT19937
from oracle.speculation.verification import Verified

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class OrderedSampling:
    """Settings in the order they act: top-n-sigma, top-k, typical-p, top-p, min-p, temperature; the defaults do nothing."""

    top_n_sigma: float = 0.0
    top_k: int = 0
    typical_p: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    temperature: float = 1.0
    min_keep: int = 1

    def row(self, logits: Any) -> OrderedRow:
        """The law of one row of float32 logits [vocab]. `LawError` for NaN, +inf or nothing but -inf."""
        raw = np.asarray(logits, np.float32)
        if np.isnan(raw).any() or np.isposinf(raw).any() or not np.isfinite(raw).any():
            raise LawError("logits: expected numbers or -inf and at least one number, found NaN, +inf or only -inf")
        ids: Ids = np.arange(len(raw), dtype=np.int64)
        x = self._sigma(raw)
        if self.top_k > 0:
            ids, x = _sorted(ids, x)
            ids, x = ids[: self.top_k], x[: self.top_k]
        if self.typical_p < 1:
            ids, x = self._typical(ids, x)
        if self.top_p < 1:
            ids, x = _sorted(ids, x)
            ids, x = self._cut(ids, x, np.cumsum(_softmax(x), dtype=np.float32) >= np.float32(self.top_p))
        if self.min_p > 0:
            ids, x = self._min_p(ids, x)
        return _weighted(len(raw), ids, x, self.temperature)

    def _sigma(self, x: Floats) -> Floats:
        if self.top_n_sigma <= 0:
            return x
        finite = x[np.isfinite(x)]
        mean = finite.mean(dtype=np.float32)
        sigma = np.sqrt(np.square(finite - mean).mean(dtype=np.float32))
        return np.where(x < finite.max() - np.float32(self.top_n_sigma) * sigma, np.float32(-np.inf), x)

    def _typical(self, ids: Ids, x: Floats) -> tuple[Ids, Floats]:
        p = _softmax(x)
        logs = np.log(np.where(p > 0, p, np.float32(1)), dtype=np.float32)
        entropy = np.float32(-(p * logs).sum(dtype=np.float32))
        order = np.lexsort((ids, np.where(p > 0, np.abs(-logs - entropy), np.float32(np.inf))))
        ids, x, p = ids[order], x[order], p[order]
        return self._cut(ids, x, np.cumsum(p, dtype=np.float32) > np.float32(self.typical_p))

    def _cut(self, ids: Ids, x: Floats, reached: NDArray[np.bool_]) -> tuple[Ids, Floats]:
        """Up to and with the first entry at which the sum is reached and ``min_keep`` are kept."""
        enough = reached & (np.arange(len(ids)) + 1 >= self.min_keep)
        last = int(enough.argmax()) if enough.any() else len(ids) - 1
        return ids[: last + 1], x[: last + 1]

    def _min_p(self, ids: Ids, x: Floats) -> tuple[Ids, Floats]:
        keep = x >= x.max() + np.log(np.float32(self.min_p), dtype=np.float32)
        if keep.sum() >= self.min_keep:
            return ids[keep], x[keep]
        ids, x = _sorted(ids, x)
        return ids[: self.min_keep], x[: self.min_keep]


@dataclass(frozen=True, eq=False)
class OrderedRow:
    """``probabilities`` and ``weights`` float32 [vocab], 0 outside the candidates; ``order``: their ids as they are walked."""

    probabilities: Floats
    weights: Floats
    order: Ids

    def sample(self, stream: MT19937) -> int:
        """One ordered sample by weights: two raw draws, even of a single candidate."""
        return ordered_sample(self.weights, self.order, stream)


def ordered_sample(weights: Floats, order: Ids, stream: MT19937) -> int:
    """The first id of ``order`` whose running float64 sum reaches uniform_f64 of the total, else the last."""
    sums = np.cumsum(weights[order], dtype=np.float64)
    reached = np.flatnonzero(sums >= stream.uniform_f64() * sums[-1])
    return int(order[reached[0] if len(reached) else -1])


def verify_ordered(drafts: Sequence[int], q: Sequence[Floats], rows: Sequence[OrderedRow], stream: MT19937) -> Verified:
    """``drafts`` against their q (probabilities [vocab] each) and the target's ``rows``, one more than drafts.

    One float32 draw per draft until the first refusal (accept if u <= min(p/q, 1), always where q <= 0), then one ordered sample: of the
    residual in the target's order, or by weights of the last row. All counts are checked before any draw: ValueError.
    """
    if not len(q) == len(drafts) == len(rows) - 1:
        raise ValueError(
            f"{len(drafts)} drafts, {len(q)} draft rows, {len(rows)} target rows: expected as many draft rows, one target row more"
        )
    if len({len(r) for r in q} | {len(r.probabilities) for r in rows}) != 1:
        raise ValueError("draft and target rows are of different vocabularies")
    for i, d in enumerate(drafts):
        p = rows[i].probabilities
        bound = np.float32(1) if q[i][d] <= 0 else min(p[d] / q[i][d], np.float32(1))
        if stream.uniform_f32() <= bound:
            continue
        left = np.maximum(p - q[i], np.float32(0))
        total = np.cumsum(left, dtype=np.float32)[-1]
        r = p if total <= 0 else left / total
        order = rows[i].order
        return Verified(i, ordered_sample(r, order[r[order] > 0], stream))
    return Verified(len(drafts), rows[-1].sample(stream))


def _sorted(ids: Ids, x: Floats) -> tuple[Ids, Floats]:
    order = np.lexsort((ids, -x))
    return ids[order], x[order]


def _softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max(), dtype=np.float32)
    return np.asarray(e / np.cumsum(e, dtype=np.float32)[-1], np.float32)


def _weighted(vocab: int, ids: Ids, x: Floats, temperature: float) -> OrderedRow:
    if temperature <= 0:
        first = int(x.argmax())
        x = np.where(np.arange(len(x)) == first, x, np.float32(-np.inf))
    else:
        x = np.asarray(x / np.float32(temperature), np.float32)
    weights, probabilities = np.zeros(vocab, np.float32), np.zeros(vocab, np.float32)
    w = np.exp(x - x.max(), dtype=np.float32)
    weights[ids] = w
    probabilities[ids] = (w.astype(np.float64) / w.astype(np.float64).sum()).astype(np.float32)
    return OrderedRow(probabilities, weights, ids)
