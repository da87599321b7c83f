"""What an engine's own loader refuses of a drafter that is otherwise sound: storage formats, sizes, keys without a default.

A file may be right and yet not load where it is meant to; ``parity inspect --loader`` says so beforehand.
Sources: `specs/muse-glimmer.md` 4.1 and 4.3, `specs/qwen38-flash-next.md` 4.2 and 4.3, `specs/laguna.md` 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from oracle.artifacts import laguna, muse, qwen38
from oracle.artifacts.container import Container, name_list, show
from oracle.drafters.dialect import Geometry

SHELL_FORMATS = ("q4_k", "q5_k", "q6_k")
SHELL_SIZES = {"hidden": muse.RELEASE_HIDDEN, "intermediate": 19968, "heads": 32, "kv_heads": 8, "head_dim": 128}
STRATA_FORMATS = ("bf16", "q4_0", "q5_0", "q8_0")
STRATA_SIZES = {"hidden": qwen38.RELEASE_HIDDEN, "intermediate": 7680, "heads": 24, "kv_heads": 2, "head_dim": 256}
EAGLE = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Loader:
    """A loader's files: of one ``family`` in one ``container``; ``check`` yields what it refuses, one clause each."""

    family: str
    container: str
    check: Callable[[Container, Geometry], Iterator[str]]


def _matrices(container: Container, accepted: tuple[str, ...]) -> Iterator[str]:
    wrong = [t for t in container.tensors.values() if len(t.shape) > 1 and t.stored not in accepted]
    if wrong:
        found = ", ".join(sorted({t.stored for t in wrong}))
        yield f"projections {name_list(t.name for t in wrong)}: expected {' or '.join(accepted)}, found {found}"


def _sizes(g: Geometry, expected: dict[str, int]) -> Iterator[str]:
    for name, size in expected.items():
        if getattr(g, name) != size:
            yield f"{name}: expected {size}, found {getattr(g, name)}"


def _shell(container: Container, g: Geometry) -> Iterator[str]:
    """The projection shell reads block formats of 256 alone; norms may be of any format."""
    yield from _matrices(container, SHELL_FORMATS)
    yield from _sizes(g, SHELL_SIZES)
    if len(g.tap_ids) != muse.LAYERS:
        yield f"taps: expected {muse.LAYERS}, found {len(g.tap_ids)}"


def _strata(container: Container, g: Geometry) -> Iterator[str]:
    yield from _matrices(container, STRATA_FORMATS)
    vectors = [t for t in container.tensors.values() if len(t.shape) == 1 and t.stored != "bf16"]
    if vectors:
        found = ", ".join(sorted({t.stored for t in vectors}))
        yield f"norms {name_list(t.name for t in vectors)}: expected bf16, found {found}"
    yield from _sizes(g, STRATA_SIZES)
    if not any(key in container.metadata for key in ("dflash.vocab_size", *qwen38.ALIASES["dflash.vocab_size"])):
        yield "missing key dflash.vocab_size: the tokens are not counted"
    if "dflash.rope.freq_base" in container.metadata or "tokenizer.ggml.mask_token_id" in container.metadata:
        yield "dflash.target_layers: expected zero-based ids, to which the loader adds one; found ids that have it already"


def _assistant(container: Container, g: Geometry) -> Iterator[str]:
    """The stricter rules of the MLX loaders for the published folder."""
    found = container.metadata.get("model_type")
    if found != muse.MODEL_TYPE:
        yield f"model_type: expected {muse.MODEL_TYPE!r}, found {show(found)}"
    if g.window_source != "file":
        yield "sliding_window: expected a width, found none; this loader has no default"
    if list(g.tap_ids) != sorted(g.tap_ids) or len(g.tap_ids) != g.layers:
        yield f"target_layer_ids: expected {g.layers} strictly increasing layers, found {show(list(g.tap_ids))}"


def _eagle(container: Container, g: Geometry) -> Iterator[str]:
    inner = container.metadata.get("dflash_config", {})
    if EAGLE not in container.metadata and EAGLE not in inner:
        yield f"missing key {EAGLE}: expected {[t + 1 for t in g.tap_ids]}, one more than each of target_layer_ids"


LOADERS = {
    "muser-shell": (Loader(muse.FAMILY, "gguf", _shell),),
    "strata": (Loader(qwen38.FAMILY, "gguf", _strata),),
    "mlxcel": (Loader(muse.FAMILY, "safetensors", _assistant),),
    "mlx-vlm": (Loader(muse.FAMILY, "safetensors", _assistant), Loader(laguna.FAMILY, "safetensors", _eagle)),
}


def refusals(name: str, family: str, container: Container, g: Geometry) -> list[str]:
    """What the loader ``name`` refuses of the drafter in ``container``, one line each; [] where it would load."""
    known = [one for one in LOADERS[name] if (one.family, one.container) == (family, container.kind)]
    if not known:
        reads = " or ".join(f"{one.family} in {one.container}" for one in LOADERS[name])
        return [f"{container.path}: loader {name} reads {reads}, not {family} in {container.kind}"]
    return [f"{container.path}: loader {name} refuses it: {what}" for what in known[0].check(container, g)]
