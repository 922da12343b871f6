"""The operator's attributes stand in NormSpec; whatever PyTorch needs of them follows."""

from __future__ import annotations

import dataclasses
import inspect
import typing

import pytest
import torch

import rmsnorm_export.torch as rt
from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.spec import (
    GatedNormAttributes,
    ModuleAttributes,
    NormAttributes,
    NormSpec,
    RotaryNormAttributes,
)
from rmsnorm_export.torch.export.translate import translation
from rmsnorm_export.torch.operator.signature import NAMES, OPERANDS, schema, show_attributes

FUNCTIONS = {
    "RMSNorm": rt.rms_norm,
    "SkipRMSNorm": rt.skip_rms_norm,
    "GatedRMSNorm": rt.gated_rms_norm,
    "RotaryRMSNorm": rt.rotary_rms_norm,
}
GATED = NormSpec(kind="GatedRMSNorm")
ROTARY = NormSpec(kind="RotaryRMSNorm")
AXES = ("axis", "last_axis")
X = torch.ones(2, 6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wider(NormSpec):
    """A norm with one more attribute.

    Attributes:
        temperature: divides the row.
    """

    temperature: float = 2.5


def test_every_field_of_the_spec_is_an_attribute_of_some_norm() -> None:
    fields = [field.name for field in dataclasses.fields(NormSpec)]
    own = [name for name in ROTARY.attributes() if name not in GATED.attributes()]
    assert fields == ["kind", *GATED.attributes(), *own]
    assert own == ["rotary_dim", "rotary_interleaved"]


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        (NormAttributes, set(NormSpec().attributes())),
        (GatedNormAttributes, set(GATED.attributes())),
        (RotaryNormAttributes, set(ROTARY.attributes())),
        (
            ModuleAttributes,
            {*GATED.attributes(), *ROTARY.attributes()} - {"epsilon", *AXES},
        ),
    ],
)
def test_the_types_for_a_type_checker_are_those_of_the_spec(typed, names) -> None:
    types = typing.get_type_hints(NormSpec)
    assert typing.get_type_hints(typed) == {name: types[name] for name in names}


@pytest.mark.parametrize("kind", NAMES)
def test_the_docstring_says_what_each_attribute_means_and_its_default(kind) -> None:
    text = inspect.getdoc(FUNCTIONS[kind])
    for name in NormSpec(kind=kind).attributes():
        default = getattr(NormSpec(kind=kind), name)
        assert f"        - {name} ({default!r}): " in text
        meaning = text.split(f"        - {name} ({default!r}): ")[1].split("\n")[0]
        assert len(meaning.split()) > 3
    assert "\nReturns:\n" in text


def test_the_module_shows_every_attribute_but_the_axes() -> None:
    parameters = inspect.signature(rt.RMSNorm).parameters
    text = inspect.getdoc(rt.RMSNorm)
    for name in {**GATED.attributes(), **ROTARY.attributes()}:
        default = getattr(NormSpec(), name)
        assert (name in parameters) == (name not in AXES)
        assert (f"        - {name} ({default!r}): " in text) == (name not in AXES)
        assert name in AXES or parameters[name].default == default
    assert not [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]


def test_a_subclass_of_the_module_has_its_own_signature() -> None:
    class Own(rt.RMSNorm):
        def __init__(self, size: int) -> None:
            super().__init__(size, scale_offset=1)

    assert list(inspect.signature(Own).parameters) == ["size"]
    assert Own(6).spec.scale_offset == 1.0


@pytest.mark.parametrize("kind", NAMES)
def test_the_annotations_can_be_resolved(kind) -> None:
    hints = typing.get_type_hints(FUNCTIONS[kind])
    assert list(hints) == [*OPERANDS[kind], *NormSpec(kind=kind).attributes(), "return"]
    assert hints["epsilon"] is float


@pytest.mark.parametrize("kind", NAMES)
def test_the_translation_has_the_operands_and_attributes_of_the_operator(kind) -> None:
    function = translation(kind)
    parameters = inspect.signature(function).parameters
    assert list(parameters) == [*OPERANDS[kind], *NormSpec(kind=kind).attributes()]
    hints = typing.get_type_hints(function)
    for name in NormSpec(kind=kind).attributes():
        default = getattr(NormSpec(kind=kind), name)
        assert parameters[name].default == default
        # The exporter takes a parameter of a plain type for an attribute, any other for an input.
        assert hints[name] is type(default)


@pytest.mark.parametrize("kind", NAMES)
def test_a_new_attribute_of_the_spec_reaches_everything(kind) -> None:
    assert "float temperature=2.5)" in schema(kind, Wider)
    assert inspect.signature(translation(kind, Wider)).parameters["temperature"].default == 2.5

    @show_attributes(kind, spec=Wider)
    def norm(x: torch.Tensor, **attributes: object) -> torch.Tensor:
        """A norm.

        Args:
            x: the rows.
            **attributes: of the norm:

        Returns:
            The norm.
        """
        return x.mul(len(attributes))

    assert inspect.signature(norm).parameters["temperature"].default == 2.5
    assert norm.__doc__ is not None
    assert "        - temperature (2.5): divides the row.\n\nReturns:" in norm.__doc__


@pytest.mark.parametrize("kind", NAMES)
def test_a_misspelt_attribute_is_refused_and_the_known_ones_are_listed(kind) -> None:
    operands = {name: X for name in OPERANDS[kind] if name not in ("scale", "bias")}
    with pytest.raises(UsageError, match=f"{NAMES[kind]} has no attribute 'epsilno'") as caught:
        FUNCTIONS[kind](**operands, epsilno=1e-6)
    assert caught.value.fix == f"use {', '.join(NormSpec(kind=kind).attributes())}"


@pytest.mark.parametrize("name", ["epsilno", "axis", "groups"])
def test_the_module_refuses_an_attribute_that_it_does_not_have(name) -> None:
    with pytest.raises(UsageError, match=f"RMSNorm has no attribute '{name}'") as caught:
        rt.RMSNorm(6, **{name: 2})
    assert "epsilon, stash_type, " in caught.value.fix


def test_an_attribute_of_another_operator_is_refused() -> None:
    with pytest.raises(UsageError, match="rms_norm has no attribute 'activation'"):
        rt.rms_norm(X, activation="silu")


def test_whole_numbers_are_taken_for_the_float_attributes() -> None:
    assert torch.equal(rt.rms_norm(X, epsilon=1), rt.rms_norm(X, epsilon=1.0))
    assert isinstance(rt.RMSNorm(6, epsilon=1, scale_offset=1).spec.epsilon, float)
    assert isinstance(rt.RMSNorm(6, epsilon=1, scale_offset=1).spec.scale_offset, float)
