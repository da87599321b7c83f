"""A whole engine with one mistake: the shipped CUDA sources with a few lines changed, compiled for the emulator.

One library holds every mistake; the number in the environment variable ``DLAB_PLANTED`` chooses, 0 is none. A line of the engine that a
finding must name ends with ``// MARK name``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from native import building
from native.sources import PACKAGE

NUMBERS = {
    "barrier left out": 1,
    "shared write out of bounds": 2,
    "shared memory unwritten": 3,
    "diverging shuffle": 4,
    "shared staging": 5,
    "metadata rewritten": 6,
    "event wait left out": 7,
    "masks by another stream": 8,
}
CHOSEN = """
#include <cstdlib>
static int planted() {
  const char* text = getenv("DLAB_PLANTED");
  return text ? atoi(text) : 0;
}
"""

# Of the Strata pull request: positions per row and head, in one pinned buffer that the keys rewrite while the copy of the queries' may run.
ROTATE = """
  if (planted() == 5) {
    static Pinned<float>& shared = *new Pinned<float>;
    const int64_t pairs = config.rope_dim / 2, entries = pass.rows * heads;
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < entries; ++i) positions.push_back(pass.pos + i / heads);
    const std::vector<float> made = ops::rope_table(positions.data(), entries, inv_freq_.data(), pairs, 1.0);
    shared.grow(16 * 32 * config.rope_dim);
    float* staged = shared.get();
    for (size_t i = 0; i < made.size(); ++i) staged[i] = made[i];  // MARK staging.rewrite
    float* table = pass.space.floats(stage + ".table", static_cast<int64_t>(made.size()));
    upload(pass.stream, table, staged, static_cast<int64_t>(made.size()) * 4);  // MARK staging.copy
    rope(pass.stream, x, table, entries, 1, config.head_dim, config.rope_dim, interleaved, y);
    emit(pass, stage, y, {pass.rows, heads, config.head_dim});
    return y;
  }
"""

# file below native/: [(text, its replacement)]; every text must occur once.
CHANGES: dict[str, list[tuple[str, str]]] = {
    "cuda/device.cu": [('"cuda-emu"', '"planted"')],
    "cuda/rows.cu": [
        ("namespace dlab::gpu {\n", CHOSEN + "namespace dlab::gpu {\n"),
        (
            "  for (int distance = 16; distance > 0; distance /= 2) {\n    Best other;",
            "  if (planted() != 4 || threadIdx.x % 32 < 16)\n  for (int distance = 16; distance > 0; distance /= 2) {\n    Best other;",
        ),
        (
            "__shfl_xor_sync(0xffffffffu, best.value[n], distance);",
            "__shfl_xor_sync(0xffffffffu, best.value[n], distance);  // MARK shuffle",
        ),
        (
            "  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;\n  __syncthreads();\n",
            "  if (threadIdx.x % 32 == 0 && (planted() != 3 || threadIdx.x < 224))\n"
            "    warps[threadIdx.x / 32 + (planted() == 2 ? 1 : 0)] = best;  // MARK shared.write\n"
            "  if (planted() != 1) __syncthreads();  // MARK shuffle.others\n",
        ),
        ("best.take(warps[w].value[n], warps[w].index[n]);", "best.take(warps[w].value[n], warps[w].index[n]);  // MARK shared.read"),
    ],
    "gpu/device_drafter.cpp": [
        ("namespace dlab {\n", CHOSEN + "namespace dlab {\n"),
        ('config.rope_style == "interleaved";\n', 'config.rope_style == "interleaved";\n' + ROTATE),
        ("  appended_.hold(blocks_);\n", "  if (planted() != 7) appended_.hold(blocks_);\n"),
    ],
    "gpu/device_drafter_context.cpp": [
        ("namespace dlab::gpu {\n", CHOSEN + "namespace dlab::gpu {\n"),
        ("constexpr int64_t kAppendRows = 256;", "constexpr int64_t kAppendRows = 4;"),
        (
            "  float* staged = taps_stage_.fill(count);\n",
            "  static Pinned<float>& metadata = *new Pinned<float>;\n  metadata.grow(4096);\n"
            "  float* staged = planted() == 6 ? metadata.get() : taps_stage_.fill(count);\n",
        ),
        ("memcpy(staged + r * taps.width,", "  // the rows of the next chunk\n    memcpy(staged + r * taps.width,"),
        ("static_cast<size_t>(taps.width) * 4);\n", "static_cast<size_t>(taps.width) * 4);  // MARK metadata.rewrite\n"),
        (
            "    upload(pass.stream, masks_.get() + kind * bytes, staged + kind * bytes, bytes);\n",
            "    const StreamHandle other = planted() == 8 ? appends_ : blocks_;\n"
            "    upload(other, masks_.get() + kind * bytes, staged + kind * bytes, bytes);  // MARK masks.copy\n",
        ),
        ("  upload(appends_, x, staged, count * 4);\n", "  upload(appends_, x, staged, count * 4);  // MARK metadata.copy\n"),
    ],
}


def build() -> Path:
    """The library, compiled if its sources have changed; what was not changed is taken from cuda-emu."""
    building.ensure("cuda-emu")
    folder = PACKAGE.parent / "build" / "planted-engine"
    folder.mkdir(parents=True, exist_ok=True)
    for path, changes in CHANGES.items():
        text = changed((PACKAGE / path).read_text(), changes, path)
        file = folder / Path(path).name
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    return building.build("cuda-emu", "dlab_planted_engine", [f"-DDLAB_PLANTED_ENGINE={folder}"])


def changed(text: str, changes: Iterable[tuple[str, str]], path: str) -> str:
    """The source with every change made."""
    for old, new in changes:
        assert text.count(old) == 1, f"{path} has {text.count(old)} times: {old}"
        text = text.replace(old, new)
    return text


def line(mark: str) -> str:
    """``file:N`` of the line with ``// MARK mark``."""
    for path, changes in CHANGES.items():
        for number, text in enumerate(changed((PACKAGE / path).read_text(), changes, path).splitlines(), 1):
            if text.endswith(f"// MARK {mark}"):
                return f"{Path(path).name}:{number}"
    raise KeyError(mark)
