"""The JSON form: complete, in order, strict JSON, and readable again."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from rmsnorm_export.errors import InputError
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.recognize.refusal import Refusal
from rmsnorm_export.records import SCHEMA_VERSION, document, from_json, to_dict, to_json
from rmsnorm_export.rewrite.result import Report, Site

PROOF = Proof(False, "bound", ("random",), math.inf, 0.5, math.nan, 1.0, 2.0, -math.inf, "numpy")
SITE = Site(
    name="a\x1b\n\ud800",
    op="RMSNorm",
    nodes=("p", "q"),
    spelling="Pow Mul",
    numerics="upcast",
    dtype="bfloat16",
    n=None,
    epsilon=0.0,
    scope="main",
    attributes={"axis": -2, "scale_offset": 1.0, "activation": "silu"},
    notes=("note",),
    proof=dataclasses.replace(PROOF, max_abs=0.1),
)
REPORT = Report(
    source="m.onnx",
    target=None,
    numerics="exact",
    fused=(SITE, dataclasses.replace(SITE, n=3, proof=None)),
    kept=(),
    refused=(Refusal("n", "Add", "r", "m", "f", "h", "s"),),
    opset_before=13,
    opset_after=23,
    nodes_before=9,
    nodes_after=1,
    notes=("x",),
    seconds=0.25,
)


def strict(text: str) -> dict[str, object]:
    """The document as a parser that knows no NaN and no duplicate keys reads it."""

    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        assert len({key for key, _ in pairs}) == len(pairs)
        return dict(pairs)

    loaded: dict[str, object] = json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    return loaded


def test_round_trip() -> None:
    assert from_json(to_json(REPORT), Report) == REPORT


def test_types_survive() -> None:
    again = from_json(to_json(REPORT), Report).fused[0]
    assert [type(v) for v in again.attributes.values()] == [int, float, str]
    assert isinstance(again.nodes, tuple)


def test_not_a_number_survives() -> None:
    again = from_json(to_json(PROOF), Proof)
    assert math.isnan(again.max_abs)
    assert (again.max_ulp, again.bound_ulp) == (math.inf, -math.inf)


def test_header_first_then_every_field_in_order() -> None:
    keys = list(strict(to_json(REPORT, extra={"output": None})))
    names = [field.name for field in dataclasses.fields(Report)]
    assert keys == ["schema_version", "kind", *names, "output"]
    assert strict(to_json(REPORT))["kind"] == "report"
    assert strict(to_json(REPORT))["schema_version"] == SCHEMA_VERSION


def test_the_text_is_ascii_and_ends_a_line() -> None:
    text = to_json(REPORT)
    assert text.isascii()
    assert text.endswith("}\n")
    assert "\x1b" not in text


def test_what_json_cannot_say_is_an_error() -> None:
    with pytest.raises(TypeError, match="complex"):
        to_dict({"a": 1j})
    with pytest.raises(TypeError, match="dict"):
        to_json({"a": 1})


def changed(**changes: object) -> str:
    return json.dumps(json.loads(to_json(REPORT)) | changes)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "char 0"),
        ("[]", "schema_version = None"),
        (changed(schema_version=SCHEMA_VERSION + 1), "schema_version"),
        (changed(kind="proof"), "kind = 'proof'"),
        (changed(opset_before=True), "report.opset_before"),
        (changed(target="cuda"), "report.target"),
        (changed(numerics="loose"), "report.numerics"),
        (changed(notes=[1]), "report.notes[0]"),
        (changed(seconds="soon"), "report.seconds"),
        (changed(fused=[{}]), "`name` - at `report.fused[0]`"),
        (changed(fused=None), "report.fused"),
        (document("report", {}), "field `source`"),
    ],
)
def test_other_documents_are_refused(text: str, found: str) -> None:
    with pytest.raises(InputError) as error:
        from_json(text, Report)
    assert found in error.value.found


def test_unknown_keys_are_ignored() -> None:
    assert from_json(changed(later=[1]), Report) == REPORT
