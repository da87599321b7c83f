"""Golden values of the Laguna target and drafter: ``python -m tests.peers.golden.make_laguna`` (torch 2.13, transformers 5.24)."""

from __future__ import annotations

from tests.peers import laguna_cases as laguna
from tests.peers import laguna_drafter_cases as draft
from tests.peers import laguna_drafter_peer, laguna_peer
from tests.peers import random_models as rm
from tests.peers.golden.files import write


def main() -> None:
    """Write the file and print how far the oracle is from it."""
    official = {v.name: laguna_peer.outputs(v) for v in laguna.VARIANTS}
    second = laguna_drafter_peer.outputs()
    contents = {name: laguna.summary(result) for name, result in official.items()} | {"drafter": rm.summary(second)}
    path = write("laguna", "tests.peers.golden.make_laguna", ("torch", "transformers"), contents)
    found = [f"{v.name} {laguna.difference(laguna.outputs(laguna.target(v)), official[v.name]):.1e}" for v in laguna.VARIANTS]
    print(f"{path.name}: largest difference of the oracle {', '.join(found)}, drafter {rm.largest_difference(draft.outputs(), second):.1e}")


if __name__ == "__main__":
    main()
