"""The rotary embedding behind a norm per head is taken into its node where that is asked for."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper

import rmsnorm_export as rx
from rmsnorm_export.proof.prove import prove_site
from rmsnorm_export.proof.site import Proving
from rmsnorm_export.rewrite.options import OptimizeOptions
from rmsnorm_export.rewrite.plan import plan_rewrite
from rmsnorm_export.show import to_text
from tests.tools.tables import table

D = 8
NORM = """{wide}sq = Pow({f}, two)
 m = ReduceMean<axes = [-1], keepdims = 1>(sq)
 e = Add(m, eps)
 s = Sqrt(e)
 n = Div({f}, s)
 {back}y = Mul({n}, w)
 """
SPELLINGS: dict[str, Any] = table(__file__)
CONSTANTS = (
    "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two_i = {2}, int64[1] mid = {4}, "
    "int64[1] eight = {8}, int64[1] end = {9223372036854775807}, int64[1] last = {-1}, "
    "int64[4] flat = {0, 0, 0, 8}, int64[5] cut = {0, 0, 0, 4, 2}, int64[2] parts = {6, 2}, "
    "int64[5] halves = {0, 0, 0, 2, 4}, int64 zero_s = {0}, int64 one_s = {1}, "
    "float two = {2}, float eps = {0.00001}"
)
TYPES = ("float", "float16", "bfloat16")
NUMPY = {"float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
CODES = {"float": 1, "float16": 10, "bfloat16": 16}


def model(
    spelling: str, *, dtype: str = "float", tables: str = "",
    moved: bool = False, shape: str = "B,1,S", more: str = "",
) -> onnx.ModelProto:  # fmt: skip
    """A norm and its embedding; ``tables``: their type, in which the embedding is computed;
    ``moved``: the norm stands in front of the Transpose of the heads; ``shape``: of the tables;
    ``more``: nodes at the end."""
    body, width = SPELLINGS[spelling]["nodes"], SPELLINGS[spelling]["width"]
    half = dtype != "float"
    text = NORM.format(
        wide="f = Cast<to = 1>(x)\n " if half else "", f="f" if half else "x",
        back=f"t = Cast<to = {CODES[dtype]}>(n)\n " if half else "", n="t" if half else "n",
    )  # fmt: skip
    if tables:
        text = text.replace("y = Mul", "yt = Mul")
        body = f"y = Cast<to = 1>(yt)\n {body.replace('z =', 'zt =')}\n "
        body += f"z = Cast<to = {CODES[dtype]}>(zt)"
    if moved:
        name = "yt" if tables else "y"
        text = text.replace(f"{name} = Mul", "ym = Mul")
        text += f"{name} = Transpose<perm = [0, 2, 1, 3]>(ym)\n "
    axes = "B,S,H,8" if moved else "B,H,S,8"
    kind = tables or dtype
    made = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]>\n'
        f"g ({dtype}[{axes}] x, {kind}[{shape},{width}] cos, {kind}[{shape},{width}] sin) "
        f"=> ({dtype}[B,H,S,8] z{', ' + dtype + '[B,H,S,8] out' if more else ''})\n"
        f"<{CONSTANTS}>\n{{ {text}{body}\n {more} }}"
    )
    weight = np.linspace(0.5, 1.5, D).astype(NUMPY[dtype])
    made.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return onnx.shape_inference.infer_shapes(made)


def run(source: onnx.ModelProto | bytes) -> list[np.ndarray]:
    """In ONNX Runtime, on tables that are no cosines."""
    content = source if isinstance(source, bytes) else source.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    rng, sizes, feeds = np.random.default_rng(1), {"B": 2, "H": 3, "S": 5}, {}
    for one in session.get_inputs():
        dtype = np.float16 if "16" in one.type else np.float32
        feeds[one.name] = rng.standard_normal([sizes.get(d, d) for d in one.shape]).astype(dtype)
    return [np.asarray(result, np.float64) for result in session.run(None, feeds)]


def folded(source: onnx.ModelProto, **options: object) -> rx.Result:
    return rx.optimize(source, fold_rotary=True, prove=True, **options)


def _plain_and_thorough(spellings: list[str]) -> list[object]:
    """Each spelling once by itself, in types and places that take turns; the rest is thorough."""
    cases = [(dtype, moved) for dtype in TYPES for moved in (False, True)]
    return [
        pytest.param(spelling, *case, marks=() if (i - j) % 6 == 0 else pytest.mark.thorough)
        for i, spelling in enumerate(spellings)
        for j, case in enumerate(cases)
    ]


@pytest.mark.parametrize(("spelling", "dtype", "moved"), _plain_and_thorough(list(SPELLINGS)))
def test_every_spelling_is_one_node_with_the_numbers_of_the_source(spelling, dtype, moved) -> None:
    for tables in ("", "float")[: 1 + (dtype != "float")]:
        source = model(spelling, dtype=dtype, tables=tables, moved=moved)
        result = folded(source)
        (site,) = result.report.fused
        assert (site.op, site.numerics, site.rotary) == ("RotaryRMSNorm", "exact", True)
        assert site.attributes == SPELLINGS[spelling]["attributes"]
        assert site.proof.passed
        types = [node.op_type for node in result.model.graph]
        assert types == [*(["Transpose"] if moved else []), "RotaryRMSNorm"]
        assert "1 of 1 rotary embedding" in result.report.headline()
        if dtype == "float":
            (before,), (after,) = run(source), run(result.to_bytes())
            np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


def test_a_proof_finds_a_wrong_turn() -> None:
    source = ir.from_proto(model("halves"))
    plan = plan_rewrite(source, OptimizeOptions(target="portable", fold_rotary=True))
    (site,) = plan.sites
    proving = Proving(plan.types, dict(source.opset_imports))
    assert prove_site(site.part, site, proving).passed
    (node,) = site.nodes
    cos, sin = (list(node.inputs).index(v) for v in (site.part.cos, site.part.sin))
    node.replace_input_with(cos, site.part.sin)
    node.replace_input_with(sin, site.part.cos)
    proof = prove_site(site.part, site, proving)
    assert proof.reason.startswith("mathematics: the new nodes are not this norm")


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_targets_without_the_operator_keep_the_embedding(target: str) -> None:
    report = rx.optimize(model("halves"), target=target, fold_rotary=True).report
    assert report.headline() == "1 of 1 RMSNorm, 0 of 1 rotary embedding are one node"
    assert [(r.reason, r.kind) for r in report.unfolded] == [("rotary", "rotary")]


@pytest.mark.parametrize(
    ("options", "op"),
    [({}, "RMSNorm"), ({"runtime": "tensorrt"}, "RotaryRMSNorm"),
     ({"runtime": "tensorrt-rtx"}, "RotaryRMSNorm"),
     ({"runtime": "tensorrt", "fold_rotary": False}, "RMSNorm")],
)  # fmt: skip
def test_it_is_off_but_for_tensorrt(options, op: str) -> None:
    assert [site.op for site in rx.optimize(model("halves"), **options).report.fused] == [op]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"more": "out = Neg(y)"}, "others read"), ({"more": "out = Identity(r)"}, "others read"),
     # The result could have more rows than the norm.
     ({"shape": "K,L,S"}, "not known to fit"), ({"shape": "K,1,S"}, "not known to fit")],
)  # fmt: skip
def test_what_keeps_the_embedding_is_told(options: dict[str, str], words: str) -> None:
    report = folded(model("halves", **options)).report
    assert [site.op for site in report.fused] == ["RMSNorm"]
    (kept,) = report.unfolded
    assert (kept.reason, kept.kind) == ("rotary-kept", "rotary")
    assert words in kept.message
    assert "rotary embeddings (1): nodes after a norm" in to_text(report)
