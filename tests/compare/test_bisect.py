"""Where two graphs begin to differ: models are broken for real, and that place has to be found."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import rmsnorm_export as rx
from rmsnorm_export.compare.bisect import BATCH, Search, describe_difference
from rmsnorm_export.compare.flow import Flow
from rmsnorm_export.compare.onnx_backend import OnnxRuntime
from rmsnorm_export.compare.outputs import Bounds, compare_output
from rmsnorm_export.errors import VerificationError
from rmsnorm_export.records import from_json, to_json
from tests.sample import sampled

from .broken import chain, fill, fused_names, node_of, set_epsilon, told

ROWS = {"h0": [5, 16]}


@pytest.mark.parametrize("k", [0, 1, 6, 11])
@pytest.mark.parametrize("target", ["portable", "ort"])
def test_a_wrong_epsilon_is_found(k: int, target: str) -> None:
    source = chain()
    result = rx.optimize(source, target=target)  # type: ignore[arg-type]
    sites = [site.name for site in result.report.fused]
    assert len(sites) == 12
    broken = set_epsilon(result.model, sites[k], 0.5)
    found = rx.verify(source, broken, shapes=ROWS)
    assert told(found) == (sites[k], "at", True)
    first = found.first_difference
    assert first is not None
    assert first.conclusion.startswith("this site differs: ")
    assert first.value == f"n{k}"
    assert first.output == "y"
    assert first.comparison.metrics.max_abs > first.comparison.bound_abs
    assert from_json(to_json(found), rx.Verification) == found


@pytest.mark.parametrize("k", [0, 5, 11])
def test_a_wrong_product_between_norms_is_found(k: int) -> None:
    fused = rx.optimize(chain(wrong=k)).model
    found = rx.verify(chain(), fused, shapes=ROWS).first_difference
    assert found is not None
    assert (found.value, found.op, found.inputs, found.inputs_agree) == (
        f"p{k}",
        "MatMul",
        (f"n{k}",),
        True,
    )
    assert found.site is not None
    assert found.site.place == "before"
    assert found.node == f"/MatMul_{8 * k + 6}"


def test_a_wrong_gain_is_found() -> None:
    result = rx.optimize(chain())
    node = node_of(result.model, result.report.fused[4].name)
    gain = ir.Value(name="other_gain", const_value=ir.tensor(np.full(16, 2.0, np.float32)))
    result.model.graph.register_initializer(gain)
    scale = next(i for i, v in enumerate(node.inputs) if v is not None and v.name == "gain")
    node.replace_input_with(scale, gain)
    assert told(rx.verify(chain(), result.model, shapes=ROWS)) == (node.name, "at", True)


def test_the_first_of_two_broken_sites_is_told() -> None:
    result = rx.optimize(chain())
    sites = [site.name for site in result.report.fused]
    broken = set_epsilon(set_epsilon(result.model, sites[9], 0.7), sites[3], 0.5)
    assert told(rx.verify(chain(), broken, shapes=ROWS)) == (sites[3], "at", True)


def test_few_values_are_held_and_few_runs_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 values: a handful of runs, each with one batch."""
    batches: list[int] = []
    probing = OnnxRuntime.probing

    @contextlib.contextmanager
    def counting(self: OnnxRuntime, *given: object) -> Iterator[Callable[[list[str]], object]]:
        with probing(self, *given) as read:  # type: ignore[arg-type]
            yield lambda names: batches.append(len(names)) or read(names)

    monkeypatch.setattr(OnnxRuntime, "probing", counting)
    source = chain(64)
    result = rx.optimize(source)
    site = result.report.fused[41].name
    found = rx.verify(source, set_epsilon(result.model, site, 0.5), shapes=ROWS)
    assert told(found) == (site, "at", True)
    first = found.first_difference
    assert first is not None
    assert first.shared > 190
    assert len(batches) <= 10  # five rounds of two models
    assert max(batches) <= BATCH + 4
    assert first.compared == sum(batches) // 2 - len(batches) // 2


def test_a_function_body_is_named_and_not_entered() -> None:
    result = rx.optimize(chain(3))
    function = next(f for f in result.model.functions.values() if f.name == "SkipRMSNorm")
    root = next(node for node in function if node.op_type in ("Sqrt", "Reciprocal"))
    wrong = ir.node("Abs", [root.inputs[0]])  # no root at all
    wrong.outputs[0].name = "rmsnorm_export.wrong"
    function.graph.insert_before(root, wrong)
    root.outputs[0].replace_all_uses_with(wrong.outputs[0])
    found = rx.verify(chain(3), result.model, shapes=ROWS)
    first_skip = next(s.name for s in result.report.fused if s.op == "SkipRMSNorm")
    assert told(found) == (first_skip, "at", True)
    assert found.first_difference is not None
    assert found.first_difference.notes == (
        "functions of the file were not entered: rmsnorm_export::SkipRMSNorm",
    )


def branching(factor: float) -> ir.Model:
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 18]> g (float[4, 8] x) => (float[4, 8] y) {{
          a = Mul (x, x)
          yes = Constant <value = bool {{1}}> ()
          b = If (yes) <
            then_branch = one () => (float[4, 8] t) {{ f = Constant <value_float = {factor}> ()
              t = Mul (a, f) }},
            else_branch = two () => (float[4, 8] e) {{ e = Identity (a) }}>
          y = Neg (b)
        }}"""
    )
    for number, node in enumerate(model.graph):
        node.name = f"n{number}"
    return model


def test_a_subgraph_is_not_entered_and_that_is_said() -> None:
    first = rx.verify(branching(1.0), branching(2.0)).first_difference
    assert first is not None
    assert (first.value, first.op, first.inputs) == ("b", "If", ("a", "yes"))  # a is captured
    assert first.notes == ("subgraphs were not entered: those of 'n2' (If)",)
    assert first.site is None


def test_external_data_stays_outside(tmp_path: Path) -> None:
    """The marked copies refer to the same file, wherever the model came from."""
    source = chain(6)
    path = tmp_path / "model.onnx"
    ir.save(source, path, external_data="weights.bin", size_threshold_bytes=16)
    result = rx.optimize(path)
    site = result.report.fused[3].name
    saved = set_epsilon(result.model, site, 0.5)
    broken = tmp_path / "broken.onnx"
    ir.save(saved, broken)
    before = sorted(p.name for p in tmp_path.iterdir())
    loaded = ir.load(broken)
    assert any(
        isinstance(v.const_value, ir.ExternalTensor) for v in loaded.graph.initializers.values()
    )
    assert told(rx.verify(path, broken, shapes=ROWS)) == (site, "at", True)
    assert told(rx.verify(path, loaded, shapes=ROWS)) == (site, "at", True)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_difference_of_the_output_alone() -> None:
    a, b = chain(3), chain(3, extra="y = Neg (h3)")
    found = rx.verify(a, b, shapes=ROWS).first_difference
    assert found is not None
    assert (found.value, found.inputs, found.inputs_agree) == ("y", ("h3",), True)
    assert found.op == "Neg"


def test_a_mask_does_not_hide_a_difference() -> None:
    """The lowest number beside small ones: relative to it nothing would ever differ."""
    text = """<ir_version: 10, opset_import: ["" : 18]> g (float[6, 16] h0) => (float[6, 6] y) {
      q = Mul (h0, scale)
      k = Transpose <perm = [1, 0]> (h0)
      scores = MatMul (q, k)
      masked = Add (scores, mask)
      y = Softmax <axis = -1> (masked)
    }"""

    def attention(scale: float) -> ir.Model:
        model = ir.from_onnx_text(text)
        mask = np.triu(np.full((6, 6), -1e9, np.float32), 1)
        fill(model, {"scale": np.array(scale, np.float32), "mask": mask})
        return model

    found = rx.verify(attention(0.25), attention(0.2)).first_difference
    assert found is not None
    assert (found.value, found.inputs) == ("q", ())


def test_a_difference_that_grows_beyond_its_bound_later() -> None:
    """The norm is wrong within its bound; what is left after a subtraction is not."""
    again = """qq = Mul (h2, h2)
      qm = ReduceMean <keepdims = 1> (qq, axes)
      qs = Add (qm, eps)
      qr = Sqrt (qs)
      qv = Div (h2, qr)
      norm = Mul (qv, gain)
      most = Constant <value_float = 0.7> ()
      part = Mul (n2, most)
      y = Sub (norm, part)"""
    source = chain(3, extra=again)
    result = rx.optimize(source)
    site = next(n.name for n in result.model.graph if n.outputs[0].name == "norm") or ""
    found = rx.verify(source, set_epsilon(result.model, site, 1.5e-4), shapes=ROWS)
    assert told(found) == (site, "at", True)
    first = found.first_difference
    assert first is not None
    assert (first.value, first.comparison.passed) == ("norm", True)
    assert "% of its bound, which it leaves at 'y'" in first.conclusion


def test_bounds_are_those_that_were_given() -> None:
    result = rx.optimize(chain())
    site = result.report.fused[5].name
    broken = set_epsilon(result.model, site, 1e-4)
    found = rx.verify(chain(), broken, shapes=ROWS, rtol=1e-6)
    assert told(found)[0] == site
    assert found.first_difference is not None
    assert found.first_difference.comparison.tolerance == "given: rtol 1e-06"


def test_what_is_not_looked_for() -> None:
    source = chain(2)
    broken = set_epsilon((made := rx.optimize(source)).model, made.report.fused[0].name, 0.5)
    assert rx.verify(source, broken, bisect=False).first_difference is None
    assert rx.verify(source, source).first_difference is None


def test_the_same_names_for_other_things_are_not_compared() -> None:
    """Two exports number their values alike by accident: operator or shape tell them apart."""
    a = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 18]> g (float[4, 8] x) => (float[4, 8] y) {
          val_0 = Abs (x)  val_1 = Exp (val_0)  y = Neg (val_1) }"""
    )
    b = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 18]> g (float[4, 8] x) => (float[4, 8] y) {
          val_0 = Identity (x)  val_1 = Abs (val_0)  val_2 = Exp (val_1)
          val_3 = Exp (val_2)  y = Neg (val_3) }"""
    )
    found = rx.verify(a, b).first_difference
    assert found is not None
    assert (found.value, found.inputs, found.shared) == ("y", (), 0)


class Table:
    """A model of which the values are known; it gives some of them alone, or not at all."""

    def __init__(self, values: dict[str, np.ndarray], refused: str = "") -> None:
        self.held, self.refused = values, refused

    def read(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        if self.refused in names:
            raise VerificationError("no output of this kind", found=self.refused)
        return {name: self.held[name] for name in names}


def searched(first: Table, second: Table) -> Search:
    """A search in a chain of three blocks whose output ``y`` was two and is one."""
    flow = Flow(chain(3))
    wrong = compare_output("y", ONES, 2 * ONES, Bounds())
    shared = frozenset(flow.order)
    readers = (first.read, second.read)
    search = Search(readers, (flow, flow), shared, "y", Bounds())
    search.run(wrong)
    return search


ONES = np.ones((2, 16), np.float32)
NAMES = [*Flow(chain(3)).order]


def test_a_difference_that_goes_away_when_values_are_marked() -> None:
    table = Table(dict.fromkeys(NAMES, ONES))
    search = searched(table, table)
    assert search.hidden
    told_so = describe_difference(search)
    assert not told_so.inputs_agree
    assert "marked as outputs the models agree" in told_so.conclusion


def test_values_that_cannot_be_had_are_passed_over() -> None:
    a = {name: ONES * (2 if name in ("n2", "p2", "h3", "y") else 1) for name in NAMES}
    b = dict.fromkeys(NAMES, ONES) | {"v2": np.ones(3, np.float32)}  # of another shape
    search = searched(Table(a, refused="r2"), Table(b))
    assert set(search.odd) == {"r2", "v2"}
    first = describe_difference(search)
    assert (first.value, first.inputs) == ("n2", ("h2", "s2"))
    assert first.notes == (
        "2 values of the same name were passed over: their types or shapes differ, or they"
        " cannot be had",
    )


CORPUS = [
    (name, dtype)
    for name in ("llama", "gemma3", "bamba", "qwen3_next", "mamba2")
    for dtype in ("float32", "float16")
]
# Those that tests/test_architectures.py exports, too; qwen3_next takes a minute to export.
SAMPLE = {("llama", "float32"), ("gemma3", "float16"), ("bamba", "float16"), ("mamba2", "float32")}


@pytest.mark.slow
@pytest.mark.export
@sampled("name, dtype", CORPUS, SAMPLE)
def test_sites_of_an_export_from_transformers(name: str, dtype: str) -> None:
    """Every site with HYPOTHESIS_PROFILE=thorough, else the first, one between and the last."""
    pytest.importorskip("transformers")
    from tests.tools.corpus.architectures import architecture, export_architecture

    exported = export_architecture(architecture(name), dtype)
    assert exported.path is not None
    path = exported.path
    sites = fused_names(path)
    if os.environ.get("HYPOTHESIS_PROFILE") != "thorough":
        sites = [sites[0], sites[len(sites) // 2], sites[-1]]
    caught = 0
    for site in sites:
        broken = set_epsilon(rx.optimize(path).model, site, 0.5)
        found = rx.verify(path, broken)
        if not found.passed:  # float16 forgives a norm whose rows are large
            caught += 1
            assert told(found) == (site, "at", True)
    assert caught >= (1 if dtype == "float16" else len(sites))
