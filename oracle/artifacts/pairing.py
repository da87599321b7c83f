"""Does a drafter belong to a target? What can be told from the sizes and families of both.

Sources: `specs/muse-glimmer.md` 4.3 (rule 6), `specs/laguna.md` 4 (pairing), `specs/qwen38-flash-next.md` 4.2 (at bind).
"""

from __future__ import annotations

from oracle.drafters.dialect import Geometry
from oracle.targets.weights import TargetGeometry
from oracle.weights import Weight

# Families whose vocabulary in the drafter file is exactly the target's; elsewhere tables are padded.
EXACT_VOCABULARY = ("muse-glimmer", "laguna")
# Targets that take no other family's drafter: the sizes of a foreign one may fit, its taps do not mean the same.
OWN_DRAFTER = ("laguna",)


def mismatches(family: str, drafter: Geometry, embedding: Weight, target: TargetGeometry | None = None) -> list[str]:
    """What does not fit, one clause each: widths, vocabulary, and with a whole ``target`` its depth and the tapped layers.

    ``embedding``: the target's table [vocab, in], which the drafter borrows.
    """
    found = []
    vocab, width = embedding.row_count, embedding.width
    if width != drafter.hidden:
        found.append(f"the hidden width is {width}, the drafter's is {drafter.hidden}")
    if family in EXACT_VOCABULARY and vocab != drafter.vocab:
        found.append(f"the vocabulary is {vocab}, the drafter's is {drafter.vocab}")
    elif vocab < drafter.vocab:
        found.append(f"the vocabulary is {vocab}, fewer than the drafter's {drafter.vocab}")
    if drafter.mask_token_id >= vocab:
        found.append(f"the vocabulary is {vocab}, the drafter's mask token is {drafter.mask_token_id}")
    if target is None:
        return found
    if target.family in OWN_DRAFTER and family != target.family:
        found.append(f"a {target.family} target takes a {target.family} drafter, this one is {family}")
    if target.hidden != drafter.target_hidden:
        found.append(f"its layers are {target.hidden} wide, the drafter's taps {drafter.target_hidden}")
    if drafter.target_layers not in (None, target.layers):
        found.append(f"it has {target.layers} layers, the drafter was made for {drafter.target_layers}")
    if max(drafter.tap_ids) >= target.layers:
        found.append(f"the drafter taps layer {max(drafter.tap_ids)} (counted from 0), it has {target.layers} layers")
    return found
