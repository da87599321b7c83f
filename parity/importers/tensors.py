"""Named tensors of a file as stages of a case, by a mapping or under the lab's own names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from parity.adapters.mapping import Mapping, Place, Rule, Stages, arranged
from parity.case import Case
from parity.errors import UsageError
from parity.importers import Imported
from parity.models import rope_style

if TYPE_CHECKING:
    from dumps import DumpWriter
    from dumps.importers import Foreign

_STEP = re.compile(r"([0-9]{1,9})/(.+)", re.DOTALL)


def place_tensors(
    case: Case, tensors: list[Foreign], stages: Stages, rules: Mapping | None, writer: DumpWriter, step: int | None = None
) -> Imported:
    """Put every tensor that is a stage in the dump. ``rules`` None: names are stage paths. `UsageError`, `DumpError`."""
    done, style = Imported(), rope_style(case)
    for tensor in tensors:
        index, name = _step_of(tensor.name, case, step)
        places = _places(case, stages, rules, index, name)
        for place, part in places or ():
            if (index, place.path) not in stages:
                raise UsageError(f"{tensor.where}: is mapped to {place.path}, which step {index} of the case has not")
            if tensor.dtype is None:
                raise UsageError(f"{tensor.where}: is mapped to {place.path}, but its dtype is none of a dump; convert it to f32 first")
            if (index, place.path) in done.placed:
                raise UsageError(f"{tensor.where}: {place.path} of step {index} was given by {done.placed[index, place.path][0]!r} already")
            _put(tensor, place, part, stages, index, style, writer)
            done.placed[index, place.path] = [tensor.name]
        if places is None and not (rules and rules.is_ignored(name, case.steps[index].kind)):
            done.unmapped.append(tensor.name)
    return done


def _step_of(name: str, case: Case, step: int | None) -> tuple[int, str]:
    """(step, name without it) of ``STEP/NAME``; without a number the step is ``step``, or the only one."""
    found = _STEP.fullmatch(name)
    if found is not None:
        index, name = int(found[1]), found[2]
    elif step is not None or len(case.steps) == 1:
        index = step or 0
    else:
        kinds = ", ".join(f"{i} {s.kind}" for i, s in enumerate(case.steps))
        raise UsageError(f"the tensor {name!r} names no step; expected STEP/NAME, or --step; the case's steps: {kinds}")
    if index >= len(case.steps):
        raise UsageError(f"the tensor {name!r} is of step {index}; the case has {len(case.steps)}")
    return index, name


def _places(case: Case, stages: Stages, rules: Mapping | None, index: int, name: str) -> list[tuple[Place, slice]] | None:
    """Where the tensor goes: the stages and their parts of its last axis; None where nothing says so."""
    if rules is None:
        axes = stages.get((index, name), (None, None))[0]
        return None if axes is None else [(Place(name, Rule(re.compile(""), name, name, axes)), slice(None))]
    place = rules.place(name, step=case.steps[index].kind)
    return None if place is None else place.parts(stages, index)


def _put(tensor: Foreign, place: Place, part: slice, stages: Stages, index: int, style: str | None, writer: DumpWriter) -> None:
    axes, shape = stages[index, place.path]
    # Axes of one entry aside, a tensor is as large as its stage, a cache larger by its spare cells: checked before anything is read.
    if part == slice(None) and "cell" not in axes and int(np.prod(tensor.shape)) != int(np.prod(shape)):
        raise UsageError(f"{tensor.where}: has shape {list(tensor.shape)}, {place.path} has {list(shape)} ({', '.join(axes)})")
    values = tensor.read()
    if part != slice(None):
        if part.stop > values.shape[-1]:
            raise UsageError(
                f"{tensor.where}: its last axis has {values.shape[-1]} entries, its stages need {part.stop} up to {place.path}"
            )
        values = values[..., part]
    values = arranged(tensor.where, values, place, axes, shape, style)
    writer.put(index, place.path, values, dtype=tensor.dtype, axes=axes)
