"""The operations, one declaration each, by name."""

from oracle.ops.add import add
from oracle.ops.argmax import argmax
from oracle.ops.attention import attention
from oracle.ops.base import Operation, Variance
from oracle.ops.block_mean import block_mean
from oracle.ops.cells import cells
from oracle.ops.choose import choose
from oracle.ops.decay import decay
from oracle.ops.delta_read import delta_read
from oracle.ops.delta_state import delta_state
from oracle.ops.dynamic_conv import dynamic_conv
from oracle.ops.expert_linear import expert_linear
from oracle.ops.expert_sum import expert_sum
from oracle.ops.expert_weights import expert_weights
from oracle.ops.gate import gate
from oracle.ops.gather import gather
from oracle.ops.given import given
from oracle.ops.hc_read import hc_read
from oracle.ops.hc_write import hc_write
from oracle.ops.index_scores import index_scores
from oracle.ops.join import join
from oracle.ops.l2_norm import l2_norm
from oracle.ops.linear import linear
from oracle.ops.markov_output import markov_output
from oracle.ops.markov_state import markov_state
from oracle.ops.ngram import ngram
from oracle.ops.part import part
from oracle.ops.ple_gate import ple_gate
from oracle.ops.replicate import replicate
from oracle.ops.rms_norm import rms_norm
from oracle.ops.rope import rope
from oracle.ops.select import select
from oracle.ops.select_cells import select_cells
from oracle.ops.selector_scores import selector_scores
from oracle.ops.short_conv import short_conv
from oracle.ops.sigmoid import sigmoid
from oracle.ops.silu import silu
from oracle.ops.sink_attention import sink_attention
from oracle.ops.softcap import softcap
from oracle.ops.softmax import softmax
from oracle.ops.squash import squash
from oracle.ops.stream_gate import stream_gate
from oracle.ops.swiglu import swiglu
from oracle.ops.to_target import to_target

_DENSE = (rms_norm, linear, rope, attention, sink_attention, swiglu, add, softcap, gate, gather, cells, given, argmax)
_EXPERTS = (sigmoid, softmax, select, expert_weights, expert_linear, expert_sum)
_HEADS = (dynamic_conv, selector_scores, choose, join, markov_state, markov_output, to_target)
_STREAMS = (replicate, silu, squash, hc_read, hc_write, ngram, ple_gate, stream_gate)
_DELTA = (part, short_conv, l2_norm, decay, delta_state, delta_read, block_mean, index_scores, select_cells)

OPS: dict[str, Operation] = {op.name: op for op in (*_DENSE, *_EXPERTS, *_HEADS, *_STREAMS, *_DELTA)}

__all__ = ["OPS", "Operation", "Variance"]
