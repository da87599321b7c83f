"""Rewrites a .metal source as C++ for the emulator, line for line.

The source goes through the C++ preprocessor first, so that kernels made by macros are seen as kernels. Then address spaces and
attributes are taken out, ``threadgroup`` variables become storage that the emulator owns, and every kernel is entered under the name
that the host calls it by, with what its parameters are bound to. `metal_emu.hpp` gives everything else a meaning.

    PYTHONPATH=.. python -m emu.translate_metal SOURCE --root FOLDER --compiler c++ --out OUTPUT
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .translate import Source, TranslationError, shared_declaration

SLOTS = {
    "buffer": "Buffer",
    "threadgroup": "Threadgroup",
    "thread_position_in_grid": "ThreadInGrid",
    "thread_position_in_threadgroup": "ThreadInThreadgroup",
    "thread_index_in_threadgroup": "ThreadIndexInThreadgroup",
    "thread_index_in_simdgroup": "ThreadIndexInSimdgroup",
    "simdgroup_index_in_threadgroup": "SimdgroupIndexInThreadgroup",
    "threadgroup_position_in_grid": "ThreadgroupInGrid",
    "threads_per_threadgroup": "ThreadsPerThreadgroup",
    "threadgroups_per_grid": "ThreadgroupsPerGrid",
    "threads_per_grid": "ThreadsPerGrid",
    "threads_per_simdgroup": "ThreadsPerSimdgroup",
    "simdgroups_per_threadgroup": "SimdgroupsPerThreadgroup",
}
IGNORED = ("kernel", "max_total_threads_per_threadgroup", "unroll", "maybe_unused", "fallthrough", "nodiscard", "likely", "unlikely")
HEADERS = Path(__file__).with_name("metal_headers")


class Preprocessed(Source):
    """Tokens of a preprocessed file, whose lines are those that its ``#line`` directives say."""

    def where(self, index: int) -> tuple[str, int]:
        text = self.join(0, index)
        directives = list(re.finditer(r'^#line (\d+) "([^"]*)"', text, re.MULTILINE))
        if not directives:
            return self.name, self.line(index)
        last = directives[-1]
        return last[2], int(last[1]) + text.count("\n", last.end()) - 1


@dataclass(frozen=True)
class Kernel:
    """A kernel as it is defined: what each parameter is bound to, and whether it is a template."""

    parameters: tuple[str, ...]
    template: bool


def attributes(source: Source, first: int, end: int) -> list[tuple[str, str, int]]:
    """(name, argument, first token) of every ``[[…]]`` among the tokens; several in one pair of brackets are listed apart."""
    found = []
    for i in range(first, end - 1):
        if source.tokens[i] == "[" and source.tokens[i + 1] == "[" and source.kinds[i] == "other":
            text = source.join(i, source.closing(i) + 1).strip()[2:-2]
            for name, argument in re.findall(r"([A-Za-z_][\w:]*)\s*(?:\(((?:[^()]|\([^()]*\))*)\))?", text):
                found.append((name, argument.strip(), i))
    return found


def erase(source: Source, first: int, end: int) -> None:
    """Take tokens out; their lines stay."""
    for i in range(first, end):
        source.tokens[i] = "\n" * source.tokens[i].count("\n")
        source.kinds[i] = "space"


def _split(source: Source, first: int, end: int) -> list[tuple[int, int]]:
    """The parts between commas that are in no bracket."""
    parts, begin, depth = [], first, 0
    for i in range(first, end):
        token = source.tokens[i]
        depth += (token in ("(", "[", "{", "<")) - (token in (")", "]", "}", ">"))
        if token == "," and depth == 0:
            parts.append((begin, i))
            begin = i + 1
    return [*parts, (begin, end)]


def _parameter(source: Source, first: int, end: int) -> str:
    found = [a for a in attributes(source, first, end) if a[0] not in IGNORED]
    what = source.join(first, end).strip()
    if len(found) != 1:
        raise source.fail(source.solid(first), f"the parameter {' '.join(what.split())!r} of a kernel needs one attribute")
    name, argument, at = found[0]
    if name not in SLOTS:
        raise source.fail(at, f"the attribute [[{name}]] is not emulated; known: {', '.join(SLOTS)}")
    return f"{{::emu::Slot::{SLOTS[name]}, {argument or 0}}}"


def _definition(source: Source, first: int, last: int) -> tuple[str, Kernel] | None:
    """The kernel whose ``void name(…) {`` follows the tokens that mark it, or None."""
    word = source.solid(last + 1)
    if word >= len(source.tokens) or source.tokens[word] != "void":
        return None
    name = source.solid(word + 1)
    opening = source.solid(name + 1)
    if source.tokens[opening] != "(":
        return None
    closing = source.closing(opening)
    body = source.solid(closing + 1)
    if body >= len(source.tokens) or source.tokens[body] != "{":
        return None
    before = source.solid(first - 1, -1)
    parts = _split(source, opening + 1, closing) if source.solid(opening + 1) != closing else []
    parameters = tuple(_parameter(source, a, b) for a, b in parts)
    return source.tokens[name], Kernel(parameters, before >= 0 and source.tokens[before] == ">")


def _instance(source: Source, at: int) -> tuple[str, str, str]:
    """``template [[host_name("x")]] kernel … f<A>…;`` at the token: (host name, f, f<A>). The statement is taken out."""
    end = next(i for i in range(at, len(source.tokens)) if source.tokens[i] == ";")
    names = [argument for name, argument, _ in attributes(source, at, end) if name == "host_name"]
    if not names:
        raise source.fail(at, 'an explicit instantiation without [[host_name("…")]]')
    host = "".join(re.findall(r'"([^"]*)"', names[0]))
    depth = 0
    for i in range(at, end):
        token = source.tokens[i]
        depth += (token in "([{") - (token in ")]}")
        following = source.solid(i + 1)
        if depth == 0 and source.kinds[i] == "word" and source.tokens[following] == "<":
            last = _angle(source, following)
            function, instance = token, "".join(source.join(i, last + 1).split())
            break
    else:
        raise source.fail(at, 'an instantiation of a kernel reads `template [[host_name("x")]] kernel … name<…>…;`')
    erase(source, at, end + 1)
    return host, function, instance


def _angle(source: Source, at: int) -> int:
    depth = 0
    for i in range(at, len(source.tokens)):
        depth += (source.tokens[i] == "<") - (source.tokens[i] == ">")
        if depth == 0:
            return i
    raise source.fail(at, "'<' is never closed")


def _is_variable(source: Source, at: int) -> bool:
    """Does ``threadgroup`` at the token begin the declaration of a variable, not the type of a pointer?"""
    depth = 0
    for i in range(at + 1, len(source.tokens)):
        token = source.tokens[i]
        depth += (token == "[") - (token == "]")
        if depth:
            continue
        if token == ";":
            return True
        if token in ("*", "&", "(", ")", ",", "=", "{", "}", ">"):
            return False
    return False


def _entry(number: int, host: str, function: str, kernel: Kernel) -> str:
    return f'static const ::emu::MetalKernel emu_kernel_{number}("{host}", {function}, {{{", ".join(kernel.parameters)}}});\n'


def translate(text: str, name: str) -> str:
    """The C++ text of a preprocessed Metal source. `TranslationError` names the line that cannot be read."""
    source = Preprocessed(text, name)
    kernels: dict[str, Kernel] = {}
    words = [i for i, kind in enumerate(source.kinds) if kind == "word"]
    instances = [i for i in words if source.tokens[i] == "template" and source.tokens[source.solid(i + 1)] != "<"]
    entries = [_instance(source, i) for i in instances]
    marks = [(i, i) for i in words if source.tokens[i] == "kernel" and source.tokens[source.solid(i - 1, -1)] != "["]
    marks += [(at, source.closing(at)) for word, _, at in attributes(source, 0, len(source.tokens)) if word == "kernel"]
    for first, last in sorted(marks):
        found = _definition(source, first, last)
        if found is None:
            raise source.fail(first, "expected `kernel void name(…) { … }`")
        kernels[found[0]] = found[1]
        if not found[1].template:
            entries.append((found[0], found[0], found[0]))
    lost = next((function for _, function, _ in entries if function not in kernels), None)
    if lost:
        raise TranslationError(f"{name}: {lost} is instantiated, but no kernel of that name is defined")
    made = "".join(_entry(i, host, instance, kernels[function]) for i, (host, function, instance) in enumerate(entries))
    for _, _, at in attributes(source, 0, len(source.tokens)):
        if source.tokens[at] == "[":
            erase(source, at, source.closing(at) + 1)
    _address_spaces(source)
    return '#include "metal_emu.hpp"\n' + "".join(source.tokens) + '\n#line 1 "kernels"\n' + made


def _address_spaces(source: Source) -> None:
    for i in range(len(source.tokens)):
        if source.kinds[i] != "word":
            continue
        token = source.tokens[i]
        if token == "threadgroup" and _is_variable(source, i):
            shared_declaration(source, i)
        elif token in ("device", "thread", "threadgroup", "kernel"):
            source.tokens[i] = "static" if token == "kernel" else ""
        elif token == "constant":
            beside = {source.tokens[source.solid(i + 1)], source.tokens[source.solid(i - 1, -1)]}
            source.tokens[i] = "" if beside & {"const", "constexpr"} else "const"


def preprocess(source: Path, root: Path, compiler: str) -> str:
    """The source with its macros and own headers expanded, its lines named by their path below ``root``."""
    defined = ["-undef", "-D__METAL__", "-D__METAL_VERSION__=310"]
    command = [compiler, "-E", "-x", "c++", "-nostdinc", *defined, "-I", str(HEADERS), "-I", str(root), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TranslationError(done.stderr.strip())

    def named(match: re.Match[str]) -> str:
        path = Path(match[2])
        if path.name.startswith("<"):  # of the compiler's own
            return ""
        inside = path.is_absolute() and path.is_relative_to(root)
        return f'#line {match[1]} "{path.relative_to(root).as_posix() if inside else path.name}"'

    return re.sub(r'^# (\d+) "([^"]*)".*$', named, done.stdout, flags=re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--root", type=Path, required=True, help="reports name sources by their path below it")
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        made = translate(preprocess(options.source, options.root, options.compiler), options.source.name)
    except (OSError, TranslationError) as error:
        print(f"translate_metal: {error}", file=sys.stderr)
        return 2
    options.out.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
