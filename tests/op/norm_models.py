"""Models of one norm, made on the spot, and how to run them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from rmsnorm_export.op.body import build_function
from rmsnorm_export.op.body_key import BodyKey, assign_bodies, body_key
from rmsnorm_export.op.dtypes import element_type, numpy_dtype, round_to
from rmsnorm_export.op.operands import row_shape
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.op.spec import BFLOAT16, DOMAIN, DOUBLE, FLOAT, FLOAT16, NormSpec
from rmsnorm_export.runtime.metrics import ulp_distance
from rmsnorm_export.runtime.session import session_options
from tests.tools.variants import VARIANTS

steps = ulp_distance
"""Distance in representable numbers, elementwise; NaN equals NaN and no number."""

ORDER = ("x", "residual", "gate", "cos", "sin", "scale", "bias")


@dataclasses.dataclass(frozen=True)
class Case:
    """One norm on one kind of input."""

    spec: NormSpec
    dtype: int
    scale_dtype: int | None = None
    bias_dtype: int | None = None
    shape: tuple[int, ...] = (3, 5, 24)
    table_dtype: int | None = None
    tables: tuple[int, ...] = ()

    def key(self, opset: int) -> BodyKey:
        return body_key(
            self.spec,
            dtype=self.dtype,
            scale_dtype=self.scale_dtype,
            bias_dtype=self.bias_dtype,
            opset=opset,
            table_dtype=self.table_dtype,
            half_table=self.tables[-1:] not in ((), (self.spec.rotary_dim or self.shape[-1],)),
        )

    @functools.cache  # noqa: B019 (a case is one of a few hundred that live as long as the tests)
    def operands(self) -> dict[str, np.ndarray]:
        """Return inputs by name."""
        rng = np.random.default_rng(0)
        shape = self.shape
        row = own = row_shape(self.spec, shape)
        if self.spec.scale_varies:
            own = (shape[-2], 1)
        drawn = {
            "x": (self.dtype, shape, 1.0),
            "residual": (self.dtype if self.spec.kind == "SkipRMSNorm" else None, shape, 1.0),
            "gate": (self.dtype if self.spec.kind == "GatedRMSNorm" else None, shape, 2.0),
            "cos": (self.table_dtype, self.tables, 0.7),
            "sin": (self.table_dtype, self.tables, 0.7),
            "scale": (self.scale_dtype, own, 0.5),
            "bias": (self.bias_dtype, row, 0.5),
        }
        return {
            name: round_to(rng.normal(size=size) * spread, dtype).astype(numpy_dtype(dtype))
            for name, (dtype, size, spread) in drawn.items()
            if dtype is not None
        }


@functools.cache  # many tests look at the model of all cases
def model(
    cases: tuple[Case, ...], opset: int, *, weights: bool = False, separate: bool = False
) -> onnx.ModelProto:
    """Return independent norms in one model; names of values end with the index of the case.

    ``weights``: scale and bias are initializers (as in real models), else graph inputs.
    ``separate``: every case has the smallest body that serves it, instead of a shared one.
    """
    inputs, outputs, nodes, stored = [], [], [], []
    keys = [case.key(opset) for case in cases]
    bodies = [(f"{key.kind}_{index}", key) for index, key in enumerate(keys)]
    bodies = bodies if separate else assign_bodies(keys)
    for index, (case, (name, key)) in enumerate(zip(cases, bodies, strict=True)):
        own = case.operands()
        row, scale, bias = row_shape(case.spec, case.shape), key.scale_type, key.product_type
        filled = {"scale": np.ones(row, numpy_dtype(scale(case.dtype)))} if key.has_scale else {}
        filled |= {"bias": np.zeros(row, numpy_dtype(bias(case.dtype)))} if key.has_bias else {}
        arrays = {n: (filled | own)[n] for n in ORDER if n in filled | own}
        for operand, array in arrays.items():
            if operand in ORDER[-2:] and (weights or operand not in own):
                stored.append(onnx.numpy_helper.from_array(array, f"{operand}{index}"))
            else:
                inputs.append(_declared(f"{operand}{index}", array))
        results = [f"y{index}", f"sum{index}"][: 2 if case.spec.kind == "SkipRMSNorm" else 1]
        outputs += [_declared(result, own["x"]) for result in results]
        names = [f"{operand}{index}" for operand in arrays]
        attributes = {**case.spec.attributes(), "domain": DOMAIN}
        nodes.append(onnx.helper.make_node(name, names, results, **attributes))
    functions = [build_function(name, key, opset) for name, key in dict(bodies).items()]
    return onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "norms", inputs, outputs, stored),
        functions=[ir.serde.serialize_function(function) for function in functions],
        opset_imports=[onnx.helper.make_opsetid(*i) for i in (("", opset), (DOMAIN, 1))],
        ir_version=8 if opset < 21 else 10,
    )


def _declared(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, element_type(array.dtype), array.shape)


def feeds(cases: Sequence[Case], proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    names = {value.name for value in proto.graph.input}
    return {
        f"{name}{index}": array
        for index, case in enumerate(cases)
        for name, array in case.operands().items()
        if f"{name}{index}" in names
    }


def optimized_ops(proto: onnx.ModelProto, folder: Path) -> list[str]:
    """Return the operator types of the graph that ONNX Runtime makes of the model by default."""
    options = session_options(optimize=True, threads=1)
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


def reference(case: Case, operands: dict[str, np.ndarray]) -> tuple:
    """Return the reference's outputs, always as a tuple."""
    result = reference_exact(case.spec, **operands)
    return result if isinstance(result, tuple) else (result,)


FORMS: dict[str, dict] = VARIANTS["op"]


def _tables(spec: NormSpec, dtype: int) -> list[tuple[int | None, tuple[int, ...]]]:
    """Types and shapes of the tables: for each element or pair, some broadcast."""
    if spec.kind != "RotaryRMSNorm":
        return [(None, ())]
    size = spec.rotary_dim or 24
    wide = FLOAT if dtype in (FLOAT16, BFLOAT16) else dtype
    return [(dtype, (5, size)), (wide, (3, 1, size // 2))]


def variants() -> tuple[Case, ...]:
    """Every form in every type, stash type and rounding order, with the operands that matter."""
    cases: list[Case] = []
    for dtype in (FLOAT, FLOAT16, DOUBLE, BFLOAT16):
        other = FLOAT if dtype != FLOAT else FLOAT16
        for stash in dict.fromkeys((FLOAT, dtype)):
            for before in (False, True) if stash != dtype else (False,):
                for form, attributes in FORMS.items():
                    if attributes.get("round_rstd") and (before or stash == dtype):
                        continue
                    spec = NormSpec(stash_type=stash, scale_before_cast=before, **attributes)
                    operands = [(dtype, None), (other, dtype)][spec.kind == "RotaryRMSNorm" :]
                    if form in ("plain", "skip", "gated"):
                        operands += [(None, None), (None, other), (dtype, dtype)]
                    cases += [
                        Case(spec, dtype, scale, bias, table_dtype=table, tables=sizes)
                        for scale, bias in operands
                        for table, sizes in _tables(spec, dtype)
                    ]
    in_double = NormSpec(stash_type=DOUBLE, epsilon=1e-6)
    odd_offset = dataclasses.replace(in_double, scale_offset=0.1)
    return *cases, Case(in_double, FLOAT, FLOAT), Case(odd_offset, DOUBLE, DOUBLE)
