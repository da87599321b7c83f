"""Models and contexts of llama.cpp by its public C functions (``llama.h``), one class per role."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.adapters.ggml import Ggml
from parity.case import Case, Step
from parity.errors import CandidateError, UsageError

CACHE_ROUND = 256
ERROR_LEVEL = 4
_LOGGERS: list[Any] = []


class Engine:
    """A loaded model with one context. ``tap``: the evaluation callback, called with (tensor's address, ask); its ``error`` is raised.

    ``step`` runs one step of a case; ``picks(rows)`` is the engine's own greedy choice in each row of the last one.
    """

    def __init__(self, threads: int, log: list[str]) -> None:
        import llama_cpp.llama_cpp as api
        from llama_cpp._ggml import libggml

        self.api, self.ggml, self.threads, self.log = api, Ggml(libggml), threads, log
        self.tap: Any = None
        self.context: Any = None
        self.length = 0
        self._callback = api.ggml_backend_sched_eval_callback(lambda tensor, ask, _: self._seen(tensor, ask))
        self._frees: list[tuple[Callable[[Any], Any], Any]] = []

    def _seen(self, tensor: int, ask: bool) -> bool:
        return not ask if self.tap is None else bool(self.tap(tensor, ask))

    def load(self, file: Path) -> Any:
        """The model in ``file``; `UsageError` with llama.cpp's own reason where it refuses it."""
        settings = self.api.llama_model_default_params()
        settings.n_gpu_layers, settings.check_tensors = 0, True
        model = self.api.llama_model_load_from_file(str(file).encode(), settings)
        if not model:
            raise UsageError(f"{file}: llama.cpp does not load it: {self.why()}")
        self._frees.append((self.api.llama_model_free, model))
        return model

    def connect(self, file: Path, model: Any, rows: int, cells: int, *, seen: bool = True, other: Any = None) -> Any:
        """A context of ``model`` for batches of ``rows`` and ``cells`` positions; ``seen``: its graphs pass the callback."""
        settings = self.api.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = -(-cells // CACHE_ROUND) * CACHE_ROUND, rows, rows
        settings.n_threads = settings.n_threads_batch = self.threads
        settings.flash_attn_type, settings.swa_full = 0, True
        settings.offload_kqv = settings.op_offload = False
        if seen:
            settings.cb_eval = self._callback
        if other is not None:
            settings.ctx_other = other
        context = self.api.llama_init_from_model(model, settings)
        if not context:
            raise UsageError(f"{file}: llama.cpp makes no context of {cells} cells: {self.why()}")
        self._frees.append((self.api.llama_free, context))
        if self.api.llama_n_ubatch(context) < rows:
            raise UsageError(f"{file}: llama.cpp splits batches of {rows} rows; shorten the case (--context, --block)")
        return context

    def batch(self, rows: int, width: int = 0) -> Any:
        """A batch for ``rows`` tokens, or rows of ``width`` floats."""
        batch = self.api.llama_batch_init(rows, width, 1)
        self._frees.append((self.api.llama_batch_free, batch))
        return batch

    def greedy(self) -> Any:
        sampler = self.api.llama_sampler_init_greedy()
        self._frees.append((self.api.llama_sampler_free, sampler))
        return sampler

    def decode(self, batch: Any, rows: int, at: int) -> None:
        """Run the filled ``batch`` at positions ``at …``, after what lies before them; what lay behind is forgotten."""
        if at < self.length and not self.api.llama_memory_seq_rm(self.api.llama_get_memory(self.context), 0, at, -1):
            raise CandidateError(f"llama.cpp does not take its state back to {at} rows")
        for i in range(rows):
            batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = at + i, 1, 0, 1
        batch.n_tokens = rows
        status = self.api.llama_decode(self.context, batch)
        if self.tap is not None and self.tap.error is not None:
            raise self.tap.error
        if status != 0:
            raise CandidateError(f"llama_decode returned {status} for {rows} rows at {at}: {self.why()}")
        self.length = at + rows

    def step(self, step: Step) -> None:
        raise NotImplementedError

    def picks(self, rows: int) -> NDArray[np.int32]:
        """int32 [row]."""
        sampler = self.greedy()
        return np.array([self.api.llama_sampler_sample(sampler, self.context, row) for row in range(rows)], np.int32)

    def why(self) -> str:
        """The latest of its lines that names an error, else its last one that says something."""
        said = [line.strip() for line in self.log if line.strip(" .")]
        return next((line for line in reversed(said) if "error" in line), said[-1] if said else "it gives no reason")

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        for free, what in reversed(self._frees):
            free(what)
        self._frees.clear()


class TargetEngine(Engine):
    """A target: the windows of a case as batches of tokens, all with logits."""

    def __init__(self, case: Case, threads: int, log: list[str]) -> None:
        super().__init__(threads, log)
        rows, cells = max(len(s.array) for s in case.steps), max(s.at + len(s.array) for s in case.steps)
        self.context = self.connect(case.model, self.load(case.model), rows, cells)
        self.tokens = self.batch(rows)

    def step(self, step: Step) -> None:
        """Decode a window behind the first ``step.at`` tokens."""
        for i, token in enumerate(step.array):
            self.tokens.token[i] = int(token)
        self.decode(self.tokens, len(step.array), step.at)


class DrafterEngine(Engine):
    """A DFlash drafter (architecture ``dflash``) beside the target whose embedding and head it borrows (``ctx_other``).

    Features are a batch of rows as wide as all taps, which the graph fuses and writes to the cache; a block is a batch of tokens, each
    seeing all. Rows of a block that was not committed are forgotten by the next step.
    """

    def __init__(self, case: Case, threads: int, log: list[str]) -> None:
        super().__init__(threads, log)
        if case.borrowed is None:
            raise UsageError(f"case {case.name}: a drafter needs its target beside it (--borrowed)")
        rows, cells = max(len(s.array) for s in case.steps), max(s.at + len(s.array) for s in case.steps)
        target = self.connect(case.borrowed, self.load(case.borrowed), 1, CACHE_ROUND, seen=False)
        self.context = self.connect(case.model, self.load(case.model), rows, cells, other=target)
        self.api.llama_set_causal_attn(self.context, False)
        width = next(s.array.shape[1] for s in case.steps if s.kind == "append")
        self.tokens, self.features = self.batch(rows), self.batch(rows, width)

    def step(self, step: Step) -> None:
        """Commit features at ``step.at …``, or run a block there."""
        if step.kind == "propose":
            for i, token in enumerate(step.array):
                self.tokens.token[i] = int(token)
            self.decode(self.tokens, len(step.array), step.at)
            return
        flat = np.ascontiguousarray(step.array, np.float32).reshape(-1)
        np.ctypeslib.as_array(self.features.embd, (flat.size,))[:] = flat
        self.decode(self.features, len(step.array), step.at)


@contextmanager
def quiet() -> Iterator[list[str]]:
    """llama.cpp's errors as lines instead of on stderr. The library calls its logger until the process ends, so it is kept as long."""
    import llama_cpp.llama_cpp as api

    lines: list[str] = []

    def keep(level: int, text: bytes, _: Any) -> None:
        if level >= ERROR_LEVEL:
            lines.append(text.decode(errors="replace").rstrip("\n"))

    _LOGGERS.append(api.llama_log_callback(keep))
    api.llama_log_set(_LOGGERS[-1], None)
    api.llama_backend_init()
    yield lines
