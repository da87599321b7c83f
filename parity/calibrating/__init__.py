"""Calibration: random small cases, healthy candidates, and what their error / tolerance and rms z are, stage by stage.

A healthy candidate must never diverge; the table of ``python -m parity.calibration`` shows how much room the limits leave.
"""

from __future__ import annotations

from parity.calibrating.runs import DRAWS, calibrate, healthy, takes
from parity.calibrating.tally import Tally, markdown

__all__ = ["DRAWS", "Tally", "calibrate", "healthy", "markdown", "takes"]
