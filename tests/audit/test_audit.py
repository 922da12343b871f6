"""What computes a norm is fused or named, in whatever spelling; what only looks like one is not."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import onnx
import pytest

import rmsnorm_export as rx
from bench import graphs
from rmsnorm_export.audit import audit, parts
from tests.audit import alike, grammar
from tests.audit.cases import CASES, LAST, built, changed
from tests.recognize.text_models import model, norm

REASON = "spelling-unknown"


def some_of(step: int) -> list[Any]:
    """Offsets: one in ``step`` seeds is in the default run."""
    return [0, *(pytest.param(offset, marks=pytest.mark.thorough) for offset in range(1, step))]


def named(report: rx.Report) -> list[rx.Refusal]:
    return [refusal for refusal in report.refused if refusal.reason == REASON]


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
    silent, found = [], 0
    for seed in range(offset, 200, 5):
        report = rx.inspect(grammar.norm(seed))
        found += len(named(report))
        if not (report.fused or report.unfused):
            silent.append(seed)
    assert silent == []
    assert found > 20  # or the grammar has spellings that are followed


@pytest.mark.parametrize("offset", some_of(11))
def test_what_looks_like_one_is_not_named(offset: int, evaluations: list[object]) -> None:
    """More than 500, of which every kind is in the default run."""
    seeds = range(offset, 520, 11)
    assert [seed for seed in seeds if named(rx.inspect(alike.look_alike(seed)))] == []
    assert len(evaluations) > 2 * len(seeds)


@pytest.mark.parametrize("name", CASES)
def test_a_norm_is_named_with_its_nodes_and_numbers(name: str) -> None:
    source, words = CASES[name]
    for report in (rx.inspect(source), rx.optimize(source).report):
        (refusal,) = report.unfused
        assert (report.fused, report.look_alikes) == ((), ())
        assert refusal.reason == REASON
        assert words in refusal.message


@pytest.mark.parametrize(
    "change",
    [
        (LAST, "y = Div(a, r)"),
        (LAST, "z = Relu(x)\n y = Div(z, r)"),
        ("e = Add(m, eps)", "z = Sign(a)\n c = ReduceMean<axes = [-1]>(z)\n e = Div(m, c)"),
        ("e = Add(m, eps)", "e = Min(m, w)"),
        ("e = Add(m, eps)", "z = ReduceMax<axes = [-1]>(q)\n e = Max(m, z)"),
        ("q = Exp(d)", "z = Add(d, l)\n q = Exp(z)"),
    ],
)
def test_one_step_makes_it_none(change: tuple[str, str], evaluations: list[object]) -> None:
    """The sizes of the row, its positive numbers, the mean of those that are not zero, a bound, the
    largest of the row, third powers."""
    assert rx.inspect(built(changed(change))).refused == ()
    assert evaluations


def test_a_norm_takes_the_place_of_its_look_alike() -> None:
    """Recognition sees another row than that of the squares."""
    body = "h = Mul(x, half)\n q = Mul(h, h)\n m = ReduceMean<axes = [-1]>(q)\n a = Mul(x, two)\n"
    body += "r = Sqrt(m)\n p = Sqrt(r)\n s = Mul(p, p)\n g = Mul(a, half)\n y = Div(g, s)"
    report = rx.inspect(built(body))
    assert [refusal.reason for refusal in report.refused] == [REASON]


RECOGNIZED = {
    "and an exponential": norm("x", "h", weight=None) + "z = Exp(h)\n y = Mul(h, z)",
    "of a centred row": "u = ReduceMean<axes = [-1]>(x)\n c = Sub(x, u)\n"
    + norm("c", "y", weight=None),
}


@pytest.mark.parametrize("name", RECOGNIZED)
def test_where_all_norms_are_recognised_nothing_is_evaluated(
    name: str, evaluations: list[object]
) -> None:
    report = rx.optimize(model(RECOGNIZED[name])).report
    assert len(report.fused) + len(report.look_alikes) == 1
    assert evaluations == []


def test_of_a_whole_decoder_nothing_is_evaluated(evaluations: list[object]) -> None:
    source, count = graphs.decoder(300)
    assert len(rx.optimize(source).report.fused) == count
    assert evaluations == []


@pytest.mark.parametrize("dense", [False, True])
def test_a_dense_product_is_no_sum(dense: bool, evaluations: list[object]) -> None:
    numbers = ", ".join(str(i % 7 if dense else 1) for i in range(64))
    body = "e = Exp(x)\n p = MatMul(e, k)\n m = ReduceMean<axes = [-1]>(p)\n y = Mul(x, m)"
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
    return built("\n".join([*body, f"y = Neg({x})"]))


def test_work_is_bounded_by_the_size_of_the_model() -> None:
    calls = []
    for count in (10, 40, 80):  # the first is for what is imported
        profile = cProfile.Profile()
        profile.enable()
        assert rx.inspect(blocks(count)).refused == ()
        profile.disable()
        calls.append(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
    assert calls[2] < 2.2 * calls[1]


def test_an_epsilon_of_the_caller_has_no_number() -> None:
    change = ("Add(m, eps)", "Add(m, given)")
    (refusal,) = rx.inspect(built(changed(change), given=", float given")).refused
    assert "rows of 8 with an epsilon that the caller may give, by nodes" in refusal.message


def test_what_is_beyond_the_bound_is_not_evaluated(
    monkeypatch: pytest.MonkeyPatch, evaluations: list[object]
) -> None:
    monkeypatch.setattr(audit, "_WORK", 2 * audit._COST)
    monkeypatch.setattr(audit, "_WORK_OF_NODE", 10 * audit._COST)
    assert len(named(rx.inspect(CASES["plain"][0]))) == 1
    done = len(evaluations)
    monkeypatch.setattr(audit, "_WORK_OF_NODE", 0)
    assert rx.inspect(CASES["plain"][0]).refused == ()
    assert len(evaluations) == done


@pytest.mark.parametrize(
    "step",
    ["m = my.Unknown(q)", "m = Det(q)", "m = Reshape(q, joined)", "m = Concat<axis = 7>(q, q)"],
)
def test_what_cannot_be_evaluated_is_passed_over(step: str) -> None:
    source, _ = CASES["plain"]
    text = onnx.printer.to_text(source).replace("m = ReduceMean <axes: ints = [-1]> (q)", step)
    text = text.replace('"" : 17', '"" : 17, "my" : 1')
    assert step in text
    assert rx.inspect(onnx.parser.parse_model(text)).refused == ()
