"""Laguna drafters and targets in the other container: q, k and v apart or fused, tap norms and experts one by one or stacked.

Source: `specs/laguna.md` 1.2, 3.2 and 4; `laguna_gguf` and `laguna_draft_gguf` for the names in GGUF. Nothing changes its value.
"""

from __future__ import annotations

from typing import Any

from oracle.artifacts import laguna, laguna_draft_gguf, laguna_gguf, laguna_target, make_laguna
from oracle.artifacts.carry import Written, carried, stacked
from oracle.artifacts.container import Container
from oracle.artifacts.convert_dense import eos_of
from oracle.artifacts.descriptions import vocabulary
from oracle.artifacts.drafters import DrafterFiles
from oracle.artifacts.roles import Role
from oracle.artifacts.targets import TargetFiles
from oracle.artifacts.writers import PlannedTensor
from oracle.targets.laguna import LagunaGeometry
from oracle.weights import Weight

FUSED = ("q", "k", "v")


def plan_drafter(container: Container, files: DrafterFiles, weights: dict[str, Weight], kind: str) -> Written:
    """What the container ``kind`` is to hold of a drafter."""
    g, d = files.geometry, files.dialect
    norms = weights["tap_norm"]
    taps = norms.raw.reshape(len(g.tap_ids), -1)
    if kind == "gguf":
        roles = laguna_draft_gguf.roles(g)
        tensors = {key: carried(role, weights[key]) for key, role in roles.items() if key != "tap_norm"}
        role = roles["tap_norm"]
        tensors["tap_norm"] = PlannedTensor.whole(role.name, role.flat, norms.stored, taps)
        return Written(tensors, make_laguna.draft_keys(g, d.eps, d.rope.theta) | eos_of(container, kind))
    fused = all(len({weights[f"{n}.{p}"].stored for p in FUSED}) == 1 for n in range(g.layers))
    tensors = {}
    for key, role in laguna.roles(g, fused).items():
        if key.endswith(".qkv"):
            tensors[key] = stacked(container, role, [[weights[f"{key.removesuffix('qkv')}{p}"] for p in FUSED]])
        elif key.startswith("tap"):
            row = taps[int(key.removeprefix("tap").removesuffix("_norm"))][None]
            tensors[key] = PlannedTensor.whole(role.name, role.flat, norms.stored, row)
        else:
            tensors[key] = carried(role, weights[key])
    config = make_laguna.draft_config(g, d.eps, d.rope.theta, weights["norm"].stored)
    return Written(tensors, config=config | eos_of(container, kind))


def plan_target(container: Container, files: TargetFiles, weights: dict[str, Weight], kind: str) -> Written:
    """What the container ``kind`` is to hold of a target. ``heads`` shapes nothing, and GGUF has the heads of every layer alone."""
    g = files.geometry
    assert isinstance(g, LagunaGeometry)
    element = tuple(weights[f"{n}.attn_gate"].axes == ("dim", "in") for n in range(g.layers))
    unsaid: dict[str, Any] = {"unsaid": ("heads",)}
    if kind == "gguf":
        roles = laguna_gguf.target_roles(g, element)
        tensors = {key: _stacked(container, key, role, weights, g) for key, role in roles.items()}
        keys = laguna_gguf.target_keys(container, g) | vocabulary(g.vocab) | eos_of(container, kind)
        return Written(tensors, keys, **unsaid)
    tensors = {key: _single(key, role, weights) for key, role in laguna_target.roles(g, per_element=element).items()}
    config = make_laguna.target_config(g, weights["norm"].stored, "per-element" if any(element) else "per-head")
    return Written(tensors, config=config | eos_of(container, kind), **unsaid)


def _stacked(container: Container, key: str, role: Role, weights: dict[str, Weight], g: LagunaGeometry) -> PlannedTensor:
    layer, _, part = key.partition(".")
    if part in ("router", "bias"):
        return carried(role, weights[f"{layer}.mixture.{part}"])
    if part.startswith("expert_"):
        name = f"{layer}.mixture.{part.removeprefix('expert_')}"
        return stacked(container, role, [[weights[f"{name}.{e}"] for e in range(g.experts)]])
    return carried(role, weights[key])


def _single(key: str, role: Role, weights: dict[str, Weight]) -> PlannedTensor:
    layer, _, part = key.partition(".")
    if part in ("router", "bias"):
        return carried(role, weights[f"{layer}.mixture.{part}"])
    if part.startswith("expert_"):
        name, _, number = part.removeprefix("expert_").partition(".")
        return carried(role, weights[f"{layer}.mixture.{name}.{number}"])
    return carried(role, weights[key])
