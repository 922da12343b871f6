"""Probing every norm class of transformers: each RMSNorm is fitted, nothing else is."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("transformers", reason="needs the catalogue: pip install transformers")

import torch

from rmsnorm_export.torch.probe.fit import Fit, NotANorm
from rmsnorm_export.torch.probe.probe import probe_module
from tests.tools.corpus import build
from tests.tools.corpus.norm_classes import EPSILON, NormClass, norm_classes

NORMS = {norm.key: norm for norm in norm_classes()}
HALF = (torch.float16, torch.bfloat16)

# 1 / rms is rounded to the half type by rsqrt, once; the operator rounds the root as well.
NO_HALF = {"GradiumPhononTTSTimestepNorm", "xLSTMRMSNorm-input-type"}


@pytest.mark.parametrize("key", NORMS)
def test_probe_and_corpus_agree(key: str) -> None:
    norm = NORMS[key]
    module, _ = norm.make()
    found = probe_module(module)
    if not norm.is_rmsnorm:
        assert isinstance(found, NotANorm), found
        assert found.reason
        return
    assert isinstance(found, Fit), found
    form = next(f for f in found.forms if f.formula.inputs == len(norm.inputs))
    _agrees(norm, form.formula)
    parameters = list(module.parameters())
    single = form.rounding(torch.float32, torch.float32 if parameters else None)
    assert single is not None
    assert single.ulps <= 8
    for dtype in HALF:
        rounding = form.rounding(dtype, dtype if parameters else None)
        if key in NO_HALF:
            assert rounding is None
            continue
        assert rounding is not None, form.refused
        assert rounding.ulps <= 2
        assert rounding.different <= rounding.elements / 1000
        _rounds_as(norm, rounding)


def _agrees(norm: NormClass, formula) -> None:
    """The formula against the verdict of the corpus, which knows the constructor's epsilon."""
    variant = norm.variant
    assert variant is not None
    gain = {"none": None, "w": 0.0, "w+b": 0.0, "1+w": 1.0, "pre 1+w": 1.0}[variant.gain]
    assert (formula.scale is None) == (gain is None)
    assert formula.scale_offset == (gain or 0.0)
    assert formula.scale_in_front == variant.gain.startswith("pre")
    assert (formula.bias is not None) == (variant.gain == "w+b")
    assert -formula.axis == variant.axes
    assert formula.group_size == variant.group_size
    assert formula.epsilon_outside == (variant.epsilon == "outside")
    if norm.epsilon is not None:
        assert formula.epsilon == norm.epsilon
    if variant.gate != "none":
        assert f"{formula.activation} {'before' if formula.gate_first else 'after'}" == variant.gate


def _rounds_as(norm: NormClass, rounding) -> None:
    """The order of rounding in the words of the corpus."""
    spec, words = rounding.spec, norm.variant.rounding
    assert spec.round_rstd == words.startswith("round rstd")
    assert (spec.stash_type != 1) == words.startswith("all in T")
    if "scale, then round" in words:
        assert spec.scale_before_cast
    if "round, then scale" in words:
        assert not spec.scale_before_cast
    assert rounding.offset_first == ("gain rounded" in words)


@pytest.mark.slow
def test_every_class_of_every_body() -> None:
    """The classes that share a body, one by one: 218 RMSNorms with transformers 5.23."""
    wrong, counts = [], {True: 0, False: 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for norm in NORMS.values():
            for member in norm.members if norm.primary else ():
                module, _, name = member.rpartition(".")
                overrides = dict(norm.arguments)
                try:
                    made = build.build(module, name, eps=EPSILON, overrides=overrides)
                except TypeError:  # a class whose sizes cannot be guessed: no RMSNorm is one
                    assert not norm.is_rmsnorm
                    continue
                counts[norm.is_rmsnorm] += 1
                if isinstance(probe_module(made), Fit) != norm.is_rmsnorm:
                    wrong.append(member)
    assert wrong == []
    assert counts[True] >= 200
    assert counts[False] >= 50
