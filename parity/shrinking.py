"""Smaller cases of the same kind: fewer steps, rows and context on the same model; the same steps on a smaller seeded model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from parity.case import Case, Step, append, propose, window
from parity.models import open_case_model

# What a seeded model can be asked for; the sizes are halved in this order, the dearest first.
SIZES = ("layers", "vocab", "intermediate", "hidden", "heads", "head_dim")
LEAST = {"layers": 1, "vocab": 16, "intermediate": 8, "hidden": 8, "heads": 2, "head_dim": 4}


def until(case: Case, step: int) -> Case:
    """The case up to a step."""
    return replace(case, steps=case.steps[: step + 1])


def without_step(case: Case, index: int) -> Case:
    return replace(case, steps=case.steps[:index] + case.steps[index + 1 :])


def merged_appends(case: Case) -> Case:
    """Appends that follow each other without a gap as one."""
    steps: list[Step] = []
    for s in case.steps:
        last = steps[-1] if steps else None
        if last is not None and last.kind == s.kind == "append" and last.at + len(last.array) == s.at:
            steps[-1] = append(np.concatenate([last.array, s.array]), last.at)
        else:
            steps.append(s)
    return replace(case, steps=tuple(steps))


def context_rows(case: Case) -> int:
    """How many of the earliest rows could be dropped: those before the last step, all but one."""
    return max(case.steps[-1].at - 1, 0)


def without_first_rows(case: Case, count: int) -> Case | None:
    """The case without its first ``count`` positions, everything after them moved forward; None where a step would lose its place."""
    steps: list[Step] = []
    for s in case.steps:
        cut = max(count - s.at, 0)
        if s.kind == "propose":
            if cut:
                return None
            steps.append(propose(s.array, s.at - count))
        elif cut < len(s.array):
            make = append if s.kind == "append" else window
            steps.append(make(s.array[cut:], max(s.at - count, 0)))
    return replace(case, steps=tuple(steps)) if steps else None


def block_rows(case: Case, rows: int) -> Case:
    """The last step's first ``rows`` rows only."""
    last = case.steps[-1]
    return replace(case, steps=(*case.steps[:-1], Step(last.kind, last.array[:rows], last.at)))


@dataclass(frozen=True)
class Plan:
    """A seeded model of a family and what is varied of it; ``make`` writes it and puts a case's steps on it."""

    family: str
    role: str
    sizes: dict[str, Any] = field(default_factory=dict)

    def halved(self) -> Iterator[Plan]:
        """Plans with one size smaller: halved, then one less."""
        for name in SIZES:
            value = self.sizes.get(name)
            if not isinstance(value, int) or value <= LEAST[name]:
                continue
            for smaller in dict.fromkeys((max(value // 2, LEAST[name]), value - 1 if name == "layers" else value // 2)):
                if smaller < value:
                    yield Plan(self.family, self.role, _consistent({**self.sizes, name: smaller}, self.sizes))


def _consistent(sizes: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Other sizes follow the one that changed: kv heads divide heads, the mask is a token, each layer has its kind, taps exist."""
    out = dict(sizes)
    if "heads" in out and "kv_heads" in out:
        group = max(before["heads"] // before["kv_heads"], 1)
        out["kv_heads"] = max(out["heads"] // group, 1)
        if out["heads"] % out["kv_heads"]:
            out["kv_heads"] = 1
    if "mask_token_id" in out:
        out["mask_token_id"] = min(out["mask_token_id"], out["vocab"] - 1)
    if out.get("sliding"):
        out["sliding"] = tuple(out["sliding"][: out["layers"]])
    return out


def planned(case: Case) -> Plan | None:
    """The seeded model with the sizes of the case's own, or None where its geometry is not made of them."""
    g = open_case_model(case).geometry
    names = ["layers", "vocab", "intermediate", "hidden", "heads", "kv_heads", "head_dim", "window", "eps"]
    if case.role == "drafter":
        names += ["block_size", "mask_token_id", "target_layers"]
    sizes: dict[str, Any] = {n: g[n] for n in names if isinstance(g.get(n), int | float)}
    if case.role == "drafter":
        sizes |= {n: tuple(g[n]) for n in ("sliding", "tap_ids") if g.get(n)}
        sizes |= {"eps": g["dialect"]["eps"], "theta": g["dialect"]["rope"]["theta"]}
        if not any(g.get("sliding") or ()):
            sizes.pop("window", None)
    return Plan(case.family, case.role, sizes) if {"layers", "hidden"} <= set(sizes) else None


def on_seeded_model(case: Case, plan: Plan, out: Path) -> Case:
    """The case's steps, row for row, on a seeded model of the plan written to ``out``. Raises what making and opening raise."""
    from oracle.artifacts import make_artifact
    from parity.making import drafter_case, target_case

    files = make_artifact(
        plan.family, "tiny", "f32", out, seed=case.seed or 0, role="target" if plan.role == "target" else None, **plan.sizes
    )
    rows = max((s.at + len(s.array) for s in case.steps if s.kind != "propose"), default=0)
    if plan.role == "target":
        base = target_case(files[0], prefill=rows, block=0, seed=case.seed or 0)
        steps = tuple(window(base.steps[0].array[s.at : s.at + len(s.array)], s.at) for s in case.steps)
        return replace(base, steps=steps, name=f"{case.name}, minimised")
    base = drafter_case(files[0], files[1], family=plan.family, dialect=case.dialect, context=rows, block=1, seed=case.seed or 0)
    mask = open_case_model(base).geometry["mask_token_id"]
    anchor = int(base.steps[-1].array[0])
    made: list[Step] = []
    for s in case.steps:
        if s.kind == "append":
            made.append(append(base.steps[0].array[s.at : s.at + len(s.array)], s.at))
        else:
            made.append(propose([anchor] + [mask] * (len(s.array) - 1), s.at))
    return replace(base, steps=tuple(made), name=f"{case.name}, minimised")
