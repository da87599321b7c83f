"""llama.cpp through ``llama-cpp-python``: a target's windows as batches, every mapped tensor of every graph recorded.

The evaluation callback (``cb_eval`` of ``llama_context_params``) is asked about each node of the graph and sees its values right after
they were computed. The graph is the ordinary one: CPU, f16 key/value cache, flash attention off, weights repacked as llama.cpp likes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from parity.adapters.ggml import Ggml, Pointer
from parity.adapters.mapping import Mapping, arranged, load_mapping, shipped
from parity.case import Case, Step
from parity.errors import CandidateError, UsageError
from parity.models import declared_stages, open_case_model

if TYPE_CHECKING:
    from dumps import DumpWriter

NAME = "llama.cpp"
CACHE_ROUND = 256
ERROR_LEVEL = 4
Stages = dict[tuple[int, str], tuple[tuple[str, ...], tuple[int, ...]]]


def run(case: Case, out: Path, threads: int = 0, mapping: Path | None = None) -> None:
    """Run the target ``case`` in llama.cpp, leave a dump at ``out``. `UsageError` for what it cannot run, `CandidateError` if it fails."""
    from dumps import DumpWriter

    rules = load_mapping(mapping) if mapping else shipped(NAME, case.family)
    if case.role != "target":
        raise UsageError(f"candidate {NAME}: it runs targets only; a drafter's state and blocks are not driven yet (docs/engines.md)")
    if not case.model.is_file():
        raise UsageError(f"candidate {NAME}: {case.model} is no GGUF file: convert the folder first (parity convert FOLDER FILE.gguf)")
    threads = threads or os.cpu_count() or 1
    with _quiet() as log, Engine(case, threads, log) as engine, DumpWriter(out, case.describe(), _provenance(threads, rules)) as writer:
        tap = Tap(engine.ggml, rules, writer, _stages(case), _style(case))
        engine.tap = tap
        for index, step in enumerate(case.steps):
            tap.step = index
            engine.window(step)
            writer.put(index, "target.pick", engine.picks(len(step.array)), dtype="i32", axes=("row",))
        for name, count in sorted(rules.unmapped.items()):
            writer.put(0, f"unmapped: {name}"[:200], np.array([count], np.int64))


def _stages(case: Case) -> Stages:
    return {key: (axes, shape) for key, axes, shape in declared_stages(case)}


def _style(case: Case) -> str | None:
    target = open_case_model(case).target
    return None if target is None else target.geometry.rope.style


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


@dataclass
class Tap:
    """The evaluation callback: takes the tensors that the mapping places into the dump. ``error``: what stopped it, raised afterwards."""

    ggml: Ggml
    rules: Mapping
    writer: DumpWriter
    stages: Stages
    style: str | None
    step: int = 0
    error: Exception | None = None

    def __call__(self, address: int, ask: bool) -> bool:
        """``ask``: whether the node's values are wanted; else they are there. False from the second stops the graph."""
        if self.error is not None:
            return False
        try:
            return self._node(ctypes.cast(address, Pointer).contents, ask)
        except Exception as e:
            self.error = e
            return False

    def _node(self, tensor: Any, ask: bool) -> bool:
        name, source = tensor.name.decode(errors="replace"), tensor.src[0].contents.name.decode(errors="replace") if tensor.src[0] else ""
        place = self.rules.place(name, self.ggml.operation(tensor), source) if ask else self._placed
        self._placed = place
        if place is None:
            return not ask
        if ask:
            self.writer.announce(place.path)
            return True
        if (self.step, place.path) not in self.stages:
            raise UsageError(f"{self.rules.file}: the tensor {name!r} is mapped to {place.path}, which this case does not have")
        axes, shape = self.stages[self.step, place.path]
        values, kind = self.ggml.values(tensor)
        values = arranged(f"{self.rules.file.name}: tensor {name!r}", values, place, axes, shape, self.style)
        self.writer.put(self.step, place.path, values, dtype=kind, axes=axes)
        return True

    _placed: Any = field(default=None, repr=False)


class Engine:
    """A loaded model with one context: ``window`` decodes a step, ``picks`` is its own greedy choice per row."""

    def __init__(self, case: Case, threads: int, log: list[str]) -> None:
        import llama_cpp.llama_cpp as api
        from llama_cpp._ggml import libggml

        self.api, self.ggml, self.log = api, Ggml(libggml), log
        self.tap: Tap | None = None
        self.length = 0
        self._callback = api.ggml_backend_sched_eval_callback(lambda tensor, ask, _: self._seen(tensor, ask))
        rows = max(len(s.array) for s in case.steps)
        cells = max(s.at + len(s.array) for s in case.steps)
        self.batch = api.llama_batch_init(rows, 0, 1)
        self.model, self.context, self.sampler = None, None, None
        try:
            self.model = self._opened(case.model)
            self.context = self._made(rows, -(-cells // CACHE_ROUND) * CACHE_ROUND, threads, case.model)
            self.sampler = api.llama_sampler_init_greedy()
        except Exception:
            self.close()
            raise

    def _seen(self, tensor: int, ask: bool) -> bool:
        return not ask if self.tap is None else self.tap(tensor, ask)

    def _opened(self, file: Path) -> Any:
        settings = self.api.llama_model_default_params()
        settings.n_gpu_layers, settings.check_tensors = 0, True
        model = self.api.llama_model_load_from_file(str(file).encode(), settings)
        if not model:
            raise UsageError(f"{file}: llama.cpp does not load it: {self._why()}")
        return model

    def _made(self, rows: int, cells: int, threads: int, file: Path) -> Any:
        settings = self.api.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = cells, rows, rows
        settings.n_threads = settings.n_threads_batch = threads
        settings.flash_attn_type, settings.swa_full = 0, True
        settings.offload_kqv = settings.op_offload = False
        settings.cb_eval = self._callback
        context = self.api.llama_init_from_model(self.model, settings)
        if not context:
            raise UsageError(f"{file}: llama.cpp makes no context of {cells} cells: {self._why()}")
        if self.api.llama_n_ubatch(context) < rows:
            raise UsageError(f"{file}: llama.cpp splits windows of {rows} rows; shorten them (--context, --block)")
        return context

    def _why(self) -> str:
        """Its last words that say something."""
        return next((line for line in reversed(self.log) if line.strip(" .")), "it gives no reason").strip()

    def window(self, step: Step) -> None:
        """Decode the rows of a ``window`` step behind the first ``step.at`` tokens, all with logits."""
        if step.kind != "window":
            raise UsageError(f"candidate {NAME}: a target has no {step.kind} step")
        if step.at < self.length and not self.api.llama_memory_seq_rm(self.api.llama_get_memory(self.context), 0, step.at, -1):
            raise CandidateError(f"llama.cpp does not take its state back to {step.at} tokens")
        batch = self.batch
        for i, token in enumerate(step.array):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = int(token), step.at + i, 1, 0, 1
        batch.n_tokens = len(step.array)
        status = self.api.llama_decode(self.context, batch)
        if self.tap is not None and self.tap.error is not None:
            raise self.tap.error
        if status != 0:
            raise CandidateError(f"llama_decode returned {status} for {len(step.array)} rows at {step.at}: {self._why()}")
        self.length = step.at + len(step.array)

    def picks(self, rows: int) -> NDArray[np.int32]:
        """The engine's greedy sampler on every row of the last window, int32 [row]."""
        sample = self.api.llama_sampler_sample
        return np.array([sample(self.sampler, self.context, row) for row in range(rows)], np.int32)

    def close(self) -> None:
        for free, what in (
            (self.api.llama_sampler_free, self.sampler),
            (self.api.llama_free, self.context),
            (self.api.llama_model_free, self.model),
        ):
            if what:
                free(what)
        self.api.llama_batch_free(self.batch)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _quiet() -> Iterator[list[str]]:
    """llama.cpp's errors as lines instead of on stderr. The library keeps its logger until the process ends, so the process does too."""
    import llama_cpp.llama_cpp as api

    lines: list[str] = []

    def keep(level: int, text: bytes, _: Any) -> None:
        if level >= ERROR_LEVEL:
            lines.append(text.decode(errors="replace").rstrip("\n"))

    _LOGGERS.append(api.llama_log_callback(keep))
    api.llama_log_set(_LOGGERS[-1], None)
    api.llama_backend_init()
    yield lines


_LOGGERS: list[Any] = []
