"""Two streams of token ids and the target they came from: the oracle's margin at the first difference decides."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oracle import arithmetic as arithmetics
from oracle.models import Target, open_target
from oracle.ops.argmax import first_argmax
from oracle.readings import Reading, Sampled, Survey
from oracle.tensor import Array
from parity import limits
from parity.errors import UsageError
from parity.models import Progress
from parity.threads import threads_for

LARGEST_FILE = 64 << 20


def read_ids(path: Path) -> list[int]:
    """Token ids of a file: a JSON list, or whole numbers separated by white space or commas. `UsageError` where it is none."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UsageError(f"{path}: expected token ids in at most {LARGEST_FILE} bytes")
        text = path.read_text("utf-8").strip()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: expected token ids as text, found bytes that are no UTF-8") from None
    try:
        found = json.loads(text) if text.startswith("[") else [int(word) for word in text.replace(",", " ").split()]
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: expected token ids: a JSON list, or whole numbers between white space or commas") from None
    for at, value in enumerate(found):
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise UsageError(f"{path}: token {at}: expected an id from 0 to {(1 << 31) - 1}, found {str(value)[:40]}")
    return list(found)


@dataclass
class Fork:
    """Where two streams part. ``position`` counts from the first id of the streams (-1: they do not part).

    ``best``: the oracle's choice there; ``gaps``: how far each stream's id is below the oracle's largest logit; ``spreads``: of these gaps
    over healthy runs. ``verdict``: ``same``, ``length`` (one stream ends), ``tie``, or ``divergence`` with ``culprit``: ``A``, ``B`` or
    ``both``, whose id no healthy run would choose.
    """

    verdict: str
    position: int
    common: int
    a: int = -1
    b: int = -1
    best: int = -1
    gaps: tuple[float, float] = (0.0, 0.0)
    spreads: tuple[float, float] = (0.0, 0.0)
    culprit: str = ""
    arithmetic: str = ""

    @property
    def exit_status(self) -> int:
        return {"same": 0, "tie": 0, "divergence": 1, "length": 3}[self.verdict]

    def to_json(self) -> dict[str, Any]:
        return {"schema": "dflash-parity-streams/1", "exit_status": self.exit_status, **asdict(self)}

    def headline(self) -> str:
        if self.verdict == "same":
            return f"PARITY {self.common} tokens are the same"
        if self.verdict == "length":
            return f"INCONCLUSIVE {self.common} common tokens are the same, but one stream ends there"
        at = f"token {self.position}: {self.a} against {self.b}"
        if self.verdict == "tie":
            return f"PARITY the streams part at a tie, {at}; behind it they are two texts and prove nothing"
        return f"DIVERGENCE at {at}: {self.culprit} chose what no rounding explains"

    def details(self) -> list[str]:
        if self.position < 0:
            return []
        rows = zip("AB", (self.a, self.b), self.gaps, self.spreads, strict=True)
        lines = [f"{n} chose {i}: {g:.4g} below the oracle's largest logit ({self.best}), {_sigmas(g, s)}" for n, i, g, s in rows]
        limit = f"beyond {limits.ROLLED_DIVERGE:.0f} times the spread of healthy runs is a divergence"
        return [*lines, f"judged under {self.arithmetic}: {limit}"]


def _sigmas(gap: float, spread: float) -> str:
    return "its own choice" if gap == 0 else f"{gap / spread if spread else math.inf:.3g} times the spread of healthy runs ({spread:.3g})"


def first_fork(a: list[int], b: list[int], prompt: list[int], model: Path, arithmetic: str, members: int, say: Progress) -> Fork:
    """Compare two streams that follow ``prompt``: the oracle reads the common tokens exactly, then ``members`` times with sampled rounding.

    Raises `UsageError` for ids outside the vocabulary and for streams that part before any token was read.
    """
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if common == len(a) or common == len(b):
        return Fork("same" if len(a) == len(b) else "length", -1, common)
    target = open_target(model)
    prefix, vocab = [*prompt, *a[:common]], target.head.row_count
    if not prefix:
        raise UsageError("the streams part at their first token and there is no prompt: give the ids before it with --prompt")
    for what, ids in (("prompt", prompt), ("A", a[: common + 1]), ("B", b[: common + 1])):
        if ids and max(ids) >= vocab:
            raise UsageError(f"{what}: id {max(ids)} is outside the vocabulary of {vocab} of {model}")
    pair = np.array([a[common], b[common]])
    with threads_for(target):
        logits, gaps = _gaps(target, prefix, pair, arithmetic, members, say)
    best = int(first_argmax(logits))
    exact = logits[best] - logits[pair]
    spreads = np.sqrt(np.mean(np.square(gaps - exact), 0))
    wrong = exact > limits.ROLLED_DIVERGE * spreads
    culprit = {(True, True): "both", (True, False): "A", (False, True): "B"}.get((bool(wrong[0]), bool(wrong[1])), "")
    verdict = "divergence" if culprit else "tie"
    gap, spread = (float(exact[0]), float(exact[1])), (float(spreads[0]), float(spreads[1]))
    return Fork(verdict, common, common, int(pair[0]), int(pair[1]), best, gap, spread, culprit, arithmetic)


def _gaps(target: Target, prefix: list[int], pair: Array, arithmetic: str, members: int, say: Progress) -> tuple[Array, Array]:
    """The oracle's last logits [vocab], and [member, 2] how far the pair is below the oracle's best choice in each sampled run."""
    survey = Survey(arithmetics.named(arithmetic))

    def last(reading: Reading) -> Array:
        return np.asarray(target.window(prefix, reading=reading).logits[-1])

    say("oracle")
    exact = last(survey)
    best, gaps = int(first_argmax(exact)), []
    for member in range(members):
        say(f"sampled run {member + 1} of {members}")
        y = last(Sampled(survey.own, member))
        gaps.append(y[best] - y[pair])
    return exact, np.array(gaps)
