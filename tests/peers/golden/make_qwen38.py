"""Golden values of Transformers' target: ``python -m tests.peers.golden.make_qwen38`` (torch 2.13, transformers 5.24)."""

from __future__ import annotations

from tests.peers import qwen38_peer
from tests.peers.golden.files import write
from tests.peers.qwen38_cases import CASES, portioned, summary, summary_difference


def main() -> None:
    """Write the file and print how far the oracle is from it."""
    official = {case.name: summary(qwen38_peer.outputs(case)) for case in CASES}
    path = write("qwen38_target", "tests.peers.golden.make_qwen38", ("torch", "transformers"), official)
    worst = max(summary_difference(summary(portioned(c, (c.rows,))), official[c.name]) for c in CASES)
    print(f"{path.name}: largest difference of the oracle {worst:.1e}")


if __name__ == "__main__":
    main()
