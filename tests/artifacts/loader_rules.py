"""The table of docs/loader-rules.md, made of the tests themselves: ``python -m tests.artifacts.loader_rules`` rewrites it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "loader-rules.md"
HOME = "tests/artifacts/"


class Group(NamedTuple):
    """Rules that one parametrised test proves: a heading, where the rule comes from, the test's module and name."""

    heading: str
    source: str
    module: str
    test: str


GROUPS = (
    Group("GGUF container", "`native-backends.md` 2.1 and ggml's own loader", "test_bad_gguf", "test_a_broken_container_is_refused"),
    Group("SafeTensors file and config", "the format's own rules", "test_bad_safetensors", "test_a_broken_folder_is_refused"),
    Group("Sharded folders", "the format's own rules", "test_bad_safetensors", "test_a_broken_index_is_refused"),
    Group("Muse Glimmer drafter, GGUF", "`muse-glimmer.md` 3.1, 4.1", "test_bad_gguf", "test_a_wrong_muse_file_is_refused"),
    Group("Muse Glimmer drafter, folder", "`muse-glimmer.md` 3.1, 4", "test_bad_safetensors", "test_a_wrong_muse_folder_is_refused"),
    Group("Generic drafter, GGUF", "`dflash-generic.md` 4 to 9, 18", "test_bad_gguf", "test_a_wrong_generic_drafter_is_refused"),
    Group("Generic drafter, folder", "`dflash-generic.md` 4 to 9, 18", "test_bad_safetensors", "test_a_wrong_generic_drafter_is_refused"),
    Group("DFlash 2 and DSpark parts", "`dflash-generic.md` 11, 12, 14, 15", "test_artifact_heads", "test_a_half_declared_head_is_refused"),
    Group("Laguna drafter", "`laguna.md` 4", "test_laguna_drafter", "test_every_rule_refuses_by_name"),
    Group("Laguna drafter, GGUF", "`laguna.md` 4", "test_target_gguf", "test_a_wrong_laguna_drafter_is_refused"),
    Group("DeepSpec drafter, GGUF", "`qwen38-flash-next.md` 4.1 to 4.3", "test_qwen38_drafter", "test_a_file_is_refused_by_rule"),
    Group("DeepSpec drafter, folder", "`qwen38-flash-next.md` 3.1, 4.2", "test_qwen38_drafter", "test_a_config_is_refused_by_rule"),
    Group("Engines' own loaders", "`muse-glimmer.md` 4.1, 4.3, `qwen38-flash-next.md` 4.2, 4.3, `laguna.md` 4", "test_loaders",
          "test_a_loader_refuses_by_rule"),
    Group("Target and drafter", "`muse-glimmer.md` 4.3, `laguna.md` 4", "test_pairing", "test_a_drafter_of_another_target_is_refused"),
    Group("Llama target, GGUF", "`dflash-generic.md` 2, 9", "test_bad_gguf", "test_a_wrong_target_is_refused"),
    Group("Llama target, folder", "`dflash-generic.md` 2, 9", "test_bad_safetensors", "test_a_wrong_target_is_refused"),
    Group("Muse Glimmer target, GGUF", "`muse-glimmer.md` 2, 4", "test_muse_target", "test_a_wrong_gguf_is_refused"),
    Group("Muse Glimmer target, folder", "`muse-glimmer.md` 2, 4", "test_muse_target", "test_a_wrong_folder_is_refused"),
    Group("Laguna target, GGUF", "`laguna.md` 1.1 to 1.4", "test_target_gguf", "test_a_wrong_laguna_target_is_refused"),
    Group("Laguna target, folder", "`laguna.md` 1.1, 1.4", "test_laguna_target", "test_a_config_is_refused_by_rule"),
    Group("Laguna target, tensors of a folder", "`laguna.md` 1.1, 1.2", "test_laguna_target", "test_tensors_are_refused_by_rule"),
    Group("Qwen3.8 target, GGUF", "`qwen38-flash-next.md` 1.1 to 1.8", "test_target_gguf", "test_a_wrong_qwen38_target_is_refused"),
    Group("Qwen3.8 target, folder", "`qwen38-flash-next.md` 1.1, 1.8", "test_qwen38_drafter", "test_a_target_is_refused_by_rule"),
)  # fmt: skip
# Rules with a test of their own: (rule, source, module, test).
SINGLE = (
    ("a header that ends too early, at any byte", "GGUF", "test_bad_gguf", "test_a_truncated_header_is_refused"),
    ("a path that is no file", "GGUF", "test_bad_gguf", "test_a_path_that_is_not_a_file_is_refused"),
    ("a head that does not fit its embedding", "lenders", "test_bad_gguf", "test_a_borrowed_head_must_fit_the_embedding"),
    ("a family that does not exist", "DESIGN 7", "test_bad_gguf", "test_an_unknown_family_is_refused"),
    ("a file cut in its data", "SafeTensors", "test_bad_safetensors", "test_a_file_cut_in_its_data_is_refused"),
    ("a shard linked to outside the folder", "SafeTensors", "test_bad_safetensors", "test_a_shard_may_not_leave_the_folder_by_a_link"),
    ("a lender with two embeddings or without a head", "lenders", "test_bad_safetensors", "test_a_lender_needs_one_embedding_and_one_head"),
    ("a `d2t` that leaves the vocabulary, repeats, or contradicts `t2d`", "`dflash-generic.md` 11", "test_artifact_heads",
     "test_a_map_that_leaves_the_vocabulary_or_repeats_is_refused"),
    ("DFlash 2 parts in another family", "`dflash-generic.md` 4", "test_artifact_heads", "test_other_families_keep_refusing_these_parts"),
    ("q, k, v split in part", "`laguna.md` 4", "test_laguna_drafter", "test_an_incomplete_split_is_refused"),
    ("a Laguna drafter in GGUF without gates and tap norms", "`laguna.md` 4", "test_laguna_drafter",
     "test_a_gguf_without_its_own_parts_is_refused"),
    ("attention sinks of some layers only, or under two names", "`dflash-generic.md` 10", "test_artifact_heads",
     "test_sinks_of_some_layers_are_refused"),
    ("a drafter opened as a model by itself, a target as a drafter", "`laguna.md` 4", "test_laguna_target",
     "test_a_drafter_is_no_model_by_itself_and_a_target_no_drafter"),
    ("a mask token from outside the vocabulary", "`qwen38-flash-next.md` 5.2", "test_qwen38_drafter",
     "test_what_may_be_left_out_has_a_default_that_is_said"),
    ("a loader's files of another family or container", "inspection", "test_loaders",
     "test_a_loader_reads_its_own_family_and_container_only"),
    ("a tensor of a GGUF that no switch consumes", "`dflash-generic.md` 4", "test_nothing_ignored",
     "test_an_added_tensor_of_a_gguf_is_named"),
    ("a tensor of a folder that no switch consumes", "`dflash-generic.md` 4", "test_nothing_ignored",
     "test_an_added_tensor_of_a_folder_is_named"),
    ("a key of a GGUF that nobody reads", "`dflash-generic.md` 4", "test_nothing_ignored", "test_an_added_key_of_a_gguf_is_named"),
    ("a key of a config that nobody reads", "`dflash-generic.md` 4", "test_nothing_ignored", "test_an_added_key_of_a_config_is_named"),
    ("another reading by the container's library", "inspection", "test_artifact_opinions", "test_each_kind_of_disagreement_is_a_problem"),
    ("a file the container's library cannot read", "inspection", "test_artifact_opinions",
     "test_a_library_that_fails_is_a_problem_of_the_file"),
    ("block formats into SafeTensors", "conversion", "test_artifact_convert", "test_block_formats_stay_in_gguf"),
    ("a destination that exists, or of the same kind", "conversion", "test_artifact_convert",
     "test_a_destination_is_never_overwritten_nor_of_the_same_kind"),
    ("metadata that the other container cannot say", "conversion", "test_artifact_convert",
     "test_metadata_that_the_other_container_cannot_say_is_refused"),
    ("a file that does not read back as its source", "conversion", "test_artifact_convert",
     "test_a_file_that_does_not_read_back_as_the_source_is_not_kept"),
    ("a model whose parts GGUF has no place for", "conversion", "test_convert_families", "test_what_gguf_has_no_place_for_is_refused"),
    ("a number that no format of the other container holds", "conversion", "test_convert_families",
     "test_a_norm_with_its_one_takes_the_format_that_holds_it"),
    ("hash constants of an unknown seed in a config", "conversion", "test_convert_families",
     "test_hash_constants_without_their_seed_have_no_place_in_a_config"),
    ("experts of two formats in one tensor", "conversion", "test_convert_families", "test_experts_of_two_formats_have_no_tensor_in_common"),
)  # fmt: skip

# What is refused when models run: (rule, source, test).
RUNNING = (
    (
        "a verify length that an engine does not have: other than 3, 7, 15; K of 0 or beyond 7; a block of one row",
        "`muse-glimmer.md` 4.3 (8), `qwen38-flash-next.md` 5.1, `laguna.md` 5.1",
        "speculation/test_rounds.py::test_lengths_that_an_engine_does_not_have",
    ),
    ("an empty prompt", "`muse-glimmer.md` 4.3 (8)", "speculation/test_rounds.py::test_an_empty_prompt_is_refused"),
    (
        "a sampling seed that does not fit 32 bits",
        "`muse-glimmer.md` 4.3 (8)",
        "speculation/test_mt19937.py::test_a_seed_beyond_32_bits_is_refused",
    ),
    (
        "a sampled request of an engine that speculates greedily only",
        "`laguna.md` 4, `qwen38-flash-next.md` 5.1",
        "speculation/test_rounds.py::test_engines_that_speculate_greedily_refuse_to_sample",
    ),
    (
        "features of no row or of another width, a gap before them",
        "`muse-glimmer.md` 4.3 (9)",
        "oracle/test_forward.py::test_a_context_that_cannot_be_is_refused",
    ),
    (
        "a block of no row or of more than the drafter's",
        "`muse-glimmer.md` 4.3 (9), `laguna.md` 4",
        "oracle/test_forward.py::test_a_block_that_the_drafter_has_not_is_refused",
    ),
    ("a cache whose sink or window is zero", "`muse-glimmer.md` 4.3 (7)", "oracle/test_forward.py::test_a_context_of_no_rows_is_refused"),
    (
        "a DeepSpec block beyond the trained one",
        "`qwen38-flash-next.md` 5.1",
        "oracle/test_qwen38_target.py::test_an_anchor_row_predicts_the_next_position",
    ),
    (
        "picks that are not one per row of the window",
        "`qwen38-flash-next.md` 5.3",
        "oracle/test_qwen38_target.py::test_a_round_commits_the_anchor_and_the_accepted_and_moves_to_the_next_pick",
    ),
    (
        "rows kept that a recurrent state no longer has",
        "`qwen38-flash-next.md` 5.3",
        "oracle/test_qwen38_target.py::test_rows_before_the_last_window_are_gone",
    ),
    (
        "more rows committed than a window has, a block beyond the rows that a ring saves, a cache that a target cannot have",
        "`muse-glimmer.md` 5.5, `laguna.md` 5.3",
        "speculation/test_rounds.py::test_caches_refuse_what_they_cannot_do",
    ),
    ("a round that fails anywhere leaves nothing behind", "`muse-glimmer.md` 5.3", "speculation/test_machine.py::test_a_thousand_steps"),
    (
        "logits that are no law: NaN, +inf or only -inf",
        "`muse-glimmer.md` 7.2",
        "speculation/test_laws.py::test_logits_that_are_no_law_are_refused",
    ),
    (
        "rows of draft and target that do not belong together",
        "`muse-glimmer.md` 7.3",
        "speculation/test_laws.py::test_counts_are_checked_before_any_draw",
    ),
    (
        "a `d2t` read in the other of its two forms",
        "`dflash-generic.md` 11",
        "speculation/test_laws.py::test_a_reduced_vocabulary_in_both_stored_forms_and_its_law_is_lossless",
    ),
    ("a token that stands for an image or video", "`muse-glimmer.md` 1.1", "artifacts/test_muse_target.py::test_what_a_folder_says"),
    (
        "sinks switched on in a checkpoint without them",
        "`dflash-generic.md` 10",
        "oracle/test_sinks.py::test_the_switch_turns_them_off_and_is_refused_where_there_are_none",
    ),
    (
        "a case whose files, steps or dialect do not fit its model",
        "DESIGN 7",
        "parity/test_bad_case.py::test_a_bad_case_is_refused_with_what_is_wrong",
    ),
)


def table(group: Group) -> dict[str, Any]:
    """The cases the group's test is parametrised with; LookupError when there is no such test or table."""
    test = getattr(importlib.import_module(f"tests.artifacts.{group.module}"), group.test, None)
    marks = [m.args[1] for m in getattr(test, "pytestmark", ()) if m.name == "parametrize" and isinstance(m.args[1], dict)]
    if len(marks) != 1:
        raise LookupError(f"{group.module}::{group.test} is not parametrised with one table")
    return dict(marks[0])


def rows() -> Iterator[str]:
    """The document, line by line."""
    yield "# Loader rules and the tests that prove them"
    yield ""
    yield "What the loaders, the inspection and the conversion refuse, each rule with the test that plants it. A refusal is one line that"
    yield "names the file, the key or tensor, what was expected and what was found. Rewritten by `python -m tests.artifacts.loader_rules`."
    for group in GROUPS:
        where = f"{HOME}{group.module}.py::{group.test}"
        yield from ("", f"## {group.heading}", "", f"From {group.source}. Tests: `{where}[rule]`.", "")
        yield from ("| rule | the message says |", "|---|---|")
        for case, (_, words) in table(group).items():
            said = ", ".join(f"`{_cell(w)}`" for w in ([words] if isinstance(words, str) else words)) or "where it breaks"
            yield f"| {_cell(case)} | {said} |"
    yield from ("", "## Single rules", "", "| rule | from | test |", "|---|---|---|")
    for rule, source, module, test in SINGLE:
        yield f"| {rule} | {source} | `{HOME}{module}.py::{test}` |"
    yield from ("", "## When models run", "", "| rule | from | test |", "|---|---|---|")
    for rule, source, test in RUNNING:
        yield f"| {rule} | {source} | `tests/{test}` |"


def _cell(text: str) -> str:
    return re.sub(r"[|`\n]", " ", text)


def text() -> str:
    return "\n".join(rows()) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(text())
