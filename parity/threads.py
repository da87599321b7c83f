"""How many threads BLAS may use: its threads cost more than they give on small products, and fight with each other."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_limits

if TYPE_CHECKING:
    from oracle.models import Target
    from parity.models import CaseModel

SMALL_WIDTH = 1024


def _one_blas_thread() -> AbstractContextManager[Any]:
    """BLAS on one thread while inside."""
    limit: AbstractContextManager[Any] = threadpool_limits(1, user_api="blas")
    return limit


def threads_for(model: CaseModel | Target) -> AbstractContextManager[Any]:
    """One thread for a small model, the default for a big one."""
    return _one_blas_thread() if model.embedding.width < SMALL_WIDTH else nullcontext()
