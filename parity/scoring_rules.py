"""The rules people use today, by their own figures: which of them a stage would have failed."""

from __future__ import annotations

from parity.report import StageResult

RULES = ("cosine 0.9999 and rel-L2 0.02 per row", "NMSE 5e-4", "allclose of the dtype", "PCC 0.99")


def seen_by(stages: list[StageResult], candidate: str) -> list[str]:
    """Which of `RULES` would have failed any of the stages, each taken whole; a shape or a NaN fails them all."""
    loose = 1e-5 + 1.6e-2 if candidate == "bf16" else 1e-5 + 1.3e-6
    seen: set[str] = set()
    for s in stages:
        if s.verdict == "invalid":
            return list(RULES)
        i = s.info
        if not i:
            continue
        failed = (
            i["cosine"] < 0.9999 or i["nmse"] ** 0.5 > 0.02,
            i["nmse"] > 5e-4,
            i["max_abs"] > loose * max(1.0, i.get("largest", 1.0)),
            i["pcc"] < 0.99,
        )
        seen |= {rule for rule, bad in zip(RULES, failed, strict=True) if bad}
    return [r for r in RULES if r in seen]
