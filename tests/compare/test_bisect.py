"""Where two graphs begin to differ: models are broken for real, and that place has to be found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from rmsnorm_export.compare.backend import Searchable
from rmsnorm_export.compare.bisect import BATCH, Flow, Search, describe_difference
from rmsnorm_export.compare.onnx_backend import OnnxRuntime
from rmsnorm_export.compare.outputs import Bounds, compare_output
from rmsnorm_export.records import from_json, to_json

from .broken import begins_at, chain, fill, set_epsilon

ROWS = {"h0": [5, 16]}


@pytest.mark.parametrize("k", [0, 1, 6, 11])
@pytest.mark.parametrize("target", ["portable", "ort"])
def test_a_wrong_epsilon_is_found(k: int, target: str) -> None:
    result = rx.optimize(chain(), target=target)
    sites = [site.name for site in result.report.fused]
    assert len(sites) == 12
    outcome = rx.verify(chain(), set_epsilon(result.model, sites[k], 0.5), shapes=ROWS)
    assert begins_at(outcome) == (sites[k], "at", True)
    first = outcome.first_difference
    assert first.conclusion.startswith("this site differs: ")
    assert first.value == f"n{k}"
    assert first.comparison.metrics.max_abs > first.comparison.bound_abs
    assert from_json(to_json(outcome), rx.Verification) == outcome


@pytest.mark.parametrize("k", [0, 5, 11])
def test_a_wrong_product_between_norms_is_found(k: int) -> None:
    broken = rx.optimize(chain(wrong=k)).model
    first = rx.verify(chain(), broken, shapes=ROWS).first_difference
    place = (first.value, first.op, first.inputs, first.inputs_agree)
    assert place == (f"p{k}", "MatMul", (f"n{k}",), True)
    assert (first.site.place, first.node) == ("before", f"/MatMul_{8 * k + 6}")


def test_the_first_of_two_is_found_with_the_bounds_that_were_given() -> None:
    result = rx.optimize(chain())
    sites = [site.name for site in result.report.fused]
    broken = set_epsilon(set_epsilon(result.model, sites[9], 0.7), sites[3], 1e-4)
    assert begins_at(rx.verify(chain(), broken, shapes=ROWS))[0] == sites[9]
    assert begins_at(rx.verify(chain(), broken, shapes=ROWS, rtol=1e-6)) == (sites[3], "at", True)


def test_few_values_are_held_and_few_runs_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 values: a handful of runs, each with one batch."""
    batches: list[int] = []
    searched = OnnxRuntime.searched

    @contextlib.contextmanager
    def counting(self: OnnxRuntime, feeds: dict[str, np.ndarray]) -> Iterator[Searchable]:
        with searched(self, feeds) as one:
            yield one[0], lambda names: batches.append(len(names)) or one[1](names)

    monkeypatch.setattr(OnnxRuntime, "searched", counting)
    result = rx.optimize(chain(64))
    site = result.report.fused[41].name
    outcome = rx.verify(chain(64), set_epsilon(result.model, site, 0.5), shapes=ROWS)
    assert begins_at(outcome) == (site, "at", True)
    first = outcome.first_difference
    assert first.shared > 190
    assert len(batches) <= 10  # five rounds of two models
    assert max(batches) <= BATCH + 4
    assert first.compared == sum(batches) // 2 - len(batches) // 2


def test_external_data_stays_outside(tmp_path: Path) -> None:
    """The marked copies refer to the same file, wherever the model came from."""
    path, broken = tmp_path / "model.onnx", tmp_path / "broken.onnx"
    ir.save(chain(6), path, external_data="weights.bin", size_threshold_bytes=16)
    assert rx.verify(path, ir.load(path)).passed
    result = rx.optimize(path)
    site = result.report.fused[3].name
    ir.save(set_epsilon(result.model, site, 0.5), broken)
    for other in (broken, ir.load(broken)):
        assert begins_at(rx.verify(path, other, shapes=ROWS)) == (site, "at", True)
    names = {one.name for one in tmp_path.iterdir()}
    assert names == {"model.onnx", "weights.bin", "broken.onnx"}
    with pytest.raises(rx.InputError, match="no single folder that is known"):
        rx.verify(path, onnx.load(path, load_external_data=False))


HEAD = '<ir_version: 10, opset_import: ["" : 18]> g (float[6, 16] x) => (float y) '
BRANCHING = """{{
  a = Mul (x, x)
  yes = Constant <value = bool {{1}}> ()
  b = If (yes) <
    then_branch = one () => (float t) {{ f = Constant <value_float = {}> () t = Mul (a, f) }},
    else_branch = two () => (float e) {{ e = Identity (a) }}>
  y = Neg (b)
}}"""
MASKED = """{{
  scale = Constant <value_float = {}> ()
  q = Mul (x, scale)
  k = Transpose <perm = [1, 0]> (x)
  scores = MatMul (q, k)
  masked = Add (scores, mask)
  y = Softmax <axis = -1> (masked)
}}"""
NAMED = "{ val_0 = Abs (x)  val_1 = Exp (val_0)  y = Neg (val_1) }"
NAMED_ALIKE = """{ val_0 = Identity (x)  val_1 = Abs (val_0)  val_2 = Exp (val_1)
  val_3 = Exp (val_2)  y = Neg (val_3) }"""


@pytest.mark.parametrize(
    ("a", "b", "place"),
    [
        # A subgraph is not entered, what it captures is read.
        (BRANCHING.format(1.0), BRANCHING.format(2.0), ("b", "If", ("a", "yes"))),
        # The lowest number beside small ones: relative to it nothing would ever differ.
        (MASKED.format(0.25), MASKED.format(0.2), ("scale", "Constant", ())),
        # Two exports number their values alike by accident: operator or shape tell them apart.
        (NAMED, NAMED_ALIKE, ("y", "Neg", ())),
    ],
    ids=["subgraph", "mask", "names"],
)
def test_the_first_difference(a: str, b: str, place: tuple[str, str, tuple[str, ...]]) -> None:
    models = [ir.from_onnx_text(HEAD + body) for body in (a, b)]
    for model in models:
        fill(model, {"mask": np.triu(np.full((6, 6), -1e9, np.float32), 1)})
    first = rx.verify(*models).first_difference
    assert (first.value, first.op, first.inputs) == place


ONES = np.ones((2, 16), np.float32)
NAMES = [*Flow(chain(3)).order]


def searched(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> Search:
    """A search in a chain of three blocks whose output ``y`` was two and is one."""
    flow, readers = Flow(chain(3)), [lambda _, held=held: held for held in (first, second)]
    search = Search((readers[0], readers[1]), (flow, flow), frozenset(flow.order), "y", Bounds())
    search.run(compare_output("y", ONES, 2 * ONES, Bounds()))
    return search


def test_a_difference_that_goes_away_when_values_are_marked() -> None:
    same = dict.fromkeys(NAMES, ONES)
    search = searched(same, same)
    assert search.hidden
    first = describe_difference(search)
    assert not first.inputs_agree
    assert "the models agree: what the runtime fuses" in first.conclusion


def test_values_of_another_shape_are_passed_over() -> None:
    a = {name: ONES * (2 if name in ("n2", "p2", "h3", "y") else 1) for name in NAMES}
    search = searched(a, dict.fromkeys(NAMES, ONES) | {"v2": np.ones(3, np.float32)})
    assert search.odd == ["v2"]
    first = describe_difference(search)
    assert (first.value, first.inputs) == ("n2", ("h2", "r2"))
