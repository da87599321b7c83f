"""A case as a folder that travels: all that someone with another engine, and no Python, needs to run it and send back a dump.

Everything is plain: .npy arrays and tab-separated text, beside the case itself with paths relative to it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracle.weights import Weight
from parity.case import Case
from parity.errors import UsageError
from parity.models import CaseModel, declared_stages, open_case_model

LARGEST_DECODED = 8 << 30


def export(case: Case, out: Path, *, weights: bool = False, artifacts: bool = True) -> None:
    """Write the case to the folder ``out``.

    ``case/`` (for `parity compare`), ``artifact/`` and ``borrowed/`` (copies, unless ``artifacts`` is False), ``inputs/*.npy`` with
    ``steps.tsv``, ``stages.tsv`` (what to record), ``geometry.tsv``, ``dump-case.json`` (goes into the dump), ``stage_dump.h`` and
    ``README.md``. ``weights``: every weight decoded to f32 in ``weights/*.npy`` with ``weights.tsv``. Raises `UsageError` where the folder
    is not empty or the decoded weights are too large.
    """
    model = open_case_model(case)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: expected an absent or empty folder; choose another")
    if weights:
        size = sum(4 * w.row_count * w.width for _, w in named_weights(model))
        if size > LARGEST_DECODED:
            raise UsageError(
                f"{case.model}: its weights decode to {size >> 20} MiB, at most {LARGEST_DECODED >> 20} are written; leave them out"
            )
    out.mkdir(parents=True, exist_ok=True)
    moved = replace(case, folder=None, model=_copied(case.model, out, "artifact", artifacts))
    if case.borrowed is not None:
        moved = replace(moved, borrowed=_copied(case.borrowed, out, "borrowed", artifacts))
    _case(case, moved, out)
    _inputs(case, out)
    stages = declared_stages(case)
    _table(out / "stages.tsv", ("step", "stage", "axes", "shape"), [(k[0], k[1], _join(axes), _join(shape)) for k, axes, shape in stages])
    _table(out / "geometry.tsv", ("key", "value"), sorted(_flat(model.geometry)))
    if weights:
        _weights(model, out)
    from dumps import stage_dump_header

    shutil.copy(stage_dump_header(), out / "stage_dump.h")
    (out / "README.md").write_text(_readme(case, out.name, len(stages), weights, artifacts))


def _copied(path: Path, out: Path, folder: str, copy: bool) -> Path:
    """The artifact inside ``out``, as the exported case names it; absolute where it is not copied."""
    if not copy:
        return path.resolve()
    target = out / folder / path.name
    target.parent.mkdir()
    if path.is_dir():
        shutil.copytree(path, target)
    else:
        shutil.copy(path, target)
    return Path("..") / folder / path.name


def _case(case: Case, moved: Case, out: Path) -> None:
    folder = case.save(out / "case")
    described = json.loads((folder / "case.json").read_text())
    described |= {"model": str(moved.model), "borrowed": None if moved.borrowed is None else str(moved.borrowed)}
    (folder / "case.json").write_text(json.dumps(described, indent=1))
    (out / "dump-case.json").write_text(json.dumps({k: v for k, v in described.items() if k not in ("format", "version")}) + "\n")


def _inputs(case: Case, out: Path) -> None:
    (out / "inputs").mkdir()
    rows = []
    for i, step in enumerate(case.steps):
        name = f"inputs/{i:03d}-{step.kind}.npy"
        np.save(out / name, step.array)
        rows.append((i, step.kind, step.at, len(step.array), name))
    _table(out / "steps.tsv", ("step", "kind", "at", "rows", "file"), rows)


def named_weights(model: CaseModel) -> Iterator[tuple[str, Weight]]:
    """Every weight of the case's model under its role (``L0.q``, ``fc`` …), with what a drafter borrows."""
    if model.drafter is not None:
        yield from _walk(model.drafter.weights, "")
        yield "embedding", model.embedding
        yield "target_head", model.head
    elif model.target is not None:
        yield from _walk(model.target.weights, "")


def _walk(value: Any, prefix: str) -> Iterator[tuple[str, Weight]]:
    for field in fields(value):
        item, name = getattr(value, field.name), f"{prefix}{field.name}"
        if isinstance(item, Weight):
            yield name, item
        elif is_dataclass(item):
            yield from _walk(item, f"{name}.")
        elif isinstance(item, tuple) and item and is_dataclass(item[0]):
            for i, part in enumerate(item):
                yield from _walk(part, f"{prefix}L{i}." if field.name == "layers" else f"{name}.{i}.")


def _weights(model: CaseModel, out: Path) -> None:
    (out / "weights").mkdir()
    rows = []
    for name, w in named_weights(model):
        file = f"weights/{name}.npy"
        array: NDArray[Any] = np.lib.format.open_memmap(out / file, mode="w+", dtype=np.float32, shape=w.shape)
        flat = array.reshape(-1, w.width)
        for start, stop, tile in w.tiles():
            flat[start:stop] = tile
        rows.append((name, _join(w.axes), _join(w.shape), w.stored, file))
    if model.drafter is not None and model.drafter.weights.target_ids is not None:
        np.save(out / "weights/target_ids.npy", model.drafter.weights.target_ids)
        rows.append(("target_ids", "vocab", str(len(model.drafter.weights.target_ids)), "i64", "weights/target_ids.npy"))
    _table(out / "weights.tsv", ("name", "axes", "shape", "stored", "file"), rows)


def _flat(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        if isinstance(item, dict):
            yield from _flat(item, f"{prefix}{key}.")
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            for i, part in enumerate(item):
                yield from _flat(part, f"{prefix}{key}.{i}.")
        else:
            yield f"{prefix}{key}", _join(item) if isinstance(item, list) else _text(item)


def _text(value: Any) -> str:
    """Numbers exactly (17 digits round-trip), booleans as 0 and 1, None as none."""
    if value is None:
        return "none"
    return str(int(value)) if isinstance(value, bool) else str(value)


def _join(values: Any) -> str:
    return ",".join(_text(v) for v in values)


def _table(path: Path, names: tuple[str, ...], rows: Any) -> None:
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in [names, *rows]))


def _readme(case: Case, name: str, stages: int, weights: bool, artifacts: bool) -> str:
    files = "\n".join(f"| `{path}` | {sha} |" for path, sha in case.identity.items())
    where = (
        "`artifact/`" + (", what it borrows in `borrowed/`" if case.borrowed else "")
        if artifacts
        else "not in this folder: use files with these SHA-256"
    )
    steps = "\n".join(f"{i}. {_describe(s.kind, s.at, len(s.array))}" for i, s in enumerate(case.steps))
    decoded = (
        "\n* `weights.tsv`, `weights/`: every weight decoded to the f32 its format defines, C order, with its axes." if weights else ""
    )
    return f"""# {case.name}

Run this case in your engine, record its stages, and send the dump back: it will be compared stage by stage with a float64 oracle.

* `steps.tsv`: what to run, in order; `inputs/*.npy`: its arrays (f32 features [row, taps x dim], int64 token ids [row]).
* `geometry.tsv`: the effective geometry and dialect. The weights: {where}.{decoded}
* `stages.tsv`: the {stages} stages to record, with their axes and shapes. Record as many as you can; all of a stage's rows.
* `stage_dump.h`: a C99 header that writes the dump (also C++, CUDA, Objective-C; other languages through a C file that exports it).

## Steps

{steps}

## Record

```c
#include "stage_dump.h"
stage_dump d;
/* case_text: the content of dump-case.json; provenance: who you are */
if (stage_dump_open(&d, "dump", case_text, "{{\\"candidate\\": \\"my-engine 1.0\\"}}")) {{ fprintf(stderr, "%s\\n", d.error); return 1; }}
int64_t shape[2] = {{rows, dim}};
stage_dump_put(&d, step, "{_example(case)}", 0, "f32", 2, shape, NULL, NULL, values);
stage_dump_close(&d);
```

Values in the dtype your engine keeps them in (f32, f16, bf16). The first axis is the row; further axes as `stages.tsv` names them.

## Compare

```
parity compare {name}/dump --case {name}/case          # --arithmetic bf16 … as your engine rounds
```

## Identity

| file | SHA-256 |
|---|---|
{files}

Family `{case.family}`, role {case.role}, dialect switches {json.dumps(case.dialect)}; what they resolve to stands in `geometry.tsv`.
"""


def _example(case: Case) -> str:
    return "draft.final_norm" if case.role == "drafter" else "target.final_norm"


def _describe(kind: str, at: int, rows: int) -> str:
    if kind == "append":
        return f"commit {rows} rows of target features at positions {at} to {at + rows - 1}"
    if kind == "propose":
        return f"propose a block of {rows} rows at position {at} (the anchor and mask tokens)"
    return f"process {rows} tokens after keeping the first {at} rows of what came before"
