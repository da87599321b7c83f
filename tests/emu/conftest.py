"""The planted mistakes of ``planted.cu``, compiled once with the emulator."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cffi import FFI

from native import building
from native.emulation import Emulation
from tests.emu.programs import Programs

SOURCE = Path(__file__).with_name("planted.cu")
CDEF = """
int run_kernel(int which, int wrong);
int stage_positions(int how, int layers, int rows, int q_heads, int k_heads, int first, int* q, int* k);
int append_chunks(int wrong, int chunks, int* out);
int two_streams(int wrong, float* out);
"""


@pytest.fixture(scope="session")
def planted_path() -> Path:
    return building.build("cuda-emu", "dlab_planted", [f"-DDLAB_PLANTED={SOURCE}"])


@pytest.fixture(scope="session")
def planted(planted_path: Path) -> Any:
    ffi = FFI()
    ffi.cdef(CDEF)
    return ffi.dlopen(str(planted_path))


@pytest.fixture
def emulation(planted_path: Path) -> Iterator[Emulation]:
    made = Emulation(planted_path)
    made.clear()
    made.schedule("eager")
    yield made
    made.clear()
    made.schedule("eager")


@pytest.fixture
def planted_process(planted_path: Path) -> Callable[..., tuple[int, list[dict[str, Any]]]]:
    """Calls a function in a process of its own, since a kernel that was stopped leaves its device unusable: (status, findings)."""

    def call(function: str, *arguments: int) -> tuple[int, list[dict[str, Any]]]:
        program = (
            "import json, dataclasses\nfrom cffi import FFI\nfrom native.emulation import Emulation\n"
            f"f = FFI(); f.cdef({CDEF!r}); lib = f.dlopen({str(planted_path)!r})\n"
            f"status = lib.{function}({', '.join(map(str, arguments))})\n"
            f"print(json.dumps([status, [dataclasses.asdict(x) for x in Emulation({str(planted_path)!r}).findings()]]))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        status, found = json.loads(done.stdout)
        return status, found

    return call


def line(mark: str) -> str:
    """``planted.cu:N`` of the line with ``// MARK mark``."""
    for number, text in enumerate(SOURCE.read_text().splitlines(), 1):
        if text.endswith(f"// MARK {mark}"):
            return f"planted.cu:{number}"
    raise KeyError(mark)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("programs"))
