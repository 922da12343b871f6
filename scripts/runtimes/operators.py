"""Which operators each installed runtime takes: ``rmsnorm_export/runtime/operators.json``.

python -m scripts.runtimes.operators             every runtime that is installed
python -m scripts.runtimes.operators tract tvm   these, or RUNTIME@VERSION; the others stay as known

Of each operator of the default domain some of ONNX's own tests are loaded, as they are and with
constants for inputs, at their opset and at an older one. Those of ``com.microsoft`` are the ones of
which a version of ONNX Runtime has a schema; some provider has a kernel of each.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, defs, numpy_helper

from rmsnorm_export.op.native import MICROSOFT_DOMAIN
from rmsnorm_export.runtime.consumers import consumer
from rmsnorm_export.runtime.operators import OPERATORS
from scripts.lib.command import say
from scripts.runtimes.catalogue import CATALOGUE, Installable
from scripts.runtimes.measure import run_files

_CASES = 2
_OPSETS = (17,)
_SCHEMAS = """
from onnxruntime.capi import onnxruntime_pybind11_state as state
print(*sorted({s.name for s in state.get_all_operator_schema() if s.domain == "com.microsoft"}))
"""


@functools.cache
def _cases(only: frozenset[str]) -> dict[str, list[tuple[ModelProto, list[Any]]]]:
    """Operator -> models of one node with their inputs, those of float32 first; of all, or more
    than ``only``."""
    from onnx.backend.test.case import node

    found: dict[str, list[tuple[ModelProto, list[Any]]]] = {}
    with np.errstate(all="ignore"):
        if only:  # the expected outputs of the others, of the pools above all, take ten seconds
            for name in {name for op in only for name in (op.lower(), _snake(op))}:
                with contextlib.suppress(ModuleNotFoundError):
                    importlib.import_module(f"{node.__name__}.{name}")
            tests = node._NodeTestCases
        else:
            tests = node.collect_testcases(None)
    for case in tests:
        model = case.model
        if model is None or len(model.graph.node) != 1 or model.graph.node[0].domain:
            continue
        if case.data_sets and all(
            value.type.HasField("tensor_type") for value in model.graph.input
        ):
            found.setdefault(model.graph.node[0].op_type, []).append((model, case.data_sets[0][0]))
    for cases in found.values():
        cases.sort(key=lambda case: not _is_float(case[0]))
        del cases[_CASES:]
    return found


def _snake(operator: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operator).lower()


def _is_float(model: ModelProto) -> bool:
    inputs = model.graph.input
    return bool(inputs) and inputs[0].type.tensor_type.elem_type == TensorProto.FLOAT


def _tensor(given: Any, name: str) -> TensorProto:
    made = TensorProto()
    made.CopyFrom(given if isinstance(given, TensorProto) else numpy_helper.from_array(given))
    made.name = name
    return made


def _models(case: tuple[ModelProto, list[Any]], newest: int) -> Iterator[ModelProto]:
    given, inputs = case
    own = given.opset_import[0].version
    for opset in dict.fromkeys(min(own, version) for version in (newest or own, *_OPSETS)):
        try:
            schema = defs.get_schema(given.graph.node[0].op_type, opset, "")
        except defs.SchemaError:
            continue
        node = given.graph.node[0]
        if len(node.input) > schema.max_input or {a.name for a in node.attribute} - set(
            schema.attributes
        ):
            continue
        # What gives a shape or an axis is a constant in most models.
        first = 1 if _is_float(given) else 0
        for left in dict.fromkeys((first, len(inputs))):
            model = ModelProto()
            model.CopyFrom(given)
            model.ir_version, model.opset_import[0].version = 8, opset
            del model.graph.input[left:]
            model.graph.initializer.extend(
                _tensor(array, value.name)
                for array, value in zip(inputs[left:], given.graph.input[left:], strict=False)
            )
            yield model


def tried(
    entry: Installable, folder: pathlib.Path, only: frozenset[str] = frozenset()
) -> tuple[set[str], set[str]]:
    """The operators of which something loads, and those of which nothing does; of all, or ``only``.

    Args:
        entry: the runtime.
        folder: for the models.
        only: operators to be tried.
    """
    newest = consumer(entry.label).opset
    left = {op: [m for case in cases for m in _models(case, newest)]
            for op, cases in _cases(only).items() if not only or op in only}  # fmt: skip
    left = {op: models for op, models in left.items() if models}
    taken, refused = set[str](), set[str]()
    for number in range(max(map(len, left.values()))):
        files = {}
        for op, models in left.items():
            if op not in taken and number < len(models):
                path = folder / f"{op}_{number}.onnx"
                onnx.save(models[number], path)
                files[op] = (path, np.zeros(1, np.float32))
        outcomes = run_files(entry, files, np.zeros(1, np.float32), runs=0)
        taken |= {op for op, outcome in outcomes.items() if not outcome.error}
        refused |= {op for op, outcome in outcomes.items() if _refuses(op, outcome.error)}
        say(f"{entry.label}: {len(taken)} of {len(left)} operators")
    return taken, (set(left) - taken) & refused


def _refuses(operator: str, said: str) -> bool:
    """Whether an error is about the operator, and not, say, about a locale that is not there."""
    return any(word.lower() in said.lower() for word in (operator, "implement", "support"))


def _schemas(entry: Installable) -> set[str]:
    """Operators of com.microsoft that this version of ONNX Runtime knows; none where not said."""
    environment = dict(os.environ)
    if entry.packages:
        environment["PYTHONPATH"] = str(entry.folder)
    done = subprocess.run([sys.executable, "-c", _SCHEMAS], env=environment, capture_output=True,
                          text=True, check=False)  # fmt: skip
    return set(done.stdout.split())


def main() -> None:
    known: dict[str, Any] = json.loads(OPERATORS.read_text()) if OPERATORS.is_file() else {}
    for entry in CATALOGUE:
        asked = {entry.runtime, entry.label}.intersection(sys.argv[1:]) or not sys.argv[1:]
        if not asked or entry.missing():
            continue
        with tempfile.TemporaryDirectory() as scratch:
            taken, lacking = tried(entry, pathlib.Path(scratch))
        row = {"takes": taken, "lacks": lacking}
        if entry.kind == "onnxruntime" and (schemas := _schemas(entry)):
            row[MICROSOFT_DOMAIN] = schemas
        known[entry.label] = {key: " ".join(sorted(names)) for key, names in row.items()}
        text = json.dumps(known, indent=0, sort_keys=True)
        OPERATORS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
