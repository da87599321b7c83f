"""``python -m parity.calibration``: run the calibration and write its table."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from parity.calibrating import DRAWS, Tally, calibrate, markdown


def main(argv: list[str] | None = None) -> int:
    """Write the table; exit status 1 where a healthy candidate diverged."""
    parser = argparse.ArgumentParser(prog="parity.calibration", description=__doc__)
    parser.add_argument("--cases", type=int, default=30, help="random cases of each family and role")
    parser.add_argument("--draw", choices=DRAWS, action="append", help="this family and role only (may be repeated)")
    parser.add_argument("--out", type=Path, default=Path("docs/calibration.md"))
    options = parser.parse_args(argv)
    tally = Tally()
    for draw in options.draw or DRAWS:
        with tempfile.TemporaryDirectory(prefix="parity-") as root:
            calibrate(draw, range(options.cases), Path(root), tally)
        print(f"{draw}: {tally.runs} runs so far, {len(tally.alarms)} false divergences", file=sys.stderr)
    options.out.write_text(markdown(tally) + "\n")
    print(f"{tally.runs} runs, {len(tally.alarms)} false divergences; table in {options.out}")
    for alarm in tally.alarms:
        print(f"  {alarm}")
    return 1 if tally.alarms else 0


if __name__ == "__main__":
    sys.exit(main())
