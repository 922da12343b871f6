"""Every claim of the table of runtimes, in the runtimes themselves, each in a process of its own.

What this environment has is run always; ``scripts/test --thorough`` installs the others and runs
them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, load, save
from onnx.parser import parse_model
from packaging.version import Version

import rmsnorm_export as rx
from rmsnorm_export.lower.targets import TARGETS
from rmsnorm_export.rewrite.runs import Needs
from rmsnorm_export.runtime.consumers import CONSUMERS, NO_BFLOAT16, Consumer, consumer
from rmsnorm_export.runtime.session import load_session
from rmsnorm_export.runtime.support import FACTS
from tests.sample import one_each
from tests.tools.runtimes import halves, models
from tests.tools.runtimes.measure import CATALOGUE, INSTALL, Installable, run_files

SESSIONS = 30
_OPEN = 2**31 - 1
HALVES = sorted(one_each(halves.LABELS, lambda label: label.split(" | ")[1]))
HALF_BOUND = 0.1
"""Of products of eight numbers up to three, in float16."""
SOME_VERSIONS = ("IsInf", "IsNaN", "Pad")
"""Operators that some versions of ONNX Runtime have in bfloat16, on the CPU."""
Files = dict[str, tuple[Path, Any]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return models.write_files(tmp_path_factory.mktemp("forms"))


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> Installable:
    entry: Installable = request.param
    if problem := entry.install():
        pytest.skip(f"{entry.label}: {problem}; with a network, {INSTALL}")
    return entry


def _parametrized(entries: Sequence[Installable]) -> pytest.MarkDecorator:
    """Those that are installed for it in the thorough run alone."""
    parameters = [
        pytest.param(entry, marks=[pytest.mark.thorough] if entry.packages else [])
        for entry in entries
    ]
    return pytest.mark.parametrize(
        "runtime", parameters, indirect=True, ids=[entry.label for entry in entries]
    )


every_runtime = _parametrized(CATALOGUE)
onnxruntimes = _parametrized([entry for entry in CATALOGUE if entry.runtime == "onnxruntime"])


def _runs(row: Consumer, path: Path) -> bool:
    return not Needs.of(ir.load(path)).refused_by(row)


@every_runtime
def test_the_forms_that_run_are_those_of_the_table(runtime: Installable, files: Files) -> None:
    row = consumer(runtime.label)
    outcomes = run_files(runtime, files, models.feed())
    claimed, ran = {}, {}
    for label, outcome in outcomes.items():
        bound = models.BOUNDS[label.rpartition("-")[2]]
        claimed[label] = _runs(row, files[label][0])
        ran[label] = not outcome.error and max(outcome.off) <= bound
        assert ran[label] or outcome.error, f"{label}: wrong by {max(outcome.off)}"
        if label.startswith(row.target) and outcome.norms is not None:
            assert outcome.norms == models.NORMS, label
    assert ran == claimed


@onnxruntimes
def test_no_session_of_many_is_wrong(runtime: Installable, files: Files) -> None:
    """An output that nobody reads let ONNX Runtime before 1.19 reuse memory that was in use."""
    row = consumer(runtime.label)
    chosen = {
        label: files[label]
        for label in files
        if label.startswith(("ort", "portable")) and _runs(row, files[label][0])
    }
    assert len(chosen) > 2
    for label, outcome in run_files(runtime, chosen, models.feed(), sessions=SESSIONS).items():
        assert not outcome.error
        assert len(outcome.off) == 2 * SESSIONS
        assert max(outcome.off) <= models.BOUNDS[label.rpartition("-")[2]], label


@onnxruntimes
def test_what_is_converted_to_float16_afterwards_is_one_kernel_a_norm(
    runtime: Installable, files: Files, tmp_path: Path
) -> None:
    """ONNX Runtime's converter leaves functions as they are: the body takes both types."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    converted: Files = {}
    for form in ("portable", "ort"):
        source, expected = files[f"{form}-float32"]
        row = consumer(runtime.label)
        # What loses the scale of a float16 node with a residual sum does so with a converted one.
        if _runs(row, source) and (form != "ort" or row.half_sums):
            path = tmp_path / f"{form}.onnx"
            save(convert_float_to_float16(load(source), keep_io_types=True), path)
            converted[form] = (path, expected)
    for form, outcome in run_files(runtime, converted, models.feed()).items():
        assert not outcome.error
        assert max(outcome.off) <= models.BOUNDS["float16"], form
        # Before 1.23 the casts of a float16 row keep the fusion from the function.
        fused = form == "ort" or Version(runtime.version) >= Version("1.23")
        assert outcome.norms == (models.NORMS if fused else 0), form


@every_runtime
def test_the_newest_opset_and_format_are_those_of_the_table(
    runtime: Installable, tmp_path: Path
) -> None:
    row = consumer(runtime.label)
    if not row.opset:
        pytest.skip(f"{runtime.label} sets no limit of its own")
    expected = {f"17, {row.ir}": True, f"17, {row.ir + 1}": False}
    expected |= {f"{row.opset}, 8": True, f"{row.opset + 1}, 8": False}
    identities: Files = {}
    for limit in expected:
        opset, version = map(int, limit.split(", "))
        shape = ",".join(map(str, models.SHAPE))
        text = (
            f'<ir_version: {version}, opset_import: ["" : {opset}]>'
            f" g (float[{shape}] input) => (float[{shape}] output) {{ output = Identity(input) }}"
        )
        path = tmp_path / f"{limit}.onnx"
        save(parse_model(text), path)
        identities[limit] = (path, models.feed())
    outcomes = run_files(runtime, identities, models.feed())
    assert {limit: not outcome.error for limit, outcome in outcomes.items()} == expected


@every_runtime
def test_what_is_written_for_a_runtime_runs_there(
    runtime: Installable, files: Files, tmp_path: Path
) -> None:
    """From a raw file, and from one for another runtime."""
    written: Files = {}
    for label, (source, expected) in files.items():
        if label.startswith(("raw", "portable", "ort")):
            result = rx.optimize(source, runtime=runtime.label)
            assert not result.report.unfused
            assert result.report.target == consumer(runtime.label).target
            written[label] = (result.save(tmp_path / f"{label}.onnx").path, expected)
    for label, outcome in run_files(runtime, written, models.feed()).items():
        assert not outcome.error
        assert max(outcome.off) <= models.BOUNDS[label.rpartition("-")[2]], label
        assert outcome.norms in (None, models.NORMS), label


@onnxruntimes
def test_half_types_load_on_the_cpu_as_the_table_says(runtime: Installable, tmp_path: Path) -> None:
    """Of the operators that load in float32: all in float16, and in bfloat16 those not listed."""
    files: Files = {}
    for operator, tests in models.operator_tests(consumer(runtime.label).opset).items():
        for number, model in enumerate(tests):
            for dtype in models.HALF_TYPES:
                if (typed := models.in_type(model, dtype)) is None:
                    continue
                for label, content in ((f"{dtype}", typed), ("", model)):
                    path = tmp_path / f"{operator}-{number}-{label}.onnx"
                    save(content, path)
                    files[path.stem] = (path, models.feed())
    loads = {k: not v.error for k, v in run_files(runtime, files, models.feed(), runs=0).items()}
    seen: dict[tuple[str, str], list[bool]] = {}
    for label, loaded in loads.items():
        operator, number, dtype = label.split("-")
        if dtype and loads[f"{operator}-{number}-"]:
            seen.setdefault((operator, dtype), []).append(loaded)
    assert len(seen) > 100
    bfloat16 = str(TensorProto.BFLOAT16)
    assert not [
        (operator, dtype)
        for (operator, dtype), answers in seen.items()
        if (operator not in SOME_VERSIONS or dtype != bfloat16)
        and any(answers) == (dtype == bfloat16 and operator in NO_BFLOAT16)
    ]


_KERNELS = """import json
from onnxruntime.capi import onnxruntime_pybind11_state as state
kernels = state.get_all_opkernel_def() if hasattr(state, "get_all_opkernel_def") else ()
print(json.dumps([[one.op_name, *one.version_range] for one in kernels if not one.domain]))"""


@onnxruntimes
def test_operators_without_a_kernel_are_those_of_the_table(runtime: Installable) -> None:
    """A kernel without a last version is of its first alone."""
    folder = {"PYTHONPATH": str(runtime.folder)} if runtime.packages else {}
    command, environment = [sys.executable, "-c", _KERNELS], {**os.environ, **folder}
    listed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    spans: dict[str, list[tuple[int, int]]] = {}
    for operator, first, last in json.loads(listed.stdout):
        spans.setdefault(operator, []).append((first, first if last == _OPEN else last))
    lacking = set()
    for schema in onnx.defs.get_all_schemas_with_history():
        name, since = schema.name, schema.since_version
        tried = 7 <= since <= consumer(runtime.label).opset and name != "Constant"
        defined = schema.has_function or schema.has_context_dependent_function
        if not tried or schema.domain or schema.deprecated or defined:
            continue
        if not any(first <= since <= last for first, last in spans.get(name, ())):
            lacking.add(f"{name}-{since}")
    if not spans:
        pytest.skip(f"{runtime.label} does not list its kernels")
    assert lacking == {*FACTS["operators"][runtime.label]["no kernel"].split()}


def test_every_row_that_says_run_has_a_runtime_that_is_run() -> None:
    tried = {(entry.runtime, entry.version) for entry in CATALOGUE}
    claimed = {(row.name, seen) for row in CONSUMERS if row.evidence == "run" for seen in row.seen}
    assert claimed <= tried


def test_the_bounds_are_below_what_a_wrong_norm_does(files: Files) -> None:
    for label, (_, wanted) in files.items():
        typical = float(np.abs(wanted).mean())
        assert typical > 10 * models.BOUNDS[label.rpartition("-")[2]]


def _run_halves(runtime: Installable, labels: Sequence[str], folder: Path) -> dict[str, str]:
    """Return of each model that runs as it is, and of what each target makes of it, the error."""
    x = np.random.default_rng(3).standard_normal(halves.FIXED).astype(np.float32)
    row, files = consumer(runtime.label), Files()
    for number, label in enumerate(labels):
        source = halves.build(label)
        (expected,) = load_session(source.SerializeToString(), threads=1).run(None, {"input": x})
        written = {"raw": ir.from_proto(source)}
        for form in TARGETS:
            written[form] = rx.optimize(source, target=form, numerics="upcast").model
        for form, model in written.items():
            path = folder / f"{number}-{form}.onnx"
            ir.save(model, path)
            if _runs(row, path):
                files[f"{label} | {form}"] = (path, expected)
    outcomes = run_files(runtime, files, x, runs=1)
    loaded = {label for label in labels if not outcomes[f"{label} | raw"].error}
    return {
        label: outcome.error or ("" if max(outcome.off) < HALF_BOUND else f"{max(outcome.off)} off")
        for label, outcome in outcomes.items()
        if label.rpartition(" | ")[0] in loaded
    }


@onnxruntimes
def test_a_float16_model_that_loads_does_so_after_it_was_optimized(
    runtime: Installable, tmp_path: Path
) -> None:
    """Beside a norm that is one node a Transpose in front of a MatMul ended 1.23 and newer."""
    installed = [entry for entry in CATALOGUE if entry.runtime == "onnxruntime" and entry.packages]
    labels = HALVES
    if runtime.packages:  # each has a share, and all together have all
        labels = halves.LABELS[installed.index(runtime) :: len(installed)]
    errors = _run_halves(runtime, labels, tmp_path)
    assert {label: error for label, error in errors.items() if error} == {}
    assert len(errors) > 2 * len(labels)
