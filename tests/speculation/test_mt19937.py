"""The random stream against known vectors, NumPy's legacy generator and a C++ program compiled here."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle.speculation.libstdcxx import ONE_BELOW, Discrete, canonical, uniform_real
from oracle.speculation.mt19937 import MT19937

SEEDS = (0, 1, 42, 5489, 20260130, 2**32 - 1)
WEIGHTS = ([1.0, 2.0, 7.0], [0.1, 0.2, 0.7], [3.0], [1e-300, 1.0, 1e300, 5.0], [0.0, 0.0, 1.0, 0.0], [1 / 3] * 7)
PROGRAM = r"""
#include <cstdio>
#include <random>
#include <vector>
int main() {
  const unsigned seeds[] = {SEEDS};
  const std::vector<std::vector<double>> weights = {WEIGHTS};
  for (unsigned seed : seeds) {
    std::mt19937 raw(seed), f(seed), d(seed), r(seed), s(seed);
    for (int i = 0; i < 1300; i++) printf("%u\n", unsigned(raw()));
    std::uniform_real_distribution<float> unit_f(0.f, 1.f);
    std::uniform_real_distribution<double> unit_d(0., 1.);
    std::uniform_real_distribution<float> range(-2.5f, 7.25f);
    for (int i = 0; i < 300; i++) printf("%a\n", double(unit_f(f)));
    for (int i = 0; i < 300; i++) printf("%a\n", unit_d(d));
    for (int i = 0; i < 300; i++) printf("%a\n", double(range(r)));
    for (const auto &w : weights) {
      std::discrete_distribution<int> pick(w.begin(), w.end());
      for (int i = 0; i < 100; i++) printf("%d\n", pick(s));
    }
    printf("%u\n", unsigned(s()));
  }
}
"""


def numpy_stream(seed: int) -> np.random.MT19937:
    generator = np.random.MT19937()
    generator._legacy_seeding(seed)
    return generator


def test_known_vectors_of_seed_42():
    """`specs/muse-glimmer.md` 7.1; the ten thousandth draw of the default seed is the C++ standard's own."""
    stream = MT19937(42)
    assert [stream.u32() for _ in range(6)] == [1608637542, 3421126067, 4083286876, 787846414, 3143890026, 3348747335]
    stream = MT19937(42)
    assert [stream.uniform_f64() for _ in range(3)] == [0.796542984287846, 0.18343478789336848, 0.7796909976126612]
    stream = MT19937(42)
    assert [stream.uniform_f32() for _ in range(3)] == [np.float32(x) for x in (0.37454012, 0.796543, 0.9507143)]
    default = MT19937(5489)
    assert [default.u32() for _ in range(10000)][-1] == 4123659995 and default.drawn == 10000


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_raw_stream_is_numpy_s_legacy_generator(seed: int):
    stream = MT19937(seed)
    assert [stream.u32() for _ in range(1300)] == numpy_stream(seed).random_raw(1300).tolist()


@pytest.mark.parametrize("seed", (-1, 2**32))
def test_a_seed_beyond_32_bits_is_refused(seed: int):
    with pytest.raises(ValueError, match="32-bit stream"):
        MT19937(seed)


@given(seed=st.integers(0, 99), before=st.integers(0, 700), ahead=st.integers(0, 700))
@settings(max_examples=15, deadline=None)
def test_a_rewound_stream_draws_the_same_again(seed: int, before: int, ahead: int):
    stream = MT19937(seed)
    for _ in range(before):
        stream.u32()
    position = stream.position()
    first = [stream.u32() for _ in range(ahead)]
    stream.rewind(position)
    assert [stream.u32() for _ in range(ahead)] == first and stream.drawn == before + ahead


class Fixed:
    """A stream that gives what a test wants."""

    def __init__(self, *draws: int) -> None:
        self.draws = list(draws)

    def u32(self) -> int:
        return self.draws.pop(0)


def test_a_canonical_number_never_is_one_where_the_plain_one_is():
    top = 2**32 - 1
    for dtype, draws in ((np.float32, [top]), (np.float64, [top, top])):
        assert canonical(Fixed(*draws), dtype) == ONE_BELOW[np.dtype(dtype)]
    assert np.float32(top * 2.0**-32) == 1


@pytest.fixture(scope="module")
def cpp(tmp_path_factory) -> list[str]:
    compiler = next((c for c in ("g++", "c++") if shutil.which(c)), None)
    if compiler is None:
        pytest.skip("no C++ compiler here")
    folder = tmp_path_factory.mktemp("cpp")
    listed = ", ".join("{" + ", ".join(repr(x) for x in w) + "}" for w in WEIGHTS)
    source = PROGRAM.replace("{SEEDS}", "{" + ", ".join(f"{s}u" for s in SEEDS) + "}").replace("{WEIGHTS}", "{" + listed + "}")
    (folder / "draws.cpp").write_text(source)
    macros = subprocess.run([compiler, "-dM", "-E", "-x", "c++", "-include", "random", "/dev/null"], capture_output=True, text=True)
    if "__GLIBCXX__" not in macros.stdout:
        pytest.skip("the compiler's library is not libstdc++")
    subprocess.run([compiler, "-O1", "-o", str(folder / "draws"), str(folder / "draws.cpp")], check=True)
    return subprocess.run([str(folder / "draws")], capture_output=True, text=True, check=True).stdout.split()


def test_draws_and_distributions_equal_those_of_a_compiled_program(cpp: list[str]):
    lines = iter(cpp)
    for seed in SEEDS:
        raw, f, d, r, s = (MT19937(seed) for _ in range(5))
        assert [raw.u32() for _ in range(1300)] == [int(next(lines)) for _ in range(1300)]
        for stream, dtype, low, high in ((f, np.float32, 0, 1), (d, np.float64, 0, 1), (r, np.float32, -2.5, 7.25)):
            for i in range(300):
                assert float(uniform_real(stream, low, high, dtype)) == float.fromhex(next(lines)), (seed, dtype, i)
        for weights in WEIGHTS:
            pick = Discrete(weights)
            assert [pick(s) for _ in range(100)] == [int(next(lines)) for _ in range(100)]
        assert s.u32() == int(next(lines)), "one weight alone draws nothing, every other distribution twice per pick"
