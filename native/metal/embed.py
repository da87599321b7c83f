"""Writes the .metal sources as text in a C++ file, for compilation at run time: their own headers in place, once each.

    python embed.py SOURCE.metal ... --out OUTPUT.cpp
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^#include "([^"]+)"$')


def expanded(path: Path, seen: set[Path]) -> str:
    """The text of a source with its own headers in place; every line keeps its file and number."""
    seen.add(path)
    lines = [f'#line 1 "{path.name}"']
    for number, line in enumerate(path.read_text().splitlines(), 1):
        header = INCLUDE.match(line)
        if header is None:
            lines.append("" if line == "#pragma once" else line)
            continue
        included = path.parent / header[1]
        if included not in seen:
            lines += [expanded(included, seen), f'#line {number + 1} "{path.name}"']
        else:
            lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        texts = {path.name: expanded(path, set()) for path in options.sources}
    except OSError as error:
        print(f"embed: {error}", file=sys.stderr)
        return 2
    entries = "".join(f'    {{"{name}", R"metal({text}\n)metal"}},\n' for name, text in texts.items())
    options.out.write_text(
        '#include "sources.hpp"\n\nnamespace dlab::gpu {\n\n'
        f"const Source kSources[] = {{\n{entries}}};\nconst int kSourceCount = {len(texts)};\n\n}}  // namespace dlab::gpu\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
