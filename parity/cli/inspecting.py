"""An inspected artifact as lines of text."""

from __future__ import annotations

from typing import Any

from parity.report import plain

SHOWN_TENSORS = 24


def lines(found: dict[str, Any]) -> list[str]:
    """Verdict first, then identity, geometry, dialect, tensors and warnings."""
    problems = found["problems"]
    what = " ".join(str(found[k]) for k in ("family", "role", "container") if found[k])
    out = [f"{'INVALID' if problems else 'VALID'} {what or 'unreadable'} - {found['path']}"]
    out += [f"  problem: {p}" for p in problems]
    out += [f"  warning: {w}" for w in found["warnings"]]
    out += [f"  file {f['name']}: {f['bytes']} bytes, SHA-256 {f['sha256']}" for f in found["files"]]
    for title in ("geometry", "dialect"):
        if found[title]:
            out.append(f"  {title}: " + ", ".join(f"{k}={v}" for k, v in plain(found[title]).items()))
    if bound := found["context"]:
        rows = f"sink {bound['sink']} + window {bound['window']} rows, keys and values of every layer in f32"
        out.append(f"  context cache of a ring: at most {bound['bytes']:,} bytes ({rows})")
    tensors = found["tensors"]
    if tensors:
        stored = ", ".join(f"{n} in {f}" for f, n in found["dtypes"].items())
        out.append(f"  {len(tensors)} tensors: {stored}")
        out += [f"    {t['name']:44s} {t['stored']:6s} {'x'.join(map(str, t['shape']))}" for t in tensors[:SHOWN_TENSORS]]
        if len(tensors) > SHOWN_TENSORS:
            out.append(f"    … {len(tensors) - SHOWN_TENSORS} more (--json lists all)")
    return out
