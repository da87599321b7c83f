"""Does a drafter belong to a target? What can be told from the sizes of both (`specs/muse-glimmer.md` 4.3, rule 6)."""

from __future__ import annotations

from oracle.drafters.dialect import Geometry
from oracle.targets.weights import TargetGeometry
from oracle.weights import Weight

# Families whose vocabulary in the drafter file is exactly the target's; elsewhere tables are padded.
EXACT_VOCABULARY = ("muse-glimmer",)


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
    if drafter.mask_token_id >= vocab:
        found.append(f"the vocabulary is {vocab}, the drafter's mask token is {drafter.mask_token_id}")
    if target is None:
        return found
    if target.hidden != drafter.target_hidden:
        found.append(f"its layers are {target.hidden} wide, the drafter's taps {drafter.target_hidden}")
    if drafter.target_layers not in (None, target.layers):
        found.append(f"it has {target.layers} layers, the drafter was made for {drafter.target_layers}")
    if max(drafter.tap_ids) >= target.layers:
        found.append(f"the drafter taps layer {max(drafter.tap_ids)} (counted from 0), it has {target.layers} layers")
    return found
