"""A declared arithmetic: where a candidate rounds, and in which order it sums (DESIGN section 5)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from oracle import summation
from oracle.floats import F32, FORMATS, FloatFormat
from oracle.policies import POLICIES
from oracle.tensor import Array

ANGLES = ("exact", "f32-pow", "f32-exp2", "f32-product")
PROBABILITIES = ("f32", "bf16", "f16")
SCORES = ("f32", "bf16", "f16", "bf16-queries", "f16-queries")
FRAMEWORKS = ("torch", "mlx")
ROWS = "-rows"
STATES = ("f32", "bf16", "f16", "bf16-rows", "f16-rows")
Table = tuple[tuple[str, str], ...]


class DeclarationError(ValueError):
    """An arithmetic that does not exist, or a value a switch cannot take."""


@dataclass(frozen=True)
class Arithmetic:
    """What a candidate declares of its rounding.

    ``store``: stage pattern -> dtype of the stage as recorded. ``use``: pattern of the *consuming* stage -> policy its first
    input is rounded to before use (of a ``cells`` stage: every input, the dtype of the key/value cache); ``ggml`` follows the weight's
    format. ``order``: summation order of dot products; ``declared``: the candidate stands by it
    (else it is an upper bound). ``attention_order``: that of attention's sums over dimensions and over cells, where it is another one.
    ``fma``: products are not rounded. ``norm_sum``: order of a norm's sum of squares.
    ``angles``: how rope angles are formed. ``truncate``: stores cut instead of rounding to nearest. ``probabilities``: dtype that the
    normalised attention probabilities are rounded to before they meet the values; ``scores``: that of the scores, before and after
    their scale; with ``-queries`` the queries are scaled instead and rounded, then the scores. ``state``: dtype that a recurrent state is
    kept in between the calls of a forward, which read and write it in f32 otherwise; with ``-rows``, from each row of a call to the next.
    ``inner``: stage pattern -> dtype of what is written between the steps of one operation, as ``framework`` takes these steps
    (`oracle.eager`). ``delta``: how a delta rule goes over its rows, ``recurrent`` one by one or ``chunked:n``.
    """

    name: str = "f32"
    store: Table = ()
    use: Table = ()
    order: str = "sequential"
    attention_order: str = ""
    declared: bool = False
    fma: bool = False
    norm_sum: str = "sequential"
    angles: str = "exact"
    truncate: bool = False
    probabilities: str = "f32"
    state: str = "f32"
    scores: str = "f32"
    inner: Table = ()
    framework: str = "torch"
    delta: str = "recurrent"

    def __post_init__(self) -> None:
        for order in (self.order, self.norm_sum, self.attention_order or self.order):
            summation.parse(order)
        if self.angles not in ANGLES:
            raise DeclarationError(f"arithmetic angles={self.angles!r}: expected one of {', '.join(ANGLES)}")
        for key, value, known in (
            ("probabilities", self.probabilities, PROBABILITIES),
            ("scores", self.scores, SCORES),
            ("framework", self.framework, FRAMEWORKS),
            ("state", self.state, STATES),
        ):
            if value not in known:
                raise DeclarationError(f"arithmetic {key}={value!r}: expected one of {', '.join(known)}")
        if self.delta != "recurrent" and not self.chunk:
            raise DeclarationError(f"arithmetic delta={self.delta!r}: expected recurrent or chunked:n with n from 1 to 4096")
        for table, formats in ((self.store, tuple(FORMATS)), (self.use, POLICIES), (self.inner, PROBABILITIES)):
            for pattern, value in table:
                if value not in formats:
                    raise DeclarationError(f"arithmetic {pattern}={value!r}: expected one of {', '.join(formats)}")

    @property
    def chunk(self) -> int:
        """Rows of a chunk of the delta rule; 0 where it goes one by one."""
        kind, _, rows = self.delta.partition(":")
        return int(rows) if kind == "chunked" and rows.isdecimal() and 0 < int(rows) <= 4096 else 0

    @property
    def w3(self) -> float:
        """``u²/3`` of the f32 accumulator: the variance of one rounding inside an accumulation, relative."""
        return F32.u**2 / 3

    def stored(self, path: str) -> FloatFormat:
        """Format of the recorded stage ``path``."""
        return FORMATS[_first(self.store, path, "f32")]

    def to_storage(self, path: str, y: Any) -> Array:
        """``y`` as stage ``path`` would hold it if it were computed exactly: one rounding (or cut) to its store."""
        store = self.stored(path)
        return store.truncate(y) if self.truncate and store.p < F32.p else store.round(y)

    def holds(self, path: str) -> str:
        """Dtype of what the engine writes between the steps of stage ``path``."""
        return _first(self.inner, path, "f32")

    def used(self, path: str) -> str:
        """Policy that stage ``path`` applies to its first input."""
        return _first(self.use, path, "f32")

    def kept(self) -> tuple[str, str | None]:
        """Dtypes that a recurrent state is rounded to before a call starts from it, and from row to row within a call (None: it is not)."""
        dtype = self.state.removesuffix(ROWS)
        return dtype, dtype if self.state.endswith(ROWS) else None

    def order_in(self, kind: str) -> str:
        """Summation order inside operations of the kind (`oracle.ops.base.Operation.kind`)."""
        return self.attention_order or self.order if kind == "attention" else self.order

    def energy(self, terms: int, kind: str = "linear") -> tuple[float, float]:
        """(a, b) of a dot product of ``terms`` products in operations of the kind, the rounding of the products included where there is no
        FMA."""
        order = self.order_in(kind)
        a, b = summation.energy(order, terms)
        return a, b if self.fma or summation.parse(order)[0] == "f64" else b + 1


def _first(table: Table, path: str, default: str) -> str:
    return next((value for pattern, value in table if fnmatchcase(path, pattern)), default)


def _llama_cpp(name: str, policy: str) -> Arithmetic:
    """llama.cpp on a CPU, flash attention off, the key/value cache in f16 (its default), as vendored in llama-cpp-python 0.3.36.

    ``ggml-cpu.c``: a product rounds its activations to the ``vec_dot_type`` of its weight (`oracle.policies`); the keys meet the queries
    and the values the probabilities as such products, so both are rounded to f16. ``ops.cpp``: a norm sums its squares in double, rope
    forms its angles by repeated multiplication, softmax normalises before the probabilities are rounded. ``vec.cpp``: SiLU and softmax
    use a float32 exponential, no table. Sums of float products run in eight lanes or more (``llamafile/sgemm.cpp``, ``vec.cpp``), so eight
    is an upper bound, not a promise: not ``declared``.
    """
    use = (("*.k_cells", "f16"), ("*.v_cells", "f16"), ("*.attn", "f16"), ("*", policy))
    return Arithmetic(name, use=use, order="lanes:8", fma=True, norm_sum="f64", angles="f32-product", probabilities="f16")


def _strata() -> Arithmetic:
    """The drafter in Strata's CUDA runtime (`specs/qwen38-flash-next.md` section 6): bf16 activations for every product but the head's,
    which takes Q8_1 blocks; the cache in f16; attention in chunks of 64 cells; angles in float32. All else stays f32."""
    products = ("fc", "q_raw", "k_raw", "v", "o", "mlp_gate", "mlp_up", "mlp_down")
    use = (("*.k_cells", "f16"), ("*.v_cells", "f16"), ("draft.logits", "q8_1"), *((f"draft*.{name}", "bf16") for name in products))
    return Arithmetic("strata", use=use, attention_order="blocked:64", fma=True, angles="f32-pow")


PRESETS = {
    "f32": Arithmetic(),
    "f32-sequential": Arithmetic("f32-sequential", declared=True),
    "f32-pairwise": Arithmetic("f32-pairwise", order="pairwise", norm_sum="pairwise", declared=True),
    "f32-blocked": Arithmetic("f32-blocked", order="blocked:64", norm_sum="blocked:64", declared=True),
    "cuda-f32": Arithmetic("cuda-f32", order="lanes:32x4", attention_order="blocked:32", norm_sum="f64", fma=True, declared=True),
    "metal-f32": Arithmetic(
        "metal-f32", order="lanes:32x4", attention_order="blocked:32", norm_sum="lanes:256", fma=True, declared=True
    ),
    # In which order matrix units add is not documented: a sequence is the upper bound, not a promise.
    "cuda-tensor-core": Arithmetic("cuda-tensor-core", use=(("*", "weight16"),), attention_order="blocked:32", norm_sum="f64", fma=True),
    "metal-simdgroup": Arithmetic(
        "metal-simdgroup", use=(("*", "weight16"),), attention_order="blocked:32", norm_sum="lanes:256", fma=True
    ),
    "cpu": Arithmetic("cpu", order="blocked:256", norm_sum="f64", fma=True, declared=True),
    "mlx-f32": Arithmetic("mlx-f32", fma=True, angles="f32-exp2"),
    "mlx-bf16": Arithmetic(
        "mlx-bf16",
        store=(("*", "bf16"),),
        inner=(("*", "bf16"),),
        framework="mlx",
        fma=True,
        angles="f32-exp2",
        probabilities="bf16",
        scores="bf16-queries",
    ),
    "transformers-f32": Arithmetic("transformers-f32", fma=True, angles="f32-pow", delta="chunked:64"),
    "transformers-bf16": Arithmetic(
        "transformers-bf16",
        store=(("*", "bf16"),),
        inner=(("*", "bf16"),),
        fma=True,
        angles="f32-pow",
        probabilities="bf16",
        scores="bf16",
        delta="chunked:64",
    ),
    "bf16": Arithmetic("bf16", store=(("*", "bf16"),)),
    "f16": Arithmetic("f16", store=(("*", "f16"),)),
    "strata": _strata(),
    "llama.cpp-cpu": _llama_cpp("llama.cpp-cpu", "ggml"),
    "llama.cpp-scalar": _llama_cpp("llama.cpp-scalar", "ggml-scalar"),
}


def named(text: str) -> Arithmetic:
    """The arithmetic of ``--arithmetic NAME[,key=value…]``. Keys: the fields above, ``store``, ``use`` and ``inner`` as ``dtype`` or
    ``pattern:dtype+pattern:dtype``. `DeclarationError` names what does not fit.
    """
    name, *pairs = [part.strip() for part in text.split(",")]
    if name not in PRESETS:
        raise DeclarationError(f"arithmetic {name!r} is unknown; known: {', '.join(PRESETS)}")
    base = PRESETS[name]
    for pair in pairs:
        base = _changed(base, pair)
    return base if not pairs else replace(base, name=text)


def _changed(base: Arithmetic, pair: str) -> Arithmetic:
    """``base`` with one ``key=value``; a summation order that is named counts as declared."""
    known = {f.name for f in fields(Arithmetic)} - {"name"}
    key, eq, value = pair.partition("=")
    if not eq or key not in known:
        raise DeclarationError(f"arithmetic option {pair!r}: expected key=value with one of {', '.join(sorted(known))}")
    change: dict[str, Any] = {key: value}
    if key in ("store", "use", "inner"):
        change = {key: tuple(_entry(e) for e in value.split("+"))}
    elif key in ("declared", "fma", "truncate"):
        if value not in ("0", "1", "true", "false"):
            raise DeclarationError(f"arithmetic {key}={value!r}: expected 0 or 1")
        change = {key: value in ("1", "true")}
    elif key == "order":
        change["declared"] = True
    try:
        return replace(base, **change)
    except ValueError as e:
        raise DeclarationError(str(e)) from None


def _entry(text: str) -> tuple[str, str]:
    pattern, sep, dtype = text.rpartition(":")
    return (pattern, dtype) if sep else ("*", text)
