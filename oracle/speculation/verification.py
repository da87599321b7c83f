"""How a window of drafts is judged, rule by rule: which drafts the target accepts and which token follows them.

Source: `specs/dflash-generic.md` section 13 (who uses which), `specs/muse-glimmer.md` 7.3. A rule sees the draft's row q_i that each draft
was drawn from and the target's row p_i for the same position, one target row more than drafts. A rule that is *lossless* emits
tokens by the target's law whatever the draft; `output_law` decides, not the label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from oracle.speculation.coins import Coins, Number, draw

Row = Sequence[Number]


@dataclass(frozen=True)
class Verified:
    """``accepted`` drafts, and ``bonus``: the token after them, which the target's law adds in every round."""

    accepted: int
    bonus: int


@dataclass(frozen=True)
class Drawn:
    """A draft with the coin it was drawn by (None for a draft without chance)."""

    token: int
    coin: Any = None


Verify = Callable[[Coins, Sequence[Drawn], Sequence[Row], Sequence[Row]], Verified]


@dataclass(frozen=True)
class Rule:
    """``draft`` draws one draft from q; ``verify(coins, drafts, q [draft][vocab], p [draft + 1][vocab])`` judges them all.

    ``lossless``: what the rule is said to be by those who use it (``source``).
    """

    name: str
    lossless: bool
    source: str
    verify: Verify
    draft: Callable[[Coins, Row], Drawn]


def highest(row: Row) -> int:
    """The lowest index of the largest entry."""
    return max(range(len(row)), key=lambda i: (row[i], -i))


def greedy(drafts: Sequence[int], picks: Sequence[int]) -> Verified:
    """``picks``: the target's choice after every row of the window. Drafts are accepted while they are what the target picked.

    ValueError unless there is one pick more than drafts.
    """
    if len(picks) != len(drafts) + 1:
        raise ValueError(f"{len(picks)} picks for {len(drafts)} drafts: expected one per row of the window, {len(drafts) + 1}")
    accepted = next((i for i, d in enumerate(drafts) if d != picks[i]), len(drafts))
    return Verified(accepted, int(picks[accepted]))


def residual(p: Row, q: Row) -> list[Number]:
    """max(p - q, 0), unnormalised; p itself where nothing is left."""
    left = [max(a - b, 0 * a) for a, b in zip(p, q, strict=True)]
    return left if sum(left) > 0 else list(p)


def without(p: Row, token: int) -> list[Number]:
    """p with ``token`` removed; p itself where nothing else is left."""
    left = [0 * x if i == token else x for i, x in enumerate(p)]
    return left if sum(left) > 0 else list(p)


def from_draft(coins: Coins, q: Row) -> Drawn:
    u = coins.uniform()
    return Drawn(draw(q, u), u)


def best_of_draft(coins: Coins, q: Row) -> Drawn:
    return Drawn(highest(q))


def _run(accept: Callable[..., bool], replace: Callable[..., int]) -> Verify:
    """Draft by draft: ``accept(coins, drawn, q, p)``; a refusal gives ``replace(…)``, none a token of the last row."""

    def verify(coins: Coins, drafts: Sequence[Drawn], q: Sequence[Row], p: Sequence[Row]) -> Verified:
        for i, d in enumerate(drafts):
            if not accept(coins, d, q[i], p[i]):
                return Verified(i, replace(coins, d, q[i], p[i]))
        return Verified(len(drafts), draw(p[len(drafts)], coins.uniform()))

    return verify


def _ratio(p: Number, q: Number) -> Number:
    """p / q, at least 1 where q has nothing: a token that q never draws is not the draft's to refuse."""
    return p / q if q > 0 else 1


def _from_residual(coins: Coins, d: Drawn, q: Row, p: Row) -> int:
    return draw(residual(p, q), coins.uniform())


def _from_target(coins: Coins, d: Drawn, q: Row, p: Row) -> int:
    return draw(p, coins.uniform())


def _judged_by_pick(coins: Coins, drafts: Sequence[Drawn], q: Sequence[Row], p: Sequence[Row]) -> Verified:
    return greedy([d.token for d in drafts], [highest(row) for row in p])


def _target_sample(coins: Coins, drafts: Sequence[Drawn], q: Sequence[Row], p: Sequence[Row]) -> Verified:
    """Sample the target at every row; the sample is what is emitted, accepted or not."""
    return _while_equal(coins, drafts, p, lambda d: coins.uniform())


def _coupled(coins: Coins, drafts: Sequence[Drawn], q: Sequence[Row], p: Sequence[Row]) -> Verified:
    """The same with the coin that drew the draft: equal laws then agree always."""
    return _while_equal(coins, drafts, p, lambda d: d.coin)


def _while_equal(coins: Coins, drafts: Sequence[Drawn], p: Sequence[Row], coin: Callable[[Drawn], Any]) -> Verified:
    for i, d in enumerate(drafts):
        sample = draw(p[i], coin(d))
        if sample != d.token:
            return Verified(i, sample)
    return Verified(len(drafts), draw(p[len(drafts)], coins.uniform()))


def thresholds(single: Number, accumulated: Number) -> Verify:
    """A point-mass draft accepted with p / ``accumulated``, or outright from p = ``single`` on (both 1: the exact rule)."""
    return _run(
        lambda coins, d, q, p: bool(coins.uniform() < p[d.token] / accumulated or p[d.token] >= single),
        lambda coins, d, q, p: draw(without(p, d.token), coins.uniform()),
    )


def _typical(coins: Coins, d: Drawn, q: Row, p: Row) -> bool:
    return bool(p[d.token] * 10 >= 3 * p[highest(p)])


def _floored(coins: Coins, d: Drawn, q: Row, p: Row) -> bool:
    """q never below 1e-9, whatever it is."""
    floor = type(q[d.token])("1e-9")
    return bool(coins.uniform() < p[d.token] / max(q[d.token], floor))


def _leviathan(coins: Coins, d: Drawn, q: Row, p: Row) -> bool:
    return bool(coins.uniform() < _ratio(p[d.token], q[d.token]))


RULES: dict[str, Rule] = {
    r.name: r
    for r in (
        Rule("greedy", False, "all engines at temperature 0; the law of a one-hot target only", _judged_by_pick, best_of_draft),
        Rule("leviathan", True, "z-lab, transformers, Muser (sampled)", _run(_leviathan, _from_residual), from_draft),
        Rule("target-only", True, "llama.cpp, mlx-vlm, transformers without draft logits", _target_sample, from_draft),
        Rule("coupled", True, "one coin draws the draft and the target's own sample", _coupled, from_draft),
        Rule("point-mass", True, "sglang chain verification, both thresholds 1", thresholds(1, 1), best_of_draft),
        Rule("floored-ratio", True, "mlx-dspark: p / max(q, 1e-9)", _run(_floored, _from_residual), from_draft),
        Rule("thresholds", False, "sglang with thresholds below 1", thresholds(Fraction(1, 2), Fraction(1, 2)), best_of_draft),
        Rule(
            "greedy-draft", False, "old z-lab: drafts by argmax, judged as if drawn from q", _run(_leviathan, _from_residual), best_of_draft
        ),
        Rule(
            "target-after-refusal",
            False,
            "naive: a refusal draws from p, not from the residual",
            _run(_leviathan, _from_target),
            from_draft,
        ),
        Rule(
            "equality",
            False,
            "naive: accept what equals a sample of the target, else draw again",
            _run(lambda coins, d, q, p: draw(p, coins.uniform()) == d.token, _from_target),
            from_draft,
        ),
        Rule("typical", False, "accept what is typical enough of the target", _run(_typical, _from_target), from_draft),
        Rule(
            "shared-coin",
            False,
            "one stream for draft and verification: the coin that drew the draft accepts it",
            _run(lambda coins, d, q, p: bool(d.coin < _ratio(p[d.token], q[d.token])), _from_residual),
            from_draft,
        ),
        Rule(
            "shared-noise",
            False,
            "one stream for draft and verification: the coin that drew the draft draws the residual",
            _run(_leviathan, lambda coins, d, q, p: draw(residual(p, q), d.coin)),
            from_draft,
        ),
    )
}
