"""The rows that a norm survives in half precision, held against ONNX Runtime.

Its CPU provider computes chains of float16 nodes in float32 and rounds what a float16 kernel reads.
Two Identity nodes behind every node are such kernels (a single one is computed in float32, too), so
that every result is rounded to its type, as on a GPU.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx.shape_inference import infer_shapes
from spellings.choices import SINGLE, SPELLING_OPTIONS, single
from spellings.place import build

import rmsnorm_export as rx
from rmsnorm_export.graph.retype import retype
from rmsnorm_export.health.half import FileNames
from rmsnorm_export.health.limits import Limits
from rmsnorm_export.health.result import BRAIN, EPSILON, KEEP, STORED, UPCAST, Health
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.proof.cut import cut
from rmsnorm_export.recognize.consts import producer_of
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.scan import Recognition, recognize
from rmsnorm_export.records import from_json
from rmsnorm_export.runtime.session import load_session, open_session, run_session
from rmsnorm_export.show import to_html, to_text
from tests.sample import sampled
from toolbox.corpus.arch_table import ENTRIES

END = 65504.0
POWERS = [2.0**e for e in range(-24, 16)]
KINDS = {"tensor(float16)": np.float16, "tensor(float)": np.float32, "tensor(double)": np.float64}
HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT


def rounded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Two Identity nodes behind every float16 value."""
    typed = infer_shapes(model).graph
    half = {v.name for v in (*typed.value_info, *typed.output)
            if v.type.tensor_type.elem_type == HALF}  # fmt: skip
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        for index, name in enumerate(node.output):
            if name in half:
                node.output[index] = f"{name}_0"
                nodes.append(helper.make_node("Identity", [f"{name}_0"], [f"{name}_1"]))
                nodes.append(helper.make_node("Identity", [f"{name}_1"], [name]))
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def survived(found: Recognition, match: Match) -> list[float]:
    """The powers of two around 1 for which ONNX Runtime gives the numbers that it gives for 1."""
    x = match.x if match.sum is None else match.sum
    weights = [v for v in (match.scale, match.bias, match.gate) if v is not None]
    operands = [x, *weights]
    small = cut(
        [match.output], operands, opset_imports=match.output.producer().graph.opset_imports,
        type_of=found.types.dtype, aliases=dict.fromkeys(match.aliases, x),
    )  # fmt: skip
    model = rounded(ir.to_proto(small))
    session = load_session(model.SerializeToString(), threads=1)
    feeds = {}
    for port, value in zip(session.get_inputs(), operands, strict=True):
        source = value.producer().inputs[0] if producer_of(value, "Cast") else value
        stored = None if value is x else ir.convenience.get_const_tensor(source)
        shape = [d if isinstance(d, int) else 2 for d in found.types.shape(value) or (match.n,)]
        array = np.ones(shape) if stored is None else np.abs(stored.numpy().astype(np.float64))
        array = np.zeros(shape) if value is match.bias else array
        feeds[port.name] = array.astype(KINDS[port.type])
    first = session.get_inputs()[0].name
    signs = np.resize(np.array([1.0, -1.0]), feeds[first].shape)

    def norm(size: float) -> np.ndarray:
        rows = (size * signs).astype(feeds[first].dtype)
        return next(iter(run_session(session, feeds | {first: rows}).values())).astype(np.float64)

    expected = np.abs(norm(1.0))
    assert np.isfinite(expected).all()

    def fine(size: float) -> bool:
        y = np.abs(norm(size))
        good = np.isfinite(y).all()
        return bool(good and (size < 1 or (np.abs(y - expected) <= expected / 4 + 1e-3).all()))

    middle = POWERS.index(1.0)
    above = next((i for i in range(middle, len(POWERS)) if not fine(POWERS[i])), len(POWERS))
    below = next((i for i in range(middle, -1, -1) if not fine(POWERS[i])), -1)
    return [*([] if below >= 0 or not fine(0.0) else [0.0]), *POWERS[below + 1 : above]]


def recognized(model: ir.Model, dtype: str) -> Recognition:
    """The norms of a model in float16, or converted to it."""
    retype(model, {FLOAT: ir.DataType.FLOAT16} if dtype == "float32" else {})
    return recognize(model)


def told_of(found: Recognition, match: Match, *, converted: bool = False) -> Health:
    graph = match.output.producer().graph
    bare = Health("", "norm", None, "main", type_name(match.dtype), converted)
    return Limits(found.types, graph.opset_imports, FileNames(graph)).of(match, bare)


def held(told: Health, seen: list[float]) -> None:
    """The limits that are told are within a factor of 2 of what was seen."""
    top = min(told.largest, END)
    assert seen[-1] <= 2 * top, told
    assert top <= 2 * seen[-1], told
    if seen[0] == 0:
        assert told.least == 0, told
    else:
        assert seen[0] / 2.01 <= max(told.least, POWERS[0]) <= 2.01 * seen[0], (told, seen)


OPTIONS = [(name, value) for name, value in SINGLE if name in SPELLING_OPTIONS]


@pytest.mark.parametrize(
    ("rounding", "dtype"),
    [("plain", "float16"), ("plain", "float32"), ("llama", "float16"), ("rstd", "float16")],
)
def test_every_spelling_fails_where_it_is_said_to(
    rounding: str, dtype: str, pytestconfig: pytest.Config
) -> None:
    """In half precision, and in float32 converted to it; by default one in three of the others."""
    every = (rounding, dtype) == ("plain", "float16") or pytestconfig.getoption("--thorough")
    tried, largest, one_in = 0, set(), 1 if every else 3
    for name, value in OPTIONS[::one_in]:
        spelling, frame = single(name, value)
        if name == "rounding":
            continue
        spelling = dataclasses.replace(spelling, rounding=rounding)
        frame = dataclasses.replace(frame, dtype=dtype, row=(64,), rows="normal", leaks=frozenset())
        found = recognized(ir.from_proto(build(spelling, frame).model), dtype)
        for match in found.matches:
            if match.spec.gate_first and match.spec.kind == "GatedRMSNorm":
                continue  # what is fed is not the row
            told = told_of(found, match)
            held(told, survived(found, match))
            tried += 1
            largest.add(int(told.largest))
    assert tried > 100 / one_in
    assert largest >= ({255, 31} if rounding == "plain" else {END})


@pytest.mark.export
@pytest.mark.slow
@sampled(
    "name, dtype",
    [(name, dtype) for name in ENTRIES for dtype in ("float16", "float32")],
    {*((name, "float16") for name in ("gemma3", "imagegpt", "gpt_oss")), ("llama", "float32")},
)
def test_norms_of_architectures_fail_where_they_are_said_to(name: str, dtype: str) -> None:
    from toolbox.corpus.architectures import export_architecture

    made = export_architecture(name, dtype)
    if made.path is None:
        pytest.skip(f"no exporter can: {made.reason}")
    found, seen = recognized(ir.load(made.path), dtype), set()
    for match in found.matches:
        told = told_of(found, match, converted=dtype == "float32")
        kind = (match.spec, match.n, match.spelling)
        if kind not in seen and "Reshape" not in match.spelling:  # its sizes are the model's
            held(told, survived(found, match))
        seen.add(kind)
        cures = (UPCAST, EPSILON) if dtype == "float16" else (KEEP, STORED)
        lacks_epsilon = match.spec.epsilon == 0  # so that a row of zeros is NaN in float32, too
        fails = told.computed == "float16" or lacks_epsilon
        assert told.cure == (cures[lacks_epsilon] if fails else "")
        assert (told.computed == "float16") == (told.largest < END)


SCALED = (
    *("llama", "t5_encoder", "qwen3", "gemma3", "gemma2", "glm4", "olmo2", "mamba2"),
    *("falcon_h1", "aimv2_vision"),
)


@pytest.mark.export
@pytest.mark.slow
@sampled("name", SCALED, SCALED[:2])
def test_a_layer_of_an_architecture_that_is_made_to_overflow_is_named(name: str) -> None:
    """The weight behind its last residual sum is scaled, until the squares of the sum overflow."""
    from toolbox.corpus.architectures import export_architecture

    made = export_architecture(name, "float32")
    if made.path is None:
        pytest.skip(f"no exporter can: {made.reason}")
    model = ir.load(made.path)
    before = rx.inspect(model, health=True)
    assert {run.tensor for run in before.health_runs} == {""}
    assert not any(one.problem or one.measured is None for one in before.health)
    added, norm = next(
        pair for pair in reversed(list(itertools.pairwise(before.health)))
        if pair[0].kind == "residual sum"
    )  # fmt: skip
    (add,) = (node for node in model.graph if node.name == added.site)
    makers = [value.producer() for value in add.inputs if value.producer() is not None]
    weight = next(
        value for node in makers if node.op_type in ("MatMul", "Gemm", "Mul")
        for value in node.inputs if value.is_initializer() and value.const_value.size > 1
    )  # fmt: skip
    array = weight.const_value.numpy()
    weight.const_value = ir.tensor((array * 3000 / added.measured).astype(array.dtype))
    after = rx.inspect(model, health=True)
    for run in after.health_runs[:2]:
        assert (run.op, run.cure) == (norm.op, "keep in float32")
    assert [run.odd for run in after.health_runs[2:]] == [0]
    (named,) = (one for one in after.health if (one.kind, one.site) == ("norm", norm.site))
    assert named.beyond
    assert run.tensor in named.keep


def plain(epsilon: str = "0.001", scale: str = "1", kind: str = "float16") -> onnx.ModelProto:
    """LLaMA's norm, computed in one type."""

    def stored(number: str) -> str:
        """The text form has half types by their bits."""
        dtypes = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
        return (
            str(np.array(float(number), dtypes[kind]).view(np.uint16)) if kind in dtypes else number
        )

    one, two, scale, epsilon = map(stored, ("1", "2", scale, epsilon))
    w = ", ".join((scale, one, one, one))
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({kind}[m, 4] x, {kind}[m, 4] r) => ({kind}[m, 4] y, {kind}[m, 4] h)
        <{kind}[4] w = {{{w}}}, {kind} e = {{{epsilon}}}, {kind} two = {{{two}}},
         int64[1] last = {{-1}}> {{
          h = Add (x, r)
          p = Pow (h, two)
          m0 = ReduceMean (p, last)
          m1 = Add (m0, e)
          m2 = Sqrt (m1)
          v = Div (h, m2)
          [norm] y = Mul (v, w)
        }}"""
    )


def test_what_is_said_of_a_norm_and_of_its_sum() -> None:
    """Each fact of a model for which it holds, beside one for which it does not."""
    added, norm = rx.inspect(plain(), health=True).health
    assert (added.kind, added.site, added.largest, added.epsilon) == (
        *("residual sum", "h", END / 2), None
    )  # fmt: skip
    assert (norm.kind, norm.site, norm.op, norm.computed) == ("norm", "norm", "Pow", "float16")
    assert 254 < norm.largest < 256
    assert (norm.least, norm.converted, norm.assumed, norm.subnormal) == (0.0, False, (), False)
    assert (norm.cure, norm.keep) == ("--numerics upcast", ("p", "m0", "m1", "m2", "v"))
    none = rx.inspect(plain("0"), health=True).health[1]
    assert (none.epsilon, none.least > 1e-4, none.op) == (0.0, True, "Pow")
    scaled = rx.inspect(plain(scale="60000"), health=True).health[1]
    assert (scaled.op, scaled.largest < 2, scaled.cure) == ("Mul", True, "bfloat16")
    small = rx.inspect(plain("1e-5"), health=True).health[1]
    assert small.subnormal
    wide = rx.inspect(plain("1e-8", kind="float"), health=True).health[1]
    assert (wide.converted, wide.epsilon, wide.cure) == (True, 0.0, "keep in float32")
    assert rx.inspect(plain(kind="float")).health == ()
    brain = rx.inspect(plain(kind="bfloat16"), health=True)
    assert (brain.health[1].converted, brain.health[1].dtype) == (True, "float16")
    runs = [(run.computed, bool(run.problem)) for run in brain.health_runs]
    assert runs == [("in float32", False), ("in half precision", False)]
    double = rx.inspect(plain(kind="double"), health=True).health[1]
    assert (double.converted, double.largest > 1e150) == (False, True)


@pytest.mark.parametrize(
    ("epsilon", "scale", "cure", "keeps"),
    [("0.001", "1", UPCAST, True), ("0", "1", EPSILON, False), ("1e-8", "1", EPSILON, False),
     ("0.001", "60000", BRAIN, False)],
)  # fmt: skip
def test_a_cure_is_named_where_it_cures_the_file(
    epsilon: str, scale: str, cure: str, keeps: bool
) -> None:
    """Of rows of zeros, too, which an epsilon that is stored as 0 leaves without a number."""
    source = plain(epsilon, scale)
    norm = rx.inspect(source, health=True).health[1]
    assert (norm.cure, bool(norm.keep), norm.fails) == (cure, keeps, True)
    session = open_session(rx.optimize(source, numerics="upcast").to_bytes(), threads=1)
    rows = np.array([[0, 0, 0, 0], [300, 300, 300, 300], [300, 0, 0, 0]], np.float16)
    result = run_session(session, {"x": rows, "r": np.zeros_like(rows)})["y"]
    assert np.isfinite(result).all() == (cure == UPCAST)


@pytest.mark.parametrize("target", ["portable", "onnx", "ort", "plain"])
@pytest.mark.parametrize("epsilon", ["inside", "outside", "clamp"])
def test_a_cure_is_one_of_the_target_that_was_asked_for(epsilon: str, target: Target) -> None:
    spelling, frame = single("epsilon", epsilon)
    source = build(spelling, dataclasses.replace(frame, dtype="float16")).model
    (norm,) = rx.inspect(source, target=target, health=True).health
    apart = epsilon != "inside" and target in ("onnx", "ort")
    assert norm.cure == (f"--target portable {UPCAST}" if apart else UPCAST)
    for one in {target, "portable"}:
        refused = rx.optimize(source, target=one, numerics="upcast").report.refused
        assert bool(refused) == (apart and one == target)


@pytest.mark.parametrize("target", ["portable", "onnx", "ort", "plain"])
def test_one_line_warns_where_a_norm_squares_in_float16(target: str) -> None:
    """It stays so unless upcast is allowed, whatever the target can say."""
    words = "squares in float16 overflow above 255: 1 norm"
    before = rx.optimize(plain(), target=target).report
    assert sum(note.startswith(words) for note in before.notes) == 1
    after = rx.optimize(plain(), target=target, numerics="upcast").report
    assert not any(words in note for note in after.notes)
    wide = rx.optimize(plain(kind="float"), target=target).report
    assert not any("float16" in note for note in wide.notes)


@pytest.mark.parametrize(
    ("target", "numerics", "limit"),
    [("portable", "exact", 255), ("portable", "upcast", END), ("onnx", "upcast", END),
     ("ort", "upcast", END), ("plain", "upcast", END)],
)  # fmt: skip
def test_a_norm_that_is_one_node_is_told_the_same(target: str, numerics: str, limit: float) -> None:
    made = rx.optimize(plain(), target=target, numerics=numerics)
    added, norm = rx.inspect(made.model, health=True).health
    assert (int(norm.largest), added.largest) == (limit, END / 2)
    assert (norm.cure != "") == (limit == 255)
    assert None not in (added.measured, norm.measured)


def test_health_is_shown_as_text_page_and_json() -> None:
    report = rx.inspect(plain("1e-5"), health=True)
    text = to_text(report)
    assert "health: 1 of 2 norms, sums and products need a cure\n" in text
    for words in ("residual sum", "Pow", "subnormal", "--numerics upcast", "p, m{0-2}, v"):
        assert words in text
        assert words in to_html(report)
    assert (
        "in half precision, inputs: random, seed 0: none of 12 values overflows or is NaN" in text
    )
    assert from_json(report.to_json(), rx.Report) == report
    converted = to_text(rx.inspect(plain(kind="float"), health=True))
    assert "once the model is converted to float16" in converted
    vanished = to_text(rx.inspect(plain("0"), health=True))
    restored = f"cure     {UPCAST} --epsilon 1e-08"
    assert (restored in text, restored in vanished) == (False, True)
    assert not any("overflow above 255" in note for note in report.notes)  # which health says
    assert "health" not in to_text(rx.inspect(plain(kind="float")))


def residual_network(kind: type, factors: list[float], mask: float = 0.0) -> onnx.ModelProto:
    """Layers ``h = h + MatMul(norm(h), w)``, the weights of each multiplied with a factor.

    A mask is added to the input, so that all but the first row of a batch may be infinite.
    """
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    rng, nodes = np.random.default_rng(0), []
    weights = {"two": np.array(2, kind), "epsilon": np.array(1e-5, kind)}
    weights |= {"low": np.array(mask, kind), "none": np.array(0, kind)}
    nodes += [helper.make_node("Where", ["seen", "none", "low"], ["mask"], "mask"),
              helper.make_node("Add", ["x", "mask"], ["h0"], "masked")]  # fmt: skip
    for i, factor in enumerate(factors):
        weights[f"w{i}"] = (factor * rng.uniform(0.5, 1, (8, 8))).astype(kind)
        steps = (("Pow", f"h{i} two", f"p{i}"), ("ReduceMean", f"p{i}", f"m{i}"),
                 ("Add", f"m{i} epsilon", f"a{i}"), ("Sqrt", f"a{i}", f"s{i}"),
                 ("Div", f"h{i} s{i}", f"norm{i}"), ("MatMul", f"norm{i} w{i}", f"o{i}"),
                 ("Add", f"h{i} o{i}", f"h{i + 1}"))  # fmt: skip
        for op, reads, makes in steps:
            axes = {"axes": [-1]} if op == "ReduceMean" else {}
            nodes.append(helper.make_node(op, reads.split(), [makes], makes, **axes))
    rows = helper.make_tensor_value_info("x", dtype, ["n", 8])
    seen = helper.make_tensor_value_info("seen", TensorProto.BOOL, ["n", 1])
    end = helper.make_tensor_value_info(f"h{len(factors)}", dtype, ["n", 8])
    stored = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", [rows, seen], [end], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@sampled(
    "place, kind",
    [(place, kind) for place in range(10) for kind in (np.float16, np.float32)],
    {(2, np.float16), (9, np.float32)},
)
def test_the_first_overflow_is_named(place: int, kind: type) -> None:
    """In a norm's square, a product and a sum."""
    feeds = {"x": np.ones((2, 8), kind), "seen": np.ones((2, 1), bool)}
    none = [0.1] * 12
    quiet = rx.inspect(residual_network(kind, none), health=True, inputs=feeds)
    assert {(run.tensor, run.inputs) for run in quiet.health_runs} == {("", "given arrays")}
    assert to_text(quiet).count("overflows or is NaN") == 2
    cases = {  # weights of which layers -> operator and tensor of the first overflow
        ("Pow", f"p{place + 1}"): {place: 100.0},  # rows near 700
        ("MatMul", f"o{place}"): {place: 60000.0},
        ("Add", f"h{place + 2}"): {place: 7000.0, place + 1: 7000.0},
    }
    for (op, tensor), factors in cases.items():
        model = residual_network(kind, [factors.get(i, one) for i, one in enumerate(none)])
        if op == "Add":  # of such rows an operator alone survives the squares
            model = rx.optimize(model, target="onnx", numerics="upcast").model
        report = rx.inspect(model, health=True, inputs=feeds)
        *runs, cured = report.health_runs
        assert [run.computed for run in runs] == ["in float32", "in half precision"]
        for run in runs:
            assert (run.op, run.tensor) == (op, tensor)
            assert (run.size > END, run.odd > 0) == (True, True)
        assert (cured.computed, cured.odd, cured.tensor) == ("with the cures", 0, "")
        assert from_json(report.to_json(), rx.Report) == report
        sums = [one for one in report.health if one.kind == "residual sum"]
        assert [one.cure == KEEP for one in sums] == [one.measured > END for one in sums]
        assert [one.keep for one in sums if one.cure] == [(one.site,) for one in sums if one.cure]
        assert any(one.beyond for one in report.health)
    assert "the first: " in to_html(report)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_a_mask_of_infinities_is_no_overflow(kind: type) -> None:
    feeds = {"x": np.ones((2, 8), kind), "seen": np.array([[True], [False]])}
    for low in (-np.inf, float(np.finfo(kind).min)):
        model = residual_network(kind, [0.1, 0.1], low)
        for run in rx.inspect(model, health=True, inputs=feeds).health_runs:
            assert run.node not in ("mask", "masked")


def test_what_is_said_has_names_of_the_file() -> None:
    """A weight that float16 does not hold is rounded by a node that no file has."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]> g (float[2, 4] x) => (float[2, 4] y)
        <float[4] w = {1e6, 1, 1, 1}> { y = Mul (x, w) }""")
    sites = rx.inspect(model, health=True).health
    assert [one.keep for one in sites] == [("w",), ("y",)]
    assert sites[0].site == "w"


def test_inputs_of_a_run(tmp_path: Path) -> None:
    model = residual_network(np.float32, [0.1])
    drawn = rx.inspect(model, health=True).health_runs[0]
    assert drawn.inputs == "random, seed 0"
    np.savez(tmp_path / "x.npz", x=np.ones((2, 8), np.float32), seen=np.ones((2, 1), bool))
    read = rx.inspect(model, inputs=tmp_path / "x.npz").health_runs[0]
    assert (read.tensor, read.inputs) == ("", str(tmp_path / "x.npz"))
    empty = {"x": np.ones((0, 8), np.float32), "seen": np.ones((0, 1), bool)}
    assert {one.measured for one in rx.inspect(model, inputs=empty).health} == {0.0}
    with pytest.raises(rx.InputError):
        rx.inspect(model, health=True, inputs={"x": np.ones((2, 8), np.float32)})


@pytest.mark.parametrize("kind", ["float16", "float"])
def test_norms_in_functions_branches_and_loops_are_measured(kind: str) -> None:
    rows, e = f"{kind}[2, 4]", "1" if kind == "float16" else "0.001"
    norm = """r = Add (z, z) p = Mul (r, r) m = ReduceMean <axes = [-1]> (p)
        a = Add (m, e) s = Sqrt (a) y = Div (r, s)"""
    function = f"""<domain: "own", opset_import: ["" : 17]> norm (z, e) => (y) {{ {norm} }}"""
    branch = f"""y = If (c) <then_branch = one () => ({rows} y) {{ {norm} }},
        else_branch = other () => ({rows} y) {{ y = Identity (z) }}>"""
    loop = f"""y, all = Loop (n, c, z) <body = round (int64 i, bool on, {rows} before)
        => (bool on, {rows} after, {rows} y) {{ {norm} after = Add (before, y) }}>"""
    calls = {"y = own.norm (z, e)": (True, True), branch: (True, False), loop: (True, False)}
    for call, ran in calls.items():
        model = onnx.parser.parse_model(
            f"""<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
            g ({rows} z, bool c, int64 n) => ({rows} y) <{kind} e = {{{e}}}> {{ {call} }}
            {function}"""
        )
        for taken in (True, False):
            z = np.full((2, 4), 200, np.float16 if kind == "float16" else np.float32)
            report = rx.inspect(model, inputs={"z": z, "c": np.array(taken), "n": np.array(2)})
            here = ran[0] if taken else ran[1]
            assert [one.measured for one in report.health] == [400.0 * here] * 2
            assert {run.op for run in report.health_runs[:2]} == {"Mul" if here else ""}
            assert [run.odd for run in report.health_runs[2:]] == [0] * here
