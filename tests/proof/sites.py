"""Sites written by hand: source graphs in ONNX's text form, their Match, and replacements."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.lower.lower import Lowered
from rmsnorm_export.op.dtypes import numpy_dtype
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import BFLOAT16, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.proof.prove import prove_site
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.proof.site import Proving
from rmsnorm_export.recognize.match import Match
from rmsnorm_export.recognize.types import Types

NAMES = {FLOAT: "float", FLOAT16: "float16", DOUBLE: "double", BFLOAT16: "bfloat16"}
F32_EPSILON = float(np.float32(1e-6))
SPEC = NormSpec(epsilon=F32_EPSILON)
GEMMA_SPEC = dataclasses.replace(SPEC, scale_before_cast=True)

CORE = """
  p = Pow ({row}, two)
  m = ReduceMean <keepdims = 1> (p, axes)
  a = Add (m, epsilon)
  s = Sqrt (a)
  r = Reciprocal (s)
  v = Mul ({row}, r)
"""
PLAIN = "{core}\n  y = Mul (v, w)"
LLAMA = "{core}\n  vh = Cast <to = {dtype}> (v)\n  y = Mul (w, vh)"
GEMMA = "{core}\n  wf = Cast <to = 1> (w)\n  yf = Mul (v, wf)\n  y = Cast <to = {dtype}> (yf)"
ROOT = "  a = Add (m, epsilon)\n  s = Sqrt (a)\n"
TAIL = ROOT + "  v = Div (x, s)\n  y = Mul (v, w)\n"
OFFSET = "  one = Constant <value_float = 1.0> ()\n  g = Add (w, one)\n"
CONSTANTS = """  two = Constant <value_float = 2.0> ()
  axes = Constant <value_ints = [-1]> ()
  epsilon = Constant <value_float = 0.000001> ()"""
ORDERS: dict[str, tuple[str, int, NormSpec]] = {
    "float": (PLAIN, FLOAT, SPEC),
    "float16 LLaMA": (LLAMA, FLOAT16, SPEC),
    "float16 Gemma": (GEMMA, FLOAT16, GEMMA_SPEC),
    "bfloat16 LLaMA": (LLAMA, BFLOAT16, SPEC),
}
NORM = "SimplifiedLayerNormalization <axis = -1, epsilon = 0.000001>"
ROLES = {"x": "x", "w": "scale", "b": "bias", "h": "residual", "z": "gate", "y": "output",
         "t": "sum"}  # fmt: skip
"""Names in the texts, and what they are in a match."""
OUTPUTS = ("y", "t")


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
    body = body.replace("{core}", CORE).replace("{dtype}", str(dtype)).replace("{norm}", NORM)
    body = body.replace("{row}", row or ("x" if dtype == stash else "xf"))
    types = dict.fromkeys("wb", f"{w}[{n}]")
    arguments, results = (
        ", ".join(f"{types.get(name, f'{t}[{shape}, {n}]')} {name}" for name in names)
        for names in (inputs, outputs)
    )
    text = (
        f'<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>\n'
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
    """Every value by name."""
    return ir.convenience.create_value_mapping(model.graph)


def match_of(model: ir.Model, spec: NormSpec = SPEC, dtype: int = FLOAT, *, n: int = 96) -> Match:
    """The match whose roles have the names of ``ROLES``."""
    named = values(model)
    roles: Any = {role: named.get(name) for name, role in ROLES.items()}
    rank, nodes = len(named["x"].shape or ()), tuple(model.graph)
    return Match(
        spec=spec, **roles, dtype=dtype, offset_scale=named.get("w"), n=n, rank=rank, nodes=nodes
    )


def site(body: str, spec: NormSpec = SPEC, *, n: int = 96, **arguments: Any) -> Match:
    """The match of a source."""
    return match_of(source(body, n=n, **arguments), spec, arguments.get("dtype", FLOAT), n=n)


def site_of(order: str, n: int = 96) -> Match:
    """The match of one of ``ORDERS``."""
    body, dtype, spec = ORDERS[order]
    return site(body, spec, dtype=dtype, n=n)


def written(match: Match, body: str, numerics: Numerics = "exact", **arguments: Any) -> Lowered:
    """The site as the nodes of ``body``, which names values as the source does."""
    min_opset = 23 if "RMSNormalization" in body else 0
    old = {name: value for name, role in ROLES.items() if (value := getattr(match, role))}
    inputs = [name for name in old if name not in OUTPUTS]
    model = source(body, inputs=inputs, **{"row": "x", "dtype": match.dtype, **arguments})
    named = values(model)
    for value in model.graph.inputs:
        value.replace_all_uses_with(old[value.name or ""])
    pairs = [(old[name], named[name]) for name in OUTPUTS if name in old]
    stored = list(model.graph.initializers.values())
    return Lowered(tuple(model.graph), pairs, numerics, match, stored, min_opset=min_opset)


def one_node(match: Match, op: str = NORM, numerics: Numerics = "exact") -> Lowered:
    """The site as one node."""
    scaled = "x, w" if match.scale is not None else "x"
    return written(match, f"  y = {op} ({scaled})", numerics)


def prove(match: Match, lowered: Lowered, stored_scale: np.ndarray | None = None) -> Proof:
    """``prove_site`` with the imports of the models made here; the scale as if it was stored."""
    model = ir.Model(match.nodes[-1].graph, ir_version=10)
    proving = Proving(Types(model), {"": 18, "com.microsoft": 1})
    if stored_scale is not None and match.scale is not None:
        match.scale.const_value = ir.tensor(stored_scale)
    return prove_site(match, lowered, proving)
