"""Adapters: real engines as candidates. Each runs its engine on a case and leaves a dump, and declares the engine's arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module, metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.errors import UsageError

if TYPE_CHECKING:
    from parity.case import Case


@dataclass(frozen=True)
class Adapter:
    """``module`` has ``run(case, out, threads, mapping, **options)``; ``package`` is what it imports, ``distribution`` what pip calls it.

    ``arithmetic``: what the engine is judged under where nothing is named; ``module.arithmetic(case, **options)``, where there is one, says
    it for a case. ``about``: one line for a person. ``options``: further arguments of ``run``.
    """

    name: str
    module: str
    package: str
    distribution: str
    extra: str
    arithmetic: str
    about: str
    options: dict[str, str] = field(default_factory=dict)

    def declared(self, case: Case | None) -> str:
        """The arithmetic to judge the engine by on ``case`` (None: whatever it is)."""
        own: Any = getattr(import_module(self.module), "arithmetic", None) if case is not None else None
        return self.arithmetic if own is None else str(own(case, **self.options))

    def missing(self) -> str | None:
        """Why the adapter cannot run here and what to do, or None."""
        if util.find_spec(self.package) is not None:
            return None
        return f"the Python package {self.distribution} is not installed: pip install 'dflash-parity-lab[{self.extra}]' ({self.about})"

    @property
    def version(self) -> str:
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            return "of unknown version"

    def run(self, case: Case, out: Path, threads: int = 0, mapping: Path | None = None) -> None:
        """Run the engine on ``case`` in this process, leave a dump at ``out``. `UsageError`: it is absent, or the case is not for it."""
        reason = self.missing()
        if reason is not None:
            raise UsageError(f"candidate {self.name}: {reason}")
        module: Any = import_module(self.module)
        module.run(case, out, threads, mapping, **self.options)


ADAPTERS = {
    a.name: a
    for a in (
        Adapter(
            "llama.cpp",
            "parity.adapters.llama_cpp",
            "llama_cpp",
            "llama-cpp-python",
            "llama",
            "llama.cpp-cpu",
            "it compiles llama.cpp, 178 objects: several minutes, a C++ compiler and CMake",
        ),
        Adapter(
            "transformers",
            "parity.adapters.transformers",
            "transformers",
            "transformers",
            "peers",
            "transformers-f32",
            "it brings PyTorch",
        ),
        Adapter(
            "transformers-bf16",
            "parity.adapters.transformers",
            "transformers",
            "transformers",
            "peers",
            "transformers-bf16",
            "it brings PyTorch",
            {"dtype": "bf16"},
        ),
        Adapter(
            "dflash",
            "parity.adapters.dflash",
            "dflash",
            "dflash",
            "peers",
            "transformers-f32",
            "the official drafter; it brings PyTorch and Transformers",
        ),
        Adapter(
            "mlx",
            "parity.adapters.mlx",
            "mlx_lm",
            "mlx-lm",
            "mlx",
            "mlx-f32",
            "it brings MLX and Transformers",
        ),
        Adapter(
            "mlx-bf16",
            "parity.adapters.mlx",
            "mlx_lm",
            "mlx-lm",
            "mlx",
            "mlx-bf16",
            "it brings MLX and Transformers",
            {"dtype": "bf16"},
        ),
    )
}
