"""What runs of a model show: numbers that float16 does not hold, where from, and what helps."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import rmsnorm_export as rx
from rmsnorm_export.graph.order import graphs_in, values_in
from rmsnorm_export.health.result import END, KEEP, STORED
from rmsnorm_export.recognize.refusal import name_of
from rmsnorm_export.runtime.session import open_session, run_session
from rmsnorm_export.show import to_text
from tests.health.test_health import plain, residual_network, rounded

NORM = """p = Mul (h, h) v = ReduceMean <axes = [-1]> (p) a = Add (v, eps) s = Sqrt (a)
    y = Div (h, s)"""
EPS = "float eps = {0.00001}"
LOWEST = -3.4028234663852886e38


def model(
    body: str, inputs: str, constants: str = EPS, output: str = "float[B, 8] y"
) -> onnx.ModelProto:
    """A float32 model in text, its nodes called as their outputs."""
    made = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g ({inputs}) => ({output}) <{constants}> {{ {body} }}"""
    )
    for node in made.graph.node:
        node.name = node.output[0]
    return made


def half(source: onnx.ModelProto) -> onnx.ModelProto:
    """The model in float16, each constant rounded."""
    for tensor in source.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            with np.errstate(over="ignore"):
                array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*source.graph.input, *source.graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return source


MASKED = "hidden = Mul (unseen, low) h = Add (x, hidden) t = Softmax (h) y = Mul (t, x)"


@pytest.mark.parametrize("stored", [False, True])
def test_a_mask_that_becomes_nan_is_counted_and_its_constant_named(stored: bool) -> None:
    """0 times the infinity that the lowest number of float32 is in float16."""
    source = model(MASKED, "float[B, 8] x, float[B, 8] unseen", f"float low = {{{LOWEST}}}")
    source = half(source) if stored else source
    kind = np.float16 if stored else np.float32
    feeds = {"x": np.ones((2, 8), kind), "unseen": np.eye(2, 8, dtype=kind)}
    report = rx.inspect(source, inputs=feeds)
    run = report.health_runs[1]
    assert (run.tensor, run.node, run.constant, run.odd) == ("hidden", "hidden", "low", 4)
    assert run.cure == "65504 in place of the infinity in low"
    assert [one.odd for one in report.health_runs[2:]] == [0]
    text = to_text(report)
    assert "4 of " in text
    assert "from low, which float16 does not hold" in text
    session = open_session(source.SerializeToString(), threads=1)
    assert np.isnan(run_session(session, feeds)["y"]).any() == stored
    low = next(one for one in source.graph.initializer if one.name == "low")
    low.CopyFrom(numpy_helper.from_array(np.array(-END, kind), "low"))
    cured = open_session(source.SerializeToString(), threads=1)
    assert np.isfinite(run_session(cured, feeds)["y"]).all()


@pytest.mark.parametrize("node", ["Constant <value = float", "ConstantOfShape <value = float[1]"])
def test_a_constant_that_a_node_holds_is_what_it_is_in_float32(node: str) -> None:
    """As TorchScript's exporter writes it, where others store it."""
    low = f"{node} {{{LOWEST}}}> {'(size)' if 'Of' in node else '()'}"
    source = model(f"size = Shape (x) low = {low} {MASKED}", "float[B, 8] x, float[B, 8] unseen")
    feeds = {"x": np.ones((2, 8), "f"), "unseen": np.eye(2, 8, dtype="f")}
    wide, narrow, cured = rx.inspect(source, inputs=feeds).health_runs
    assert (wide.odd, narrow.constant, cured.odd) == (0, "low", 0)


def test_a_product_of_weights_in_blocks_is_measured() -> None:
    """ONNX Runtime makes zeros of what rounds its activations where scales are computed."""
    product = "y = com.microsoft.MatMulNBits <K=32, N=8, bits=4, block_size=32, accuracy_level=4>"
    nines, ones = ", ".join(["153"] * 128), ", ".join(["1"] * 8)  # 9 in each half byte, less 8
    weights = f"uint8[8, 1, 16] w = {{{nines}}}, float[8] scales = {{{ones}}}"
    source = model(f"{product} (x, w, scales)", "float[B, 32] x", weights)
    source.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    (found,) = rx.inspect(source, inputs={"x": np.ones((2, 32), "f")}).health
    assert found.measured == 32


@pytest.mark.parametrize("low", [LOWEST, "-inf", -1e9])
def test_a_mask_that_stays_one_is_not_counted(low: float | str) -> None:
    body = MASKED.replace("Mul (unseen, low)", "Where (unseen, low, zero)")
    source = model(body, "float[B, 8] x, bool[B, 8] unseen", "float low = {1}, float zero = {0}")
    array = np.array(low, np.float32)
    source.graph.initializer[0].CopyFrom(numpy_helper.from_array(array, "low"))
    feeds = {"x": np.ones((2, 8), np.float32), "unseen": np.eye(2, 8, dtype=bool)}
    runs = rx.inspect(source, inputs=feeds).health_runs
    assert [(run.computed, run.odd) for run in runs] == [
        ("in float32", 0), ("in half precision", 0)
    ]  # fmt: skip


def test_a_factor_that_float16_does_not_hold_is_kept() -> None:
    """Its largest number in its place gives finite outputs, which are others."""
    source = model(f"h = Mul (x, huge) i = Add (h, x) {NORM.replace('h', 'i')}", "float[B, 8] x",
                   f"{EPS}, float huge = {{1000000}}")  # fmt: skip
    report = rx.inspect(source, inputs={"x": np.eye(2, 8, dtype=np.float32)})
    wide, narrow, cured = report.health_runs
    assert (narrow.odd > 0, narrow.constant, narrow.cure) == (True, "huge", KEEP)
    assert (wide.odd, cured.odd) == (0, 0)
    assert cured.off < 1e-3
    keep = {name for one in report.health for name in one.keep}
    assert keep >= {"h", "i", "p", "v", "a", "s"}


def test_a_cure_that_does_not_help_is_not_named() -> None:
    """The sum is wrong in float16 whatever else is kept."""
    body = (
        "a = Add (x, c) b = Sub (a, c) d = Mul (x, c) e = Mul (d, c) f = Div (e, c) y = Div (f, c)"
    )
    body = f"{body} other = Mul (b, one)"
    constants = "float c = {30000}, float one = {1}"
    source = model(body, "float[B, 8] x", constants, "float[B, 8] y, float[B, 8] other")
    report = rx.inspect(source, inputs={"x": np.full((2, 8), 1.3, np.float32)})
    assert [run.computed for run in report.health_runs] == ["in float32", "in half precision"]
    assert all(run.odd for run in report.health_runs)
    assert {run.cure for run in report.health_runs} == {""}
    assert {one.cure for one in report.health} == {""}


def test_an_epsilon_that_vanishes_is_where_the_first_nan_is() -> None:
    source = model(f"h = Identity (x) {NORM}", "float[B, 8] x", "float eps = {0.000000001}")
    report = rx.inspect(source, inputs={"x": np.zeros((2, 8), np.float32)})
    wide, narrow, cured = report.health_runs
    assert (wide.odd, narrow.odd, cured.odd) == (0, 1, 0)
    assert (narrow.tensor, narrow.constant) == ("y", "")
    assert np.isnan(narrow.size)
    (norm,) = (one for one in report.health if one.kind == "norm")
    assert (norm.epsilon, norm.cure, norm.keep) == (0.0, KEEP, ("p", "v", "a", "s"))


def test_sums_and_products_are_ranges() -> None:
    """Of a Linear the bias is no residual sum, and neither is a row that all rows share."""
    body = f"""o = MatMul (x, w) i = Add (o, b) j = Add (i, row) k = Add (j, x) h = Identity (k)
        z = ReduceSum <keepdims = 0> (i) {NORM}"""
    eye = ", ".join("0" if i % 9 else "1000" for i in range(64))
    weights = f"{EPS}, float[8, 8] w = {{{eye}}}, float[8] b = {{1, 2, 3, 4, 5, 6, 7, 8}}"
    source = model(body, "float[B, 8] x, float[1, 8] row", weights)
    source.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, []))
    x = np.full((2, 8), 50, np.float32)
    report = rx.inspect(source, inputs={"x": x, "row": np.zeros((1, 8), np.float32)})
    told = [(one.kind, one.site, one.measured, one.cure) for one in report.health]
    total = 2.0 * (8 * 50_000 + 36)
    assert told[:3] == [
        ("MatMul", "o", 50_000.0, ""), ("ReduceSum", "z", total, KEEP),
        ("residual sum", "k", 50_058.0, ""),
    ]  # fmt: skip
    assert [one.kind for one in report.health[3:]] == ["norm"]
    assert report.health[1].keep == ("z",)
    assert "1 x  MatMul  float16  results up to 50000 measured" in to_text(report)


def names_in(source: onnx.ModelProto | ir.Model) -> set[str]:
    graphs = list(
        graphs_in((source if isinstance(source, ir.Model) else ir.from_proto(source)).graph)
    )
    nodes = (name_of(node) for graph in graphs for node in graph)
    return {*nodes, *(value.name for graph in graphs for value in values_in(graph))}


def called(norm: str) -> onnx.ModelProto:
    """Two norms that are calls of a function, after a sum that is one."""
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[B, 8] x) => (float[B, 8] out) <float eps = {{0.00001}}, float c = {{200}}> {{
            z = Mul (x, c) one = own.norm (z, eps) w = own.twice (z) out = own.norm (w, eps)
        }}
        <domain: "own", opset_import: ["" : 17]> norm (h, eps) => (y) {{ {norm} }}
        <domain: "own", opset_import: ["" : 17]> twice (a) => (b) {{ b = Add (a, a) }}"""
    )


@pytest.mark.parametrize("target", ["none", "calls", "portable", "onnx", "ort", "plain"])
@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_every_name_is_one_of_the_file(target: str, kind: type) -> None:
    source = residual_network(kind, [100.0, 7000.0, 7000.0, 60000.0])
    if target == "calls":
        source = called(NORM)
    elif target != "none":
        source = rx.optimize(source, target=target, numerics="upcast").model
    known, seen = {"", *names_in(source)}, 0
    report = rx.inspect(source, health=True)
    for one in report.health:
        assert known >= {one.site, one.node, *one.keep}, one
        seen += len(one.keep)
    for run in report.health_runs:
        assert known >= {run.tensor, run.node, run.constant}, run
        assert (run.odd > 0) == (run.computed != "with the cures")
    assert seen
    assert len(report.health_runs) == 3


@pytest.mark.parametrize("kind", ["float", "bfloat16"])
def test_operators_of_ours_stay_in_float32_when_a_model_is_converted(kind: str) -> None:
    """Converters leave the bodies of functions alone."""
    made = rx.optimize(plain(kind=kind), numerics="upcast").model
    added, norm = rx.inspect(made, health=True).health
    assert (norm.converted, norm.largest, norm.cure, norm.node) == (True, END, "", "")
    assert added.kind == "residual sum"
    spelled = rx.inspect(plain(kind=kind), health=True).health[1]
    assert (int(spelled.largest), spelled.cure) == (255, KEEP)


def test_operators_without_a_kernel_in_float16_are_looked_at_in_it() -> None:
    """ONNX Runtime's CPU provider adds no float16 numbers into a tensor, and zeros have a type."""
    body = """zero = ConstantOfShape (shape) u = Mul (x, c)
        y = ScatterElements <axis = 1, reduction = "add"> (zero, index, u)"""
    constants = "int64[2] shape = {2, 8}, int64[2, 1] index = {0, 1}, float c = {1000}"
    source = model(body, "float[2, 1] x", constants, "float[2, 8] y")
    report = rx.inspect(source, inputs={"x": np.full((2, 1), 90, np.float32)})
    wide, narrow, _ = report.health_runs
    assert [run.problem for run in report.health_runs] == [""] * 3
    assert [(run.tensor, run.odd) for run in (wide, narrow)] == [("u", 2)] * 2


def test_caches_whose_heads_and_width_are_names_are_given_sizes_that_run() -> None:
    body = "k = Concat <axis = 2> (past, new) y = Mul (k, k)"
    inputs = "float[B, heads, P, width] past, float[B, 3, S, 5] new"
    report = rx.inspect(model(body, inputs, output="float[B, 3, T, 5] y"), health=True)
    assert [(run.problem, run.values > 0) for run in report.health_runs] == [("", True)] * 2


@pytest.mark.parametrize("target", ["portable", "onnx", "ort"])
def test_a_norm_of_a_sum_that_is_kept_is_kept_as_well(target: str) -> None:
    """A converter gives an operator that is not kept the sum in float16."""
    made = rx.optimize(residual_network(np.float32, [7000.0, 7000.0, 0.1]), target=target).model
    feeds = {"x": np.ones((2, 8), np.float32), "seen": np.ones((2, 1), bool)}
    report = rx.inspect(made, inputs=feeds)
    large = [one for one in report.health if (one.measured or 0) > END]
    norms = [one for one in large if one.kind == "norm"]
    assert [one.cure for one in large] == [KEEP] * len(large)
    outputs = {name_of(node): {v.name for v in node.outputs} for node in made.graph}
    assert norms
    assert all(outputs[one.site].intersection(one.keep) for one in norms)
    assert report.health_runs[-1].odd == 0


def joined(source: onnx.ModelProto) -> onnx.ModelProto:
    """What ONNX Runtime's converter made, without roundings between two nodes that it kept.

    It writes some Casts twice, which no runtime loads.
    """
    nodes = list({node.output[0]: node for node in source.graph.node}.values())
    casts = {node.output[0]: node for node in nodes if node.op_type == "Cast"}
    for index, node in enumerate(nodes):
        before = casts.get(node.input[0])
        if node.output[0] in casts and before is not None and node.attribute[0].i == 1:
            node.input[0] = before.input[0]
        node.name = f"{node.name}_{index}"
    made = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del source.graph.node[:], source.graph.value_info[:]
    source.graph.node.extend(made)
    return source


@pytest.mark.parametrize("factors", [[100.0, 0.1, 0.1], [7000.0, 7000.0, 0.1], [60000.0, 0.1, 0.1]])
def test_a_converter_that_keeps_what_is_named_makes_a_model_that_is_right(
    factors: list[float],
) -> None:
    """ONNX Runtime's, of a stream whose squares, sums or products float16 does not hold."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    source = residual_network(np.float32, [*factors, 0.1])
    del source.graph.output[:]
    source.graph.output.append(onnx.helper.make_tensor_value_info("norm3", 1, ["n", 8]))
    feeds = {"x": np.ones((2, 8), np.float32), "seen": np.ones((2, 1), bool)}
    report = rx.inspect(source, inputs=feeds)
    assert (report.health_runs[1].odd > 0, report.health_runs[2].odd) == (True, 0)
    makers = {output: node.name for node in source.graph.node for output in node.output}
    keep = [makers[name] for one in report.health for name in one.keep]
    expected = run_session(open_session(source.SerializeToString(), threads=1), feeds)["norm3"]
    off = []
    for nodes in ([], keep):
        copy = onnx.ModelProto.FromString(source.SerializeToString())
        made = convert_float_to_float16(copy, node_block_list=nodes)
        session = open_session(rounded(joined(made)).SerializeToString(), threads=1)
        own = {"x": feeds["x"].astype(np.float16), "seen": feeds["seen"]}
        difference = np.abs(run_session(session, own)["norm3"].astype(np.float32) - expected)
        off.append(float(np.where(np.isfinite(difference), difference, np.inf).max()))
    assert off[0] > 0.1
    assert off[1] < 0.01


@pytest.mark.parametrize("rounds", [3, 12])
def test_a_state_that_grows_in_a_loop(rounds: int) -> None:
    """It is no mask, although it comes from outside the body."""
    loop = """y = Loop (n, c, x) <body = steps (int64 i, bool on, float[2, 8] before)
        => (bool on, float[2, 8] after) { after = Add (before, before) }>"""
    source = model(loop, "float[2, 8] x, int64 n, bool c", EPS, "float[2, 8] y")
    feeds = {"x": np.full((2, 8), 100, np.float32), "n": np.array(rounds), "c": np.array(True)}
    report = rx.inspect(source, inputs=feeds)
    told = [(run.tensor, run.constant, run.odd > 0) for run in report.health_runs]
    assert told == [("after", "", True) if rounds == 12 else ("", "", False)] * 2
    sums = [(one.kind, one.scope) for one in report.health if one.kind == "Add"]
    assert sums == [("Add", "main/y.body")] * (rounds == 12)


# The rows that norms survive which recognition does not follow, held against NumPy's steps.

CENTRED = """mean = ReduceMean <axes = [-1]> (h) d = Sub (h, mean) q = Pow (d, two)
    v = ReduceMean <axes = [-1]> (q) a = Add (v, eps) s = Sqrt (a) n = Div (d, s) y = Mul (n, w)"""
WEIGHTS = "float two = {2}, float[8] w = {1, 1, 1, 1, 1, 1, 1, 1}"
INPUTS = "float[B, 8] x, float[B, 8] r"


def layer_norm(epsilon: str = "0.00001") -> onnx.ModelProto:
    """LayerNorm of a residual sum, an operator for each step."""
    constants = f"{WEIGHTS}, float eps = {{{epsilon}}}"
    return model(f"h = Add (x, r) {CENTRED}", INPUTS, constants)


def steps(rows: np.ndarray, epsilon: float) -> np.ndarray:
    """The same, each result rounded to float16."""
    h = rows.astype(np.float16)
    with np.errstate(all="ignore"):
        d = h - h.astype(np.float64).mean(-1, keepdims=True).astype(np.float16)
        v = (d * d).astype(np.float64).mean(-1, keepdims=True).astype(np.float16)
        return d / np.sqrt(v + np.float16(epsilon))


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
def test_the_rows_that_a_layer_norm_survives(epsilon: float, stored: bool) -> None:
    source = layer_norm(f"{epsilon:.15f}")
    report = rx.inspect(half(source) if stored else source, health=True)
    assert [one.kind for one in report.health] == ["residual sum", "norm"]
    norm = report.health[1]
    assert (norm.op, norm.computed, norm.converted) == ("Pow", "float16", not stored)
    signs = np.resize([1.0, -1.0], 8)
    grid = 2.0 ** (np.arange(-24 * 8, 16 * 8) / 8)
    fine = [size for size in grid if np.allclose(np.abs(steps(size * signs, epsilon)), 1, atol=0.3)]
    assert fine[-1] / 1.2 <= norm.largest <= 1.2 * fine[-1]
    assert norm.epsilon == np.float16(epsilon)
    assert (norm.least > 0) == (not np.isfinite(steps(0 * signs, epsilon)).all())
    cure = KEEP if epsilon == 1e-5 or not stored else STORED
    assert (norm.cure, norm.keep) == (cure, ("mean", "d", "q", "v", "a", "s"))
    assert (STORED in to_text(report)) == (cure == STORED)


def test_an_epsilon_that_is_stored_again_cures_rows_of_zeros() -> None:
    zeros = {"x": np.zeros((1, 8), np.float16), "r": np.zeros((1, 8), np.float16)}
    source, finite = half(layer_norm("0.000000000001")), []
    for epsilon in (0.0, 6.1e-5):
        eps = next(one for one in source.graph.initializer if one.name == "eps")
        eps.CopyFrom(numpy_helper.from_array(np.array(epsilon, np.float16), "eps"))
        result = run_session(open_session(source.SerializeToString(), threads=1), zeros)["y"]
        finite.append(bool(np.isfinite(result).all()))
        runs = rx.inspect(source, inputs=zeros).health_runs
        assert [run.odd > 0 for run in runs[:2]] == [not finite[-1]] * 2
    assert finite == [False, True]


@pytest.mark.parametrize("root", ["l = ReduceL2 <axes = [-1]> (x) s = Add (l, r)",
    "q = Mul (x, x) l = ReduceMean <axes = [-1]> (q) a = Add (l, r) s = Sqrt (a)"])  # fmt: skip
def test_a_norm_that_cannot_be_cut_out_has_a_reason(root: str) -> None:
    """Its epsilon is an input; the range of its rows is known."""
    source = model(f"{root} y = Div (x, s)", "float[B, 8] x, float r")
    feeds = {"x": np.full((2, 8), 3, np.float32), "r": np.array(1, np.float32)}
    (norm,) = rx.inspect(source, inputs=feeds).health
    assert (norm.kind, norm.site, norm.measured) == ("norm", "l", 3.0)
    assert "epsilon" in norm.problem


def test_what_recognition_refuses_is_examined() -> None:
    """A second root is no RMSNorm; two epsilons are none that one node has."""
    body = """q = Mul (x, x) v = ReduceMean <axes = [-1]> (q) a = Add (v, eps) s = Sqrt (a)
        t = Sqrt (s) y = Div (x, t)"""
    report = rx.inspect(model(body, "float[B, 8] x"), health=True)
    assert (len(report.fused), len(report.refused)) == (0, 1)
    (norm,) = report.health
    assert (norm.kind, norm.op, norm.cure) == ("norm", "Mul", KEEP)
    assert 250 < norm.largest < 256


@pytest.mark.parametrize(
    ("op", "more", "constants"),
    [("LayerNormalization", "w", WEIGHTS), ("Softmax", "", EPS), ("LpNormalization", "", EPS)],
)
def test_operators_that_sum_in_float32_are_ranges(op: str, more: str, constants: str) -> None:
    operands = ", ".join(filter(None, ("h", more)))
    source = model(f"h = Add (x, r) y = {op} ({operands})", INPUTS, constants)
    feeds = {"x": np.full((2, 8), 30000, np.float32), "r": np.zeros((2, 8), np.float32)}
    report = rx.inspect(source, inputs=feeds)
    kinds = [one.kind for one in report.health]
    assert kinds == [*(["residual sum"] if op != "Softmax" else []), op]
    assert not any(one.cure or one.beyond for one in report.health)
    assert [run.odd for run in report.health_runs] == [0, 0]
