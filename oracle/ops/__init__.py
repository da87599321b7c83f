"""The operations, one declaration each, by name."""

from oracle.ops.attention import attention
from oracle.ops.base import Operation, Variance
from oracle.ops.elementwise import add, softcap, swiglu
from oracle.ops.linear import linear
from oracle.ops.rms_norm import rms_norm
from oracle.ops.rope import rope
from oracle.ops.structural import argmax, cells, gather, given

OPS: dict[str, Operation] = {
    op.name: op for op in (rms_norm, linear, rope, attention, swiglu, add, softcap, gather, cells, given, argmax)
}

__all__ = ["OPS", "Operation", "Variance"]
