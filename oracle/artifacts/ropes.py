"""Rotary parameters of a configuration file -> `Rope`.

Source: `specs/dflash-generic.md` section 9; Llama 3 factors from the formula published with Llama 3.1.
"""

from __future__ import annotations

import math

import numpy as np

from oracle.artifacts.fields import LARGEST_CONTEXT, Fields
from oracle.recipes import Rope, Yarn

THETA = (1e-3, 1e12)


def read_rope(config: Fields, head_dim: int, default_theta: float, scalings: tuple[str, ...] = ()) -> Rope:
    """The rope of a Hugging Face config: ``rope_parameters``, or ``rope_theta`` with ``rope_scaling``; NeoX pairs.

    ``scalings``: the scaling types the family supports beside ``default``.
    """
    for key in ("rope_parameters", "rope_scaling"):
        if key == "rope_scaling" and config.has("rope_parameters") and config.has(key):
            config.refuse(key, "either rope_parameters or rope_scaling, not both")
    table = config.child("rope_parameters") if config.has("rope_parameters") else config.child("rope_scaling")
    config.ignore("rope_parameters", "rope_scaling")
    theta = config.number("rope_theta", *THETA, default=None)
    inner = table.number("rope_theta", *THETA, default=None)
    if theta is not None and inner is not None and theta != inner:
        config.refuse("rope_theta", f"the same value as {table.where}rope_theta = {inner:g}")
    theta = inner if inner is not None else theta if theta is not None else default_theta
    old, new = table.text("type", None), table.text("rope_type", None)
    if old is not None and new is not None and old != new:
        table.refuse("type", f"the same value as {table.where}rope_type")
    kind = new or old or "default"
    if kind not in ("default", *scalings):
        table.refuse("rope_type" if new else "type", " or ".join(("default", *scalings)), "other scalings are not supported")
    table.must_be("partial_rotary_factor", 1, 1.0)
    config.must_be("partial_rotary_factor", 1, 1.0)
    factors = None
    if kind == "linear":
        factors = (table.number("factor", 1e-3, 1e6),) * (head_dim // 2)
    elif kind == "llama3":
        factors = _read_llama3(table, theta, head_dim)
    table.finish()
    return Rope(theta, head_dim, "neox", factors)


def _read_llama3(table: Fields, theta: float, dim: int) -> tuple[float, ...]:
    factor = table.number("factor", 1e-3, 1e6)
    low, high = table.number("low_freq_factor", 1e-6, 1e6), table.number("high_freq_factor", 1e-6, 1e6)
    if not low < high:
        table.refuse("high_freq_factor", f"more than low_freq_factor = {low:g}")
    original = table.integer("original_max_position_embeddings", 1, LARGEST_CONTEXT)
    return llama3_factors(theta, dim, factor, low, high, original)


def llama3_factors(theta: float, dim: int, factor: float, low: float, high: float, original: int) -> tuple[float, ...]:
    """One divisor per pair: 1 where a pair turns more than ``high`` times in ``original`` positions, ``factor`` where it
    turns fewer than ``low`` times, and between them the frequency is blended linearly in the number of turns."""
    turns = original * Rope(theta, dim).inv_freq() / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return tuple(float(f) for f in 1.0 / ((1.0 - blend) / factor + blend))


def yarn_factors(theta: float, dim: int, factor: float, original: int, fast: float, slow: float) -> tuple[float, ...]:
    """One divisor per pair of a YaRN rope (`specs/laguna.md` 1.4): 1 for pairs that turn more than about ``fast`` times in
    ``original`` positions, ``factor`` below about ``slow`` turns, and between them frequencies blended linearly in the index."""

    def index(turns: float) -> float:
        return dim * math.log(original / (2 * math.pi * turns)) / (2 * math.log(theta))

    low, high = max(math.floor(index(fast)), 0), min(math.ceil(index(slow)), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low if high != low else 1e-3), 0, 1)
    return tuple(float(f) for f in 1 / (ramp / factor + (1 - ramp)))


def stretched(theta: float, width: int, yarn: Yarn, attention: float) -> Rope:
    """A YaRN rope of ``width`` dims whose cos and sin are multiplied by ``attention``."""
    return Rope(theta, width, "neox", yarn_factors(theta, width, yarn.factor, yarn.original, yarn.fast, yarn.slow), attention)


def yarn_attention_factor(factor: float) -> float:
    """What multiplies cos and sin where the file does not say."""
    return 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
