"""``docs/faults.md``: the catalogue as a document, written from the declarations alone."""

from __future__ import annotations

import sys
from pathlib import Path

from parity.faults import KINDS, AnyKind, type_of

# The public kinds of reports, and why one is not planted.
REPORTS = {
    "K1": "tap layer shifted or chosen by formula",
    "K2": "tap is not the complete residual",
    "K3": "hidden state of the wrong row",
    "K4": "chunk boundary of prefill",
    "K5": "RMS norm form: 1+w, doubled, missing, eps",
    "K6": "missing or double scale",
    "K7": "rope style",
    "K8": "rope position",
    "K9": "rope theta, YaRN, partial rotary",
    "K10": "window edge, one-sided or anchor-wide window",
    "K11": "causality of the block",
    "K12": "attention sink",
    "K13": "map of grouped heads",
    "K14": "fused weights, transposes, gate and up",
    "K15": "DFlash 2 convolution and selector",
    "K16": "anchor layout",
    "K17": "Markov and confidence heads",
    "K18": "mask token and its embedding",
    "K19": "reduced vocabulary",
    "K20": "cache crop and rollback",
    "K21": "draft cache holds rows it must not",
    "K22": "recurrent state rollback",
    "K23": "greedy verify decision",
    "K24": "sampling does not preserve the target's law",
    "K25": "ties and batch invariance",
    "K26": "dtype decoding and promotion",
    "K27": "quantised block layout",
    "K28": "cache-space transform missing on injected rows",
    "K29": "graph capture and stale inputs",
    "K30": "races and reused host buffers",
    "K31": "fully masked rows, NaN, sentinels",
    "K32": "parallel sharding",
    "K33": "instruments and reports that lie",
    "K34": "configuration dropped, wrong level, wrong owner",
    "K35": "index width and strides",
}
REMARKS = {
    "K12": "Both kinds: cells that a ring keeps (`attention.sink`), and learned scores of the softmax (`attention.sinks`).",
    "K23": "A case fixes what was accepted, so that the decision itself is no stage: what a wrong one feeds and keeps is planted here, the "
    "decision in round traces (`parity replay`).",
    "K24": "Not planted in a dump: a law is a property of many draws, not of one run. It is enumerated exactly in `oracle.speculation`.",
    "K25": "An exact tie broken otherwise is no fault; the runner-up beyond noise is.",
    "K30": "The emulators' race and hazard tests plant the cause; here is what it leaves in a dump.",
    "K31": "No dialect has a row that sees no cell, so that a fully masked row cannot be planted; its NaN can.",
    "K32": "Out of scope: a candidate is one device.",
}
TYPES = {
    "call": "Call faults edit one call of a forward: any reading, any candidate that runs operation by operation.",
    "case or step": "Case and step faults edit what is fed, where it is put, or what is kept between the calls.",
    "dump": "Dump faults edit what was recorded of a healthy run.",
    "artifact": "Artifact faults edit a copy of the model's file: what a loader that misreads it holds.",
}


def document() -> str:
    """The whole text."""
    lines = [
        "# The fault catalogue",
        "",
        f"{len(KINDS)} kinds of mistake, each declared once (`oracle/faults`, `parity/faults`). Written by",
        "`python -m parity.faults.table`. A SPEC is `KIND[:key=value,…]`, ranges are `2-13`, values of `offset` may be expressions in",
        "`h` (head) and `r` (row). `parity faults list --family F` says which exist in a family, `parity faults plant SPEC` writes the",
        "dump of a candidate that made the mistake, `--fault SPEC` plants it in a run, `parity faults score` counts what the lab makes of",
        "all of them (`docs/score.md`).",
        "",
        "The dial is the key that makes a mistake milder or stronger; where it is `rows, heads` the mistake is whole and its extent is",
        "the dial.",
        "Alike are kinds that can make the very same values: no data can tell them apart, and either name counts as right.",
        "",
        "## From public reports to faults",
        "",
        "| report | root cause | planted as | remark |",
        "|---|---|---|---|",
    ]
    for report, cause in REPORTS.items():
        kinds = ", ".join(f"`{k.name}`" for k in KINDS.values() if report in k.reports)
        lines.append(f"| {report} | {cause} | {kinds or '-'} | {REMARKS.get(report, '')} |")
    for title, about in TYPES.items():
        lines += ["", f"## {title.capitalize()} faults", "", about, "", "| kind | keys | default stage | dial | what it is | alike |"]
        lines += ["|---|---|---|---|---|---|", *(_row(k) for k in KINDS.values() if type_of(k) == title)]
    conventions = {c: k.name for k in KINDS.values() for c in k.knobs}
    lines += ["", "## Conventions that a case can certify", "", "Each is the mistake that would break it (`--require NAME`):", ""]
    lines += [f"* {c}: `{name}{f':{KINDS[name].knobs[c]}' if KINDS[name].knobs[c] else ''}`" for c, name in sorted(conventions.items())]
    return "\n".join(lines) + "\n"


def _row(k: AnyKind) -> str:
    keys = ", ".join(f"`{key}={value}`" for key, value in k.defaults.items())
    return f"| `{k.name}` | {keys} | `{k.stage}` | {k.dial} | {k.about} | {', '.join(f'`{a}`' for a in k.alike)} |"


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "docs/faults.md").write_text(document())
