"""Which dtypes meet in a model, and what an engine that does not cast would go on in.

Source: `specs/laguna.md` 4 (dtype policy and the promotion it guards against: bf16 with f16 becomes f32) and section 8, entry 2.
Block formats and GGUF files are left out: their kernels take and give f32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from oracle.artifacts.blocks import PLAIN
from oracle.artifacts.container import Container
from oracle.artifacts.descriptions import DTYPES
from oracle.drafters.weights import DrafterWeights
from oracle.targets.weights import TargetWeights
from oracle.weights import Weight

SHOWN = 3


def promoted(formats: Iterable[str]) -> str | None:
    """The dtype that plain ``formats`` are promoted to when they meet in one operation; None where none is plain."""
    found = {f for f in formats if f in PLAIN}
    if not found:
        return None
    if len(found) == 1:
        return found.pop()
    return "f64" if "f64" in found else "f32"


def file_hazards(container: Container) -> list[str]:
    """What is mixed inside one SafeTensors model, one clause each: dtypes of its tensors, and the dtype its config declares."""
    if container.kind == "gguf":
        return []
    plain = [t for t in container.tensors.values() if t.stored in PLAIN]
    counts = Counter(t.stored for t in plain)
    found = []
    if len(counts) > 1:
        common = max(counts, key=lambda f: counts[f])
        odd = sorted(t.name for t in plain if t.stored != common)
        names = ", ".join(odd[:SHOWN]) + (f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else "")
        mixed = ", ".join(f"{n} tensors in {f}" for f, n in counts.most_common())
        found.append(f"mixed dtypes: {mixed} ({names}); an engine that does not cast goes on in {promoted(counts)} where they meet")
    declared = _declared(container.metadata)
    if declared is not None and counts and declared not in counts:
        found.append(f"config.json declares {declared}, no tensor is stored in it ({', '.join(sorted(counts))} are)")
    return found


def _declared(config: Mapping[str, Any]) -> str | None:
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        for key in ("dtype", "torch_dtype"):
            named = {v: k for k, v in DTYPES.items()}.get(str(part.get(key)))
            if named is not None:
                return named
    return None


def pair_dtypes(drafter: DrafterWeights, embedding: Weight, target: TargetWeights | None = None) -> dict[str, str]:
    """The dtypes that meet in a drafter's forward. A target's taps are in the dtype of its norms, as its activations are; quantised
    ones give f32."""
    found = {"weights": drafter.fc.stored, "norms": drafter.norm.stored, "embedding": embedding.stored}
    if target is not None:
        found["taps"] = target.norm.stored if target.layers else embedding.stored
    return found


def pair_hazards(parts: Mapping[str, str]) -> list[str]:
    """What meets in a drafter's forward: ``parts`` are those of `pair_dtypes`. Nothing where the weights are in blocks.

    One clause where they differ: where they meet first, and what follows from it in an engine that does not cast.
    """
    if parts.get("weights") not in PLAIN:
        return []
    known = {k: v for k, v in parts.items() if v in PLAIN}
    if len(set(known.values())) < 2:
        return []
    mixed = ", ".join(f"{k} {v}" for k, v in known.items())
    weights, first = known["weights"], []
    for part, stage in (("taps", "draft.fc"), ("norms", "draft.ctx"), ("embedding", "draft.L0.xn")):
        if part in known and known[part] != weights:
            first.append(f"{stage} ({part} {known[part]} x weights {weights})")
    return [f"dtypes differ ({mixed}): an engine that does not cast goes on in {promoted(known.values())} from {' and '.join(first)} on"]

