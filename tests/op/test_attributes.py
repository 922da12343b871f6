"""What a new attribute of the operator needs, and who says so where a place was forgotten."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx.parser
import pytest

import rmsnorm_export as rx
from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.spec import IN_KERNELS, ORIGINAL, Kind, NormSpec
from tests.op.norm_models import Case, reference, variants
from tests.plugins import kernel_cases, native_process
from tests.plugins.native_fuzz import Fuzz
from tests.torch import norm_cases
from toolbox import abi
from toolbox.command import module_command, module_environment

KERNELS = Path(__file__).resolve().parents[2] / "plugins" / "kernels"
ATTRIBUTES = [name for name in NormSpec.__dataclass_fields__ if name != "kind"]


def test_the_first_attributes_are_those_that_all_knew() -> None:
    """No other is added to them: what does not know it would not refuse it."""
    assert len(ORIGINAL) == 16
    assert {*ATTRIBUTES} >= ORIGINAL


def test_a_later_attribute_is_refused_by_all_that_does_not_know_it() -> None:
    process = subprocess.run(
        module_command("tests.op.later_attributes"), env=module_environment(),
        capture_output=True, text=True,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr


def test_a_node_of_a_later_version_is_left_as_it_is() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "rmsnorm_export" : 1]>
        g (float[2, 8] x) => (float[2, 8] y) {
            y = rmsnorm_export.RMSNorm <of_the_future = 1> (x)
        }"""
    (refused,) = rx.inspect(onnx.parser.parse_model(text)).refused
    assert refused.reason == "native-form"
    assert "of_the_future" in refused.found


def _differ(a: Case, name: str) -> bool:
    """Whether the reference gives something else without the attribute."""
    default = NormSpec.__dataclass_fields__[name].default
    try:
        b = dataclasses.replace(a, spec=dataclasses.replace(a.spec, **{name: default}))
        y, other = (reference(case, case.operands())[0] for case in (a, b))
    except ValueError:  # it needs another attribute
        return False
    except UsageError:  # or operands of another shape
        return True
    return not np.array_equal(y, other, equal_nan=True)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_the_reference_computes_the_attribute(name: str) -> None:
    """In cases with which the bodies of functions, and PyTorch's operators, are compared."""
    default = NormSpec.__dataclass_fields__[name].default
    of_torch = (
        norm_cases.case_of(norm_cases.spec_of(form, 24, **order), 10, 10, None, (2, 3, 24))
        for form in norm_cases.FORMS
        for order in norm_cases.orders(10, form)
    )
    for where, cases in (("tests.op.norm_models", variants()), ("tests.torch", of_torch)):
        own = [case for case in cases if getattr(case.spec, name) != default]
        if name == "association" and where == "tests.op.norm_models":
            continue  # there are too few orders for it
        assert own, f"no case in {where} has {name}"
        assert any(_differ(case, name) for case in own), f"{name} changes nothing in {where}"


def _fuzzed() -> list[dict[str, Any]]:
    fuzz = Fuzz.__new__(Fuzz)
    fuzz.random = np.random.default_rng(0)
    return [fuzz.attributes(kind) for kind in get_args(Kind) for _ in range(100)]


_TURNS: dict[str, Any] = {"rotary_dim": 8, "rotary_interleaved": True}
_FLAT = {"axis", "last_axis"}
CASES: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "tests.plugins.native_process": lambda: [
        {name: getattr(spec, name) for name in ATTRIBUTES}
        for _, spec in native_process.specs()
    ],
    "tests.plugins.native_fuzz": _fuzzed,
    "tests.plugins.kernel_cases": lambda: [
        *kernel_cases.VARIANTS.values(), *kernel_cases.STASHES.values(),
        *kernel_cases.KINDS.values(), _TURNS, {"stash_type": 10},
    ],
}  # fmt: skip


@pytest.mark.parametrize("where", CASES)
@pytest.mark.parametrize("name", sorted(IN_KERNELS))
def test_every_attribute_of_the_kernels_has_a_case(name: str, where: str) -> None:
    if name in _FLAT and where != "tests.plugins.native_fuzz":
        pytest.skip("rows that lie apart have tests of their own")
    default = NormSpec.__dataclass_fields__[name].default
    had = any(case.get(name, default) != default for case in CASES[where]())
    assert had, f"no case in {where} has {name}"


def test_norm_h_and_attributes_h_have_what_python_says_of_the_kernels() -> None:
    """Members of the structure, with their types; and the hosts' list, in the order of NormSpec."""
    sizes = {"bool": 1, "float": 4, "Kind": 4, "Activation": 4, "std::int64_t": 8}
    source = (KERNELS / "norm.h").read_text(encoding="utf-8")
    (body,) = re.findall(r"struct Norm \{(.*?)\n\};", source, re.DOTALL)
    members = re.findall(r"^    ([\w:]+) (\w+)\{", body, re.MULTILINE)
    fields = [(name, getattr(abi.Norm, name).size) for name, *_ in abi.Norm._fields_]
    assert [(name, sizes.get(kind, 4)) for kind, name in members] == fields
    source = (KERNELS / "attributes.h").read_text(encoding="utf-8")
    listed = re.findall(r'^    \{"(\w+)", Sort::', source, re.MULTILINE)
    assert listed == [name for name in ATTRIBUTES if name in IN_KERNELS]
