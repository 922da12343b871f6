"""``optimize --dtype``: half precision, float32 where it is needed, and nowhere else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import rmsnorm_export as rx
from tests.precision.networks import (
    BODIES,
    ROWS,
    TARGETS,
    converted,
    kept,
    network,
    one_sum,
    operators,
    parsed,
    share_off,
    step_by_step,
    types_of,
    weight,
    x_of,
)
from tests.tools.tables import table


@pytest.mark.parametrize("target", TARGETS)
def test_all_but_the_softmax_is_half_where_nothing_overflows(target: str) -> None:
    model = network()
    new, precision, content = converted(model, target=target)
    assert share_off(model, content, x_of(3, ROWS)) < 2e-3
    assert precision.products == 6
    assert precision.products_kept == 0
    assert operators(kept(precision, "rule")) == ["Softmax"]
    assert not kept(precision, "range") or target == "plain"  # which has the squares by themselves
    types = types_of(new)
    assert {types[f"w{name}"] for name in "qouy"} == {"FLOAT16"}
    assert (types["x"], types["y"]) == ("FLOAT", "FLOAT")
    assert precision.bytes_after < 0.6 * precision.bytes_before
    assert "of 7 rows" in precision.compared or "rows keep" in precision.compared


@pytest.mark.parametrize("target", TARGETS)
def test_a_stream_is_float32_from_the_first_sum_that_overflows(target: str) -> None:
    model = network(stream=3e4)
    new, precision, content = converted(model, target=target)
    assert share_off(model, content, x_of(3, ROWS)) < 2e-3
    types = types_of(new)
    assert {types[f"w{name}"] for name in "qouy"} == {"FLOAT16"}
    assert precision.products_kept == 0
    wide = {one.tensor: one for one in kept(precision, "range").values()}
    assert wide["big"].size > precision.limit / precision.margin
    assert {one.tensor for one in precision.kept} & {"h0", "a_out", "u", "c_out"} == set()
    assert types["h0"] == "FLOAT"  # which the input is, so there are fewer Casts
    assert types["q"] == types["scores"] == types["o"] == "FLOAT16"


def test_the_sum_overflows_where_the_given_inputs_do_not_show_it() -> None:
    """Or the tests above show nothing; and the largest of several inputs counts."""
    small, feeds = {"x": np.full((1, ROWS), 1e-3, np.float32)}, x_of(3, ROWS)
    _, precision, content = converted(one_sum(), inputs=[small])
    assert not np.isfinite(step_by_step(content, feeds)[0]).all()
    assert (precision.runs, precision.inputs) == (1, "given arrays")
    _, precision, content = converted(one_sum(), inputs=[small, feeds, small])
    assert share_off(one_sum(), content, feeds) < 2e-3
    assert precision.runs == 3
    _, precision, _ = converted(one_sum())
    assert "random" in precision.inputs


def test_weights_that_several_read_are_stored_once() -> None:
    """A tied embedding; a number that both types read is stored in both."""
    own = {"table": weight(20, ROWS), "two": np.float32(2), "angle": np.float32(0.5)}
    model = parsed(BODIES["tied"], f"(int64[n] ids) => (float[n, {ROWS}] y)", own)
    new, _, content = converted(model)
    assert share_off(model, content, {"ids": np.arange(5)}) < 2e-3
    stored = new.graph.initializers
    assert stored["table"].dtype == ir.DataType.FLOAT16
    assert [name for name in stored if name.startswith("table")] == ["table"]
    casts = [node for node in new.graph if node.op_type == "Cast"]
    assert not any("table" in (node.inputs[0].name or "") for node in casts)


def test_a_weight_beyond_the_type_stays_float32_with_what_reads_it() -> None:
    large = weight(ROWS, ROWS)
    large[3, 5] = 70_000
    body = "a = MatMul (x, large) b = Tanh (a) y = MatMul (b, w)"
    own = {"large": large, "w": weight(ROWS, ROWS, seed=1)}
    model = parsed(body, f"(float[n, {ROWS}] x) => (float[n, {ROWS}] y)", own)
    feeds = x_of(2, ROWS)
    feeds["x"][:, 3] = 0.01
    new, precision, content = converted(model, inputs=[feeds])
    assert share_off(model, content, feeds) < 2e-3
    types = types_of(new)
    assert (types["large"], types["w"]) == ("FLOAT", "FLOAT16")
    assert (precision.products, precision.products_kept) == (2, 1)
    (one,) = (k for k in precision.kept if k.op == "MatMul")
    assert (one.kind, one.tensor, one.size) == ("range", "large", 70_000)


def test_an_epsilon_that_float16_loses_stays_float32() -> None:
    """Where a norm is none of ours, here LayerNorm by nodes: a row of zeros is no NaN."""
    own = {"w": weight(ROWS, ROWS), "least": np.float32(1e-9)}
    model = parsed(BODIES["layer_norm"], f"(float[n, {ROWS}] x) => (float[n, {ROWS}] y)", own)
    _, precision, content = converted(model)
    assert operators(kept(precision, "range")) == ["Add", "Div", "Sqrt"]
    feeds = x_of(3, ROWS)
    feeds["x"][1] = 0
    assert share_off(model, content, feeds) < 5e-3


@pytest.mark.parametrize("kind", ["Cos", "Cast"])
def test_angles_and_indices_are_computed_in_float32(kind: str) -> None:
    """2,049 is no number of float16, and the cosine of 2,048 another one."""
    table = weight(3000, ROWS)
    end = {
        "Cos": "far = Identity (column) c = Cos (far) g = Mul (e, c)",
        "Cast": "far = Identity (f) i = Cast <to = 7> (far) r = Gather (table, i) g = Add (r, s)",
    }
    body = BODIES["far"].replace("STEPS", end[kind])
    own = {"table": table, "w": weight(ROWS, ROWS, seed=1), "last": np.array([1])}
    own["small"] = np.float32(1e-3)
    model = parsed(body, f"(int64[n] ids) => (float[n, {ROWS}] y)", own)
    new, precision, content = converted(model, inputs=[{"ids": np.arange(3)}])
    assert share_off(model, content, {"ids": np.arange(2040, 2060)}) < 2e-3
    assert types_of(new)["far"] == "FLOAT"
    assert precision.products_kept == 0


NESTED: dict[str, str] = table(__file__)


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("stream", [1.0, 3e4])
def test_bodies_are_converted_and_kept_as_the_graph_is(kind: str, stream: float) -> None:
    own = {"w": weight(ROWS, ROWS), "stream": np.float32(stream), "first": weight(1, ROWS)[0]}
    own |= {"zero": np.array([0]), "one": np.array([1])}
    model = parsed(NESTED[kind], f"(float[n, {ROWS}] x) => (float[n, {ROWS}] y)", own)
    feeds = x_of(3, ROWS)
    new, precision, content = converted(model, inputs=[feeds])
    assert share_off(model, content, feeds) < 2e-3
    types = types_of(new)
    assert types["w"] == "FLOAT16" or (kind == "Scan" and stream > 1)
    large = {"If": "s", "Loop": "each", "Scan": "out"}[kind]
    assert types[large] == ("FLOAT" if stream > 1 else "FLOAT16")
    assert ("range" in {one.kind for one in precision.kept}) == (stream > 1)


def test_functions_of_others_are_converted_by_their_calls() -> None:
    """One call overflows, the other does not."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
        g (float[n, 16] x) => (float[n, 16] y) {
          a = own.scaled (x, w, small) b = own.scaled (a, w, large)
          p = Softmax (b) y = MatMul (p, w) }
        <domain: "own", opset_import: ["" : 17]> scaled (x, w, s) => (z) {
          t = MatMul (x, w) z = Mul (t, s) }"""
    )
    for name, array in {"w": weight(ROWS, ROWS), "small": 1.0, "large": 5e4}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.float32(array), name))
    new, precision, content = converted(model)
    assert not new.functions
    assert share_off(model, content, x_of(3, ROWS)) < 2e-2
    assert operators(kept(precision, "range")) == ["Mul"]
    assert precision.products_kept == 0


# ``dtype`` in a pipeline.


def test_a_pipeline_converts_and_compares_within_the_type(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    steps = '[model]\npath = "m.onnx"\n[optimize]\ndtype = "f16"\n[verify]\n'
    (tmp_path / "p.toml").write_text(f'[pipeline]\nname = "m"\nfolder = "out"\n{steps}')
    done = rx.run_pipeline(tmp_path / "p.toml")
    assert done.error is None
    found = onnx.load(next((tmp_path / "out").rglob("*.onnx")))
    assert {tensor.data_type for tensor in found.graph.initializer if len(tensor.dims) == 2} == {10}


# The memory that a conversion takes, beside what the packages take.

WIDE, LAYERS = 1536, 16
BYTES = 4 * WIDE**2 * LAYERS
_CONVERT = """
import re, resource, sys
import rmsnorm_export as rx
for path in sys.argv[1:3]:
    rx.optimize(path, inputs=(sys.argv[3],), dtype="f16").save(path + ".half", force=True)
    own = int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
    print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024)
"""


@pytest.mark.parametrize(("apart", "most"), [(True, 1.6), (False, 2.4)])
def test_a_conversion_takes_little_more_than_reading(
    tmp_path: Path, *, apart: bool, most: float
) -> None:
    """In this process or a fork; a single file is in memory twice while protobuf reads it.

    Where weights are rounded beforehand, and lent to sessions from memory, 2.0 and 3.7 times.
    """
    paths = [tmp_path / "small.onnx", tmp_path / "large.onnx"]
    for path, layers in zip(paths, (1, LAYERS), strict=True):
        own = {f"w{i}": weight(WIDE, WIDE, seed=i) for i in range(layers)}
        own |= {"first": weight(ROWS, WIDE), "last": weight(WIDE, ROWS)}
        steps = [f"h{i + 1} = MatMul (h{i}, w{i})" for i in range(layers)]
        body = " ".join(["h0 = MatMul (x, first)", *steps, f"y = MatMul (h{layers}, last)"])
        signature = f"(float[n, {ROWS}] x) => (float[n, {ROWS}] y)"
        how = {"save_as_external_data": True, "location": f"{path.name}.data"} if apart else {}
        onnx.save(parsed(body, signature, own), path, **how)
    assert _more_bytes(paths, tmp_path) < most * BYTES


def test_a_transposed_weight_is_not_measured(tmp_path: Path) -> None:
    """As a decoder's table is for its last product: 2.25 times; measured, it takes 3.1 times."""
    paths = [tmp_path / "small.onnx", tmp_path / "large.onnx"]
    for path, rows in zip(paths, (ROWS, BYTES // ROWS // 4), strict=True):
        body = "turned = Transpose <perm = [1, 0]> (w) y = MatMul (x, turned)"
        signature = f"(float[n, {ROWS}] x) => (float[n, {rows}] y)"
        how = {"save_as_external_data": True, "location": f"{path.name}.data"}
        onnx.save(parsed(body, signature, {"w": weight(rows, ROWS)}), path, **how)
    assert _more_bytes(paths, tmp_path) < 2.6 * BYTES


def _more_bytes(paths: list[Path], folder: Path) -> int:
    """Return how many bytes more the conversion of the second file takes."""
    np.savez(folder / "x.npz", x=np.full((2, ROWS), 1e-3, np.float32))
    words = [sys.executable, "-c", _CONVERT, *paths, folder / "x.npz"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    small, large = map(int, done.stdout.split())
    return large - small
