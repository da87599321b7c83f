"""Reports as text for a terminal: the verdict, what diverged, the stage table with the worst row, then the margins."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from parity.report import Divergence, Margin, Report, StageResult

WIDTH = 118
SHOWN_DIVERGENCES, SHOWN_MARGINS, SHOWN_FACTS = 12, 16, 4


def text(report: Report, *, every_stage: bool = False, color: bool = False, width: int = WIDTH) -> str:
    """The whole report. ``every_stage`` lists each stage of each layer instead of one line per stage name."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=color, no_color=not color, highlight=False, markup=False, soft_wrap=False)
    console.print(headline(report))
    for line in facts(report):
        console.print("  " + line)
    for f in report.findings:
        console.print(f"  {f['kind']}{'' if f['count'] == 1 else ' (' + str(f['count']) + ' times)'}: {f['text']}")
    if report.divergences:
        console.print()
        for d in report.divergences[:SHOWN_DIVERGENCES]:
            console.print("  " + describe(d))
            for line in explanations(d):
                console.print("      " + line)
        if len(report.divergences) > SHOWN_DIVERGENCES:
            console.print(f"  … and {len(report.divergences) - SHOWN_DIVERGENCES} more (see --json)")
    for s in report.inconclusive:
        console.print(f"  inconclusive at {s.stage} (step {s.step}): {s.reason}")
    for note in report.notes:
        console.print("  note: " + note)
    if report.stages:
        console.print()
        console.print(_stages(report, every_stage))
    if report.margins:
        console.print(_margins(report))
    for line in _sensitivity(report):
        console.print(line)
    return out.getvalue()


def headline(report: Report) -> str:
    """The first line: the verdict, and the first divergence if there is one."""
    name = f"{report.case['family']} {report.case['role']}, candidate {report.candidate.get('candidate', '?')}"
    if report.findings:
        more = f" (and {len(report.findings) - 1} more)" if len(report.findings) > 1 else ""
        return f"{report.verdict.upper()} {report.findings[0]['text']}{more} - {name}"
    if report.verdict == "not-reproducible":
        return f"NOT REPRODUCIBLE first at {_unrepeated(report)} - {name}"
    if report.verdict == "divergence":
        d = report.divergences[0]
        more = f" (and {len(report.divergences) - 1} more)" if len(report.divergences) > 1 else ""
        return f"DIVERGENCE first at {d.stage}, step {d.step}, {_rows(d)}{more} - {name}"
    if report.verdict == "inconclusive":
        if report.missing:
            why = f"{len(report.missing)} required stages were not recorded: {', '.join(report.missing[:3])}"
        elif report.uncertified:
            why = f"this case cannot certify {', '.join(report.uncertified)}"
        else:
            why = "no stage was compared" if not report.compared else f"{len(report.inconclusive)} stages cannot be judged"
        return f"INCONCLUSIVE {why} - {name}"
    ties = sum(m.verdict == "tie" for m in report.margins)
    tied = f", {ties} ties" if ties else ""
    return f"PARITY {report.compared} stages agree{tied} - {name}"


def _unrepeated(report: Report) -> str:
    """The first stage that differs between runs, and how many do."""
    assert report.repeat is not None
    stages = report.repeat["stages"]
    s = stages[0]
    more = f" (and {len(stages) - 1} more stages)" if len(stages) > 1 else ""
    rows = f"row{'s' if len(s['rows']) > 1 else ''} {spans(s['rows'])}"
    where = f"{s['stage']}, step {s['step']}, {rows}, {s['elements']} of {s['of']} elements"
    return f"{where}: run {spans(s['runs'])} of {report.repeat['runs']} differs from run 1{more}"


def facts(report: Report) -> list[str]:
    """The effective geometry and what else travels with every result."""
    g, c = report.geometry, report.candidate
    window = f"window {g['window']} (window_source: {g.get('window_source', 'file')})" if g.get("window") else "no window"
    sink = f", sink {g['sink']}" if g.get("sink") else ""
    rule = f", rule {g['dialect']['window_rule']}" if isinstance(g.get("dialect"), dict) else ""
    sizes = f"{g['layers']} layers, hidden {g['hidden']}, heads {g['heads']}/{g['kv_heads']} of {g['head_dim']}, {window}{sink}{rule}"
    steps = ", ".join(f"{s['kind']} {s['rows']}@{s['at']}" for s in report.case["steps"][:8])
    more = "" if len(report.case["steps"]) <= 8 else f", … {len(report.case['steps'])} steps"
    schedule = f"schedule {c['schedule']}" if c.get("schedule") else ""
    where = ", ".join(part for part in (c.get("where", "?"), c.get("entry") or "", schedule) if part)
    lines = [
        f"case: {report.case['name']}: {steps}{more}",
        f"geometry: {sizes}",
        f"candidate ran: {where}; judged under arithmetic {report.arithmetic['name']}, modes {' and '.join(report.modes)}",
    ]
    if report.repeat is not None:
        same = "bit for bit the same" if report.repeat["reproducible"] else f"NOT the same: first at {_unrepeated(report)}"
        lines.append(f"repeated: {report.repeat['runs']} runs, {same}")
    if c.get("fault"):
        lines.append(f"planted fault: {c['fault']}")
    if report.unseen:
        lines.append(f"unseen: {len(report.unseen)} stages were not recorded and flowed on with their noise ({_some(report.unseen)})")
    if report.extra:
        lines.append(f"extra: {len(report.extra)} recorded stages are not of this case ({_some(report.extra)})")
    drift = [s for s in report.stages if s.verdict == "drift"]
    if drift:
        lines.append(f"drift (rolled, no failure): {_some([f'{s.step}:{s.stage}' for s in drift])}")
    departed = [d for d in report.consequences if d.mode == "rolled"]
    if departed:
        lines.append(f"rolled mode also departs at {len(departed)} later stages: consequences of the divergence above")
    reached = len(report.consequences) - len(departed)
    if reached:
        lines.append(f"{reached} later stages are computed from values that are not finite: consequences of the divergence above")
    return lines


def _some(names: list[str], count: int = 3) -> str:
    return ", ".join(names[:count]) + (", …" if len(names) > count else "")


def spans(numbers: Iterable[int]) -> str:
    """``0-3, 7, 9-10``."""
    out: list[list[int]] = []
    for n in sorted(numbers):
        if out and n == out[-1][1] + 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def _rows(d: Divergence) -> str:
    rows = f"row{'s' if len(d.extent.rows) > 1 else ''} {spans(d.extent.rows)}" if d.extent.rows else "all rows"
    heads = f", head{'s' if len(d.extent.heads) > 1 else ''} {spans(d.extent.heads)}" if d.extent.heads else ""
    return rows + heads


def describe(d: Divergence) -> str:
    """One divergence in one line."""
    size = "" if not math.isfinite(d.ratio) else f", error {d.ratio:.3g} x tolerance"
    proven = ", proven" if d.proven and math.isfinite(d.ratio) else ""
    what = f": {d.what}" if d.what else ""
    where = f"{d.stage} (step {d.step}, {d.mode}): {_rows(d)}, {d.extent.elements} of {d.extent.of} elements"
    return f"{where}{size}{proven}; at {list(d.element)} oracle {d.oracle:.9g}, candidate {d.candidate:.9g}{what}"


def explanations(d: Divergence) -> list[str]:
    """How the wrong values look, then what explains them, best first; nothing where nothing brings them back within noise."""
    lines = [f"looks like: {'; '.join(f['text'] for f in d.signature[:SHOWN_FACTS])}"] if d.signature else []
    lines += [f"lies: {pattern}" for pattern in [_pattern(d)] if pattern]
    lines += [f"recurs: {d.extent.recurrence}"] if d.extent.recurrence else []
    ties = [e for e in d.explanations if e.get("tie")]
    for i, e in enumerate(e for e in d.explanations if not e.get("tie")):
        lines.append(f"{'explained by' if i == 0 else 'or by'} {e['kind']}: {e['text']} (then error {e['ratio']:.2g} x tolerance)")
        lines += [f"    {detail}" for detail in e.get("details", ())]
        if i == 0 and ties:
            lines.append(f"    this case cannot tell it from: {'; '.join(_tied(t, e) for t in ties)}")
    return lines


def _tied(tie: dict[str, Any], first: dict[str, Any]) -> str:
    return str(tie["text"]) if tie["kind"] == first["kind"] else f"{tie['kind']}: {tie['text']}"


def _pattern(d: Divergence) -> str:
    """Along which axes the divergence is only a part, and which."""
    return ", ".join(f"{axis} {text}" for axis, text in d.extent.patterns.items() if text != "all")


def _suffix(stage: str) -> str:
    return re.sub(r"\.L\d+\.", ".L*.", stage)


def _stages(report: Report, every: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    for name in ("stage", "n", "local", "error/T", "rms z", "worst at", "rolled", "x spread", "worst at", "max abs"):
        table.add_column(name, justify="left" if name in ("stage", "local", "rolled", "worst at") else "right", no_wrap=True)
    groups: dict[str, dict[str, list[StageResult]]] = {}
    for s in report.stages:
        key = f"{s.step}:{s.stage}" if every else _suffix(s.stage)
        groups.setdefault(key, {}).setdefault(s.mode, []).append(s)
    for key, modes in groups.items():
        table.add_row(
            key,
            str(max(len(v) for v in modes.values())),
            *_local(modes.get("local", [])),
            *_rolled(modes.get("rolled", [])),
            _max_abs(modes.get("local", [])),
        )
    return table


_ORDER = ("agree", "drift", "inconclusive", "diverge", "invalid")


def _worst(results: list[StageResult]) -> StageResult:
    return max(results, key=lambda s: (_ORDER.index(s.verdict), s.pass_factor))


def _place(s: StageResult) -> str:
    layer = re.search(r"\.L(\d+)\.", s.stage)
    return f"s{s.step}{' L' + layer[1] if layer else ''}{' r' + str(s.worst[0]) if s.worst else ''}"


def _local(results: list[StageResult]) -> tuple[str, str, str, str]:
    if not results:
        return "", "", "", ""
    w = _worst(results)
    return (
        w.verdict.upper() if w.verdict not in ("agree", "drift") else w.verdict,
        _number(w.pass_factor),
        _number(max(r.rms for r in results)),
        _place(w),
    )


def _rolled(results: list[StageResult]) -> tuple[str, str, str]:
    if not results:
        return "", "", ""
    w = max(results, key=lambda s: s.rms)
    return w.verdict, _number(w.rms), _place(w)


def _max_abs(results: list[StageResult]) -> str:
    values = [s.info["max_abs"] for s in results if "max_abs" in s.info]
    return _number(max(values)) if values else ""


def _number(x: float) -> str:
    if not math.isfinite(x):
        return str(x)
    return f"{x:.2f}" if 0.005 <= abs(x) < 1000 or x == 0 else f"{x:.1e}"


def _margins(report: Report) -> Table:
    """The rows with the smallest margins in units of their noise, every tie and flip among them."""
    table = Table(
        title="margins: the oracle's choice against the next (smallest first)",
        title_justify="left",
        title_style="",
        box=None,
        pad_edge=False,
        header_style="",
        padding=(0, 2, 0, 0),
    )
    for name in ("step", "row", "choice", "next", "gap", "noise", "gap/noise", "P(flip)", "ulps", "candidate", "verdict"):
        table.add_column(name, justify="right" if name != "verdict" else "left", no_wrap=True)

    def key(m: Margin) -> tuple[bool, float]:
        return m.verdict == "agree", m.gap / m.noise if m.noise > 0 else math.inf

    for m in sorted(report.margins, key=key)[:SHOWN_MARGINS]:
        ratio = m.gap / m.noise if m.noise > 0 else math.inf
        table.add_row(
            str(m.step),
            str(m.row),
            str(m.choice),
            str(m.runner_up),
            f"{m.gap:.4g}",
            f"{m.noise:.2g}",
            _number(ratio),
            f"{m.flip_probability:.1g}",
            f"{m.ulps:.3g}",
            str(m.candidate),
            m.verdict + (f" ({m.rule})" if m.rule else ""),
        )
    if len(report.margins) > SHOWN_MARGINS:
        table.caption = f"{len(report.margins) - SHOWN_MARGINS} wider margins not shown"
        table.caption_justify = "left"
    return table


def _sensitivity(report: Report) -> list[str]:
    """What the case could have seen, and what it could not."""
    seen = [f"{e['knob']} {_number(e['factor'])}" for e in report.sensitivity if e["certified"]]
    blind = [f"{e['knob']} {_number(e['factor'])}" for e in report.sensitivity if not e["certified"]]
    lines = [f"certified (difference / tolerance): {', '.join(seen)}"] if seen else []
    return lines + ([f"NOT certified by this case: {', '.join(blind)}"] if blind else [])


def junit(reports: dict[str, Report]) -> str:
    """JUnit XML: one test suite per report, one test case per stage and mode."""
    from xml.etree import ElementTree as ET

    root = ET.Element("testsuites", name="parity")
    for name, report in reports.items():
        failed = [s for s in report.stages if s.verdict in ("diverge", "invalid")]
        suite = ET.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(report.stages)),
            failures=str(len(failed)),
            skipped=str(len(report.inconclusive)),
            errors="0",
        )
        by_key = {(d.step, d.stage, d.mode): d for d in (*report.divergences, *report.consequences)}
        for s in report.stages:
            test = ET.SubElement(suite, "testcase", classname=f"{name}.step{s.step}", name=f"{s.stage} [{s.mode}]")
            if s in failed:
                d = by_key.get((s.step, s.stage, s.mode))
                ET.SubElement(test, "failure", message=describe(d) if d else f"{s.verdict}: {s.reason}")
            elif s.verdict == "inconclusive":
                ET.SubElement(test, "skipped", message=s.reason)
    return ET.tostring(root, encoding="unicode", xml_declaration=True)
