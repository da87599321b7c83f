"""Golden values of the official package: ``python -m tests.peers.golden.make_dflash`` (torch 2.13, transformers 5.24, dflash 0.1.0)."""

from __future__ import annotations

from typing import Any

from tests.peers import dflash_peer
from tests.peers import random_models as rm
from tests.peers.dflash_cases import CASES
from tests.peers.golden.files import write


def main() -> None:
    """Write the file and print how far the oracle is from it."""
    official = {case.name: dflash_peer.outputs(case) for case in CASES}
    contents: dict[str, Any] = {"uniform": rm.uniform(1, "fc", 3).tolist()}
    contents |= {name: rm.summary(outputs) for name, outputs in official.items()}
    path = write("dflash", "tests.peers.golden.make_dflash", ("torch", "transformers", "dflash"), contents)
    print(f"{path.name}: largest difference of the oracle {max(rm.largest_difference(c.outputs(), official[c.name]) for c in CASES):.1e}")


if __name__ == "__main__":
    main()
