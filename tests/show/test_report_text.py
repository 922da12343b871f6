"""The text report: what it says for many, few and no norms, and that it is safe to print."""

from __future__ import annotations

import dataclasses
import math

from rmsnorm_export.printable import number
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.recognize.refusal import Refusal
from rmsnorm_export.rewrite.result import Report, Site
from rmsnorm_export.show.report import report_lines
from rmsnorm_export.show.text import render, table

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


ALIKE = Refusal(
    node="/head/Div",
    op="Div",
    reason="layer-norm",
    message="the row is centred first: this is a LayerNorm",
    found="'/head/Sub' subtracts the mean",
    hint="LayerNormalization is the better node",
    scope="main",
    kind="look-alike",
)


def sites(count: int, pattern: str = "/layers.{}/norm/Mul_1", **changes: object) -> list[Site]:
    return [dataclasses.replace(SITE, name=pattern.format(i), **changes) for i in range(count)]


def text(report: Report = REPORT, **changes: object) -> str:
    return render(report_lines(dataclasses.replace(report, **changes)))


def test_two_hundred_norms_are_a_few_lines() -> None:
    norms = sites(100) + sites(100, "/layers.{}/post/Mul_1", op="SkipRMSNorm", epsilon=0.5)
    out = text(fused=tuple(norms))
    assert out.splitlines()[0] == "200 of 200 RMSNorms are one node"
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
        "1 of 2 RMSNorms are one node: 1 fused, 1 refused\n"
    )


def test_head_line_says_what_is_planned_and_what_was_one_node_already() -> None:
    report = dataclasses.replace(REPORT, kept=tuple(sites(2)), target=None)
    planned = render(report_lines(dataclasses.replace(report, planned=True))).splitlines()[0]
    assert planned == "3 of 3 RMSNorms can be one node: 1 fusable, 2 already one node"
    assert text(fused=(), kept=(SITE,)).splitlines()[0] == (
        "1 of 1 RMSNorm is one node: 0 fused, 1 already one node"
    )


def test_no_norm_at_all() -> None:
    assert text(fused=()).startswith("no RMSNorm found, and nothing that looks like one\n")
    alike = text(fused=(), refused=(ALIKE,))
    assert alike.startswith("no RMSNorm found; 1 look-alike left alone\n")


def test_forty_refusals_for_one_reason_are_four_lines() -> None:
    refused = [
        dataclasses.replace(REFUSAL, node=f"/head{i}/Add", found=f"the graph input eps_{i}")
        for i in range(40)
    ]
    out = text(refused=tuple(refused))
    assert out.startswith("1 of 41 RMSNorms are one node: 1 fused, 40 refused\n")
    section = out[out.index("refused (40)") :].splitlines()
    assert section == [
        "refused (40): RMSNorms that were not fused",
        "  40 x  epsilon-not-constant: epsilon is not a constant",
        "      nodes  /head{0-39}/Add",
        "      found  the graph input eps_{0-39}",
        "      fix    make it an initializer",
    ]


def test_refusals_are_grouped_by_reason_and_finding_the_largest_group_first() -> None:
    other = dataclasses.replace(REFUSAL, reason="not-trailing", message="axis 1", scope="fn:Block")
    many = [
        dataclasses.replace(REFUSAL, node=f"n{i}", found=f"a {'x' * i} input") for i in range(1, 7)
    ]
    out = text(refused=(other, *many))
    assert out.index("6 x  epsilon-not-constant: ") < out.index("1 x  not-trailing: axis 1")
    assert "nodes  /head/Add in fn:Block" in out
    assert out.count("fix    make it an initializer") == 2
    assert "found  a xxxx input" in out
    assert "xxxxx" not in out
    assert "and 2 more kinds of finding (-v lists all)" in out
    listed = render(report_lines(dataclasses.replace(REPORT, refused=(other, *many)), verbose=1))
    for i in range(1, 7):
        assert f"      n{i} [Add]: a {'x' * i} input" in listed
    assert "      /head/Add [Add] in fn:Block: the graph input eps" in listed


def test_names_of_many_kinds_are_cut_short_unless_all_are_listed() -> None:
    refused = tuple(dataclasses.replace(REFUSAL, node="n" * (i + 1)) for i in range(7))
    out = text(refused=refused)
    assert "nnnn" in out
    assert "nnnnn" not in out
    assert "and 3 more kinds (-v lists all)" in out
    assert "nnnnnnn [Add]" in render(
        report_lines(dataclasses.replace(REPORT, refused=refused), verbose=1)
    )


def test_look_alikes_are_a_section_of_their_own_and_not_counted_as_norms() -> None:
    alikes = tuple(dataclasses.replace(ALIKE, node=f"/b.{i}/Div") for i in range(200))
    report = dataclasses.replace(REPORT, refused=(REFUSAL, *alikes))
    out = render(report_lines(report))
    assert out.splitlines()[0] == (
        "1 of 2 RMSNorms are one node: 1 fused, 1 refused; 200 look-alikes left alone"
    )
    assert out.index("refused (1): RMSNorms that were not fused") < out.index("look-alikes (200)")
    section = out[out.index("look-alikes (200)") :].splitlines()
    assert section == [
        "look-alikes (200): no RMSNorms, left alone",
        "  200 x  layer-norm: the row is centred first: this is a LayerNorm",
        "      nodes  /b.{0-199}/Div",
    ]
    listed = render(report_lines(report, verbose=1))
    assert "      /b.7/Div [Div]: '/head/Sub' subtracts the mean" in listed
    assert "      hint   LayerNormalization is the better node" in listed
    assert text(refused=alikes).splitlines()[0] == (
        "1 of 1 RMSNorm is one node; 200 look-alikes left alone"
    )
    planned = render(report_lines(dataclasses.replace(report, planned=True))).splitlines()
    assert planned[0].startswith("1 of 2 RMSNorms can be one node: 1 fusable, 1 refused; 200")
    assert "refused (1): RMSNorms that cannot be fused" in planned


def test_the_module_is_named_where_the_node_is_not_named_after_it() -> None:
    fused = [
        dataclasses.replace(SITE, name=f"node_{i}/RMSNorm", module=f"layers.{i}.norm")
        for i in range(3)
    ]
    assert "      from   layers.{0-2}.norm\n" in text(fused=tuple(fused))
    listed = render(report_lines(dataclasses.replace(REPORT, fused=tuple(fused)), verbose=1))
    assert "      from   layers.1.norm\n" in listed
    named = dataclasses.replace(SITE, name="layers.0.norm/RMSNorm", module="layers.0.norm")
    assert "from   " not in text(fused=(named,))


def test_proof_summary_names_the_worst_site() -> None:
    worse = dataclasses.replace(PROOF, max_ulp=2.0, error_after=0.625, bound_ulp=4.0)
    norms = [
        dataclasses.replace(SITE, proof=PROOF),
        dataclasses.replace(SITE, name="w", proof=worse),
    ]
    out = text(fused=tuple(norms))
    assert "proofs: 2 of 2 sites hold, computed by onnxruntime 9.9 (CPU)" in out
    assert "largest difference from the original: 2 ulp (4 allowed), at w" in out
    assert "float64: 0.75 ulp before, 0.625 ulp after" in out
    assert "failed" not in out


def test_a_failed_proof_and_a_site_without_one_are_not_counted_as_held() -> None:
    failed = dataclasses.replace(PROOF, passed=False, reason="3 ulp", max_ulp=math.nan)
    norms = [
        dataclasses.replace(SITE, proof=PROOF),
        dataclasses.replace(SITE, name="w", proof=failed),
    ]
    out = text(fused=(*norms, SITE))
    assert "proofs: 1 of 3 sites hold" in out
    assert "largest difference from the original: nan ulp" in out
    assert "failed: w: FAILED (3 ulp)" in out


def test_opset_and_node_counts_are_said_when_they_change() -> None:
    assert "  model.onnx: opset 18 -> 23, 1,234 nodes -> 1,200\n" in text(opset_after=23)
    assert "opset 18, 1,234 nodes\n" in text(nodes_after=1234)
    assert "1,234 nodes -> 1,200 + 2 functions\n" in text(functions=2)
    assert "1,234 nodes -> 1,200 + 1 function\n" in text(functions=1)


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
        module=f"{evil}/module",
        proof=dataclasses.replace(PROOF, passed=False, reason=evil, runtime=evil),
    )
    refusal = Refusal(evil, evil, evil, evil, evil, evil, evil)
    report = dataclasses.replace(
        REPORT,
        source=evil,
        fused=(site, SITE),
        kept=(site,),
        refused=(refusal, dataclasses.replace(refusal, kind="look-alike")),
        notes=(evil,),
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


def test_continued_lines_hang_under_what_follows_the_label() -> None:
    lines = [
        "      note   one two three four",
        "  12 x  one two three",
        "  one two three four five",
    ]
    assert render(lines, width=22).splitlines() == [
        "      note   one two",
        "             three",
        "             four",
        "  12 x  one two three",
        "  one two three four",
        "      five",
    ]


def test_styles_only_on_request() -> None:
    assert "\x1b[" not in text()
    styled = render(report_lines(REPORT), styled=True)
    assert "\x1b[" in styled


def test_table_aligns_and_leaves_no_trailing_blanks() -> None:
    rows = [["a", "1", "x"], ["bbb", "10", ""]]
    assert table(rows, right=(1,), indent="") == ["a     1  x", "bbb  10"]
    assert table([]) == []


def test_numbers() -> None:
    assert [number(v) for v in (0.0, 3.0, 0.123456, 1e9, math.inf)] == [
        "0",
        "3",
        "0.123",
        "1e+09",
        "inf",
    ]
