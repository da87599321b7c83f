"""How `parity ties` says what it found."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from parity.ties import Ties

SHOWN = 40


def headline(found: Ties) -> str:
    """The verdict in one line."""
    ties = sum(c.verdict == "tie" for c in found.crossings)
    broken = [c for c in found.crossings if c.verdict != "tie"]
    same = found.rows - len(found.crossings)
    if broken:
        first = broken[0]
        what = first.reason if first.verdict == "invalid" else f"{first.a} against {first.b}, {first.reason}"
        return f"DIVERGENCE first at row {first.row}: {what}; {len(broken)} of {found.rows} rows diverge, {ties} are ties"
    if found.verdict == "inconclusive":
        return f"INCONCLUSIVE {found.notes[0]}"
    return f"PARITY {same} of {found.rows} rows choose alike, {ties} differ at ties"


def table(found: Ties, model: Path | None = None) -> str:
    """Every row that differs, the smallest margin, and what to know of the noise."""
    from rich.console import Console
    from rich.table import Table

    name = _namer(model, found.vocab)
    out = io.StringIO()
    made = Table(box=None, pad_edge=False, header_style="", padding=(0, 2, 0, 0))
    for column in ("row", "A", "B", "gap in A", "gap in B", "noise", "sigmas", "ulps", "p(flip)", "verdict"):
        made.add_column(column)
    for c in found.crossings[:SHOWN]:
        numbers = [f"{v:.3g}" for v in (c.gap_a, c.gap_b, c.noise, c.sigmas, c.ulps, c.probability)]
        made.add_row(str(c.row), name(c.a), name(c.b), *numbers, c.verdict)
    console = Console(file=out, width=130, highlight=False, markup=False)
    if made.row_count:
        console.print(made)
    if len(found.crossings) > SHOWN:
        console.print(f"... and {len(found.crossings) - SHOWN} more rows (--json has all)")
    apart = f"{found.amplification:.3g} roundings of {found.arithmetic}"
    console.print(f"{found.rows} rows of {found.vocab} logits, {found.equal_rows} bit-equal; the files differ by {apart}")
    where = f"{found.smallest_gap:.3g} at row {found.smallest_gap_row}"
    console.print(f"smallest margin in A: {where}; {found.close} rows have one within noise")
    for note in found.notes:
        console.print(f"note: {note}")
    return out.getvalue()


def _namer(model: Path | None, vocab: int) -> Callable[[int], str]:
    if model is None:
        return str
    from parity.realtext import tokenizer

    tokens = tokenizer(model)
    return lambda i: f"{i} {tokens.decode([i])!r}" if 0 <= i < min(vocab, tokens.size) else str(i)
