"""The fused drafter's forward written with the single operations of the same library, and a small drafter to run it on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from native import Context, Stored
from oracle.recipes import Visible
from tests.native.stored_blocks import encoded_vector, random_weight

Floats = NDArray[np.float32]
Stages = dict[tuple[str, int], NDArray[Any]]

GEOMETRY: dict[str, Any] = {
    "family": "muse-glimmer",
    "hidden": 256,
    "intermediate": 256,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "vocab": 37,
    "block_size": 8,
    "mask_token_id": 36,
    "n_taps": 2,
    "target_hidden": 128,
    "eps": 1e-5,
    "rope.theta": 5e5,
    "rope.dim": 64,
    "rope.style": "neox",
    "attn_scale": 0.125,
    "causal": [False, False],
    "sliding": [True, True],
    "window_rule": "none",
    "embed_scale": 1.0,
    "output_multiplier": 1.0,
    "softcap": 0.0,
}


def small_config(**changes: Any) -> dict[str, Any]:
    return GEOMETRY | {key.replace("rope_", "rope.", 1) if key.startswith("rope_") else key: value for key, value in changes.items()}


def small_weights(
    biases: bool = False, config: dict[str, Any] | None = None, matrices: tuple[str, ...] = ("q4_k", "bf16", "q6_k", "f32"), seed: int = 0
) -> dict[str, Stored]:
    """Random weights by role, the matrices in turn in the given formats, scaled so that activations stay near one."""
    g = GEOMETRY
    made: dict[str, Stored] = {}

    def matrix(role: str, rows: int, width: int) -> None:
        made[role] = random_weight(matrices[len(made) % len(matrices)], rows, width, seed + len(made))

    def vector(role: str, length: int, around: float) -> None:
        values = around + 0.1 * np.random.default_rng(seed + len(made)).standard_normal(length)
        made[role] = encoded_vector(values, ("f32", "bf16", "f16")[len(made) % 3])

    queries, cells = g["heads"] * g["head_dim"], g["kv_heads"] * g["head_dim"]
    matrix("fc", g["hidden"], g["n_taps"] * g["target_hidden"])
    matrix("embedding", g["vocab"], g["hidden"])
    matrix("head", g["vocab"], g["hidden"])
    vector("hidden_norm", g["hidden"], 1.0)
    vector("norm", g["hidden"], 1.0)
    switches = config or {}
    if switches.get("tap_norm"):
        vector("tap_norm", g["n_taps"] * g["target_hidden"], 1.0)
    for layer in range(g["layers"]):
        p = f"layers.{layer}."
        for role, rows in (("q", queries), ("k", cells), ("v", cells), ("o", g["hidden"])):
            matrix(p + role, rows, g["hidden"])
            if biases:
                vector(f"{p}{role}_bias", rows, 0.0)
        for role in ("gate", "up", "down"):
            matrix(p + role, g["intermediate"], g["hidden"])
        if switches.get("attn_gate", "none") != "none":
            matrix(p + "attn_gate", g["heads"] if switches["attn_gate"] == "softplus" else queries, g["hidden"])
        vector(p + "input_norm", g["hidden"], 1.0)
        vector(p + "post_norm", g["hidden"], 1.0)
        vector(p + "q_norm", g["head_dim"], 1.0)
        vector(p + "k_norm", g["head_dim"], 1.0)
    return made


@dataclass
class Composed:
    """`specs/dflash-generic.md` section 2, one library call per stage; every stage is kept in ``stages`` by (path, first row)."""

    ctx: Context
    c: dict[str, Any]
    w: dict[str, Stored]
    stages: Stages = field(default_factory=dict)
    positions: list[int] = field(default_factory=list)
    cells: list[tuple[Floats, Floats]] = field(default_factory=list)
    length: int = 0

    def __post_init__(self) -> None:
        empty = np.empty((0, self.c["kv_heads"], self.c["head_dim"]), np.float32)
        self.cells = [(empty, empty)] * self.c["layers"]

    def stage(self, path: str, value: NDArray[Any], row0: int = 0) -> NDArray[Any]:
        self.stages[path, row0] = value
        return value

    def project(self, path: str, x: Floats, role: str, heads: str | None, row0: int = 0) -> Floats:
        y = self.ctx.linear(x.reshape(len(x), -1), self.w[role], self.w.get(f"{role}_bias"))
        return self.stage(path, y.reshape(len(x), self.c[heads], -1) if heads else y, row0)

    def norm(self, path: str, x: Floats, role: str, row0: int = 0) -> Floats:
        return self.stage(path, self.ctx.rms_norm(x.reshape(-1, x.shape[-1]), self.w[role], self.c["eps"]).reshape(x.shape), row0)

    def rope(self, path: str, x: Floats, pos: NDArray[np.int64], row0: int = 0) -> Floats:
        width = self.c["rope.dim"]
        frequencies = self.c["rope.theta"] ** (-np.arange(0, width, 2) / width)
        return self.stage(path, self.ctx.rope(x, pos, frequencies, width, self.c["rope.style"]), row0)

    def append(self, taps: Floats, start: int) -> None:
        held = [i for i, p in enumerate(self.positions) if p < start]
        pos = np.arange(start, start + len(taps))
        self.stage("draft.taps", taps, start)
        if self.c.get("tap_norm"):
            normed = self.ctx.rms_norm(taps, self.w["tap_norm"], self.c["eps"], groups=self.c["n_taps"])
            taps = self.stage("draft.tap_norm", normed, start)
        encoded = self.norm("draft.ctx", self.project("draft.fc", taps, "fc", None, start), "hidden_norm", start)
        for layer in range(self.c["layers"]):
            path, roles = f"draft.L{layer}.ctx.", f"layers.{layer}."
            rows = self.norm(path + "xn", encoded, roles + "input_norm", start) if self.c.get("ctx_layernorm") else encoded
            k = self.project(path + "k_raw", rows, roles + "k", "kv_heads", start)
            v = self.project(path + "v", rows, roles + "v", "kv_heads", start)
            k = self.rope(path + "k_rope", self.norm(path + "k_norm", k, roles + "k_norm", start), pos, start)
            old_k, old_v = self.cells[layer]
            self.cells[layer] = np.concatenate([old_k[held], k]), np.concatenate([old_v[held], v])
        self.positions = [self.positions[i] for i in held] + pos.tolist()
        self.length = start + len(taps)

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats, pos: NDArray[np.int64]) -> Floats:
        path = f"draft.L{layer}."
        keys = self.stage(path + "k_cells", np.concatenate([self.cells[layer][0], k]))
        values = self.stage(path + "v_cells", np.concatenate([self.cells[layer][1], v]))
        rule = self.c["window_rule"] if self.c["sliding"][layer] else "none"
        at = np.concatenate([np.array(self.positions, np.int64), pos])
        visible = Visible(rule, self.c["causal"][layer], self.c.get("window"), pos, at, len(self.positions)).matrix()
        return self.stage(path + "attn", self.ctx.attention(q, keys, values, visible, self.c["attn_scale"]))

    def layer(self, layer: int, x: Floats, pos: NDArray[np.int64]) -> Floats:
        path, roles = f"draft.L{layer}.", f"layers.{layer}."
        xn = self.norm(path + "xn", x, roles + "input_norm")
        q = self.project(path + "q_raw", xn, roles + "q", "heads")
        k = self.project(path + "k_raw", xn, roles + "k", "kv_heads")
        v = self.project(path + "v", xn, roles + "v", "kv_heads")
        q = self.rope(path + "q_rope", self.norm(path + "q_norm", q, roles + "q_norm"), pos)
        k = self.rope(path + "k_rope", self.norm(path + "k_norm", k, roles + "k_norm"), pos)
        attended = self.attend(layer, q, k, v, pos)
        kind = self.c.get("attn_gate", "none")
        if kind != "none":
            logits = self.project(path + "attn_gate", xn, roles + "attn_gate", None)
            attended = self.stage(path + "attn_gated", self.ctx.gate(attended, logits, kind))
        o = self.project(path + "o", attended, roles + "o", None)
        x = self.stage(path + "h_attn", self.ctx.add(x, o))
        xn = self.norm(path + "xn_mlp", x, roles + "post_norm")
        gate = self.project(path + "mlp_gate", xn, roles + "gate", None)
        up = self.project(path + "mlp_up", xn, roles + "up", None)
        act = self.stage(path + "mlp_act", self.ctx.swiglu(gate, up))
        return self.stage(path + "h_mlp", self.ctx.add(x, self.project(path + "mlp_down", act, roles + "down", None)))

    def propose(self, block_ids: NDArray[np.int32], position: int) -> Floats:
        pos = np.arange(position, position + len(block_ids))
        x = self.stage("draft.embed", self.ctx.gather(self.w["embedding"], block_ids, self.c["embed_scale"]))
        for layer in range(self.c["layers"]):
            x = self.layer(layer, x, pos)
        raw = self.ctx.linear(self.norm("draft.final_norm", x, "norm"), self.w["head"])
        logits = self.stage("draft.logits", self.ctx.softcap(raw, self.c["output_multiplier"], self.c["softcap"]))
        self.stage("draft.pick", np.ascontiguousarray(self.ctx.top2(logits)[0][:, 0]))
        self.evict()
        return logits

    def evict(self) -> None:
        if self.c["window_rule"] != "SINK_RING" or self.length <= self.c["sink"] + self.c["window"]:
            return
        keep = [i for i, p in enumerate(self.positions) if p < self.c["sink"] or p >= self.length - self.c["window"]]
        self.positions = [self.positions[i] for i in keep]
        self.cells = [(k[keep], v[keep]) for k, v in self.cells]
