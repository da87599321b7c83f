"""The committed table of the score."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from parity.scoring_calls import Outcome
from parity.scoring_rules import RULES

HEADER = ("planted", "below", "found", "stage exact", "rows and heads exact", "named first", "in the top three", *RULES)
SHOWN = 12


def counts(outcomes: Iterable[Outcome]) -> list[int]:
    """The numbers of `HEADER`."""
    given = list(outcomes)
    above = [o for o in given if o.above]
    said = [sum(o.found for o in above), sum(o.stage for o in above), sum(o.place for o in above)]
    named = [sum(o.named == 1 for o in above), sum(0 < o.named <= 3 for o in above)]
    return [len(above), len(given) - len(above), *said, *named, *(sum(r in o.rules for o in above) for r in RULES)]


def table(title: str, groups: dict[str, list[Outcome]]) -> list[str]:
    """One line per group."""
    lines = [f"| {title} | " + " | ".join(HEADER) + " |", "|" + "---|" * (len(HEADER) + 1)]
    return lines + [f"| {name} | " + " | ".join(map(str, counts(group))) + " |" for name, group in groups.items()]


def grouped(outcomes: list[Outcome], key: Callable[[Outcome], str]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = defaultdict(list)
    for o in outcomes:
        found[key(o)].append(o)
    return dict(found)


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def markdown(outcomes: list[Outcome], sample: list[tuple[str, bool]], alarms: list[str], clean: int) -> str:
    """The document: what was planted, found, placed and named; by candidate, type, case and kind; what was missed and why."""
    cases = list(dict.fromkeys(o.case for o in outcomes))
    alone = sum(ok for _, ok in sample)
    lines = [
        "# The score",
        "",
        f"{len(outcomes)} planted faults of {len({o.kind for o in outcomes})} kinds in {len(cases)} cases, local mode; regenerate with",
        "`make score`. Planted: those whose difference is at least 1.5 tolerances at their stage on the oracle alone (the information",
        "limit); below: the others, which no verdict could tell from rounding. Stage exact: the first divergence in causal order is the",
        "planted call. Rows and heads exact: all that the oracle can surely tell are named, and none that does not differ. Named: the",
        "kind, or one that makes the very same values (`alike` in docs/faults.md), is the first explanation, or among the first three.",
        "The last four columns: how many of the same faults each of today's rules would have failed, given the lab's own local comparison",
        "(the stage recomputed from the candidate's inputs), which is more than they usually get.",
        "",
        f"Healthy runs: {clean}, false alarms: {len(alarms)}. Of a sample of {len(sample)} call faults run to the end, {alone} diverge at",
        "their own stage and nowhere else.",
        "",
    ]
    everything = [o for o in outcomes if o.above]
    total = counts(outcomes)
    names = (("found", 2), ("first stage exact", 3), ("rows and heads exact", 4), ("named first", 5), ("in the top three", 6))
    lines += ["All: " + ", ".join(f"{name} {share(total[i], total[0])}" for name, i in names) + ".", ""]
    by = {name: grouped(outcomes, key) for name, key in (("candidate", _candidate), ("type", _type), ("case", _case))}
    for title, groups in by.items():
        lines += [f"## By {title}", "", *table(title, groups), ""]
    lines += ["## By kind", "", *table("kind", {f"`{k}`": v for k, v in sorted(grouped(outcomes, _kind).items())}), ""]
    missed = [f"* {o.case}, {o.candidate}: `{o.spec}`, {o.factor:.3g} times the limit of seeing" for o in everything if not o.found]
    lines += ["## Missed above the limit", "", *(missed or ["none"]), ""]
    unnamed = grouped([o for o in everything if o.found and not 0 < o.named <= 3], _kind)
    lines += ["## Found but not named", "", *(_unnamed(kind, group) for kind, group in sorted(unnamed.items())), ""]
    below = grouped([o for o in outcomes if not o.above], _kind)
    lines += ["## Below the information limit", "", "The largest difference over the tolerance, by kind:", ""]
    lines += [f"* `{k}`: {len(g)}, at most {max(o.factor for o in g):.2g} tolerances" for k, g in sorted(below.items())]
    lines += ["", *(f"* false alarm: {a}" for a in alarms), *(f"* not alone: `{text}`" for text, ok in sample if not ok)]
    return "\n".join(lines).rstrip() + "\n"


def _unnamed(kind: str, group: list[Outcome]) -> str:
    o = group[0]
    return f"* `{kind}`: {len(group)}, e.g. `{o.spec}` ({o.case}, {o.candidate}): {o.said[:90] or 'no explanation'}"


def _candidate(o: Outcome) -> str:
    return o.candidate


def _type(o: Outcome) -> str:
    return o.type


def _case(o: Outcome) -> str:
    return o.case


def _kind(o: Outcome) -> str:
    return o.kind
