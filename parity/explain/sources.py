"""Which mistakes each operation can hold: its name in `oracle.ops` -> the modules that make its hypotheses."""

from __future__ import annotations

from parity.explain import attention, caches, experts, fusion, gates, linear, lookups, norm, recurrent, rope
from parity.explain.base import Source

SOURCES: dict[str, tuple[Source, ...]] = {
    "rope": (rope.hypotheses,),
    "rms_norm": (norm.rms,),
    "l2_norm": (norm.l2,),
    "linear": (linear.hypotheses,),
    "attention": (attention.hypotheses,),
    "sink_attention": (attention.hypotheses,),
    "swiglu": (gates.swiglu,),
    "gate": (gates.gate,),
    "softcap": (gates.softcap,),
    "add": (gates.add,),
    "silu": (gates.activation,),
    "sigmoid": (gates.activation,),
    "squash": (gates.activation,),
    "stream_gate": (gates.stream_gate,),
    "hc_read": (gates.hc_read,),
    "hc_write": (gates.hc_write,),
    "softmax": (experts.softmax,),
    "expert_weights": (experts.expert_weights,),
    "expert_linear": (experts.expert_linear,),
    "expert_sum": (experts.expert_sum,),
    "given": (fusion.taps,),
    "cells": (caches.cells,),
    "gather": (caches.embedding,),
    "part": (caches.parts,),
    "replicate": (caches.replicate,),
    "join": (caches.joined,),
    "delta_state": (recurrent.delta_state,),
    "delta_read": (recurrent.delta_read,),
    "decay": (recurrent.decay,),
    "short_conv": (recurrent.short_conv,),
    "dynamic_conv": (recurrent.dynamic_conv,),
    "markov_state": (recurrent.markov_state,),
    "markov_output": (recurrent.markov_output,),
    "ngram": (lookups.ngram,),
    "ple_gate": (lookups.ple_gate,),
    "block_mean": (lookups.block_mean,),
    "index_scores": (lookups.index_scores,),
    "selector_scores": (lookups.selector_scores,),
}
