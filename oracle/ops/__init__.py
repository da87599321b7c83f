"""The operations, one declaration each, by name."""

from oracle.ops.add import add
from oracle.ops.argmax import argmax
from oracle.ops.attention import attention
from oracle.ops.base import Operation, Variance
from oracle.ops.cells import cells
from oracle.ops.expert_linear import expert_linear
from oracle.ops.expert_sum import expert_sum
from oracle.ops.expert_weights import expert_weights
from oracle.ops.gate import gate
from oracle.ops.gather import gather
from oracle.ops.given import given
from oracle.ops.linear import linear
from oracle.ops.rms_norm import rms_norm
from oracle.ops.rope import rope
from oracle.ops.select import select
from oracle.ops.sigmoid import sigmoid
from oracle.ops.softcap import softcap
from oracle.ops.softmax import softmax
from oracle.ops.swiglu import swiglu

_DENSE = (rms_norm, linear, rope, attention, swiglu, add, softcap, gate, gather, cells, given, argmax)
_EXPERTS = (sigmoid, softmax, select, expert_weights, expert_linear, expert_sum)

OPS: dict[str, Operation] = {op.name: op for op in (*_DENSE, *_EXPERTS)}

__all__ = ["OPS", "Operation", "Variance"]
