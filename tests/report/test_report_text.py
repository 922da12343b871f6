"""The text report: what it says for many, few and no norms, and that it is safe to print."""

from __future__ import annotations

import dataclasses
import math

from rmsnorm_export.report.result import Proof, Refusal, Report, Site
from rmsnorm_export.report.text import number, render, report_lines, table

SITE = Site(
    name="/layers.0/norm/Mul_1",
    op="RMSNorm",
    nodes=("/layers.0/norm/Pow", "/layers.0/norm/Mul_1"),
    spelling="Pow ReduceMean Add Sqrt Reciprocal Mul Mul",
    numerics="exact",
    dtype="float16",
    n=4096,
    epsilon=1e-6,
    scope="main",
    attributes={"scale_before_cast": 1},
)
PROOF = Proof(
    passed=True,
    reason="",
    cases=("random", "zeros"),
    max_ulp=1.0,
    mismatch=0.25,
    max_abs=0.001,
    error_before=0.75,
    error_after=0.5,
    bound_ulp=1.0,
    runtime="onnxruntime 9.9 (CPU)",
)
REFUSAL = Refusal(
    node="/head/Add",
    op="Add",
    reason="epsilon-not-constant",
    message="epsilon is not a constant",
    found="the graph input eps",
    hint="make it an initializer",
    scope="main",
)
REPORT = Report(
    source="model.onnx",
    target="portable",
    numerics="reordered",
    fused=(SITE,),
    kept=(),
    refused=(),
    opset_before=18,
    opset_after=18,
    nodes_before=1234,
    nodes_after=1200,
)


def sites(count: int, pattern: str = "/layers.{}/norm/Mul_1", **changes: object) -> list[Site]:
    return [dataclasses.replace(SITE, name=pattern.format(i), **changes) for i in range(count)]


def text(report: Report = REPORT, **changes: object) -> str:
    return render(report_lines(dataclasses.replace(report, **changes)))


def test_two_hundred_norms_are_a_few_lines() -> None:
    norms = sites(100) + sites(100, "/layers.{}/post/Mul_1", op="SkipRMSNorm", epsilon=0.5)
    out = text(fused=tuple(norms))
    assert out.splitlines()[0] == "200 of 200 RMSNorms are one node: 200 fused, 0 refused"
    assert len(out.splitlines()) < 12
    assert "/layers.{0-99}/norm/Mul_1" in out
    assert "/layers.{0-99}/post/Mul_1" in out
    assert "100 x  RMSNorm      float16  n=4096  epsilon=1e-06  exact" in out
    assert "100 x  SkipRMSNorm  float16  n=4096  epsilon=0.5    exact" in out
    assert "scale_before_cast=1" in out


def test_sites_that_differ_in_one_fact_are_groups_of_their_own() -> None:
    variants = [
        SITE,
        dataclasses.replace(SITE, op="GatedRMSNorm"),
        dataclasses.replace(SITE, numerics="upcast"),
        dataclasses.replace(SITE, dtype="float32"),
        dataclasses.replace(SITE, n=None),
        dataclasses.replace(SITE, epsilon=1e-5),
        dataclasses.replace(SITE, attributes={}),
        dataclasses.replace(SITE, spelling="Mul"),
    ]
    out = text(fused=tuple(variants))
    assert out.count("1 x ") == len(variants)
    assert "n=?" in out


def test_verbose_lists_every_site_and_what_it_replaces() -> None:
    report = dataclasses.replace(REPORT, fused=tuple(sites(30)))
    out = render(report_lines(report, verbose=1))
    for i in range(30):
        assert f"/layers.{i}/norm/Mul_1" in out
    assert "/layers.0/norm/Pow, /layers.0/norm/Mul_1" in out


def test_quiet_is_the_first_line() -> None:
    report = dataclasses.replace(REPORT, refused=(REFUSAL,), notes=("raised",))
    assert render(report_lines(report, verbose=-1)) == (
        "1 of 2 RMSNorm candidates are one node: 1 fused, 1 refused\n"
    )


def test_head_line_says_what_is_planned_and_what_was_one_node_already() -> None:
    report = dataclasses.replace(REPORT, kept=tuple(sites(2)), target=None)
    planned = render(report_lines(report, planned=True)).splitlines()[0]
    assert planned == "3 of 3 RMSNorms can be one node: 1 fusable, 2 already one node, 0 refused"
    assert text(fused=(), kept=(SITE,)).splitlines()[0] == (
        "1 of 1 RMSNorm is one node: 0 fused, 1 already one node, 0 refused"
    )


def test_no_norm_at_all() -> None:
    assert text(fused=()).startswith("no RMSNorm found")


def test_refusals_are_listed_in_full_and_grouped_by_reason() -> None:
    refused = [dataclasses.replace(REFUSAL, node=f"/head{i}/Add") for i in range(40)]
    other = dataclasses.replace(REFUSAL, reason="not-trailing", message="axis 1", scope="fn:Block")
    out = text(refused=(*refused, other))
    assert out.count("epsilon-not-constant (40): epsilon is not a constant") == 1
    assert out.count("fix: make it an initializer") == 2
    for i in range(40):
        assert f"/head{i}/Add [Add]: the graph input eps" in out
    assert "/head/Add [Add] in fn:Block: the graph input eps" in out


def test_proof_summary_names_the_worst_site() -> None:
    worse = dataclasses.replace(PROOF, max_ulp=2.0, error_after=0.625, bound_ulp=4.0)
    norms = [
        dataclasses.replace(SITE, proof=PROOF),
        dataclasses.replace(SITE, name="w", proof=worse),
    ]
    out = text(fused=tuple(norms))
    assert "proofs: 2 of 2 sites hold, computed by onnxruntime 9.9 (CPU)" in out
    assert "largest difference 2 ulp (allowed 4) at w" in out
    assert "float64 0.75 ulp before, 0.625 ulp after" in out
    assert "failed" not in out


def test_a_failed_proof_and_a_site_without_one_are_not_counted_as_held() -> None:
    failed = dataclasses.replace(PROOF, passed=False, reason="3 ulp", max_ulp=math.nan)
    norms = [
        dataclasses.replace(SITE, proof=PROOF),
        dataclasses.replace(SITE, name="w", proof=failed),
    ]
    out = text(fused=(*norms, SITE))
    assert "proofs: 1 of 3 sites hold" in out
    assert "largest difference nan ulp" in out
    assert "failed: w: FAILED (3 ulp)" in out


def test_opset_and_node_counts_are_said_when_they_change() -> None:
    assert "opset 18 -> 23 | 1,234 nodes -> 1,200" in text(opset_after=23)
    assert "opset 18 | 1,234 nodes |" in text(nodes_after=1234)


def test_control_characters_of_a_hostile_file_do_not_reach_the_terminal() -> None:
    evil = "a\x1b[2Jb\r\nc\u202ed\x9b\x00"
    site = dataclasses.replace(
        SITE,
        name=evil,
        op=evil,
        nodes=(evil,),
        spelling=evil,
        dtype=evil,
        scope=evil,
        attributes={evil: evil},
        notes=(evil,),
        proof=dataclasses.replace(PROOF, passed=False, reason=evil, runtime=evil),
    )
    refusal = Refusal(evil, evil, evil, evil, evil, evil, evil)
    report = dataclasses.replace(
        REPORT, source=evil, fused=(site, SITE), kept=(site,), refused=(refusal,), notes=(evil,)
    )
    for verbose in (-1, 0, 1):
        out = render(report_lines(report, verbose=verbose, output=()))
        assert all(c.isprintable() or c == "\n" for c in out), repr(out)
        assert ("\\x1b[2J" in out) == (verbose >= 0)


def test_markup_in_names_is_text() -> None:
    name = "[red]x[/red] :smile: [/] {0}"
    out = text(fused=(dataclasses.replace(SITE, name=name),))
    assert name in out


def test_long_names_are_neither_cut_nor_wrapped() -> None:
    name = "/" + "x" * 5000
    assert name in text(fused=(dataclasses.replace(SITE, name=name),)).replace("\n", "|")


def test_a_terminal_gets_long_lines_continued_between_words() -> None:
    name = "/" + "x" * 200
    report = dataclasses.replace(REPORT, refused=(dataclasses.replace(REFUSAL, node=name),))
    lines = render(report_lines(report), width=60).splitlines()
    assert all(len(line) <= 60 or name in line for line in lines)
    assert any(name in line for line in lines)
    joined = " ".join(" ".join(lines).split())
    assert joined == " ".join(render(report_lines(report)).split())


def test_styles_only_on_request() -> None:
    assert "\x1b[" not in text()
    styled = render(report_lines(REPORT), styled=True)
    assert "\x1b[" in styled


def test_table_aligns_and_leaves_no_trailing_blanks() -> None:
    assert table([["a", "1", "x"], ["bbb", "10", ""]], right=(1,)) == ["a     1  x", "bbb  10"]
    assert table([]) == []


def test_numbers() -> None:
    assert [number(v) for v in (0.0, 3.0, 0.123456, 1e9, math.inf)] == [
        "0",
        "3",
        "0.123",
        "1e+09",
        "inf",
    ]
