"""Golden values of the Muse assistant: ``python -m tests.peers.golden.make_muse`` (torch 2.13, transformers 5.24)."""

from __future__ import annotations

from tests.peers import muse_cases as muse
from tests.peers import muse_peer
from tests.peers import random_models as rm
from tests.peers.golden.files import write


def main() -> None:
    """Write the file and print how far the oracle is from it, in eager attention and in sdpa."""
    official = {attention: muse_peer.outputs(attention) for attention in ("eager", "sdpa")}
    path = write("muse", "tests.peers.golden.make_muse", ("torch", "transformers"), rm.summary(official["eager"]))
    mine = muse.outputs()
    found = ", ".join(f"{attention} {rm.largest_difference(mine, theirs):.1e}" for attention, theirs in official.items())
    print(f"{path.name}: largest difference of the oracle {found}")


if __name__ == "__main__":
    main()
