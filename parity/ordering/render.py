"""The report of `parity probe order` as text: the verdict first."""

from __future__ import annotations

from typing import Any

from parity.ordering import gauge
from parity.ordering.probe import OrderReport
from parity.render import spans

FUSED = {"yes": "products unrounded (FMA)", "no": "products rounded first", "some": "some products rounded first", "unseen": ""}


def text(r: OrderReport, quiet: bool = False) -> str:
    """The verdict line; unless ``quiet``, every finding, then one paragraph per weight format and width."""
    who = " ".join(str(p) for p in (r.candidate.get("library", r.candidate["spec"]), r.candidate.get("version", "")) if p)
    m = "M = 1" if r.options["block"] == 1 else f"M = 1 to {r.options['block']}"
    if r.findings:
        first = f"DIVERGENCE: {_finding(r.findings[0])}"
    elif r.inconclusive:
        k = r.inconclusive[0]
        first = f"INCONCLUSIVE: {_head(k)}: {k.get('irregular') or k.get('skipped')}"
    elif not r.kernels:
        first = "INCONCLUSIVE: nothing was probed"
    else:
        told = [d for d in r.declared if d["order"] and any(k["weights"] not in d["apart"] for k in r.kernels)]
        said = f"as declared ({told[0]['order']})" if told else "not declared"
        names = list(dict.fromkeys(k["order"]["name"] or "an order without a name" for k in r.kernels))
        first = f"PARITY: {', '.join(names)}, {said}, the same for {m}"
    first += f" - {who}, {r.options['operation']}"
    if quiet:
        return first
    lines = [first] + [f"  {_finding(f)}" for f in r.findings]
    for k in r.kernels:
        lines += _kernel(k)
    return "\n".join(lines + [f"  note: {n}" for n in r.notes])


def _head(k: dict[str, Any]) -> str:
    return f"{k['weights']} x {k['width']}"


def _finding(f: dict[str, Any]) -> str:
    where = f"{f['weights']} x {f['width']}: " if f["width"] else ""
    return f"{f['kind']}: {where}{f['text']}"


def _kernel(k: dict[str, Any]) -> list[str]:
    if "order" not in k:
        return []
    o = k["order"]
    lines = [f"  {_head(k)}: {o['name'] or o['description']}, tree {o['fingerprint'][:12]}"]
    if o["name"] and o["name"] not in ("sequential", "pairwise"):
        lines.append(f"    {o['description']}")
    parts = [_addition(a, k) for a in o["additions"]] + [FUSED[o["fused"]] or f"FMA not to be seen: {o['fused_why']}"]
    result = o["result"]
    if not o["additions"] or (result["bits"], result["rounding"]) != (o["additions"][0]["bits"], o["additions"][0]["rounding"]):
        parts.append(f"result of {result['bits'] or 'all'} bits, {result['rounding']}")
    if 0 < k["input_bits"] < 24:
        parts.append(f"inputs of {k['input_bits']} bits")
    lines.append(f"    {'; '.join(parts)}")
    wide = [r for r in k["rows"] if not r["differing"]]
    if wide:
        same = all(r.get("same") for r in wide)
        tree = "along the same tree" if same else "but not along the same tree"
        lines.append(f"    M = {spans([r['m'] for r in wide])}: the bits of single rows, {tree}")
    return lines


def _addition(a: dict[str, Any], k: dict[str, Any]) -> str:
    name = gauge.accumulator(a["bits"], gauge.Range(**k["range"]))
    aligned = "" if a["inside"] is None else f", addends {_aligned(a['inside'])}"
    return f"{a['count']} additions in {name}, {a['rounding']}{aligned}"


def _aligned(bits: int) -> str:
    return f"aligned to {bits} bits" if bits else "added exactly"
