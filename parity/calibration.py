"""``python -m parity.calibration``: run the calibration and write its table."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from parity.calibrating import DRAWS, Tally, calibrate, markdown


def one_case(draw: str, seed: int) -> Tally:
    """All candidates on one random case."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="parity-") as root:
        calibrate(draw, [seed], Path(root), tally)
    return tally


def main(argv: list[str] | None = None) -> int:
    """Write the table; exit status 1 where a healthy candidate diverged."""
    parser = argparse.ArgumentParser(prog="parity.calibration", description=__doc__)
    parser.add_argument("--cases", type=int, default=30, help="random cases of each family and role")
    parser.add_argument("--draw", choices=DRAWS, action="append", help="this family and role only (may be repeated)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at a time, each in a process of one thread")
    parser.add_argument("--out", type=Path, default=Path("docs/calibration.md"))
    options = parser.parse_args(argv)
    tally, drawn = Tally(), [(draw, seed) for draw in options.draw or DRAWS for seed in range(options.cases)]
    with ProcessPoolExecutor(options.jobs) as pool:
        each = map if options.jobs == 1 else pool.map
        for done, part in enumerate(each(one_case, *zip(*drawn, strict=True)), 1):
            tally.merge(part)
            print(f"\r{done} of {len(drawn)} cases, {tally.runs} runs, {len(tally.alarms)} false divergences", end="", file=sys.stderr)
    print(file=sys.stderr)
    options.out.write_text(markdown(tally) + "\n")
    print(f"{tally.runs} runs, {len(tally.alarms)} false divergences; table in {options.out}")
    for alarm in tally.alarms:
        print(f"  {alarm}")
    return 1 if tally.alarms else 0


if __name__ == "__main__":
    sys.exit(main())
