"""Qwen3.8-Flash-Next drafters and targets in the other container.

Source: `specs/qwen38-flash-next.md` 1.2 (re-layouts of a GGUF target) and 4.3 (the drafter's keys: raw tap ids, as its engine's tool
writes them). Norms get their 1 and the decay its exponential in a format from which the source's numbers come back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oracle import ngrams
from oracle.artifacts import blocks, make_qwen38, qwen38_gguf, qwen38_gguf_names, qwen38_roles
from oracle.artifacts.carry import Written, carried, exact, shifted, stacked
from oracle.artifacts.container import ArtifactError, Container
from oracle.artifacts.convert_dense import eos_of
from oracle.artifacts.descriptions import vocabulary
from oracle.artifacts.drafters import DrafterFiles
from oracle.artifacts.qwen38_restore import SHIFTED, logarithm
from oracle.artifacts.reordered import Reordered, tiled_heads
from oracle.artifacts.roles import Role, drafter_roles
from oracle.artifacts.targets import TargetFiles
from oracle.artifacts.writers import PlannedTensor
from oracle.targets.qwen38_weights import Qwen38Geometry
from oracle.weights import Weight

# Names of the parts of a layer where the path of a weight and the key of its tensor differ.
PATHS = {"attn_hc.hc_norm": "attn_hc.norm", "mlp_hc.hc_norm": "mlp_hc.norm", "router": "mixture.router"}


def plan_drafter(container: Container, files: DrafterFiles, weights: dict[str, Weight], kind: str) -> Written:
    """What the container ``kind`` is to hold of a drafter."""
    g, d = files.geometry, files.dialect
    roles = drafter_roles(g, "gguf" if kind == "gguf" else "hf")
    tensors = {key: carried(role, weights[key]) for key, role in roles.items()}
    if kind == "gguf":
        return Written(tensors, make_qwen38.draft_keys(g, d.eps, d.rope.theta))
    config = make_qwen38.draft_config(g, d.eps, d.rope.theta, weights["norm"].stored)
    return Written(tensors, config=config | eos_of(container, kind))


def plan_target(container: Container, files: TargetFiles, weights: dict[str, Any], kind: str) -> Written:
    """What the container ``kind`` is to hold of a target."""
    g = files.geometry
    assert isinstance(g, Qwen38Geometry)
    return _to_gguf(container, g, weights) if kind == "gguf" else _to_folder(container, g, weights)


def _path(key: str) -> str:
    """The path of the weight that a tensor's key names: ``3.delta.z`` is ``3.mixer.z``."""
    if key == "final.hc_norm":
        return "final.norm"
    layer, _, part = key.partition(".")
    part = PATHS.get(part, part)
    for block in ("delta.", "sparse."):
        part = part.replace(block, "mixer.", 1) if part.startswith(block) else part
    part = {"mixer.a_bias": "mixer.a_log"}.get(part, part)
    return f"{layer}.{part}" if part else layer


def _experts(weights: dict[str, Any], layer: str, part: str, g: Qwen38Geometry) -> list[Weight]:
    return [weights[f"{layer}.mixture.{part}.{e}"] for e in range(g.experts)]


def _to_gguf(container: Container, g: Qwen38Geometry, weights: dict[str, Any]) -> Written:
    tensors, by_value = {}, {}
    for key, role in qwen38_gguf_names.target_roles(g).items():
        layer, _, part = key.partition(".")
        path = _path(key)
        if part.startswith("experts."):
            tensors[key] = stacked(container, role, [_experts(weights, layer, part.removeprefix("experts."), g)])
        elif part.rsplit(".", 1)[-1] in SHIFTED:
            tensors[key] = shifted(container, role, weights[path], 1.0, ("f32", "f64"))
            by_value[path] = 0.0
        elif part == "delta.a_bias":
            tensors[key] = _exponential(container, role, weights[path], g)
            by_value[path] = 0.0
        elif part in ("delta.qkv", "delta.conv"):
            names = ("q", "k", "v") if part == "delta.qkv" else ("q_conv", "k_conv", "v_conv")
            q, k, v = (weights[f"{layer}.mixer.{n}"] for n in names)
            tensors[key] = stacked(container, role, [[q, k, _tiled(v, "v", g)]])
        elif part.startswith("delta."):
            tensors[key] = carried(role, _tiled(weights[path], part.removeprefix("delta."), g))
        else:
            tensors[key] = carried(role, weights[path])
    keys = qwen38_gguf.target_keys(container, g) | vocabulary(g.vocab) | eos_of(container, "gguf")
    # The final norm is at two paths.
    return Written(tensors, keys, by_value=by_value | {"norm": 0.0})


def _tiled(w: Weight, part: str, g: Qwen38Geometry) -> Weight:
    """``w`` with its value heads tiled (the inverse of what the loader does)."""
    if part == "norm" or g.key_heads == g.value_heads:
        return w
    flat = ("dim", "in") if len(w.shape) > 1 else w.axes
    shape = (w.row_count, w.width) if len(w.shape) > 1 else w.shape
    width = 1 if part in ("beta", "decay", "dt_bias") else g.value_dim
    order = np.argsort(tiled_heads(g.key_heads, g.value_heads, width))
    if part in ("o", "dt_bias"):
        return Reordered(w, flat, shape, columns=order)
    return Reordered(w, flat, shape, rows=order)


def _exponential(container: Container, role: Role, w: Weight, g: Qwen38Geometry) -> PlannedTensor:
    """``-exp(A_log)``, heads tiled, in the first format whose logarithm is A_log again."""
    order = np.argsort(tiled_heads(g.key_heads, g.value_heads, 1))
    logs = w.array()[order]

    def check(found: np.ndarray[Any, Any]) -> bool:
        for stored in ("f32", "f64"):
            if np.array_equal(blocks.decode(blocks.encode(found[None], stored), stored, len(found))[0], found):
                return np.array_equal(logarithm(Weight.of(found, ("head",), stored)).array(), logs)
        return False

    return exact(container, role, -np.exp(logs), ("f32", "f64"), check)


def _to_folder(container: Container, g: Qwen38Geometry, weights: dict[str, Any]) -> Written:
    g = _with_origin(container, g)
    plain = weights["embedding"].stored
    alike = {w.stored for k, w in weights.items() if ".mixture.gate." in k or ".mixture.up." in k}
    packed = len(alike) <= 1
    tensors, by_value = {}, {}
    for key, role in qwen38_roles.target_roles(g, packed=packed).items():
        layer, _, part = key.partition(".")
        path = _path(key)
        if part.rsplit(".", 1)[-1] in SHIFTED:
            tensors[key] = _plainest(container, role, weights[path], plain)
            by_value[path] = 0.0
        elif part == "experts.gate_up":
            pairs = zip(_experts(weights, layer, "gate", g), _experts(weights, layer, "up", g), strict=True)
            tensors[key] = stacked(container, role, list(pairs))
        elif part == "experts.down":
            tensors[key] = stacked(container, role, [_experts(weights, layer, "down", g)])
        elif part.startswith("experts."):
            _, name, number = part.split(".")
            tensors[key] = carried(role, weights[f"{layer}.mixture.{name}.{number}"])
        elif part in ("delta.qkv", "delta.conv"):
            names = ("q", "k", "v") if part == "delta.qkv" else ("q_conv", "k_conv", "v_conv")
            tensors[key] = stacked(container, role, [[weights[f"{layer}.mixer.{n}"] for n in names]])
        elif part == "sparse.index":
            tensors[key] = stacked(container, role, [[weights[f"{layer}.mixer.index_{n}"] for n in ("q", "k")]])
        else:
            tensors[key] = carried(role, weights[path])
    published = {key: make_qwen38.published(t, role) for (key, t), role in zip(tensors.items(), _roles(g, packed), strict=True)}
    config = make_qwen38.target_config(g, plain)
    # The n-gram hash needs its own end mark, which is then the config's.
    config |= {} if any(g.ngrams) else eos_of(container, "folder")
    return Written(published, config=config, by_value=by_value | {"norm": 0.0}, unsaid=("ngram_origin",))


def _roles(g: Qwen38Geometry, packed: bool) -> list[Role]:
    return list(qwen38_roles.target_roles(g, packed=packed).values())


def _plainest(container: Container, role: Role, w: Weight, plain: str) -> PlannedTensor:
    """A norm in the model's own format where that holds it, else in f32, else in f64."""
    values = w.array().reshape(-1)
    return exact(container, role, values, tuple(dict.fromkeys((plain, "f32", "f64"))), lambda found: np.array_equal(found, values))


def _with_origin(container: Container, g: Qwen38Geometry) -> Qwen38Geometry:
    """The geometry with what the hash constants are made of: said by the file, or the release's seed if that gives them."""
    at = next((n for n, r in enumerate(g.ngrams) if r is not None), None)
    if at is None or g.ngram_origin is not None:
        return g
    recipe = g.ngrams[at]
    assert recipe is not None
    for divisor in (128, make_qwen38.DIVISOR, 1, g.ngram_rows[at]):
        guess = ngrams.Origin(recipe.sizes[0], make_qwen38.SEED, divisor)
        made = ngrams.make(g.vocab, recipe.size, recipe.per_size, guess.base, guess.seed, 0, recipe.end)
        if made == recipe and ngrams.table_rows(recipe, divisor) == g.ngram_rows[at]:
            return replace(g, ngram_origin=guess)
    what = "a config makes its hash constants from a seed, which the file does not say"
    raise ArtifactError(f"{container.path}: {what}: add the key qwen4exp.ple.seed")

