"""Declared arithmetics: what a declaration says and what it refuses."""

from __future__ import annotations

import pytest

from oracle.arithmetic import PRESETS, Arithmetic, DeclarationError, named
from oracle.floats import BF16, F16, F32


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_called_by_its_name(name):
    assert named(name) is PRESETS[name]
    assert named(name).name == name


def test_options_change_the_preset_and_the_name_says_so():
    text = "f32,store=*.logits:bf16+draft.*:f16,use=*.q_raw:q8_0,order=lanes:8,fma=1,angles=f32-pow,norm_sum=f64,truncate=true"
    A = named(text)
    assert A.name == text
    assert A.stored("draft.logits") == BF16
    assert A.stored("draft.L0.xn") == F16
    assert A.stored("target.L0.xn") == F32
    assert (A.used("draft.L0.q_raw"), A.used("draft.L0.k_raw")) == ("q8_0", "f32")
    assert (A.order, A.declared, A.fma, A.angles, A.norm_sum, A.truncate) == ("lanes:8", True, True, "f32-pow", "f64", True)


def test_an_order_that_is_named_is_declared_and_one_that_is_not_is_an_upper_bound():
    assert not named("f32").declared
    assert named("f32,order=pairwise").declared
    assert not named("f32,order=pairwise,declared=0").declared
    assert not named("f32,norm_sum=pairwise").declared


def test_a_dtype_without_a_pattern_is_for_every_stage():
    assert named("f32,store=bf16").stored("anything") == BF16
    assert named("f32, use=bf16").used("anything") == "bf16"


def test_the_first_pattern_that_matches_decides():
    A = Arithmetic(store=(("*.L0.*", "bf16"), ("*.attn", "f16")))
    assert (A.stored("draft.L0.attn"), A.stored("draft.L1.attn")) == (BF16, F16)


def test_products_are_rounded_unless_they_are_fused():
    fused, apart = named("f32,fma=1"), named("f32,fma=0")
    assert apart.energy(64) == (fused.energy(64)[0], fused.energy(64)[1] + 1)
    assert named("f32,order=f64").energy(64) == (0.0, 0.0)
    assert apart.w3 == (2.0**-24) ** 2 / 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f64", "arithmetic 'f64' is unknown; known: f32, f32-sequential"),
        ("", "arithmetic '' is unknown"),
        ("f32,fused=1", "option 'fused=1': expected key=value with one of angles, attention_order, declared, delta, fma"),
        ("f32,fma", "option 'fma': expected key=value"),
        ("f32,name=x", "option 'name=x'"),
        ("f32,fma=yes", "fma='yes': expected 0 or 1"),
        ("f32,order=tree", "summation order 'tree': expected sequential"),
        ("f32,norm_sum=blocked:0", "summation order 'blocked:0'"),
        ("f32,angles=f16", "angles='f16': expected one of exact"),
        ("f32,store=fp8", r"\*='fp8': expected one of f64, f32, f16, bf16"),
        ("f32,use=*.o:q4_0", r"\*\.o='q4_0': expected one of f32, bf16"),
        ("f32,store=", r"\*='': expected one of"),
    ],
)
def test_what_does_not_fit_is_named(text, message):
    with pytest.raises(DeclarationError, match=message):
        named(text)
