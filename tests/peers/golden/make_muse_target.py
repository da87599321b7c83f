"""Golden values of the Muse Glimmer target: ``python -m tests.peers.golden.make_muse_target`` (torch 2.13, transformers 5.24)."""

from __future__ import annotations

from tests.peers import muse_target_cases as muse
from tests.peers import muse_target_peer
from tests.peers.golden.files import write


def main() -> None:
    """Write the file and print how far the oracle is from it, per depth."""
    official = {layers: muse_target_peer.outputs(layers, "eager") for layers in muse.DEPTHS}
    contents = {str(layers): muse.summary(result) for layers, result in official.items()}
    path = write("muse_target", "tests.peers.golden.make_muse_target", ("torch", "transformers"), contents)
    found = ", ".join(f"{n} layers {muse.difference(muse.outputs(muse.target(n)), theirs):.1e}" for n, theirs in official.items())
    print(f"{path.name}: largest difference of the oracle {found}")


if __name__ == "__main__":
    main()
