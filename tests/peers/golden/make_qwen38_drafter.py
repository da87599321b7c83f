"""Golden values of the official package: ``python -m tests.peers.golden.make_qwen38_drafter`` (torch 2.13, dflash 0.1.0)."""

from __future__ import annotations

from tests.peers import qwen38_drafter_cases as cases
from tests.peers import qwen38_drafter_peer
from tests.peers import random_models as rm
from tests.peers.golden.files import write


def main() -> None:
    """Write the file and print how far the oracle is from it."""
    official = qwen38_drafter_peer.outputs()
    path = write("qwen38_drafter", "tests.peers.golden.make_qwen38_drafter", ("torch", "transformers", "dflash"), rm.summary(official))
    print(f"{path.name}: largest difference of the oracle {rm.largest_difference(cases.outputs(), official):.1e}")


if __name__ == "__main__":
    main()
