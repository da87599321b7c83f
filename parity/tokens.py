"""Text to token ids and back, with the vocabulary that a GGUF file carries (``tokenizer.ggml.*``, model ``gpt2``: byte-level BPE)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import tokenizers

#: ``tokenizer.ggml.token_type`` values that are cut out of the text before it is split (GGUF specification)
CONTROL, USER_DEFINED = 3, 4
_TOKEN_TYPES = range(1, 7)

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"


class TokenizerError(ValueError):
    """A vocabulary that cannot be used, or the package that would use it is absent; the message says what to do."""


@dataclass(frozen=True)
class PreTokenizer:
    """How text is split into words before BPE: ``patterns`` in turn, each splitting the pieces the one before it left.

    ``nfc``: the text is normalised to NFC first. ``whole_words``: a word that is a token stands for itself, whatever the merges say.
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    whole_words: bool = False


#: ``tokenizer.ggml.pre`` -> its rule, as in the tokenizer.json of the models that introduced the name
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
    "llama-bpe": PreTokenizer(
        (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}",), whole_words=True
    ),
    "qwen2": PreTokenizer((rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}",), nfc=True),
    "qwen35": PreTokenizer(
        (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}",), nfc=True
    ),
}
_ALIASES = {"gpt2": "gpt-2", "llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}


class Tokenizer:
    """Byte-level BPE over the vocabulary of a model; made by `from_gguf_metadata`. Its token ids are the rows of the model's embedding."""

    def __init__(
        self, backend: tokenizers.Tokenizer, size: int, absent: frozenset[int], prefix: tuple[int, ...], suffix: tuple[int, ...]
    ) -> None:
        self._backend, self.size, self._absent = backend, size, absent
        self._prefix, self._suffix = prefix, suffix

    @classmethod
    def from_gguf_metadata(
        cls,
        tokens: Sequence[str],
        merges: Sequence[str],
        token_types: Sequence[int] | None = None,
        pre: str = "gpt-2",
        *,
        model: str = "gpt2",
        bos_id: int | None = None,
        eos_id: int | None = None,
        add_bos: bool = False,
        add_eos: bool = False,
    ) -> Self:
        """The tokenizer that ``tokenizer.ggml.tokens, merges, token_type, pre, model, bos_token_id, eos_token_id, add_bos_token`` and
        ``add_eos_token`` describe, as plain Python values.

        Control and user-defined tokens are recognised anywhere in a text; the words between them are split by the rule that ``pre`` names
        and merged in the order of ``merges``. Raises `TokenizerError` for another model, an unknown ``pre``, an inconsistent
        vocabulary, or when the ``tokenizers`` package is absent.
        """
        if model != "gpt2":
            raise TokenizerError(f"tokenizer.ggml.model: expected 'gpt2' (byte-level BPE), found {model!r}; pass token ids instead of text")
        rule = PRE_TOKENIZERS.get(_ALIASES.get(pre, pre))
        if rule is None:
            known = ", ".join(sorted({*PRE_TOKENIZERS, *_ALIASES}))
            raise TokenizerError(f"tokenizer.ggml.pre: expected one of {known}, found {pre!r}; pass token ids instead of text")
        ids = _vocabulary(tokens)
        pairs = _merges(merges, ids)
        added = _added(tokens, token_types)
        ends = []
        for what, wanted, number in (("bos", add_bos, bos_id), ("eos", add_eos, eos_id)):
            if wanted and (number is None or not 0 <= number < len(tokens)):
                raise TokenizerError(f"tokenizer.ggml.{what}_token_id: expected an id below {len(tokens)}, found {number}")
            ends.append((number,) if wanted and number is not None else ())
        absent = frozenset(byte for byte, symbol in enumerate(byte_symbols()) if symbol not in ids)
        return cls(_backend(ids, pairs, added, rule), len(tokens), absent, ends[0], ends[1])

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """The token ids of ``text``; ``add_special`` adds the BOS and EOS ids that the model asks for.

        Raises `TokenizerError` when the vocabulary has no token for a byte of the text, or the text is no Unicode.
        """
        normalizer = self._backend.normalizer
        try:
            normal = text if normalizer is None else str(normalizer.normalize_str(text))
            present = self._absent.intersection(normal.encode())
        except (UnicodeEncodeError, TypeError):
            raise TokenizerError("the text cannot be tokenised: expected Unicode text, found a lone surrogate or another type") from None
        ids = [int(number) for number in self._backend.encode(text, add_special_tokens=False).ids]
        # The library drops a byte that has no token without a word.
        if present and self.decode(ids) != normal:
            found = ", ".join(f"0x{byte:02x}" for byte in sorted(present))
            raise TokenizerError(f"the text cannot be tokenised: the vocabulary has no token for the byte {found}")
        return [*self._prefix, *ids, *self._suffix] if add_special else ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``, control tokens included; bytes that are no UTF-8 become U+FFFD.

        Raises `TokenizerError` for an unknown id.
        """
        numbers = [int(number) for number in ids]
        for position, number in enumerate(numbers):
            if not 0 <= number < self.size:
                raise TokenizerError(f"token {position}: expected an id below {self.size}, found {number}")
        return str(self._backend.decode(numbers, skip_special_tokens=False))


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte 0..255 in a byte-level vocabulary (GPT-2's table)."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]


def _vocabulary(tokens: Sequence[str]) -> dict[str, int]:
    ids: dict[str, int] = {}
    for number, token in enumerate(tokens):
        first = ids.setdefault(token, number)
        if first != number:
            raise TokenizerError(f"tokenizer.ggml.tokens: expected different tokens, found {token!r} as {first} and as {number}")
    if not ids:
        raise TokenizerError("tokenizer.ggml.tokens: expected a vocabulary, found none")
    return ids


def _merges(merges: Sequence[str], ids: dict[str, int]) -> list[tuple[str, str]]:
    pairs = []
    for number, merge in enumerate(merges):
        left, space, right = merge.partition(" ")
        if not (left and space and right) or " " in right:
            raise TokenizerError(f"tokenizer.ggml.merges[{number}]: expected two tokens with one space between them, found {merge!r}")
        for part in (left, right, left + right):
            if part not in ids:
                raise TokenizerError(f"tokenizer.ggml.merges[{number}]: {merge!r} needs the token {part!r}, which the vocabulary lacks")
        pairs.append((left, right))
    return pairs


def _added(tokens: Sequence[str], token_types: Sequence[int] | None) -> list[tuple[str, bool]]:
    """``(text, is control)`` of the tokens that are cut out of a text before it is split."""
    if token_types is None:
        return []
    if len(token_types) != len(tokens):
        raise TokenizerError(f"tokenizer.ggml.token_type: expected {len(tokens)} values, one per token, found {len(token_types)}")
    for number, kind in enumerate(token_types):
        if kind not in _TOKEN_TYPES:
            raise TokenizerError(f"tokenizer.ggml.token_type[{number}]: expected 1 to 6, found {kind!r}")
    return [(token, kind == CONTROL) for token, kind in zip(tokens, token_types, strict=True) if kind in (CONTROL, USER_DEFINED) and token]


def _backend(ids: dict[str, int], merges: list[tuple[str, str]], added: list[tuple[str, bool]], rule: PreTokenizer) -> tokenizers.Tokenizer:
    try:
        import tokenizers as library
    except ImportError:
        raise TokenizerError(
            "tokenising text needs the package 'tokenizers': pip install 'dflash-parity-lab[real]', or pass token ids instead of text"
        ) from None
    splits: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False} for pattern in rule.patterns
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    description = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": ids[token],
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": control,
            }
            for token, control in added
        ],
        "normalizer": {"type": "NFC"} if rule.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": ids, "merges": merges, "ignore_merges": rule.whole_words},
    }
    return library.Tokenizer.from_str(json.dumps(description))
