"""SafeTensors folder <-> GGUF file, every family and role: tensors bit for bit in their stored format, read back before they count.

What a family's containers say differently is in `convert_dense`, `convert_muse_target`, `convert_laguna` and `convert_qwen38`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.artifacts import blocks, convert_laguna, convert_qwen38, laguna, muse, qwen3, qwen38, targets
from oracle.artifacts.carry import Written
from oracle.artifacts.container import ArtifactError, Container, fail, open_container, show
from oracle.artifacts.convert_dense import plan_drafter, plan_llama
from oracle.artifacts.convert_muse_target import plan as plan_muse_target
from oracle.artifacts.drafters import DrafterFiles, open_drafter_files
from oracle.artifacts.targets import TargetFiles, open_target_files
from oracle.artifacts.writers import Typed, write_folder, write_gguf
from oracle.ngrams import Shards
from oracle.targets.weights import TargetGeometry
from oracle.weights import Weight

Rows = NDArray[np.uint8]
Files = DrafterFiles | TargetFiles
# Where a field came from is no part of the model.
UNSAID = ("window_source",)
PLANS: dict[tuple[str, str], Callable[..., Written]] = {
    (qwen3.FAMILY, "drafter"): plan_drafter,
    (muse.FAMILY, "drafter"): plan_drafter,
    (laguna.FAMILY, "drafter"): convert_laguna.plan_drafter,
    (qwen38.FAMILY, "drafter"): convert_qwen38.plan_drafter,
    (targets.FAMILY, "target"): plan_llama,
    (muse.FAMILY, "target"): plan_muse_target,
    (laguna.FAMILY, "target"): convert_laguna.plan_target,
    (qwen38.FAMILY, "target"): convert_qwen38.plan_target,
}


@dataclass(frozen=True)
class Converted:
    """What was written, how many tensors, and ``notes``: what the new container cannot say or had to be given."""

    path: Path
    family: str
    tensors: int
    notes: tuple[str, ...]


def convert_artifact(source: str | Path, destination: str | Path, family: str | None = None) -> Converted:
    """Convert a GGUF file into a folder, or a folder into a GGUF file (``destination`` ends in ``.gguf``).

    Written under a temporary name, read back and compared (every decoded tensor to the bit, geometry and dialect), then renamed.
    Where a container keeps another number (a norm with its 1 in, the exponential of a decay), it is kept in a format from which the
    source's number comes back to the bit.
    `ArtifactError` for a model that cannot be read, or that the other container cannot hold; nothing is then left behind.
    """
    container, goal = open_container(source), Path(destination)
    kind = "gguf" if goal.suffix == ".gguf" else "safetensors"
    if container.kind == kind:
        wanted = "a folder (a name without .gguf)" if kind == "gguf" else "a name ending in .gguf"
        fail(goal, f"{container.path} is a {kind} artifact already; expected {wanted} as the destination")
    if goal.exists():
        fail(goal, "exists already; name another destination or remove it")
    files, role = opened(container, family)
    weights = by_role(files.weights)
    plan = PLANS[files.identity.family, role](container, files, weights, kind)
    _check_formats(container, plan, kind)
    partial = goal.with_name(f".{goal.name}.{os.getpid()}.converting")
    try:
        notes = _write(container, plan, partial, kind)
        _verify(files, weights, plan, partial, goal)
        partial.rename(goal)
    except OSError as error:
        fail(goal, f"cannot be written ({error.strerror or error}); check the folder and the space left")
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)
    return Converted(goal, files.identity.family, len(plan.tensors), tuple(notes))


def opened(container: Container, family: str | None) -> tuple[Files, str]:
    """What ``container`` holds, and whether it is a drafter or a target."""
    if _is_target(container):
        return open_target_files(container.path), "target"
    return open_drafter_files(container.path, family), "drafter"


def _is_target(container: Container) -> bool:
    if container.kind == "gguf":
        return container.metadata.get("general.architecture") in targets.GGUF_FAMILIES
    named = container.metadata.get("architectures")
    return isinstance(named, list) and len(named) == 1 and named[0] in targets.known_architectures()


def by_role(weights: Any) -> dict[str, Any]:
    """Every weight of a drafter or a target under its path: ``fc``, ``3.q``, ``markov.w1``, ``3.mixture.up.7`` …; a tied head once."""
    found = dict(_paths(weights, ""))
    if found.get("head") is found.get("embedding"):
        found.pop("head", None)
    return found


def _paths(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Weight | Shards):
        yield path, value
    elif isinstance(value, tuple):
        for n, part in enumerate(value):
            yield from _paths(part, f"{path}.{n}" if path else str(n))
    elif hasattr(value, "__dataclass_fields__"):
        for name, part in vars(value).items():
            inner = "" if name == "layers" else name
            yield from _paths(part, f"{path}.{inner}" if path else inner)


def _check_formats(container: Container, plan: Written, kind: str) -> None:
    for t in plan.tensors.values():
        if kind == "safetensors" and t.stored not in (*blocks.PLAIN, "i64"):
            fail(
                container.path,
                f"tensor {show(t.name)} is stored as {t.stored}, which SafeTensors cannot hold "
                f"({', '.join(blocks.PLAIN)}); a conversion that kept its values would change its format, start from a plain file",
            )


def _write(container: Container, plan: Written, path: Path, kind: str) -> list[str]:
    tensors = list(plan.tensors.values())
    if kind == "gguf":
        keys = plan.keys | {"general.name": Typed("string", container.path.name)}
        write_gguf(path, {k: v for k, v in keys.items() if v.value is not None}, tensors)
        tokens = keys.get("tokenizer.ggml.tokens")
        stand_in = f"{len(tokens.value)} numbered tokens stand in for it" if tokens else "the file has none"
        return [*plan.notes, f"the tokenizer is not part of the folder's config: {stand_in}"]
    write_folder(path, {k: v for k, v in plan.config.items() if v is not None}, tensors)
    return [*plan.notes, "the tokenizer of the GGUF file is not carried over: a config has no place for it"]


def _verify(files: Files, weights: dict[str, Any], plan: Written, path: Path, goal: Path) -> None:
    """Open what was written with the strict loader and compare it with the source; `ArtifactError` when anything differs."""
    try:
        target = isinstance(files, TargetFiles)
        again: Files = open_target_files(path) if target else open_drafter_files(path, files.identity.family)
    except ArtifactError as error:
        fail(goal, f"the converted model does not read back: {str(error).replace(str(path), goal.name)}")
    for what, mine, theirs in (("geometry", files.geometry, again.geometry), *_dialects(files, again)):
        differing = [k for k, v in _plain(mine).items() if _plain(theirs)[k] != v and k not in (*UNSAID, *plan.unsaid)]
        if differing:
            values = ", ".join(f"{k} {show(_plain(mine)[k])} reads back as {show(_plain(theirs)[k])}" for k in differing)
            fail(goal, f"the other container cannot hold this {what}: {values}")
    if isinstance(again, DrafterFiles) and isinstance(files, DrafterFiles):
        ids = files.weights.target_ids, again.weights.target_ids
        if not (ids[0] is ids[1] is None or np.array_equal(*ids)):  # type: ignore[arg-type]
            fail(goal, "the draft vocabulary's target ids do not read back as they were")
    written = by_role(again.weights)
    ours, theirs = ({k for k in found if not k.endswith(plan.made)} for found in (weights, written))
    if ours != theirs:
        fail(goal, f"weights {', '.join(sorted(ours ^ theirs)[:4])} have no counterpart in the other container")
    for key in sorted(ours):
        if key in plan.by_value:
            same = np.array_equal(written[key].array(), weights[key].array() + plan.by_value[key])
        else:
            same = same_values(weights[key], written[key], plan.reorder.get(key))
        if not same:
            name = plan.tensors[key].name if key in plan.tensors else key
            fail(goal, f"tensor {show(name)} does not read back as it was; the disk or the conversion is at fault")


def _dialects(a: Files, b: Files) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, DrafterFiles) and isinstance(b, DrafterFiles):
        yield "dialect", a.dialect, b.dialect


def _plain(value: Any) -> dict[str, Any]:
    """A geometry or dialect as comparable values: rope pairing is the container's own, rope factors are f32 in GGUF."""
    out = asdict(value)
    if isinstance(value, TargetGeometry):
        rope = value.rope
        factors = rope.factors and tuple(float(np.float32(f)) for f in rope.factors)
        out["rope"] = (rope.theta, rope.dim, rope.attention_factor, factors)
    return out


def same_values(a: Any, b: Any, reorder: Callable[[Rows], Rows] | None = None) -> bool:
    """Whether every decoded value of ``b`` is that of ``a`` to the bit, ``a``'s rows reordered first where they are to be.

    A table in shards is compared row by row with one that is whole.
    """
    if isinstance(a, Shards) or isinstance(b, Shards):
        return _same_tables(a, b)
    if (a.shape, a.stored) != (b.shape, b.stored):
        return False
    order = None
    if reorder is not None:
        numbered = np.arange(a.row_count).astype("<u4")[:, None].view(np.uint8)
        order = np.ascontiguousarray(reorder(numbered)).view("<u4")[:, 0].astype(np.int64)
    for start, stop in b.spans():
        mine = a.stored_rows(start, stop) if order is None else a.raw[order[start:stop]]
        theirs = blocks.decode(b.stored_rows(start, stop), b.stored, b.width)
        if not np.array_equal(blocks.decode(mine, a.stored, a.width).view(np.uint64), theirs.view(np.uint64)):
            return False
    return True


def _same_tables(a: Any, b: Any) -> bool:
    if (a.row_count, a.width) != (b.row_count, b.width):
        return False
    step = max(1, (1 << 20) // a.width)
    for start in range(0, a.row_count, step):
        stop = min(start + step, a.row_count)
        if not np.array_equal(a.tile(start, stop).view(np.uint64), b.tile(start, stop).view(np.uint64)):
            return False
    return True
