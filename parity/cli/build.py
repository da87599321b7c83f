"""From the case options to a `Case`: files as given, or a seeded tiny model made on the spot."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from parity.case import Case
from parity.errors import UsageError

WEIGHTS = {"muse-glimmer": "q4_k", "qwen3": "bf16", "qwen38-flash-next": "bf16", "laguna": "bf16", "llama": "bf16"}


def case_from(options: dict[str, Any], scratch: Path | None = None) -> Case:
    """The case that ``--family``, ``--model``, ``--context`` … describe. Raises `UsageError` and what opening raises."""
    from parity.making import drafter_case, is_target, target_case

    model, borrowed, family, role = options["model"], options["borrowed"], options["family"], options["role"]
    if model is None:
        if family is None:
            raise UsageError("name a model (--model PATH) or a family whose seeded tiny model to use (--family)")
        model, borrowed = seeded(family, options["weights"] or WEIGHTS[family], options["seed"], scratch, role)
    if role is None and borrowed is None and (found := _target_family(model)) is not None:
        role = "target" if family in (None, found) else None
    if role == "target" or (role is None and family is not None and is_target(family)):
        prompt = tokens(model, options["prompt_file"]) if options["prompt_file"] else None
        block = options["block"] or 16
        if prompt is None:
            return target_case(model, prefill=options["context"], block=block, seed=options["seed"])
        if len(prompt) <= block:
            raise UsageError(f"{options['prompt_file']}: {len(prompt)} tokens; the verify window alone is {block} (--block)")
        return target_case(model, prefill=prompt[:-block], block=prompt[-block:], seed=options["seed"])
    if borrowed is None:
        raise UsageError(f"{model}: a drafter borrows its target's embedding and head: name the target (--borrowed PATH)")
    return drafter_case(
        model,
        borrowed,
        family=family,
        dialect=options["dialect"],
        block=options["block"],
        context=options["context"],
        appends=options["appends"],
        accepts=options["accepts"],
        seed=options["seed"],
    )


def _target_family(model: Path) -> str | None:
    """The family of the target in ``model``, or None where that is no target."""
    from oracle.artifacts import ArtifactError, open_container
    from oracle.artifacts.targets import target_family

    try:
        return target_family(open_container(model))
    except ArtifactError:
        return None


def seeded(family: str, weights: str, seed: int, scratch: Path | None = None, role: str | None = None) -> tuple[Path, Path | None]:
    """Make a seeded tiny model in a scratch folder: (model, what it borrows from)."""
    from oracle.artifacts import make_artifact

    root = (scratch or Path(tempfile.gettempdir()) / "parity-models") / f"{family}{f'-{role}' if role else ''}-{weights}-{seed}"
    marker = root / "made"
    if not marker.exists():
        try:
            files = make_artifact(family, "tiny", weights, root, seed=seed, role=role)
        except ValueError as e:
            raise UsageError(str(e)) from None
        marker.write_text("\n".join(f.name for f in files))
    names = marker.read_text().split()
    return root / names[0], root / names[1] if len(names) > 1 else None


def tokens(model: Path, prompt_file: Path) -> list[int]:
    """Token ids of a text file under the model's own vocabulary (GGUF)."""
    from parity.realtext import tokenizer

    try:
        text = prompt_file.read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{prompt_file}: cannot be read as text: {e}") from None
    return tokenizer(model).encode(text)
