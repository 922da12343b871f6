"""The table of ONNX Runtime's CUDA provider, in the provider itself on a stand-in for CUDA.

The stand-in computes nothing: what is tested is which nodes the provider takes, and which kernels
it launches. ``scripts/test --thorough`` installs the versions, of 200 to 300 MB each.
"""

from __future__ import annotations

import re

import onnx
import pytest
from onnx import TensorProto, helper

import rmsnorm_export as rx
from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.op.native import RMS_NORMALIZATION, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.runtime.consumers import CUDA_PROVIDERS, CudaProvider, consumer
from tests.proof.sites import LLAMA, source
from tests.tools.cuda.provider import Inputs, Outcome, Provider
from tests.tools.runtimes.measure import INSTALL
from tests.tools.runtimes.models import operator_tests

GPU = "onnxruntime-gpu"
TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
VERSIONS = [(row, version) for row in CUDA_PROVIDERS for version in row.seen]
every_version = pytest.mark.parametrize(
    ("row", "version"), VERSIONS, ids=[version for _, version in VERSIONS]
)


def _node(operator: str, dtype: int, n: int, opset: int) -> tuple[onnx.ModelProto, Inputs]:
    names = ["x", "r", "w"] if operator == SKIP_SIMPLIFIED else ["x", "w"]
    inputs = [(name, dtype, [n] if name == "w" else [3, n]) for name in names]
    domain = "com.microsoft" if operator == SKIP_SIMPLIFIED else ""
    node = helper.make_node(operator, names, ["y"], domain=domain, epsilon=1e-3)
    ends = [helper.make_tensor_value_info(*one) for one in (*inputs, ("y", dtype, [3, n]))]
    graph = helper.make_graph([node], "g", ends[:-1], ends[-1:])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8), inputs


def _run(
    version: str, *models: tuple[onnx.ModelProto, Inputs], runs: int = 1, **request: object
) -> list[Outcome]:
    provider = Provider(version)
    if problem := provider.install():
        pytest.skip(f"{GPU} {version}: {problem}; with a network, {INSTALL}")
    return provider.run(models, runs=runs, **request)


@pytest.mark.thorough
@every_version
def test_norms_run_on_the_device_as_the_table_says(row: CudaProvider, version: str) -> None:
    limits = consumer(f"{GPU}@{version}")
    cases = [
        (operator, dtype, n)
        for operator in (SIMPLIFIED, SKIP_SIMPLIFIED, RMS_NORMALIZATION)
        for dtype in TYPES
        for n in (1, 2, 4096)
        if operator in limits.forms
    ]
    opsets = {RMS_NORMALIZATION: 23}
    models = [_node(*case, opset=opsets.get(case[0], 17)) for case in cases]
    for case, outcome in zip(cases, _run(version, *models), strict=True):
        operator, dtype, n = case
        if dtype == TensorProto.BFLOAT16:  # Python of 1.18 cannot make its inputs
            assert (outcome.device == "cuda") == (operator in row.bfloat16), (case, outcome)
            continue
        short = n < row.least_row and operator != SKIP_SIMPLIFIED
        assert bool(outcome.error) == short, (case, outcome)
        if short:
            continue
        (kernel,) = outcome.kernels()
        assert outcome.device == "cuda"
        if operator == SKIP_SIMPLIFIED and dtype == TensorProto.FLOAT16:
            # In machine code the half types are squared by HFMA2 where epsilon is of the half
            # type, and by FFMA where it is a float.
            assert bool(re.search(r"_fi+$", kernel)) == row.float32_sums, kernel


OTHER_TYPES = ("OneHot-", "Optional")
"""Operators whose kernels are for types that ONNX's tests of them do not have."""


@pytest.mark.thorough
@every_version
def test_operators_without_a_kernel_are_those_of_the_table(row: CudaProvider, version: str) -> None:
    """By where ONNX's own tests of each operator run; of a row's newest version exactly."""
    models, names, tests = [], [], operator_tests(99)
    for schema in onnx.defs.get_all_schemas_with_history():
        since = schema.since_version
        known = (
            not (schema.domain or schema.deprecated)
            and 7 <= since <= consumer(f"{GPU}@{version}").opset
        )
        for model in tests.get(schema.name, ())[:2] if known else ():
            older = onnx.ModelProto()
            older.CopyFrom(model)
            older.opset_import[0].version, older.ir_version = since, 8
            models.append((older, []))
            names.append(f"{schema.name}-{since}")
    devices: dict[str, set[str]] = {}
    for name, outcome in zip(names, _run(version, *models, runs=0), strict=True):
        if not outcome.error:
            devices.setdefault(name, set()).add(outcome.device)
    assert len(devices) > 200
    lacking, listed = {n for n, on in devices.items() if on == {"cpu"}}, {*row.lacks.split()}
    assert listed & devices.keys() <= lacking
    if version == row.seen[-1]:
        assert not [n for n in lacking - listed if not n.startswith(OTHER_TYPES)]


def test_a_residual_sum_is_in_the_node_where_it_is_squared_in_float32() -> None:
    body = f"  h = Add (x, q)\n  xf = Cast <to = 1> (h)\n{LLAMA}"
    inputs = ("x", "q", "w")
    model = source(body, dtype=TensorProto.FLOAT16, inputs=inputs, outputs=("y", "h"), row="xf")
    report = rx.optimize(model, runtime=f"{GPU}@1.27", prove=True).report
    (site,) = report.fused
    assert (site.op, site.numerics) == (SKIP_SIMPLIFIED, "reordered")
    assert site.proof is not None
    assert site.proof.passed
    for runtime in (f"{GPU}@1.26", "onnxruntime"):
        report = rx.optimize(model, runtime=runtime, numerics="reordered").report
        assert [site.op for site in report.fused] == [SIMPLIFIED]
    (kept,) = rx.optimize(model, runtime=f"{GPU}@1.26", numerics="upcast").report.unfolded
    assert "squares the sum in float16" in kept.found


def test_what_runs_on_the_cpu_is_named() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 22]>
      g (float[2,8] x) => (float[2,8] y) { s = Cos(x) y = Neg(s) }""")
    notes = " ".join(rx.optimize(model, runtime=f"{GPU}@1.23").report.notes)
    assert "no kernel for Cos of opset 22" in notes
    assert "no kernel" not in " ".join(rx.optimize(model, runtime=GPU).report.notes)


CONTROL_FLOW = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
  g (float[2,8] x, bool c) => (float[2,8] y) { y = If (c)
  <then_branch = t () => (float[2,8] a) { a = Neg(x) },
   else_branch = e () => (float[2,8] b) { b = Exp(x) }> }""")


def test_what_keeps_a_graph_from_being_recorded_is_named() -> None:
    for runtime, told in ((GPU, True), ("onnxruntime", False)):
        notes = " ".join(rx.optimize(CONTROL_FLOW, runtime=runtime).report.notes)
        assert ("enable_cuda_graph is refused for control flow" in notes) is told


@pytest.mark.thorough
def test_control_flow_is_not_recorded() -> None:
    inputs = [("x", TensorProto.FLOAT, [2, 8]), ("c", TensorProto.BOOL, [])]
    (outcome,) = _run(VERSIONS[-1][1], (CONTROL_FLOW, inputs), graph=True)
    assert "control flow nodes" in outcome.error


@pytest.mark.parametrize("version", ["1.15", "99", "banana", ""])
def test_a_version_that_was_not_seen_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match="has no such version"):
        consumer(f"{GPU}@{version}")


def test_its_limits_are_those_of_the_engine() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 23]>
      g (float[2,8] x) => (float[2,8] y) { y = RotaryEmbedding(x, x, x) }""")
    with pytest.raises(InputError, match=r"onnxruntime-gpu 1\.18 cannot run"):
        rx.optimize(model, runtime=f"{GPU}@1.18", opset=23)
