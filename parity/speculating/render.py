"""Reports of speculative runs as text: the verdict first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from oracle.speculation.costs import CONFIDENCE
from parity.speculating.checks import CHECKS
from parity.speculating.costing import CostReport
from parity.speculating.greedy import GreedyReport
from parity.speculating.lawful import LawReport
from parity.speculating.replay import ReplayReport
from parity.speculating.rows import RowsReport, Width

MOST = 12


def greedy(r: GreedyReport, quiet: bool = False) -> str:
    """The report of `parity greedy`."""
    s, g = r.setup, r.geometry
    entry = "" if s["entry"] == "auto" else f" ({s['entry']})"
    who = f"{g['family']} target + {s['drafter']} drafter, candidate {s['candidate']}{entry}"
    text = {"parity": "PARITY", "divergence": "DIVERGENCE", "inconclusive": "INCONCLUSIVE"}[r.verdict]
    same = f"all {r.tokens} tokens are the target's own" if r.identical else f"{len(r.differences)} of {r.tokens} tokens differ"
    lines = [f"{text}: {same} - {who}"]
    if quiet:
        return lines[0]
    lines.append(
        f"  engine {g['engine']}, verify length {g['verify_length']} {g['unit']} ({g['drafts']} drafts), "
        f"layout {g['layout']}, cache {g['cache']}"
    )
    if r.explanation:
        lines.append(f"  first differing round: {r.explanation}")
    lines += [f"  {line}" for line in _first(r.broken)]
    if not r.repeated:
        lines.append("  the target alone does not repeat itself: its text cannot be compared")
    unjudged = "unjudged (--members 0)" if r.rows.unjudged else "equal to the bit"
    judged = unjudged if math.isnan(r.rows.ratio) else f"worst {r.rows.ratio:.3g} x tolerance (token {r.rows.token})"
    lines.append(f"  logit rows: {r.rows.compared} window rows against single rows, largest difference {r.rows.largest:.3g}, {judged}")
    for d in r.differences[:MOST]:
        lines.append(
            f"  {d.verdict}: token {d.token}, round {d.round} row {d.row}: {d.session} for {d.target}, gap {d.gap:.3g}, noise {d.noise:.2g}"
        )
    if p := r.proposals:
        ratio = "no logits judged" if math.isnan(p.ratio) else f"worst {p.ratio:.3g} x tolerance"
        told = f"{len(p.differences)} differ" + (f", {len(p.wrong)} of them beyond noise" if p.differences else "")
        lines.append(f"  proposals: {p.rows} drafts of {p.rounds} rounds against the oracle's drafter: {told}, {ratio}")
    lines += _acceptance(r.acceptance)
    if ahead := r.shadow:
        each = ", ".join(f"{hits / ahead.rounds:.2f}" for hits in ahead.hits)
        right = f"{ahead.mean_prefix:.2f} drafts right in a row over {ahead.rounds} rounds"
        lines.append(f"  shadow along the target's own text: {right}; by place {each}")
    lines += [f"  note: {line}" for line in r.findings]
    return "\n".join(lines)


def _acceptance(counts: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per engine's way of counting."""
    lines = []
    for a in counts:
        rate = f"{a['rate']:.3f}" if a["rate"] is not None else "-"
        per = f"{a['tokens_per_round']:.2f}" if a["tokens_per_round"] else "-"
        lines.append(
            f"  acceptance as {a['engine']:7s} {a['accepted']}/{a['drafted']} = {rate}, {a['rounds']} rounds, {per} tokens per round"
        )
    return lines


def replay(r: ReplayReport, quiet: bool = False) -> str:
    """The report of `parity replay`."""
    text = {"parity": "PARITY", "divergence": "DIVERGENCE", "inconclusive": "INCONCLUSIVE"}[r.verdict]
    if r.violations:
        v = r.violations[0]
        where = "before the first round" if v.round < 0 else f"round {v.round}"
        lines = [f"{text}: {v.check}, {where}: {v.what}"]
    else:
        lines = [f"{text}: {r.rounds} rounds keep the rules - {r.source}"]
    if quiet:
        return lines[0]
    if r.explanation:
        lines.append(f"  looks like: {r.explanation}")
    for check, count in r.by_check.items():
        first = [v for v in r.violations if v.check == check]
        lines.append(f"  {check}: {count} violations ({CHECKS.get(check, check)})")
        lines += [f"    round {v.round}: {v.what}" for v in first[:3]] + ([f"    … and {count - 3} more"] if count > 3 else [])
    for p in r.picks[:MOST]:
        if p.verdict != "violation":
            lines.append(f"  {p.verdict}: round {p.round} row {p.row}: {p.recorded} for {p.target}, gap {p.gap:.3g}, noise {p.noise:.2g}")
    if r.compared:
        lines.append(f"  target: {r.compared} picks compared with the oracle's, {len(r.picks)} differ")
    if t := r.taps:
        lines.append(f"  features: {t.compared} context rows against the target's, {len(t.wrong)} differ, worst {t.worst:.3g} x tolerance")
    if made := r.proposals:
        lines.append(f"  drafter: {made.rows} drafts run again from the {r.fed} features, {len(made.differences)} differ")
        lines += [
            f"  tie: round {d.round} draft {d.draft}: {d.proposed} for {d.oracle}, gap {d.gap:.3g}, noise {d.noise:.2g}"
            for d in made.differences[:MOST]
            if d.verdict == "tie"
        ]
    unseen = [c for c, n in r.seen.items() if not n]
    lines.append(f"  accepted {r.accepted} of {r.drafted} drafts in {r.rounds} rounds; not recorded: {', '.join(unseen) or 'nothing'}")
    lines += _acceptance(r.acceptance) + [f"  note: {line}" for line in r.findings]
    if r.moved:
        lines.append(f"  placement: {r.moved}")
    if r.missing:
        lines.append(f"  required and not recorded: {', '.join(r.missing)}")
    return "\n".join(lines)


def rows(r: RowsReport, quiet: bool = False) -> str:
    """The report of `parity probe rows`."""
    inexact = [w for w in r.widths if not w.exact]
    if r.reason:
        first = f"INCONCLUSIVE: {r.reason}"
    elif r.control:
        first = f"DIVERGENCE: {r.control}"
    elif inexact:
        w = inexact[0]
        first = f"DIVERGENCE: {_row(w)}; {len({x.width for x in inexact})} of {len({x.width for x in r.widths})} widths are inexact"
    else:
        first = f"PARITY: windows of 2 to {r.key['largest']} rows give the bytes of single rows"
    first += f" - {r.geometry.get('family', r.key['family'])} target, {r.key['backend']}"
    lines = [first]
    if quiet:
        return first
    if r.remembered:
        lines.append("  remembered from an earlier probe of the same weights, geometry, widths and backend")
    for w in r.widths:
        if w.exact:
            lines.append(f"  width {w.width} after {w.context} rows: exact, {w.total_bytes} bytes")
            continue
        worst = f", {w.largest_ulps} ulps at most, {len(w.flips)} argmax differ"
        lines.append(
            f"  width {w.width} after {w.context} rows: first at row {w.first}, {w.differing_bytes} of {w.total_bytes} bytes, "
            f"{w.elements} values{worst}"
        )
        lines += [f"    {f.verdict}: row {f.row}: {f.block} for {f.chain}, gap {f.gap:.3g}, noise {f.noise:.2g}" for f in w.flips[:MOST]]
    state = "open" if r.exact else "open by --allow-inexact" if r.override else "closed"
    lines.append(f"  gate: {state}" + ("" if r.allowed else "; --allow-inexact overrides it"))
    return "\n".join(lines)


def law(r: LawReport, quiet: bool = False) -> str:
    """The report of `parity probe law`."""
    wrong = [x for x in r.rules if x.claims and x.broken]
    exact = sum(x.lossless for x in r.rules)
    told = f"{wrong[0].rule} is said to be lossless and is not" if wrong else f"{exact} of {len(r.rules)} rules emit by the target's law"
    first = f"{'DIVERGENCE' if wrong else 'PARITY'}: {told} - {r.vocab} tokens, {r.drafts} drafts, {r.tokens} emitted, exact"
    if quiet:
        return first
    lines = [first]
    for x in r.rules:
        judged = f"lossless for all {x.pairs} pairs" if x.lossless else f"broken for {x.broken} of {x.pairs} pairs"
        lines.append(f"  {x.rule}: {judged} of laws ({x.source})")
        if b := x.first:
            after = f" after {', '.join(map(str, b.before))}" if b.before else ""
            lines.append(f"    first at token {b.position}{after}: token {b.token} with {b.found}, the target's law has {b.expected}")
    return "\n".join(lines)


def cost(r: CostReport, quiet: bool = False) -> str:
    """The report of `parity probe cost`."""
    f = r.fit
    first = f"FIT: {f.fixed:.2f} + {f.per_row:.3f} per row - {len(r.widths)} points of {r.source}"
    if c := r.claim:
        told = "is one that these points allow" if c.holds else "is not what these points say"
        first = f"{'PARITY' if c.holds else 'DIVERGENCE'}: {c.fixed:g} + {c.per_row:g} per row {told} (p {c.p:.2g}) - {r.source}"
    if quiet:
        return first
    lines = [
        first,
        f"  fit: {f.fixed:.2f} + {f.per_row:.3f} per row; {CONFIDENCE:.0%} intervals {_range(f.fixed_range)} and {_range(f.per_row_range)}",
    ]
    lines.append(f"  sum of squares {f.sse:.4g}, largest residual {max(map(abs, f.residuals)):.3g}")
    if c:
        lines.append(
            f"  claimed: sum of squares {c.sse:.4g}, off by {c.endpoints[0]:+.3g} at the narrowest and {c.endpoints[1]:+.3g} at the widest"
        )
    each = len(f.left_out) == len(r.widths)
    for i, w in enumerate(r.widths):
        line = f"  width {w.width:<3g} {w.ms:8.2f} measured {w.fitted:8.2f} fitted {f.residuals[i]:+7.2f}"
        line += f"  without it {f.left_out[i][0]:.2f} + {f.left_out[i][1]:.3f}, missed by {f.left_out_error[i]:+.2f}" if each else ""
        line += f"  {w.tokens_per_second:.2f} tok/s" if w.tokens_per_second is not None else ""
        line += f"  breaks even at {w.break_even:.2f} accepted" if w.break_even is not None else ""
        lines.append(line)
    return "\n".join([*lines, *(f"  note: {line}" for line in r.findings)])


def _range(r: tuple[float, float]) -> str:
    return f"{r[0]:.2f} .. {r[1]:.2f}"


def _row(w: Width) -> str:
    if w.first is None:
        return f"width {w.width} after {w.context} rows: the prefill itself differs between the arms"
    return (
        f"width {w.width} after {w.context} rows differs from single rows at row {w.first} ({w.differing_bytes} of {w.total_bytes} bytes)"
    )


def _first(lines: Sequence[str]) -> list[str]:
    return [*lines[:MOST], *([f"… and {len(lines) - MOST} more"] if len(lines) > MOST else [])]
