"""Planted mistakes: ``KIND[:key=value,…]`` becomes a `Fault`, an edit of one call of a forward (DESIGN sections 3 and 7).

Values may be arithmetic expressions in ``h`` (head) and ``r`` (row); ranges are ``2-13``. One module per operation declares its kinds;
lists, the score, hypotheses, the sensitivity ledger and `docs/faults.md` are read from those declarations.
"""

from __future__ import annotations

from collections.abc import Iterator

from oracle.faults import attention, cells, experts, heads, indexer, linear, ngrams, norm, pointwise, recurrent, rope, streams, values
from oracle.faults.grammar import Options, evaluate, indices
from oracle.faults.kind import Kind
from oracle.readings import Fault, FaultError, NotHereError, Stage

KINDS: dict[str, Kind] = {
    kind.name: kind
    for module in (rope, norm, linear, attention, cells, pointwise, experts, heads, recurrent, streams, indexer, ngrams, values)
    for kind in module.KINDS
}

__all__ = ["KINDS", "FaultError", "Kind", "NotHereError", "Options", "acting_on", "evaluate", "indices", "parse"]


def parse(spec: str) -> Fault:
    """A `Fault` from its SPEC. Keys: ``stage`` (a glob), ``row``/``rows``, ``head``/``heads``, and the kind's own.

    `FaultError` names what does not fit. What a fault has seen of one run it keeps: parse once per run.
    """
    name, _, tail = spec.partition(":")
    if name not in KINDS:
        raise FaultError(f"fault kind {name!r} is unknown; known: {', '.join(KINDS)}")
    kind = KINDS[name]
    options, stage, rows, chosen = Options(kind.defaults), None, None, None
    for pair in filter(None, tail.split(",")):
        key, eq, value = pair.partition("=")
        if not eq or key not in {"stage", "row", "rows", "head", "heads", *kind.defaults}:
            raise FaultError(f"fault {name}: {pair!r}: expected stage, rows, heads{''.join(', ' + k for k in kind.defaults)} = value")
        if key == "stage":
            stage = value
        elif key in ("row", "rows"):
            rows = indices(value)
        elif key in ("head", "heads"):
            chosen = indices(value)
        else:
            options[key] = value
    return kind.fault(options, stage, rows, chosen)


def acting_on(stage: Stage) -> Iterator[tuple[Kind, str]]:
    """Every kind and variant (text of its own keys) that edits calls of the stage's operation; some may yet have nothing to act on."""
    for kind in KINDS.values():
        if not kind.ops or stage.op.name in kind.ops:
            for variant in kind.variants:
                yield kind, variant
