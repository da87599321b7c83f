"""Programs on the emulator, in one CMake project, built and run as a user's are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CMAKE = f"""cmake_minimum_required(VERSION 3.20)
project(programs LANGUAGES CXX)
include({ROOT}/native/emu/emulate.cmake)
foreach(name block barriers)
  add_executable(${{name}} {ROOT}/native/emu/example/report.cpp)
  dlab_emulate_cuda(${{name}} ${{name}}.cu)
  target_include_directories(${{name}} PRIVATE {ROOT}/dumps)
endforeach()
add_subdirectory({ROOT}/native/emu/example example)
"""
SOURCES = (ROOT / "dumps/example/block.cu", ROOT / "dumps/example/exported_case.hpp", ROOT / "tests/emu/barriers.cu")


@dataclass(frozen=True)
class Run:
    """What a program did: its exit status, what it printed (stdout, then stderr without the findings), and what the emulator found."""

    status: int
    printed: str
    found: list[dict[str, Any]]

    def kinds(self) -> set[str]:
        return {finding["kind"] for finding in self.found}


class Programs:
    """A project around copies of the sources, which a test may change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "CMakeLists.txt").write_text(CMAKE)
        for source in SOURCES:
            shutil.copy(source, folder)
        self.configure()

    def configure(self, *options: str) -> None:
        self._cmake("-S", str(self.folder), "-B", str(self.folder / "build"), "-DCMAKE_BUILD_TYPE=Release", *options)

    def build(self, name: str) -> None:
        self._cmake("--build", str(self.folder / "build"), "--target", name)

    def run(self, name: str, *arguments: object, **environment: str) -> Run:
        """``environment``: EMU_SCHEDULE and EMU_ORDER among others."""
        program = self.folder / "build" / ("example/histogram" if name == "histogram" else name)
        command = [str(program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
        lines = done.stderr.splitlines(keepends=True)
        said, found = ([line for line in lines if line.startswith("{") == is_found] for is_found in (False, True))
        return Run(done.returncode, done.stdout + "".join(said), [json.loads(line) for line in found])

    def _cmake(self, *arguments: str) -> None:
        found = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
        assert found is not None
        subprocess.run([found, *arguments], check=True, capture_output=True, text=True, cwd=self.folder)
