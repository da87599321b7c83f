"""`parity probe law`: is a verification rule lossless? Its output law, computed over every random stream, against the target's own.

The models are tiny tables of fractions, drawn from a seed, with zeros among them: a rule that is lossless is so for every pair of laws.
"""

from __future__ import annotations

import importlib
import zlib
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from typing import Any

from oracle.speculation.output_law import Break, Model, Tokens, judge
from oracle.speculation.verification import RULES, Rule, from_draft
from parity.errors import UsageError
from parity.report import EXIT, plain

SCHEMA = "dflash-parity-law/1"


@dataclass(frozen=True)
class Judged:
    """``first``: where the law breaks first, of all pairs of models the earliest and largest; ``broken`` of ``pairs`` pairs."""

    rule: str
    claims: bool
    source: str
    pairs: int
    broken: int
    first: Break | None

    @property
    def lossless(self) -> bool:
        return not self.broken


@dataclass(frozen=True)
class LawReport:
    """``verdict``: divergence where a rule that claims to be lossless is not."""

    vocab: int
    drafts: int
    tokens: int
    rules: list[Judged] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return "divergence" if any(r.claims and r.broken for r in self.rules) else "parity"

    @property
    def exit_status(self) -> int:
        return EXIT[self.verdict]

    def to_json(self) -> dict[str, Any]:
        body = {"schema": SCHEMA, "verdict": self.verdict, "exit_status": self.exit_status}
        rules = [asdict(r) | {"lossless": r.lossless, "first": _plain(r.first)} for r in self.rules]
        out: dict[str, Any] = plain(body | asdict(self) | {"rules": rules})
        return out


def _plain(b: Break | None) -> dict[str, Any] | None:
    if b is None:
        return None
    return asdict(b) | {n: str(getattr(b, n)) for n in ("found", "expected", "distance")}


def table(seed: int, vocab: int) -> Model:
    """A law of fractions per prefix, with zeros among its probabilities."""

    def row(prefix: Tokens) -> list[Fraction]:
        weights = [zlib.crc32(repr((seed, prefix, i)).encode()) % 5 for i in range(vocab)]
        weights[zlib.crc32(repr((seed, prefix)).encode()) % vocab] += 1
        return [Fraction(w, sum(weights)) for w in weights]

    return row


def rules(spec: str) -> list[Rule]:
    """``all``, a name of `RULES`, or ``module:attribute``: a `Rule`, or a verify function over drafts drawn from the draft's law."""
    if spec == "all":
        return list(RULES.values())
    if spec in RULES:
        return [RULES[spec]]
    module, _, attribute = spec.partition(":")
    if not attribute:
        raise UsageError(f"--rule {spec}: expected all, module:attribute, or one of {', '.join(RULES)}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as e:
        raise UsageError(f"--rule {spec}: {e}") from None
    if isinstance(found, Rule):
        return [found]
    if not callable(found):
        raise UsageError(f"--rule {spec}: expected a rule or a function verify(coins, drafts, q, p)")
    return [Rule(spec, True, "given", found, from_draft)]


def law(chosen: list[Rule], vocab: int = 3, drafts: int = 2, tokens: int = 3, pairs: int = 4, seed: int = 0) -> LawReport:
    """Judge each rule on ``pairs`` pairs of models. `UsageError` where a rule itself raises, or where there is too much to enumerate."""
    report = LawReport(vocab, drafts, tokens)
    for rule in chosen:
        breaks = []
        for i in range(pairs):
            try:
                breaks.append(judge(rule, table(seed + 2 * i, vocab), table(seed + 2 * i + 1, vocab), drafts, tokens))
            except Exception as e:
                raise UsageError(f"rule {rule.name}: {type(e).__name__}: {e}") from None
        wrong = [b for b in breaks if b is not None]
        first = min(wrong, key=lambda b: (b.position, -b.distance), default=None)
        report.rules.append(Judged(rule.name, rule.lossless, rule.source, pairs, len(wrong), first))
    return report
