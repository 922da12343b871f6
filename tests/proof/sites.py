"""Sites written by hand: source graphs in ONNX's text form, their Match, and replacements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.dtypes import numpy_dtype
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.proof.prove import prove_site
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.proof.site import Proving
from rmsnorm_export.recognize.consts import Constants
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.types import Types

NAMES = {FLOAT: "float", FLOAT16: "float16", DOUBLE: "double", BFLOAT16: "bfloat16"}
F32_EPSILON = float(np.float32(1e-6))

CORE = """
  p = Pow ({row}, two)
  m = ReduceMean <keepdims = 1> (p, axes)
  a = Add (m, epsilon)
  s = Sqrt (a)
  r = Reciprocal (s)
  v = Mul ({row}, r)
"""

LLAMA = "{core}\n  vh = Cast <to = {dtype}> (v)\n  y = Mul (w, vh)"
GEMMA = "{core}\n  wf = Cast <to = 1> (w)\n  yf = Mul (v, wf)\n  y = Cast <to = {dtype}> (yf)"


def source(
    body: str,
    *,
    dtype: int = FLOAT,
    stash: int = FLOAT,
    n: int = 96,
    epsilon: float = 1e-6,
    inputs: Sequence[str] = ("x", "w"),
    outputs: Sequence[str] = ("y",),
    shape: str = "B, S",
    extra: str = "",
    weight: int | None = None,
    row: str = "",
) -> ir.Model:
    """A model around ``body``; ``{core}`` in it is the usual chain from ``row`` to ``v``.

    ``row`` is x, or x cast to the stash type where that differs.
    """
    t, w = NAMES[dtype], NAMES[weight or dtype]
    if not row and dtype != stash:
        body = f"  xf = Cast <to = {stash}> (x)\n" + body
    body = body.replace("{core}", CORE).replace("{dtype}", str(dtype))
    body = body.replace("{row}", row or ("x" if dtype == stash else "xf"))
    arguments = ", ".join(
        f"{w}[{n}] {name}" if name in ("w", "b") else f"{t}[{shape}, {n}] {name}" for name in inputs
    )
    results = ", ".join(f"{t}[{shape}, {n}] {name}" for name in outputs)
    text = (
        f'<ir_version: 10, opset_import: ["" : 18]>\n'
        f"site ({arguments}) => ({results})\n"
        f"< float two = {{2.0}}, int64[1] axes = {{-1}}, float epsilon = {{{epsilon}}}{extra} >\n"
        f"{{\n{body}\n}}"
    )
    model = ir.from_onnx_text(text)
    for name, number in (("two", 2.0), ("epsilon", epsilon)):
        constant = model.graph.initializers[name]
        constant.const_value = ir.tensor(np.asarray(number, dtype=numpy_dtype(stash)), name=name)
        constant.dtype = ir.DataType(stash)
    return model


def values(model: ir.Model) -> dict[str, ir.Value]:
    """Every value of the main graph by name."""
    graph = model.graph
    found = {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
    for node in graph:
        found.update({value.name: value for value in node.outputs})
    return {name: value for name, value in found.items() if name}


def match_of(model: ir.Model, spec: NormSpec, dtype: int = FLOAT, *, n: int = 96) -> Match:
    """The match whose roles have the names x, w, b, h (residual), z (gate), y and t (sum)."""
    named = values(model)
    return Match(
        spec=spec,
        x=named["x"],
        output=named["y"],
        dtype=dtype,
        scale=named.get("w"),
        offset_scale=named.get("w"),
        bias=named.get("b"),
        residual=named.get("h"),
        gate=named.get("z"),
        sum=named.get("t"),
        n=n,
        rank=len(named["x"].shape or ()),
        nodes=tuple(model.graph),
    )


def one_node(
    match: Match,
    op_type: str,
    *,
    domain: str = "",
    numerics: Numerics = "exact",
    inputs: Sequence[ir.Value | None] | None = None,
    functions: Sequence[ir.Function] = (),
    min_opset: int = 0,
    outputs: int = 1,
    **attributes: float,
) -> Lowered:
    """The site as one node; the first output replaces y, the last one the sum, if there is one."""
    chosen = (match.x, match.residual, match.gate, match.scale, match.bias)
    given = [value for value in chosen if value is not None] if inputs is None else inputs
    results = [ir.Value(name=f"new_{index}") for index in range(outputs)]
    for result in results[1:-1]:
        result.name = ""
    node = ir.node(
        op_type, given, attributes=attributes, domain=domain, outputs=results, name="new"
    )
    replace = [(match.output, results[0])]
    if match.sum is not None:
        replace.append((match.sum, results[-1]))
    return Lowered([node], replace, numerics, match, functions=functions, min_opset=min_opset)


def prove(
    match: Match,
    lowered: Lowered,
    *,
    opset: int = 18,
    numerics: Numerics | None = None,
    stored_scale: np.ndarray | None = None,
    functions: Sequence[ir.Function] = (),
    kernels: str | None = None,
) -> Proof:
    """``prove_site`` with the imports of the models made here."""
    model = ir.Model(match.nodes[-1].graph, ir_version=10)
    imports = {"": opset, "com.microsoft": 1}
    proving = Proving(Types(model, Constants()), imports, functions, kernels=kernels)
    return prove_site(
        match, lowered, proving, numerics=numerics or lowered.numerics, stored_scale=stored_scale
    )
