"""The answers against what the candidate declares, and the rows of M = 2 … n against a single row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from oracle import arithmetic as arithmetics
from oracle import policies, summation
from oracle.arithmetic import Arithmetic, DeclarationError
from oracle.floats import F32, FORMATS
from parity import candidates
from parity.candidates import Candidate
from parity.ordering import gauge
from parity.ordering.kernels import PATH
from parity.render import spans

NEAREST = "nearest"
Answers = dict[str, Any]


@dataclass(frozen=True)
class Declaration:
    """What somebody (``source``) says of the sums: ``order`` and ``fma``, None where it is not said; ``arithmetic`` by its name.
    ``apart``: formats of weights whose products it says nothing of."""

    source: str
    arithmetic: str
    order: str | None
    fma: bool | None
    apart: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """``kind``: order, accumulator, rounding, fma, inputs, result, columns, rows, repeat."""

    kind: str
    text: str
    weights: str
    width: int


def declarations(candidate: Candidate, text: str | None, handshake: dict[str, str]) -> list[Declaration]:
    """What the lab is told by ``--arithmetic``, else knows of the candidate, and what its library says of itself."""
    A = candidates.declared(candidate, text)
    source = "--arithmetic" if text is not None else f"arithmetic {A.name}"
    numpy = candidate.kind == "numpy"
    known = numpy or A.declared
    order, fma = (A.order, False if numpy else A.fma) if known and candidate.spec != "f64" else (None, None)
    found = [Declaration(source, A.name, order if order != "blas" else None, fma)]
    said = {key: handshake[key] for key in ("order", "fma") if key in handshake}
    if said:
        order = said.get("order")
        fused = {"0": False, "1": True}.get(said.get("fma", ""))
        # A library speaks of its products by lanes; matrix units take the 16-bit weights.
        apart = ("f16", "bf16") if candidate.spec in candidates.LIBRARIES and "+" in candidate.spec else ()
        found.append(Declaration("the library", "", order if _known(order) else None, fused, apart))
    return found


def _known(order: str | None) -> bool:
    try:
        return order is not None and summation.parse(order)[0] != "blas"
    except ValueError:
        return False


def judge(kernel: Answers, declared: Sequence[Declaration]) -> list[Finding]:
    """Every finding about one kernel."""
    declared = [d for d in declared if kernel["weights"] not in d.apart]
    if "skipped" in kernel:
        return []
    if not kernel["repeats"]:
        return [
            _finding(kernel, "repeat", "the same rows and weights give other bits when they are multiplied again: the order is not fixed")
        ]
    found = list(_columns(kernel))
    if "order" in kernel:
        found += _against(kernel, kernel["order"], declared, "")
        found += _inputs(kernel, declared)
    return found + list(_rows(kernel, declared))


def _finding(kernel: Answers, kind: str, text: str) -> Finding:
    return Finding(kind, text, kernel["weights"], kernel["width"])


def _columns(kernel: Answers) -> Iterator[Finding]:
    if len(kernel["columns"]) > 1:
        first, *others = kernel["columns"]
        odd = sorted(c for group in others for c in group)
        yield _finding(
            kernel, "columns", f"output features {spans(odd)} sum the same weights to other bits than feature {first[0]}: another order"
        )


def _against(kernel: Answers, order: Answers, declared: Sequence[Declaration], where: str) -> Iterator[Finding]:
    """Tree, accumulators, rounding and products against the declarations."""
    said = order["name"] or order["description"]
    for d in declared:
        if d.order is None:
            continue
        wide = summation.parse(d.order)[0] == "f64"
        if not wide and summation.tree(d.order, kernel["leaves"]).fingerprint() != order["fingerprint"] and kernel["leaf_elements"] == 1:
            yield _finding(kernel, "order", f"{where}adds in the order {said}, {d.source} declares {d.order}")
        bits = [a["bits"] for a in order["additions"]]
        if wide and any(0 < b < 53 for b in bits):
            yield _finding(kernel, "accumulator", f"{where}adds with {min(b for b in bits if b)} bits, {d.source} declares sums in double")
        if not wide and bits and all(b == 53 for b in bits):
            yield _finding(kernel, "order", f"{where}adds in double, {d.source} declares {d.order} in f32 (order=f64 says so)")
        if d.fma is not None and order["fused"] in ("yes", "no", "some") and order["fused"] != ("yes" if d.fma else "no") and not wide:
            does = {"yes": "adds products unrounded (FMA)", "no": "rounds products before adding", "some": "rounds some products"}
            yield _finding(kernel, "fma", f"{where}{does[order['fused']]}, {d.source} declares fma={int(d.fma)}")
    yield from _accumulators(kernel, order, where)
    yield from _result(kernel, order, declared, where)


def _accumulators(kernel: Answers, order: Answers, where: str) -> Iterator[Finding]:
    span = gauge.Range(**kernel["range"]) if "range" in kernel else gauge.Range(gauge.LOWEST, gauge.HIGHEST)
    total = sum(a["count"] for a in order["additions"])
    for a in order["additions"]:
        if 0 < a["bits"] < F32.p:
            name = gauge.accumulator(a["bits"], span)
            yield _finding(
                kernel,
                "accumulator",
                f"{where}{a['count']} of {total} additions have a narrow accumulator: {name}, {a['bits']} significant bits",
            )
        if a["bits"] and not a["rounding"].startswith(NEAREST):
            yield _finding(kernel, "rounding", f"{where}{a['count']} of {total} additions do not round to nearest: {a['rounding']}")


def _result(kernel: Answers, order: Answers, declared: Sequence[Declaration], where: str) -> Iterator[Finding]:
    """The last addition and the store behind it, where it is not what the other additions are."""
    result, additions = order["result"], order["additions"]
    store = FORMATS["f32"] if not declared[0].arithmetic else _named(declared[0].arithmetic).stored(PATH)
    usual = additions[0] if additions else None
    same = usual is not None and (result["bits"], result["rounding"]) == (usual["bits"], usual["rounding"])
    if same and usual is not None and usual["bits"] <= F32.p:
        return
    if result["bits"] < min(store.p, F32.p):
        yield _finding(kernel, "result", f"{where}the result has {result['bits']} significant bits, {store.name} has {store.p}")
    elif result["bits"] and not result["rounding"].startswith(NEAREST):
        yield _finding(kernel, "rounding", f"{where}the result is not rounded to nearest: {result['rounding']}")


def _named(name: str) -> Arithmetic:
    try:
        return arithmetics.named(name)
    except DeclarationError:
        return arithmetics.named("f32")


def _inputs(kernel: Answers, declared: Sequence[Declaration]) -> Iterator[Finding]:
    """What x is rounded to before it is multiplied, against the declared policy."""
    policy = policies.resolved(_named(declared[0].arithmetic).used(PATH), kernel["weights"])
    block = policies.block(policy)
    if kernel["leaf_elements"] != block:
        does = (
            f"rounds blocks of {kernel['leaf_elements']} inputs to a common scale" if kernel["leaf_elements"] > 1 else "takes single inputs"
        )
        yield _finding(kernel, "inputs", f"{does}, {declared[0].source} declares {policy} inputs")
    elif block == 1:
        bits = FORMATS[policy].p
        summed = [a["bits"] for a in kernel["order"]["additions"] if a["bits"]]
        if kernel["input_bits"] < min(bits, *summed, F32.p):
            yield _finding(
                kernel,
                "inputs",
                f"rounds its inputs to {kernel['input_bits']} significant bits, {declared[0].source} declares {policy} ({bits})",
            )


def _rows(kernel: Answers, declared: Sequence[Declaration]) -> Iterator[Finding]:
    """Wider M against single rows: one finding for every order found there, with the M it is found at."""
    base = kernel.get("order")
    by_order: dict[str, list[tuple[int, Answers, Answers]]] = {}
    for wide in kernel["rows"]:
        if wide.get("same") is False:
            yield _finding(kernel, "rows", f"M = {wide['m']}: rows with the bits of single rows do not add along the single row's tree")
        other = wide.get("other")
        if other is not None:
            key = other["order"]["fingerprint"] if "order" in other else other["irregular"]
            by_order.setdefault(key, []).append((wide["m"], wide, other))
    for key, entries in by_order.items():
        m, wide, other = entries[0]
        where = f"M = {spans([e[0] for e in entries])}"
        bits = sum(wide["differing"].values())
        rows = f"rows {spans([int(r) for r in wide['differing']])} of M = {m} differ from single rows in {bits} of {wide['values']} values"
        if "order" not in other:
            yield _finding(kernel, "rows", f"{where}: {rows}; no order was found there: {other['irregular']}")
            continue
        order = other["order"]
        if base is None or key != base["fingerprint"]:
            alone = "an order that was not found" if base is None else base["name"] or base["description"]
            yield _finding(
                kernel, "rows", f"{where}: adds in the order {order['name'] or order['description']}, a single row in {alone}; {rows}"
            )
        else:
            changed = [k for k in ("additions", "result", "fused") if order[k] != base[k]]
            why = f"other {' and '.join(changed)}" if changed else "the same order, precision and products: something else differs"
            yield _finding(kernel, "rows", f"{where}: {rows}; {why}")
        yield from _accumulators(kernel | {"range": other["range"]}, order, f"M = {m}: ")


def notes(kernel: Answers) -> list[str]:
    """What was seen and is no finding."""
    head, found = f"{kernel['weights']} x {kernel['width']}", []
    if "skipped" in kernel:
        return [f"{head}: not probed: {kernel['skipped']}"]
    if "irregular" in kernel:
        found.append(f"{head}: no order found: {kernel['irregular']}")
    if kernel["leaf_elements"] > 1 and "order" in kernel:
        found.append(
            f"{head}: inputs are rounded in blocks of {kernel['leaf_elements']}, inside which sums are of whole numbers: "
            "the order is that of the blocks' sums, read at the second element of each"
        )
    if kernel.get("range", {}).get("lowest", -149) == -126:
        found.append(f"{head}: results below 2^-126 become 0 (subnormals are flushed)")
    return found
