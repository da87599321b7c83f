"""What a file is, as data: for ``parity inspect``. Nothing here raises for a bad file; it is reported."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from oracle.artifacts import laguna, muse
from oracle.artifacts.blocks import FORMATS, decode
from oracle.artifacts.container import ArtifactError, Container, Identity, fail, open_container
from oracle.artifacts.drafters import open_drafter_files
from oracle.artifacts.dtypes import file_hazards, pair_dtypes, pair_hazards
from oracle.artifacts.loaders import refusals
from oracle.artifacts.opinions import second_opinion
from oracle.artifacts.pairing import mismatches
from oracle.artifacts.roles import GGUF_TARGET
from oracle.artifacts.targets import (
    GGUF_FAMILIES,
    HF_EMBEDDINGS,
    HF_HEADS,
    TargetFiles,
    known_architectures,
    open_borrowed,
    open_target_files,
)


def inspect_artifact(
    path: str | Path, family: str | None = None, target: str | Path | None = None, loader: str | None = None
) -> dict[str, Any]:
    """Describe the artifact at ``path`` as plain data (JSON-ready).

    Keys: ``path, container, role`` (``drafter``, ``target``, ``lender`` or None), ``family, dialect, geometry, context`` (of a
    ring cache: its rows and most bytes, or None), ``files`` (name, bytes, sha256), ``formats, tensors`` (name, stored, shape,
    bytes), ``dtypes`` (format -> number of tensors), ``warnings`` (promotion hazards among them) and ``problems``, the last empty for a
    sound file. ``family`` overrides the resolution of a drafter. ``target``: also whether the drafter belongs to the target there, and
    which dtypes would meet. ``loader``: also what that engine's own loader (`loaders.LOADERS`) refuses of the drafter.
    """
    report: dict[str, Any] = {
        "path": str(path),
        "container": None,
        "role": None,
        "family": None,
        "dialect": None,
        "geometry": None,
        "context": None,
        "files": [],
        "formats": [],
        "tensors": [],
        "dtypes": {},
        "warnings": [],
        "problems": [],
    }
    try:
        container = open_container(path)
    except ArtifactError as error:
        report["problems"].append(str(error))
        return report
    report["container"] = container.kind
    report["files"] = [{"name": f.path.name, "bytes": f.size, "sha256": f.sha256} for f in container.files]
    report["tensors"] = [
        {"name": t.name, "stored": t.stored, "shape": list(t.shape), "bytes": t.raw.nbytes} for t in container.tensors.values()
    ]
    report["formats"] = sorted({t.stored for t in container.tensors.values()})
    report["dtypes"] = dict(sorted(Counter(t.stored for t in container.tensors.values()).items()))
    report["warnings"] += file_hazards(container)
    report["role"] = _role(container)
    try:
        _describe(report, container, family)
        if target is not None:
            _pair(report, container, family, target)
        if loader is not None:
            _load(report, container, family, loader)
    except ArtifactError as error:
        report["problems"].append(str(error))
    report["problems"] += _bad_vectors(container) + second_opinion(container)
    return report


def _role(container: Container) -> str:
    if container.kind == "gguf":
        architecture = str(container.metadata.get("general.architecture"))
        return "drafter" if architecture == "dflash" else "target" if architecture in GGUF_FAMILIES else "lender"
    named = container.metadata.get("architectures")
    first = str(named[0]) if isinstance(named, list) and named else ""
    if "Draft" in first or container.metadata.get("model_type") == muse.MODEL_TYPE or laguna.matches(container.metadata):
        return "drafter"
    return "target" if first in known_architectures() else "lender"


def _describe(report: dict[str, Any], container: Container, family: str | None) -> None:
    """Fill in what the strict loader of the role says; a target that is not supported can still lend."""
    identity: Identity
    if report["role"] == "drafter":
        drafter = open_drafter_files(container.path, family)
        report["dialect"], report["geometry"], identity = asdict(drafter.dialect), asdict(drafter.geometry), drafter.identity
        if identity.family == muse.FAMILY:
            rows = {"sink": muse.SINK, "window": drafter.geometry.window}
            report["context"] = rows | {"bytes": muse.context_bound(drafter.geometry)}
    elif report["role"] == "target" and not _only_lends(container):
        target = open_target_files(container.path)
        report["geometry"], identity = asdict(target.geometry), target.identity
    else:
        lender = open_borrowed(container.path)
        report["role"], identity = "lender", lender.identity
        report["geometry"] = {"vocab": lender.embedding.shape[0], "hidden": lender.embedding.shape[1]}
    report["family"], report["formats"] = identity.family, list(identity.formats)
    report["warnings"] += identity.warnings


def _pair(report: dict[str, Any], container: Container, family: str | None, target: str | Path) -> None:
    """Does this drafter belong to the target at ``target``? Problems where it does not; a warning where dtypes meet that differ."""
    if report["role"] != "drafter":
        fail(container.path, "not a drafter: only a drafter has a target to belong to")
    drafter, lent = open_drafter_files(container.path, family), open_borrowed(target)
    try:
        whole: TargetFiles | None = open_target_files(target)
    except ArtifactError:
        whole = None
    found = mismatches(drafter.identity.family, drafter.geometry, lent.embedding, whole.geometry if whole else None)
    report["problems"] += [f"{target}: not the target of {container.path}: {what}" for what in found]
    report["warnings"] += pair_hazards(pair_dtypes(drafter.weights, lent.embedding, whole.weights if whole else None))


def _load(report: dict[str, Any], container: Container, family: str | None, loader: str) -> None:
    """Would the engine's own loader take this drafter?"""
    if report["role"] != "drafter":
        fail(container.path, f"not a drafter: loader {loader} reads drafters only")
    drafter = open_drafter_files(container.path, family)
    report["problems"] += refusals(loader, drafter.identity.family, container, drafter.geometry)


def _only_lends(container: Container) -> bool:
    """A file with nothing but an embedding and a head."""
    lent = {GGUF_TARGET["embedding"], GGUF_TARGET["head"], *HF_EMBEDDINGS, *HF_HEADS}
    return container.tensors.keys() <= lent


def _bad_vectors(container: Container) -> list[str]:
    """Norm weights and biases that are not finite: no engine computes anything with them."""
    problems = []
    for t in container.tensors.values():
        if len(t.shape) == 1 and t.stored in FORMATS:
            values = decode(t.raw, t.stored, t.shape[0])[0]
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad):
                problems.append(f"{t.path}: tensor {t.name!r} has {len(bad)} non-finite values, the first at element {bad[0]}")
    return problems
