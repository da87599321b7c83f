"""The rules of a round, each a check with a name: what a trace breaks, in which round, and what it looks like.

Sources: `specs/dflash-generic.md` section 3 and 13, `specs/muse-glimmer.md` 5.6 and 5.7, `specs/qwen38-flash-next.md` 3.4 and 8.4 (window
content), `specs/laguna.md` 5.1 (invariants) and section 8 rows 1 and 15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from oracle.speculation.verification import greedy
from parity.speculating.foreign import Foreign, LogitRow, Round

CHECKS = {
    "anchor": "the anchor is the last token known before the round",
    "position": "the anchor's position advances by the rows that the round before committed",
    "block": "the drafter is fed the anchor and masks",
    "proposals": "proposals are the argmax of the drafted rows' recorded logits",
    "window.filled": "the verify window holds the proposals",
    "window.slot": "every proposal is in its own slot of the verify window",
    "picks": "picks are the argmax of the target's recorded logits",
    "accepted": "drafts are accepted while they are what the target picked",
    "bonus": "the bonus is the pick of the row behind the last accepted draft",
    "emitted": "the accepted drafts and the bonus are published, cut at the budget and after a stop",
    "context.first": "every prompt row is context before the first round",
    "context.rows": "the committed rows, and no others, become context",
    "context.position": "context rows stand at their own positions, without a gap",
    "crop": "the target's cache holds the committed rows and no others",
    "rollback": "every layer's cache is taken back alike, and what it overwrote is put back",
}


@dataclass(frozen=True)
class Violation:
    """A broken rule: ``round`` counts from 0 (-1: before the first), ``check`` is a name of `CHECKS`."""

    round: int
    check: str
    what: str


@dataclass(frozen=True)
class Before:
    """What the rounds so far leave: the token and position the next anchor must have."""

    anchor: int | None
    position: int | None


Check = Callable[[Foreign, Round, Before], Iterator[tuple[str, str]]]


def violations(trace: Foreign) -> list[Violation]:
    """Every broken rule, round by round. A round is checked against what the round before it really did, so one mistake is told once."""
    found = [Violation(-1, *v) for v in _first(trace)]
    position = trace.prompt_rows
    before = Before(trace.first, position)
    for number, r in enumerate(trace.rounds):
        for check in PER_ROUND:
            found += [Violation(number, *v) for v in check(trace, r, before)]
        kept = _kept(r)
        before = Before(r.bonus if kept == r.accepted + 1 else None, r.position + kept)
    return found


def seen(trace: Foreign) -> dict[str, int]:
    """How many rounds recorded what each check needs; 0: it could not be made."""
    needs: dict[str, Callable[[Round], bool]] = {
        "block": lambda r: bool(r.block),
        "proposals": lambda r: r.draft_logits is not None and trace.chooser == "argmax",
        "picks": lambda r: r.target_logits is not None and r.picks is not None,
        "accepted": lambda r: trace.judge == "greedy" and _picks(r) is not None,
        "bonus": lambda r: trace.judge == "greedy" and _picks(r) is not None,
        "emitted": lambda r: r.emitted is not None,
        "context.rows": lambda r: r.context is not None,
        "context.position": lambda r: r.context_start is not None or r.draft_rows is not None,
        "crop": lambda r: r.target_rows is not None,
        "rollback": lambda r: r.target_rows is not None,
    }
    counts = {name: sum(map(needs.get(name, lambda r: True), trace.rounds)) for name in CHECKS}
    counts["context.first"] = int(trace.context_rows is not None and trace.prompt is not None)
    return counts


def _picks(r: Round) -> tuple[int, ...] | None:
    if r.picks is not None:
        return r.picks
    return None if r.target_logits is None else tuple(row.pick for row in r.target_logits)


def _kept(r: Round) -> int:
    """Committed rows: as recorded, else what the rules say."""
    return r.accepted + 1 if r.kept is None else r.kept


def _first(trace: Foreign) -> Iterator[tuple[str, str]]:
    if trace.context_rows is None or trace.prompt is None or trace.context_rows == tuple(range(len(trace.prompt))):
        return
    rows = trace.context_rows
    last = len(rows) == 1 and rows[0] == len(trace.prompt) - 1
    told = "only the last prompt row is context" if last else f"prompt rows {_shown(rows)} are context"
    yield "context.first", f"{told}, expected all {len(trace.prompt)} rows"


def _progress(trace: Foreign, r: Round, before: Before) -> Iterator[tuple[str, str]]:
    if before.anchor is not None and r.anchor != before.anchor:
        yield "anchor", f"the anchor is {r.anchor}, the last known token is {before.anchor}"
    if before.position is not None and r.position != before.position:
        yield "position", f"the anchor is at {r.position}, expected {before.position} ({r.position - before.position:+d})"
    if r.window[0] != r.anchor:
        yield "window.slot", f"row 0 of the window is {r.window[0]}, not the anchor {r.anchor}"


def _block(trace: Foreign, r: Round, before: Before) -> Iterator[tuple[str, str]]:
    if not r.block:
        return
    masks = r.block[1:]
    if r.block[0] != r.anchor:
        yield "block", f"row 0 of the block is {r.block[0]}, not the anchor {r.anchor}"
    if trace.mask is not None and any(m != trace.mask for m in masks):
        wrong = next(i for i, m in enumerate(masks) if m != trace.mask)
        yield "block", f"row {wrong + 1} of the block is {masks[wrong]}, not the mask {trace.mask}"
    give = len(r.block) if trace.layout == "predict_next" else len(r.block) - 1
    if len(r.proposals) > give:
        yield "block", f"{len(r.proposals)} proposals from a block of {len(r.block)} rows, which gives {give} in layout {trace.layout}"


def _proposals(trace: Foreign, r: Round, before: Before) -> Iterator[tuple[str, str]]:
    if r.draft_logits is None or trace.judge != "greedy" or trace.chooser != "argmax":
        return
    yield from _argmax("proposals", "proposal", r.proposals, r.draft_logits)


def _argmax(check: str, what: str, chosen: Sequence[int], rows: Sequence[LogitRow]) -> Iterator[tuple[str, str]]:
    if len(rows) < len(chosen):
        yield check, f"{len(rows)} rows of logits for {len(chosen)} {what}s"
    for j, row in enumerate(rows):
        if not row.finite:
            yield check, f"logits of row {j} are not all finite"
            return
    picks = [row.pick for row in rows]
    wrong = [j for j, c in enumerate(chosen[: len(rows)]) if c != picks[j] and rows[j].of(c) != rows[j].of(picks[j])]
    if not wrong:
        return
    shift = next((s for s in (1, -1) if _shifted(chosen, picks, s)), None)
    if shift is not None:
        yield check, f"{what} j is the argmax of row j{shift:+d}: rows are read one off"
        return
    j = wrong[0]
    mine, theirs = rows[j].of(picks[j]), rows[j].of(chosen[j])
    gap = float("nan") if mine is None or theirs is None else mine - theirs
    yield (
        check,
        f"{what} {j} is {chosen[j]}, the argmax of its logits is {picks[j]} (ahead by {gap:.3g}); {len(wrong)} of {len(chosen)} differ",
    )


def _shifted(found: Sequence[int], true: Sequence[int], shift: int) -> bool:
    """Whether ``found`` is ``true`` moved by ``shift``, over at least two entries that are not all one token."""
    pairs = [(t, _at(true, j + shift)) for j, t in enumerate(found)]
    known = [(t, want) for t, want in pairs if want is not None]
    return len(known) > 1 and all(t == want for t, want in known) and len({t for t, _ in known}) > 1


def _at(values: Sequence[int], i: int) -> int | None:
    return values[i] if 0 <= i < len(values) else None


def _window(trace: Foreign, r: Round, before: Before) -> Iterator[tuple[str, str]]:
    slots = r.window[1:]
    if len(slots) > len(r.proposals):
        yield "window.filled", f"{len(slots)} drafts in the window, {len(r.proposals)} were proposed"
        return
    wrong = [j for j, t in enumerate(slots) if t != r.proposals[j]]
    if not wrong:
        return
    for shift in (1, -1, 2, -2):
        if _shifted(slots, r.proposals, shift):
            yield "window.slot", f"slot j of the window holds proposal j{shift:+d}: {_shown(slots)} for {_shown(r.proposals)}"
            return
    same = {slots[j] for j in wrong}
    filler = f"all token {same.pop()}" if len(same) == 1 and len(wrong) > 1 else _shown([slots[j] for j in wrong])
    yield "window.filled", f"slots {_shown([j + 1 for j in wrong])} hold {filler}, proposed was {_shown([r.proposals[j] for j in wrong])}"


def _accepts(trace: Foreign, r: Round, before: Before) -> Iterator[tuple[str, str]]:
    if r.target_logits is not None and r.picks is not None:
        yield from _argmax("picks", "pick", r.picks, r.target_logits)
    picks = _picks(r)
    if trace.judge != "greedy" or picks is None:
        if not 0 <= r.accepted < len(r.window):
            yield "accepted", f"{r.accepted} accepted of {len(r.window) - 1} drafts"
        return
    if len(picks) < len(r.window):
        yield "accepted", f"{len(picks)} picks for a window of {len(r.window)} rows"
        return
    right = greedy(r.window[1:], picks[: len(r.window)])
    if r.accepted != right.accepted:
        yield (
            "accepted",
            f"{r.accepted} drafts accepted, the rule accepts {right.accepted}: window {_shown(r.window[1:])}, picks {_shown(picks)}",
        )
    if 0 <= r.accepted < len(picks) and r.bonus != picks[r.accepted]:
        yield "bonus", _wrong_bonus(r, picks)


def _wrong_bonus(r: Round, picks: Sequence[int]) -> str:
    told = f"the bonus is {r.bonus}, the pick of row {r.accepted} is {picks[r.accepted]}"
    rows = [j for j, p in enumerate(picks) if p == r.bonus]
    first = r.window.index(r.window[r.accepted]) if r.accepted < len(r.window) else r.accepted
    if first in rows and first != r.accepted:
        return f"{told}; it is the pick of row {first}, the first that holds token {r.window[first]} too: found by value, not by index"
    return told + (f"; it is the pick of row {rows[0]}" if rows else "; no row picked it")


def _emitted(trace: Foreign, r: Round, before: Before) -> Iterator[tuple[str, str]]:
    if r.emitted is None:
        return
    whole = r.window[: r.accepted + 1] if trace.publishes == "window" else (*r.window[1 : r.accepted + 1], r.bonus)
    if r.emitted != whole[: len(r.emitted)] or not r.emitted:
        yield "emitted", f"{_shown(r.emitted)} were published, the round gives {_shown(whole)}"
    elif len(r.emitted) < len(whole) and r is not trace.rounds[-1]:
        yield "emitted", f"{len(r.emitted)} of {len(whole)} tokens were published in a round that is not the last"


def _context(trace: Foreign, r: Round, before: Before) -> Iterator[tuple[str, str]]:
    kept = _kept(r)
    if kept > r.accepted + 1 or (kept < r.accepted + 1 and r is not trace.rounds[-1]):
        yield "crop", f"{kept} rows were committed, the round gives {r.accepted + 1} (the anchor's and the accepted drafts')"
    if r.context is not None and (len(r.context) != kept or r.context != tuple(range(len(r.context)))):
        shifted = bool(r.context) and r.context[0] == 1
        told = "the proposal rows, not the committed ones" if shifted else "not the committed rows"
        yield "context.rows", f"window rows {_shown(r.context)} became context, expected {_shown(range(kept))}: {told}"
    if r.context_start is not None and r.context_start != r.position:
        yield "context.position", f"context rows start at {r.context_start}, the round's first row is at {r.position}"
    elif r.draft_rows not in (None, 0, r.position + kept):
        yield "context.position", f"the context holds {r.draft_rows} rows after the round, expected {r.position + kept}"


def _cache(trace: Foreign, r: Round, before: Before) -> Iterator[tuple[str, str]]:
    if not r.target_rows:
        return
    right = r.position + _kept(r)
    if len(set(r.target_rows)) > 1:
        odd = [i for i, n in enumerate(r.target_rows) if n != right]
        yield (
            "rollback",
            f"layers {_shown(odd)} count {_shown(sorted({r.target_rows[i] for i in odd}))} rows after the round, expected {right}",
        )
    elif r.target_rows[0] != right:
        off = r.target_rows[0] - right
        side = "rejected rows stay" if off > 0 else "committed rows are lost"
        yield "crop", f"the cache holds {r.target_rows[0]} rows after the round, expected {right} ({off:+d}): {side}"


PER_ROUND: tuple[Check, ...] = (_progress, _block, _proposals, _window, _accepts, _emitted, _context, _cache)


def _shown(ids: Sequence[int]) -> str:
    """A short list of numbers."""
    text = ", ".join(map(str, ids[:8]))
    return f"{text}, …" if len(ids) > 8 else text or "none"
