"""What computes a norm is fused or named, in whatever spelling; what only looks like one is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from rmsnorm_export.audit import audit, parts
from rmsnorm_export.rewrite import plan
from tests.audit import grammar, traps
from tests.audit.cases import TABLE, built
from tests.recognize.text_models import calls_of, check_same, model
from toolbox.corpus.architectures import export_architecture

REASON = "spelling-unknown"


def some_of(step: int) -> list[Any]:
    """Offsets: one in ``step`` seeds is in the default run."""
    return [0, *(pytest.param(offset, marks=pytest.mark.thorough) for offset in range(1, step))]


def named(report: rx.Report) -> list[rx.Refusal]:
    return [refusal for refusal in report.refused if refusal.reason == REASON]


def measured(report: rx.Report) -> list[rx.Site]:
    """The sites that recognition did not follow."""
    words = "nodes that recognition does not follow"
    return [site for site in report.fused if any(words in note for note in site.notes)]


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One entry for every evaluation of a part of a graph."""
    counted: list[object] = []
    run: Callable[..., object] = parts.run_float64

    def counting(*args: object, **kwargs: object) -> object:
        counted.append(args)
        return run(*args, **kwargs)

    monkeypatch.setattr(parts, "run_float64", counting)
    return counted


@pytest.mark.parametrize("offset", some_of(5))
def test_a_norm_of_any_spelling_is_fused_or_refused_as_one(offset: int) -> None:
    """Those that are none on rows beyond 1e15, and those that no proof reaches, are named."""
    silent, fused, found = [], 0, 0
    for seed in range(offset, 200, 5):
        source = grammar.norm(seed)
        result = rx.optimize(source, numerics="upcast")
        found += len(named(result.report))
        if result.report.fused:
            fused += 1
            check_same(source, ir.to_proto(result.model))
        elif not result.report.unfused:
            silent.append(seed)
    assert silent == []
    assert fused > 10
    assert found > 10  # or the grammar has spellings that are followed


@pytest.mark.parametrize("offset", some_of(19))
def test_what_differs_on_rows_that_nobody_samples_is_not_fused(offset: int) -> None:
    """Clamps and branches at any magnitude, at NaN, at infinity, at zero, in late rows of a batch:
    760 norms of which one value is other than it seems. Without that they are fused."""
    fused, plain, tried = [], 0, 0
    for seed in range(offset, 760, 19):
        source = traps.trapped(seed)
        tried += source is not None
        if source is not None and measured(rx.inspect(source, numerics="upcast")):
            fused.append(seed)
        if seed < 200:
            report = rx.inspect(grammar.norm(seed, traps.Plain(seed)), numerics="upcast")
            plain += bool(measured(report))
    assert fused == []
    assert tried > 30
    assert plain > 4


@pytest.mark.parametrize("offset", some_of(11))
def test_what_looks_like_one_is_not_named(offset: int, evaluations: list[object]) -> None:
    """More than 500, of which every kind is in the default run."""
    seeds = range(offset, 520, 11)
    reports = {seed: rx.inspect(traps.look_alike(seed), numerics="upcast") for seed in seeds}
    assert [seed for seed, report in reports.items() if named(report) or measured(report)] == []
    other_count = {32}  # the mean square of another tensor is multiplied by that of this one
    assert {seed for seed, report in reports.items() if report.unfused} <= other_count
    assert len(evaluations) > 2 * len(seeds)


@pytest.mark.parametrize("name", TABLE["named"])
def test_a_norm_is_named_with_its_nodes_and_numbers(name: str) -> None:
    case = TABLE["named"][name]
    source = built(case)
    for report in (rx.inspect(source), rx.optimize(source).report):
        (refusal,) = report.unfused
        assert (report.fused, report.look_alikes) == ((), ())
        assert refusal.reason == REASON
        assert case["words"] in refusal.message


def test_a_part_that_cannot_be_evaluated_may_be_a_norm() -> None:
    mean = "s = SplitToSequence<axis = -1>(q)\n c = ConcatFromSequence<axis = -1>(s)\n "
    source = built({"mean": f"{mean} m = ReduceMean<axes = [-1]>(c)"})
    (refusal,) = rx.optimize(source).report.refused
    assert (refusal.reason, refusal.kind) == ("not-evaluated", "norm")
    assert refusal.found == "nothing says how large its result is"


@pytest.mark.parametrize("name", TABLE["fused"])
def test_a_norm_is_fused_with_the_numbers_of_the_file(name: str) -> None:
    case = TABLE["fused"][name]
    source = built(case)
    result = rx.optimize(source, numerics="upcast")
    (site,) = measured(result.report)
    assert result.report.refused == ()
    assert site.n == case.get("n", 8)
    assert site.epsilon == pytest.approx(case.get("epsilon", 1e-5), rel=1e-7)
    assert case.get("attributes", {}).items() <= site.attributes.items()
    if "float16" not in name:  # whose source squares in it
        check_same(source, ir.to_proto(result.model))


@pytest.mark.parametrize("name", TABLE["traps"])
def test_what_no_proof_shows_is_not_fused(name: str) -> None:
    case = TABLE["traps"][name]
    report = rx.inspect(built(case), numerics="upcast")
    (refusal,) = named(report)
    assert case["words"] in refusal.found
    assert not report.fused


def test_what_the_source_loses_is_for_the_class_upcast(evaluations: list[object]) -> None:
    """A logarithm loses what a product keeps."""
    report = rx.optimize(built()).report
    assert [(r.reason, r.hint) for r in report.refused] == [("numerics", "allow --numerics upcast")]
    square = 'q = Einsum<equation = "abc,abc->abc">(x, x)'
    (site,) = rx.optimize(built({"square": square})).report.fused
    assert site.numerics == "reordered"
    assert evaluations


def test_without_a_runtime_nothing_is_fused_by_behaviour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    source = built({"stable": "e = Add(m, half)"})  # not proved before
    (refusal,) = rx.optimize(source, numerics="upcast").report.refused
    assert refusal.reason == REASON
    assert "ONNX Runtime" in refusal.found


@pytest.mark.parametrize("name", TABLE["none"])
def test_one_step_makes_it_none(name: str, evaluations: list[object]) -> None:
    assert rx.inspect(built(TABLE["none"][name])).refused == ()
    assert evaluations


def test_a_norm_takes_the_place_of_its_look_alike() -> None:
    """Recognition sees another row than that of the squares."""
    body = "h = Mul(x, half)\n q = Mul(h, h)\n m = ReduceMean<axes = [-1]>(q)\n a = Mul(x, two)\n"
    body += "r = Sqrt(m)\n p = Sqrt(r)\n s = Mul(p, p)\n g = Mul(a, half)\n y = Div(g, s)"
    report = rx.inspect(built({"nodes": body}))
    assert (report.refused, len(report.fused)) == ((), 1)


@pytest.mark.parametrize("name", [*TABLE["recognised"], "a decoder"])
def test_where_all_norms_are_recognised_nothing_is_evaluated(
    name: str, evaluations: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look for others takes under three per cent of the calls of Python."""
    if name == "a decoder":
        export = export_architecture("llama")
        source, norms = onnx.load(str(export.path)), export.norms
    else:
        source, norms = built(TABLE["recognised"][name]), TABLE["recognised"][name]["norms"]
    report = rx.optimize(source).report
    assert len(report.fused) + len(report.look_alikes) == norms
    assert evaluations == []
    _, every = calls_of(rx.optimize, source)
    own, audited = [], plan.audited

    def counted(*arguments: Any) -> Any:
        result, calls = calls_of(audited, *arguments)
        own.append(calls)
        return result

    monkeypatch.setattr(plan, "audited", counted)
    rx.optimize(source)
    assert 0 < sum(own) < 0.03 * every


@pytest.mark.parametrize("dense", [False, True])
def test_a_dense_product_is_no_sum(dense: bool, evaluations: list[object]) -> None:
    numbers = ", ".join(str(i % 7 if dense else 1) for i in range(64))
    body = "e = Exp(x)\n p = MatMul(e, k)\n m = ReduceMean<axes = [-1]>(p)\n z = Mul(x, m)\n "
    body += "y = Log(z)"  # where there is none an exponential is no root
    rx.inspect(model(body, constants=f"float[8,8] k = {{{numbers}}}"))
    assert (evaluations == []) == dense


def blocks(count: int) -> onnx.ModelProto:
    """A sum and a root in every block, and a way beside them; none is a norm."""
    body, x = [], "x"
    for i in range(count):
        body.append(f"e{i} = Exp({x})\n k{i} = Constant<value_float = {1 + i / 1024}>()")
        body.append(f"f{i} = Mul(e{i}, k{i})\n m{i} = ReduceMean<axes = [-1]>(f{i})")
        x, before = f"x{i}", x
        body.append(f"{x} = Mul({before}, m{i})")
    return built({"nodes": "\n".join([*body, f"y = Log({x})"])})


def test_work_is_bounded_by_the_size_of_the_model(evaluations: list[object]) -> None:
    calls = []
    for count in (10, 20, 40):  # the first is for what is imported
        report, number = calls_of(rx.inspect, blocks(count))
        assert report.refused == ()
        calls.append(number)
    assert calls[2] < 2.2 * calls[1]
    assert evaluations


def test_what_is_beyond_the_bound_is_not_evaluated(
    monkeypatch: pytest.MonkeyPatch, evaluations: list[object]
) -> None:
    length = built(TABLE["named"]["length"])
    monkeypatch.setattr(audit, "_WORK", 2 * audit._COST)
    monkeypatch.setattr(audit, "_WORK_OF_NODE", 10 * audit._COST)
    assert len(named(rx.inspect(length))) == 1
    done = len(evaluations)
    monkeypatch.setattr(audit, "_WORK_OF_NODE", 0)
    (refusal,) = rx.inspect(length).refused
    assert refusal.reason == "not-evaluated"
    assert refusal.found == "all work that a file of this size may take is done"
    assert len(evaluations) == done


@pytest.mark.parametrize("name", TABLE["passed"])
def test_what_does_not_sum_is_passed_over(name: str) -> None:
    assert rx.inspect(built(TABLE["passed"][name])).refused == ()
