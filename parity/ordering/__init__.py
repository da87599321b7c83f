"""`parity probe order`: the order in which a kernel adds, and how it rounds, seen from outside.

`revealing` finds the summation tree from sums of masked addends, `gauge` the precision and rounding of its additions, `naming` says both
in words; `kernels` and `leaves` put addends into calls; `inside` asks a candidate everything in its worker process; `judging` compares
the answers with what the candidate declares. Source of the method: FPRev (Xie, Gao, Xu, "Revealing Floating-Point Accumulation Orders in
Software/Hardware Implementations"), widened to narrow, directed and aligned accumulators.
"""
