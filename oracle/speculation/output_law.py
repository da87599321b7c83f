"""The exact law of the tokens that rounds of a rule emit, by enumeration of every random stream, against the target's own law.

A rule is lossless iff both are equal for every target and every draft; the first token at which they are not is what this names
(`specs/dflash-generic.md` section 13).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from oracle.speculation.coins import Coins, Number, outcomes
from oracle.speculation.verification import Drawn, Row, Rule

Tokens = tuple[int, ...]
Model = Callable[[Tokens], Row]
"""The law of the next token after the tokens before it, as a row of probabilities by id."""

Law = dict[Tokens, Number]


@dataclass(frozen=True)
class Break:
    """Where a law breaks first: ``position`` of the token (0-based), the tokens ``before`` it, the ``token`` that is furthest off.

    ``found`` and ``expected``: joint probabilities of ``before`` and ``token``; ``distance``: total variation at that position.
    """

    position: int
    before: Tokens
    token: int
    found: Number
    expected: Number
    distance: Number


def target_law(target: Model, length: int) -> Law:
    """The joint law of the first ``length`` tokens of the target alone."""
    law: Law = {(): 1}
    for _ in range(length):
        law = {(*t, i): w * p for t, w in law.items() for i, p in enumerate(target(t)) if p > 0}
    return law


def round_law(rule: Rule, target: Model, draft: Model, prefix: Tokens, drafts: int) -> Law:
    """The law of the tokens that one round after ``prefix`` emits, accepted drafts and bonus."""

    def play(coins: Coins) -> Tokens:
        q: list[Row] = []
        drawn: list[Drawn] = []
        for _ in range(drafts):
            q.append(draft((*prefix, *(d.token for d in drawn))))
            drawn.append(rule.draft(coins, q[-1]))
        tokens = tuple(d.token for d in drawn)
        out = rule.verify(coins, drawn, q, [target((*prefix, *tokens[:i])) for i in range(drafts + 1)])
        return (*tokens[: out.accepted], out.bonus)

    return outcomes(play)


def output_law(rule: Rule, target: Model, draft: Model, drafts: int, length: int) -> Law:
    """The joint law of the first ``length`` tokens that rounds of ``drafts`` drafts emit; later tokens are summed out."""
    done: Law = {}
    open_: Law = {(): 1}
    while open_:
        prefix, weight = open_.popitem()
        for emitted, w in round_law(rule, target, draft, prefix, drafts).items():
            whole = (*prefix, *emitted)
            if len(whole) >= length:
                done[whole[:length]] = done.get(whole[:length], 0) + weight * w
            else:
                open_[whole] = open_.get(whole, 0) + weight * w
    return done


def marginal(law: Law, length: int) -> Law:
    """The law of the first ``length`` tokens."""
    out: Law = {}
    for tokens, w in law.items():
        out[tokens[:length]] = out.get(tokens[:length], 0) + w
    return out


def first_break(found: Law, expected: Law, tolerance: Number = 0) -> Break | None:
    """The first token whose joint law with those before it differs by more than ``tolerance``; None where the laws are equal."""
    for position in range(max(len(t) for t in expected)):
        a, b = marginal(found, position + 1), marginal(expected, position + 1)
        gaps = {t: abs(a.get(t, 0) - b.get(t, 0)) for t in a.keys() | b.keys()}
        worst = max(sorted(gaps), key=lambda t: gaps[t])
        if gaps[worst] > tolerance:
            return Break(position, worst[:-1], worst[-1], a.get(worst, 0), b.get(worst, 0), sum(gaps.values()) / 2)
    return None


def judge(rule: Rule, target: Model, draft: Model, drafts: int, length: int, tolerance: Number = 0) -> Break | None:
    """The first token at which the rule's output law is not the target's, or None: the rule is lossless for these two models."""
    return first_break(output_law(rule, target, draft, drafts, length), target_law(target, length), tolerance)
