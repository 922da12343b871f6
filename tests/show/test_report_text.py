"""The text of a report: sites and refusals that differ in names alone are one, counts are right."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from samples import ALIKE, PROOF, REFUSAL, REPORT, SITE, Page, change, sites

from rmsnorm_export.compare.outputs import Bounds, compare_outputs
from rmsnorm_export.compare.result import GREEDY, Verification
from rmsnorm_export.errors import InputError
from rmsnorm_export.records import SCHEMA_VERSION, document, from_json, parse_json, to_dict, to_json
from rmsnorm_export.rewrite.result import Report
from rmsnorm_export.show import to_html, to_text

HUNDRED = sites(100) + sites(100, "/layers.{}/post/Mul_1", op="SkipRMSNorm", epsilon=0.5)
FORTY = tuple(
    change(REFUSAL, node=f"/head{i}/Add", found=f"the graph input eps_{i}") for i in range(40)
)
ALIKES = tuple(change(ALIKE, node=f"/b.{i}/Div") for i in range(200))
MODULES = tuple(change(SITE, name=f"node_{i}/N", module=f"layers.{i}.norm") for i in range(3))
WORSE = change(PROOF, max_ulp=2.0, error_after=0.625, bound_ulp=4.0)
FAILED = change(PROOF, passed=False, reason="3 ulp", max_ulp=math.nan)
PROVED = change(SITE, proof=PROOF)

HUNDREDS = """200 of 200 RMSNorms can be one node
100 x  RMSNorm      float32  n=40  epsilon=1e-06  exact  scale_before_cast=1
100 x  SkipRMSNorm  float32  n=40  epsilon=0.5    exact  scale_before_cast=1
nodes  /layers.{0-99}/norm/Mul_1
nodes  /layers.{0-99}/post/Mul_1"""
EVERY_SITE = """was    Pow ReduceMean Add Sqrt Reciprocal Mul
/layers.29/norm/Mul_1  RMSNorm   exact     float32  40    1e-06          /layers.0/norm/Pow, \
/layers.0/norm/Mul_1"""
REFUSED = """1 of 41 RMSNorms are one node: 1 fused, 40 refused
40 x  epsilon-not-constant: epsilon is not a constant
nodes  /head{0-39}/Add
found  the graph input eps_{0-39}
fix    make it an initializer"""
APART = """1 of 2 RMSNorms are one node: 1 fused, 1 refused; 200 look-alikes left alone
200 x  layer-norm: this is a LayerNorm
nodes  /b.{0-199}/Div"""
PLANNED = "3 of 4 RMSNorms can be one node: 1 fusable, 2 already one node, 1 refused"
ALONE = "no RMSNorm found; 1 look-alike left alone"
FORM = "(1 form, each site's scale)"
WORST = f"""proofs: 2 of 2 sites hold {FORM}, computed by onnxruntime 9.9 (CPU)
largest difference from the original: 2 ulp (4 allowed), at w
largest error against float64: 0.75 ulp before, 0.625 ulp after"""
FAILING = f"""proofs: 1 of 3 sites hold {FORM}, computed by onnxruntime 9.9 (CPU)
largest difference from the original: nan ulp (1 allowed), at w"""


@pytest.mark.parametrize(
    ("lines", "changes", "verbose", "other"),
    [
        (HUNDREDS, {"fused": HUNDRED, "planned": True}, 0, "/layers.7/"),
        (EVERY_SITE, {"fused": sites(30)}, 1, "29 x"),
        (REFUSED, {"refused": FORTY}, 0, "/head7/"),
        (APART, {"refused": (REFUSAL, *ALIKES)}, 0, ALIKE.hint),
        (PLANNED, {"kept": sites(2), "refused": (REFUSAL,), "planned": True}, 0, "were"),
        (ALONE, {"fused": (), "refused": (ALIKE,)}, 0, "refused"),
        ("from   layers.{0-2}.norm", {"fused": MODULES, "planned": True}, 0, "layers.0"),
        (WORST, {"fused": (PROVED, change(SITE, name="w", proof=WORSE))}, 0, "failed"),
        (
            FAILING,
            {"fused": (PROVED, change(SITE, name="w", proof=FAILED), SITE)},
            0,
            "of 2 sites hold",
        ),
    ],
)
def test_the_text_of_a_report(
    lines: str, changes: dict[str, Any], verbose: int, other: str
) -> None:
    text = to_text(change(REPORT, **changes), verbose=verbose)
    assert set(lines.splitlines()) <= {line.strip() for line in text.splitlines()}
    assert other not in text


@pytest.mark.parametrize(
    ("used", "allowed", "words"),
    [
        (("exact", "exact"), "reordered", "numerics exact (allowed: reordered),"),
        (("exact", "reordered"), "reordered", "numerics reordered,"),
        (("reordered", "upcast"), "unclamped", "numerics upcast (allowed: unclamped),"),
        ((), "reordered", "numerics up to reordered,"),
    ],
)
def test_the_numerics_are_those_of_the_sites(
    used: tuple[str, ...], allowed: str, words: str
) -> None:
    fused = tuple(change(SITE, numerics=one) for one in used)
    assert words in to_text(change(REPORT, fused=fused, numerics=allowed))


def test_sites_that_differ_in_one_fact_are_groups_of_their_own() -> None:
    changes = ({"op": "GatedRMSNorm"}, {"n": None}, {"numerics": "upcast"}, {"epsilon": 1e-5})
    variants = (SITE, *(change(SITE, **one) for one in (*changes, {"attributes": {}})))
    text = to_text(change(REPORT, fused=variants, planned=True))
    assert text.count("1 x ") == len(variants)
    assert "n=?" in text
    assert to_text(change(REPORT, notes=("x",)), verbose=-1) == f"{REPORT.headline()}\n"


# The JSON form: complete, in order, strict JSON, and readable again.

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


# Two models compared, for people: a row an output; greedy tokens, however many, in three lines.

STEPS = 40
COMPARED = ("./my-llama", "decoder/")


def verified(off: dict[int, float], name: str = "y{}", **facts: object) -> Verification:
    """Compare outputs, each 1 to 8; the first element of some is off."""
    first = {name.format(i): np.arange(1, 9, dtype=np.float32) for i in range(1, STEPS + 1)}
    second = {key: values.copy() for key, values in first.items()}
    for number, by in off.items():
        second[name.format(number)][0] += by
    outputs = tuple(compare_outputs(first, second, Bounds()))
    return Verification(outputs, "onnxruntime 9.9", (), source=f"{STEPS} tokens {GREEDY}", **facts)


def greedy(off: dict[int, float]) -> Verification:
    notes = (f"{2 * STEPS} of {2 * STEPS} greedy tokens are the same",)
    return verified(off, "logits of token {}", notes=notes, backends=("torch", "onnxruntime"))


def test_greedy_tokens_are_three_lines() -> None:
    lines = to_text(greedy({3: 2**-20, 7: 2**-19}), compared=COMPARED).splitlines()
    assert lines == [
        "the models agree: 40 of 40 steps within bounds; 80 of 80 greedy tokens are the same",
        "  A  ./my-llama (torch), B  decoder/ (onnxruntime): 40 tokens generated greedily",
        "  largest difference 1.91e-06 (0.0008 allowed), in the logits of token 7",
    ]


def test_a_step_that_differs_is_a_row() -> None:
    outcome = greedy({3: 1e-6, 7: 0.5})
    text = to_text(outcome, compared=COMPARED)
    assert "the models DIFFER: 39 of 40 steps" in text
    assert [line.split()[3] for line in text.splitlines() if "FAILED" in line] == ["7"]
    assert "token 7 " in to_text(outcome, verbose=1)
    assert to_text(outcome, verbose=1).count("logits of token") == STEPS + 1
    page = Page(to_html(outcome, compared=COMPARED))
    assert [tag for tag, _ in page.elements].count("tr") == STEPS + 1
    assert "details" not in page.tags


def test_the_steps_of_a_page_open_at_a_click() -> None:
    assert "details" in Page(to_html(greedy({}), compared=COMPARED)).tags


def test_an_error_names_a_few_of_the_outputs_that_failed() -> None:
    error = greedy(dict.fromkeys(range(1, STEPS + 1), 0.5)).error()
    assert error is not None
    assert error.found.count("logits of token") == 3
    assert error.found.endswith("; 37 outputs more")
