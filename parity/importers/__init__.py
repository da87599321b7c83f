"""Foreign recordings as dumps of a case: what each tensor is, where it goes, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.errors import UsageError

if TYPE_CHECKING:
    from dumps import DumpWriter
    from parity.adapters.mapping import Mapping, Stages
    from parity.case import Case

FORMATS = ("npz", "safetensors", "transformers", "strata", "strata-taps")


@dataclass
class Imported:
    """What became of a recording. ``placed``: (step, stage) -> its tensors' names; ``unmapped``: names without a rule and why;
    ``missing``: the case's stages that nothing gave; ``unseen``: of these, what the mapping says its engine cannot show;
    ``findings``: what is wrong with the recording itself."""

    placed: dict[tuple[int, str], list[str]] = field(default_factory=dict)
    unmapped: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def import_recording(format: str, source: Path, case: Case, out: Path, mapping: str | None = None, step: int | None = None) -> Imported:
    """Write the recording ``source`` as a dump of ``case`` at ``out``.

    ``mapping``: a file, or an engine whose shipped mapping is meant; none: the names are the lab's own stage paths. ``step``: the step of
    tensors whose names do not say (``STEP/NAME``). `UsageError`, `DumpError`.
    """
    from dumps import DumpWriter, open_dump
    from parity.importers.words import misread
    from parity.models import declared_stages

    stages: Stages = {key: (axes, shape) for key, axes, shape in declared_stages(case)}
    rules = _mapping(format, mapping, case)
    provenance: dict[str, Any] = {"candidate": f"imported from {format}", "where": "imported", "source": str(source)}
    if rules is not None:
        provenance |= {"mapping": rules.file.name, "engine": rules.engine}
    with DumpWriter(out, case.describe(), provenance) as writer:
        done = _placed(format, source, case, stages, rules, writer, step)
        for name in done.unmapped:
            writer.put(0, f"unmapped: {name}"[:200], [1])
    if not done.placed:
        raise UsageError(f"{source}: none of its tensors is a stage of the case {case.name}: {_some(done.unmapped) or 'it holds none'}")
    left = sorted(path for path in stages if path not in done.placed)
    for _, path in left if rules is not None else ():
        assert rules is not None
        if rules.hidden(path) and path not in done.unseen:
            done.unseen.append(path)
    done.missing = _grouped([key for key in left if key[1] not in done.unseen])
    done.unseen = _grouped([key for key in left if key[1] in done.unseen])
    done.findings += misread(case, open_dump(out), done)
    return done


def _placed(format: str, source: Path, case: Case, stages: Stages, rules: Mapping | None, writer: DumpWriter, step: int | None) -> Imported:
    from dumps.importers import open_strata, read_npz, read_safetensors, read_tap_records
    from parity.importers.strata import place_strata
    from parity.importers.taps import place_taps
    from parity.importers.tensors import place_tensors

    if format == "strata":
        return place_strata(case, open_strata(source), stages, writer)
    if format == "strata-taps":
        return place_taps(case, read_tap_records(source), stages, writer)
    tensors = read_npz(source) if format == "npz" else read_safetensors(source)
    return place_tensors(case, tensors, stages, rules, writer, step)


def _mapping(format: str, mapping: str | None, case: Case) -> Mapping | None:
    """The mapping that is named, or that belongs to the format."""
    from parity.adapters.mapping import SHIPPED, load_mapping, shipped

    if format not in FORMATS:
        raise UsageError(f"format {format!r}: expected one of {', '.join(FORMATS)}")
    if format.startswith("strata"):
        if mapping is not None:
            raise UsageError(f"--mapping: {format} needs none, its names are known")
        return None
    engine = mapping or ("transformers" if format == "transformers" else None)
    if engine is None:
        return None
    if not Path(engine).exists() and any(f.name.startswith(f"{engine}.") for f in SHIPPED.glob("*.toml")):
        return shipped(engine, case.family, case.role)
    return load_mapping(Path(engine))


def _grouped(keys: list[tuple[int, str]]) -> list[str]:
    """``step:stage`` with the layers of a stage counted: ``1:target.L{n}.q_rope (30 layers)``."""
    import re
    from collections import Counter

    counts = Counter((step, re.sub(r"\.L[0-9]+", ".L{n}", path)) for step, path in keys)
    return [
        f"{step}:{path}" + (f" ({n} layer{'s' if n > 1 else ''})" if "{n}" in path else "") for (step, path), n in sorted(counts.items())
    ]


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
