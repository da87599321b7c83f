"""llama.cpp through ``llama-cpp-python``: a case's steps as batches, every mapped tensor of every graph recorded.

The evaluation callback (``cb_eval`` of ``llama_context_params``) is asked about each node of the graph and sees its values right after
they were computed. The graph is the ordinary one: CPU, f16 key/value cache, flash attention off, weights repacked as llama.cpp likes.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parity.adapters.ggml import Ggml, Pointer
from parity.adapters.llama_cpp_engine import DrafterEngine, Engine, TargetEngine, quiet
from parity.adapters.mapping import Mapping, Place, Stages, arranged, load_mapping, shipped
from parity.case import Case
from parity.errors import UsageError
from parity.models import declared_stages, rope_style

if TYPE_CHECKING:
    from dumps import DumpWriter

NAME = "llama.cpp"


def run(case: Case, out: Path, threads: int = 0, mapping: Path | None = None) -> None:
    """Run ``case`` in llama.cpp, leave a dump at ``out``. `UsageError` for what it cannot run, `CandidateError` if it fails."""
    from dumps import DumpWriter

    rules = load_mapping(mapping) if mapping else shipped(NAME, case.family, case.role)
    for file in (case.model, case.borrowed):
        if file is not None and not file.is_file():
            raise UsageError(f"candidate {NAME}: {file} is no GGUF file: convert the folder first (parity convert FOLDER FILE.gguf)")
    threads = threads or os.cpu_count() or 1
    kind = TargetEngine if case.role == "target" else DrafterEngine
    with quiet() as log, kind(case, threads, log) as engine, DumpWriter(out, case.describe(), _provenance(threads, rules)) as writer:
        record(case, engine, rules, writer)


def record(case: Case, engine: Engine, rules: Mapping, writer: DumpWriter) -> None:
    """Run the steps of ``case`` and put in the dump every mapped tensor, the engine's picks, and a count of each unmapped one."""
    scope = "target" if case.role == "target" else "draft"
    tap = Tap(engine.ggml, rules, writer, {key: (axes, shape) for key, axes, shape in declared_stages(case)}, rope_style(case))
    engine.tap = tap
    for index, step in enumerate(case.steps):
        tap.index, tap.kind = index, step.kind
        engine.step(step)
        if step.kind != "append":
            writer.put(index, f"{scope}.pick", engine.picks(len(step.array)), dtype="i32", axes=("row",))
    for name, count in sorted(rules.unmapped.items()):
        writer.put(0, f"unmapped: {name}"[:200], np.array([count], np.int64))


def _provenance(threads: int, rules: Mapping) -> dict[str, Any]:
    import llama_cpp

    return {
        "candidate": NAME,
        "where": "host",
        "library": f"llama-cpp-python {llama_cpp.__version__}",
        "version": str(llama_cpp.__version__),
        "system": llama_cpp.llama_print_system_info().decode().strip(),
        "threads": threads,
        "mapping": rules.file.name,
        "flash_attention": False,
        "key_value_cache": "f16",
    }


class Tap:
    """The evaluation callback: takes the tensors that the mapping places into the dump. ``error``: what stopped it; the engine raises it.

    ``stages``: axes and shape of every stage of the case; ``style``: how the oracle pairs rotated dims; ``index`` and ``kind``: the step.
    """

    def __init__(self, ggml: Ggml, rules: Mapping, writer: DumpWriter, stages: Stages, style: str | None) -> None:
        self.ggml, self.rules, self.writer, self.stages, self.style = ggml, rules, writer, stages, style
        self.index, self.kind = 0, "window"
        self.error: Exception | None = None
        self._place: Place | None = None

    def __call__(self, address: int, ask: bool) -> bool:
        """``ask``: whether the node's values are wanted; else they are there. False to the second stops the graph."""
        if self.error is not None:
            return False
        try:
            tensor = ctypes.cast(address, Pointer).contents
            return self._wanted(tensor) if ask else self._take(tensor)
        except Exception as e:
            self.error = e
            return False

    def _wanted(self, tensor: Any) -> bool:
        sources = tuple(s.contents.name.decode(errors="replace") for s in tensor.src if s)
        self._place = self.rules.place(tensor.name.decode(errors="replace"), self.ggml.operation(tensor), sources, self.kind)
        if self._place is None:
            return False
        if (self.index, self._place.path) not in self.stages:
            raise UsageError(
                f"{self.rules.file}: the tensor {tensor.name.decode()!r} is mapped to {self._place.path}, which step {self.index} has not"
            )
        self.writer.announce(self._place.path)
        return True

    def _take(self, tensor: Any) -> bool:
        if self._place is None:
            return True
        axes, shape = self.stages[self.index, self._place.path]
        values, kind = self.ggml.values(tensor)
        where = f"{self.rules.file.name}: the tensor {tensor.name.decode()!r}"
        values = arranged(where, values, self._place, axes, shape, self.style)
        self.writer.put(self.index, self._place.path, values, dtype=kind, axes=axes)
        return True
