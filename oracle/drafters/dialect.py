"""What differs between drafters: the geometry of a checkpoint and the dialect of its family.

Source: `specs/dflash-generic.md` sections 4 to 9 (the switches), `specs/muse-glimmer.md` section 3 (Muse).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from oracle.recipes import WINDOW_RULES, Rope

# One checkpoint, several engines: how each reads the drafter's window and norms (`specs/muse-glimmer.md` 3.4, `specs/laguna.md` 3.4).
ENGINES: dict[str, dict[str, dict[str, Any]]] = {
    "muse-glimmer": {
        "hf": {"window_rule": "W_LE"},
        "llama.cpp": {"window_rule": "W_LT_left"},
        "muser": {"window_rule": "SINK_RING", "sink": 64},
    },
    "laguna": {
        "vllm": {"window_rule": "W_LT", "ctx_layernorm": True},
        "mlxcel": {"window_rule": "W_LT", "ctx_layernorm": True},
        "mlx-vlm": {"window_rule": "W_CACHE", "ctx_layernorm": False},
        "speculators": {"window_rule": "W_ANCHOR", "ctx_layernorm": True},
        "issue-1351": {"window_rule": "W_RING", "ctx_layernorm": False},
    },
}
# Rules that depend on the context's history, beside those `Visible` knows. W_CACHE: a rotating cache that exposes W - 2 of the rows it
# had and the S that were appended last, S cut to W - 1, to every block row alike.
HISTORY_RULES = ("W_CACHE",)


# The mask token of a file that names none: it must be given when the file is opened.
NO_MASK = -1


class DialectError(ValueError):
    """A dialect switch that does not exist, or a value it cannot take."""


@dataclass(frozen=True)
class Geometry:
    """The sizes of one drafter checkpoint. ``tap_ids``: zero-based target layers whose *output* is tapped.

    ``window`` is None when no layer slides; ``window_source`` says where it came from: ``file``, ``default``,
    ``dialect`` or ``none``. ``sliding[l]`` tells whether layer l is a sliding layer. DFlash 2 and DSpark parts have size 0 where
    there are none; ``draft_vocab`` is None where the drafter proposes ids of the whole vocabulary.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    block_size: int
    mask_token_id: int
    tap_ids: tuple[int, ...]
    target_hidden: int
    target_layers: int | None = None
    sliding: tuple[bool, ...] = ()
    window: int | None = None
    window_source: str = "none"
    context_length: int | None = None
    conv_kernel: int = 0
    conv_group: int = 0
    selector_rank: int = 0
    selector_top_k: int = 0
    markov_rank: int = 0
    draft_vocab: int | None = None


@dataclass(frozen=True)
class Dialect:
    """The switches of `specs/dflash-generic.md` section 4, each with one resolved value (never "default")."""

    family: str
    eps: float
    rope: Rope
    attn_scale: float
    anchor_layout: str = "fill_in"
    causal: tuple[bool, ...] = ()
    window_rule: str = "none"
    sink: int = 0
    window: int | None = None
    embed_scale: float = 1.0
    output_multiplier: float = 1.0
    softcap: float | None = None
    tap_norm: bool = False
    ctx_layernorm: bool = False
    attn_gate: str = "none"
    sinks: bool = False
    conv: bool = False
    selector: bool = False
    markov: str = "none"
    confidence: str = "none"

    CHOICES = {"anchor_layout": ("fill_in", "predict_next"), "window_rule": (*WINDOW_RULES, *HISTORY_RULES)}
    CHOICES |= {"attn_gate": ("none", "sigmoid", "softplus")}
    CHOICES |= {"markov": ("none", "vanilla", "gated", "rnn"), "confidence": ("none", "hidden", "markov")}

    def __post_init__(self) -> None:
        for switch, choices in self.CHOICES.items():
            if getattr(self, switch) not in choices:
                raise DialectError(f"dialect {switch}={getattr(self, switch)!r}: expected one of {', '.join(choices)}")

        if self.window is not None and self.window < 1:
            raise DialectError(f"dialect window={self.window}: expected at least 1 row")
        if self.sink < 0 or (self.sink == 0 and self.window_rule == "SINK_RING"):
            raise DialectError(f"dialect sink={self.sink}: expected at least 1 row of a ring; give sink=N")

    @property
    def chooser(self) -> str:
        """What makes drafts of the logits: ``argmax``, ``selector`` or ``markov``."""
        return "selector" if self.selector else "markov" if self.markov != "none" else "argmax"

    def override(self, pairs: dict[str, str]) -> Dialect:
        """This dialect with ``--dialect key=value`` pairs applied; `DialectError` names a key or value that does not fit."""
        changes: dict[str, Any] = {}
        known, rope = switches(), self.rope
        for key, text in pairs.items():
            if key not in known:
                raise DialectError(f"dialect switch {key!r} is unknown; known: {', '.join(sorted(known))}")
            try:
                if key == "mask_token_id":
                    int(text)  # It is the geometry's, which whoever opens the file changes.
                elif key == "engine":
                    changes = self._engine(text) | changes
                elif key == "rope_theta":
                    rope = replace(rope, theta=float(text))
                elif key == "rope_style":
                    rope = replace(rope, style=text)
                elif key == "block_mask":
                    if text not in ("causal", "bidirectional"):
                        raise ValueError
                    changes["causal"] = (text == "causal",) * len(self.causal)
                elif key in ("sink", "window"):
                    changes[key] = int(text)
                elif key in self.CHOICES:
                    changes[key] = text
                elif key in ("tap_norm", "ctx_layernorm", "sinks", "conv", "selector"):
                    changes[key] = {"on": True, "off": False}[text]
                else:
                    changes[key] = None if text == "none" else float(text)
            except DialectError:
                raise
            except (ValueError, KeyError):
                raise DialectError(f"dialect {key}={text!r}: not a value of this switch") from None
        made = replace(self, rope=rope, **changes)
        if made.window_rule != "none" and made.window is None:
            raise DialectError(f"dialect window_rule={made.window_rule}: this checkpoint has no window; give window=N as well")
        return made

    def _engine(self, name: str) -> dict[str, Any]:
        """The switches of an engine that runs this family; `DialectError` names those that do."""
        engines = ENGINES.get(self.family, {})
        if name not in engines:
            known = f"expected one of {', '.join(engines)}" if engines else "all engines of this family read it alike"
            raise DialectError(f"dialect engine={name!r} of family {self.family}: {known}")
        return engines[name]


def switches() -> set[str]:
    """Every key that ``--dialect key=value`` takes."""
    more = {"rope_theta", "rope_style", "block_mask", "engine", "mask_token_id"}
    return ({f.name for f in fields(Dialect)} | more) - {"family", "rope", "causal"}
