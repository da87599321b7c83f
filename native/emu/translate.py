"""Rewrites the three constructs of a CUDA source that a C++ compiler cannot read, line for line.

``kernel<<<grid, block, shared, stream>>>(arguments)`` becomes a call, and ``__shared__`` declarations become storage that the emulator
owns. Everything else is left as it is: the headers of the emulator give it a meaning.

    python translate.py SOURCE --name NAME-IN-REPORTS > OUTPUT
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*(?:\\\n[^\n]*)*|/\*.*?\*/)"""
    r"""|(?P<raw>R"(?P<tag>[^()\\\s]*)\(.*?\)(?P=tag)")"""
    r"""|(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<word>[A-Za-z_]\w*)"""
    r"""|(?P<number>\.?\d(?:[eEpP][+-]|[\w.'])*)"""
    r"""|(?P<launch><<<|>>>)"""
    r"""|(?P<scope>::|->)"""
    r"""|(?P<other>.)""",
    re.DOTALL,
)
CLOSES = {"(": ")", "[": "]", "{": "}"}


class TranslationError(Exception):
    """A construct that cannot be read: where and why."""


class Source:
    """The tokens of a file, to be edited in place."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.tokens = [m.group() for m in TOKEN.finditer(text)]
        self.kinds = [m.lastgroup if m.lastgroup != "tag" else "raw" for m in TOKEN.finditer(text)]

    def line(self, index: int) -> int:
        return 1 + sum(t.count("\n") for t in self.tokens[:index])

    def where(self, index: int) -> tuple[str, int]:
        """File and line of a token, as reports show them."""
        return self.name, self.line(index)

    def fail(self, index: int, what: str) -> TranslationError:
        name, line = self.where(index)
        return TranslationError(f"{name}:{line}: {what}")

    def solid(self, index: int, step: int = 1) -> int:
        """The next token from ``index`` on that is not space; -1 or the length at the ends."""
        while 0 <= index < len(self.tokens) and self.kinds[index] == "space":
            index += step
        return index

    def closing(self, index: int) -> int:
        """The bracket that closes the one at ``index``."""
        stack: list[str] = []
        for i in range(index, len(self.tokens)):
            token = self.tokens[i]
            if self.kinds[i] != "other":
                continue
            if token in CLOSES:
                stack.append(CLOSES[token])
            elif stack and token == stack[-1]:
                stack.pop()
                if not stack:
                    return i
        raise self.fail(index, f"{self.tokens[index]!r} is never closed")

    def join(self, first: int, end: int) -> str:
        return "".join(self.tokens[first:end])


def _callee(source: Source, launch: int) -> int:
    """First token of the kernel named before ``<<<``: a qualified name, perhaps with template arguments."""
    at = source.solid(launch - 1, -1)
    if source.tokens[at] == ">":
        angles = parentheses = 0
        while at >= 0:
            token = source.tokens[at]
            parentheses += {")": 1, "(": -1}.get(token, 0)
            if parentheses == 0:
                angles += {">": 1, "<": -1}.get(token, 0)
            if angles == 0:
                break
            at -= 1
        at = source.solid(at - 1, -1)
    if at < 0 or source.kinds[at] != "word":
        raise source.fail(launch, "expected the name of a kernel before <<<")
    while True:
        before = source.solid(at - 1, -1)
        if before < 0 or source.tokens[before] != "::":
            return at
        owner = source.solid(before - 1, -1)
        if owner < 0 or source.kinds[owner] != "word":
            return before
        at = owner


def _launch(source: Source, at: int) -> None:
    first = _callee(source, at)
    end = next((i for i in range(at + 1, len(source.tokens)) if source.tokens[i] == ">>>"), None)
    if end is None:
        raise source.fail(at, "<<< without >>>")
    opening = source.solid(end + 1)
    if opening >= len(source.tokens) or source.tokens[opening] != "(":
        raise source.fail(end, "expected the arguments of the kernel after >>>")
    closing = source.closing(opening)
    kernel = source.join(first, at).strip()
    label = " ".join(kernel.split()).replace("\\", "\\\\").replace('"', '\\"')
    has_arguments = source.solid(opening + 1) != closing
    head = f'::emu::launch_kernel("{label}", {{}}, ::emu::config('
    middle = f"), [=](const auto&... emu_arguments) {{ {kernel}(emu_arguments...); }}"
    source.tokens[first] = head
    for i in range(first + 1, at):
        source.tokens[i] = "\n" * source.tokens[i].count("\n")
    source.tokens[at] = ""
    source.tokens[end] = middle + (", " if has_arguments else "")
    source.tokens[opening] = ""
    _mark(source, first, opening)


def _mark(source: Source, first: int, opening: int) -> None:
    """What was edited is no longer a token of its own kind."""
    source.kinds[first] = source.kinds[opening] = "space"


def shared_declaration(source: Source, at: int) -> None:
    """``[extern|static] __shared__ TYPE name[dims] {, name[dims]};``, or another word at the token in place of ``__shared__``."""
    word = source.tokens[at]
    end = next((i for i in range(at, len(source.tokens)) if source.tokens[i] == ";"), None)
    if end is None:
        raise source.fail(at, f"{word} without a semicolon")
    before = source.solid(at - 1, -1)
    dynamic = before >= 0 and source.tokens[before] == "extern"
    if before >= 0 and source.tokens[before] in ("extern", "static"):
        source.tokens[before] = ""
    words = [i for i in range(at + 1, end) if source.kinds[i] != "space"]
    dynamic = dynamic or any(source.tokens[i] == "extern" for i in words)
    words = [i for i in words if source.tokens[i] not in ("extern", "static", "volatile")]
    names = _declarators(source, words)
    # The type ends where the first name stands; alignment is kept by giving every variable a page of its own.
    kind = " ".join(source.tokens[i] for i in words if i < names[0][0])
    kind = re.sub(r"(__align__|alignas)\s*\(.*?\)\s*", "", kind).strip()
    if not kind:
        raise source.fail(at, f"{word} without a type")
    made = "".join(_variable(source, kind, name, dims, dynamic, *source.where(at)) for name, dims in names)
    for i in range(at, end):
        source.tokens[i] = "\n" * source.tokens[i].count("\n")
        source.kinds[i] = "space"
    source.tokens[at] = made
    source.tokens[end] = ""


def _declarators(source: Source, words: list[int]) -> list[tuple[int, str]]:
    """(token of the name, its dimensions as text) for each variable declared."""
    found: list[tuple[int, str]] = []
    depth, angle = 0, 0
    name, dims = -1, ""
    for i in words:
        token = source.tokens[i]
        if token in "([{":
            depth += 1
        if depth == 0 and not angle and token == ",":
            found.append((name, dims))
            name, dims = -1, ""
            continue
        if depth == 0:
            angle += {"<": 1, ">": -1}.get(token, 0)
        if depth == 0 and not angle and source.kinds[i] == "word":
            name, dims = i, ""
        elif (depth and name >= 0 and (dims or token == "[")) or (dims and token == "]"):
            dims += token if token not in ("]",) else "]"
        if token in ")]}":
            depth -= 1
    found.append((name, dims))
    if any(n < 0 for n, _ in found):
        raise source.fail(words[0] if words else 0, "__shared__: expected TYPE name[sizes];")
    return found


def _variable(source: Source, kind: str, name: int, dims: str, dynamic: bool, file: str, line: int) -> str:
    word = source.tokens[name]
    storage = f'static ::emu::SharedVariable emu_{word}{{"{word}", "{file}", {line}}}; '
    if dynamic:
        return f"{storage}{kind}* const {word} = static_cast<{kind}*>(::emu::shared_variable(emu_{word}, 0)); "
    alias = f"typedef {kind} emu_type_{word}{dims}; "
    address = f"::emu::shared_variable(emu_{word}, sizeof(emu_type_{word}))"
    return f"{alias}{storage}emu_type_{word}& {word} = *static_cast<emu_type_{word}*>({address}); "


def translate(text: str, name: str, header: str = "cuda_emu.hpp") -> str:
    """The C++ text of a CUDA source, or with another header of host code beside kernels, with the same lines.

    `TranslationError` names the line that cannot be read."""
    source = Source(text, name)
    for i in range(len(source.tokens)):
        if source.tokens[i] == "<<<" and source.kinds[i] == "launch":
            _launch(source, i)
        elif source.tokens[i] == "__shared__" and source.kinds[i] == "word":
            shared_declaration(source, i)
        elif source.tokens[i] == "__noinline__" and source.kinds[i] == "word":
            source.tokens[i] = "__attribute__((noinline))"  # not a macro: the system's headers use the name in their own attributes
    return f'#include "{header}"\n#line 1 "{name}"\n' + "".join(source.tokens)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--name", help="path of the source as reports show it")
    parser.add_argument("--header", default="cuda_emu.hpp", help="what the translation includes first")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        made = translate(options.source.read_text(), options.name or options.source.name, options.header)
    except (OSError, TranslationError) as error:
        print(f"translate: {error}", file=sys.stderr)
        return 2
    options.out.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
