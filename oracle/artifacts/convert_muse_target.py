"""A Muse Glimmer target in the other container: norms with their 1 or without, q and k rows in pairs or in halves.

Source: `specs/muse-glimmer.md` 1.5 and 1.7.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import numpy as np

from oracle.artifacts import make_muse_target as forms
from oracle.artifacts.carry import Written, carried, shifted, vector
from oracle.artifacts.container import Container
from oracle.artifacts.convert_dense import eos_of, to_halves, to_pairs
from oracle.artifacts.make_models import Model
from oracle.artifacts.muse_target import roles
from oracle.artifacts.targets import TargetFiles
from oracle.targets.muse_glimmer import MuseGeometry
from oracle.weights import Weight


def plan(container: Container, files: TargetFiles, weights: dict[str, Weight], kind: str) -> Written:
    """What the container ``kind`` is to hold."""
    g = files.geometry
    assert isinstance(g, MuseGeometry)
    gguf = kind == "gguf"
    by, step = (1.0, to_pairs) if gguf else (-1.0, to_halves)
    reorder = {f"{n}.{part}": step(heads) for n in range(g.layers) for part, heads in (("q", g.heads), ("k", g.kv_heads))}
    plain = weights["norm"].stored
    formats = ("f32", "f64") if gguf else tuple(dict.fromkeys((plain, "f32", "f64")))
    tensors, by_value = {}, {}
    for key, role in roles(g, "gguf" if gguf else "hf").items():
        part = key.rsplit(".", 1)[-1]
        if part in ("q_norm", "k_norm"):
            value = g.qk_scale if part == "q_norm" else 1.0
            tensors[key] = vector(role, np.full(g.head_dim, value), "f32")
        elif part in forms.CENTRED:
            tensors[key] = shifted(container, role, weights[key], by, formats)
            by_value[key] = by
        else:
            tensors[key] = carried(role, weights[key], reorder.get(key))
    shared = {f.name for f in fields(Model)}
    model = Model(**{k: v for k, v in asdict(g).items() if k in shared}, theta=g.rope.theta)
    made: dict[str, Any] = {"tensors": tensors, "reorder": reorder, "by_value": by_value, "unsaid": ("norm_offset",)}
    made["made"] = (".q_norm", ".k_norm")
    if gguf:
        return Written(keys=forms.keys(model) | eos_of(container, kind), **made)
    config = forms.config(model, plain)
    return Written(config=config | {"text_config": config["text_config"] | eos_of(container, kind)}, **made)
