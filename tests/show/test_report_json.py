"""The JSON form: complete, in order, strict JSON, and readable again."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from samples import PROOF, REFUSAL, REPORT, SITE, change

from rmsnorm_export.errors import InputError
from rmsnorm_export.records import SCHEMA_VERSION, document, from_json, parse_json, to_dict, to_json
from rmsnorm_export.rewrite.result import Report

ODD = change(PROOF, max_ulp=math.inf, max_abs=math.nan, bound_ulp=-math.inf, error_before=0.1)
ATTRIBUTES = {"axis": -2, "scale_offset": 1.0, "activation": "silu"}
NAMED = change(SITE, name="a\x1b\n\ud800", n=None, epsilon=0.0, attributes=ATTRIBUTES)
WHOLE = change(REPORT, fused=(NAMED, SITE), target=None, refused=(REFUSAL,), notes=("x",))


def test_a_report_comes_back_as_it_was() -> None:
    again = from_json(to_json(WHOLE), Report)
    assert again == WHOLE
    assert [type(v) for v in again.fused[0].attributes.values()] == [int, float, str]
    proof = from_json(to_json(ODD), type(ODD))
    assert math.isnan(proof.max_abs)
    assert change(proof, max_abs=0.0) == change(ODD, max_abs=0.0)
    later = json.dumps(json.loads(to_json(WHOLE)) | {"later": [1]})
    assert from_json(later, Report) == WHOLE


def test_header_first_then_every_field_in_order_in_ascii() -> None:
    text = to_json(change(WHOLE, fused=(change(NAMED, proof=ODD),)), extra={"output": None})
    body = parse_json(text)
    names = [field.name for field in dataclasses.fields(Report)]
    assert [*body] == ["schema_version", "kind", *names, "output"]
    assert (body["kind"], body["schema_version"]) == ("report", SCHEMA_VERSION)
    assert text.isascii()
    assert "\x1b" not in text


def test_what_json_cannot_say_is_an_error() -> None:
    with pytest.raises(TypeError, match="complex"):
        to_dict({"a": 1j})
    with pytest.raises(TypeError, match="dict"):
        to_json({"a": 1})


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, "schema_version"),
        ({"kind": "proof"}, "kind = 'proof'"),
        ({"target": "cuda"}, "report.target"),
        ({"notes": [1]}, "report.notes[0]"),
        ({"fused": [{}]}, "`name` - at `report.fused[0]`"),
        ("", "char 0"),
        ("[]", "schema_version = None"),
        (document("report", {}), "field `source`"),
    ],
)
def test_other_documents_are_refused(changes: Any, found: str) -> None:
    text = changes if isinstance(changes, str) else json.dumps(parse_json(to_json(WHOLE)) | changes)
    with pytest.raises(InputError) as error:
        from_json(text, Report)
    assert found in error.value.found
