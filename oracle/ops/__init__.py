"""The operations, one declaration each, by name."""

from oracle.ops.add import add
from oracle.ops.argmax import argmax
from oracle.ops.attention import attention
from oracle.ops.base import Operation, Variance
from oracle.ops.cells import cells
from oracle.ops.gate import gate
from oracle.ops.gather import gather
from oracle.ops.given import given
from oracle.ops.linear import linear
from oracle.ops.rms_norm import rms_norm
from oracle.ops.rope import rope
from oracle.ops.softcap import softcap
from oracle.ops.swiglu import swiglu

OPS: dict[str, Operation] = {
    op.name: op for op in (rms_norm, linear, rope, attention, swiglu, add, softcap, gate, gather, cells, given, argmax)
}

__all__ = ["OPS", "Operation", "Variance"]
