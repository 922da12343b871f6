"""The kernels in earlier versions of ONNX Runtime, each in a process with that one installed."""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.native import ROW_KINDS
from rmsnorm_export.op.spec import NormSpec
from tests.plugins.native_process import EPSILON, VARIANTS, run
from tests.plugins.test_native_codes import HOWS, coded
from toolbox.corpus import cache
from toolbox.node_model import node_model

VERSIONS = ("1.17.3", "1.20.1", "1.23.2", "1.32.0")

_CHILD = """
import sys
import numpy, onnxruntime
library, folder, count = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(library)
for i in range(int(count)):
    session = onnxruntime.InferenceSession(f"{folder}/{i}.onnx", options)
    outputs = session.run(None, dict(numpy.load(f"{folder}/{i}.npz")))
    numpy.savez(f"{folder}/{i}.out.npz", *outputs)
print(onnxruntime.__version__)
"""

TYPES = (np.float32, np.float16, np.float64)


def run_in(
    version: str, library: pathlib.Path, folder: pathlib.Path, models: Sequence[tuple[Any, Any]]
) -> tuple[subprocess.CompletedProcess[str], list[list[Array]]]:
    """Return the process and the outputs of each model."""
    place = cache.root().parent / "runtimes" / f"onnxruntime-{version}"
    if not place.is_dir():
        pytest.skip(f"pip install --target {place} onnxruntime=={version} 'numpy<2'")
    for i, (model, feeds) in enumerate(models):
        (folder / f"{i}.onnx").write_bytes(model.SerializeToString())
        np.savez(folder / f"{i}.npz", **feeds)
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, library, folder, str(len(models))],
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    outputs = []
    for path in sorted(folder.glob("*.out.npz"), key=lambda path: int(path.name.split(".")[0])):
        with np.load(path) as arrays:
            outputs.append([*arrays.values()])
    return done, outputs


def _models() -> Iterator[tuple[Any, Any]]:
    """Every kind and type, with rarer attributes, then each way of codes."""
    random = np.random.default_rng(0)
    for kind, values, dtype in itertools.product(ROW_KINDS, VARIANTS[::3], TYPES):
        spec = NormSpec(kind=kind, epsilon=EPSILON, **values)
        x, second = (random.normal(0, 2, (5, 111)).astype(dtype) for _ in range(2))
        scale = random.normal(0, 1, 111).astype(np.float32)
        yield node_model(spec, x, scale, None, None if kind == "RMSNorm" else second)
    for how in HOWS:
        x, residual = (random.normal(0, 2, (5, 96)).astype(np.float16) for _ in range(2))
        spec = NormSpec(kind="SkipRMSNorm", epsilon=EPSILON)
        _, model, feeds, _ = coded(spec, how, 0.02, x, None, None, residual)
        # NumPy has no FP8: the codes as numbers.
        model.opset_import[0].version = 19
        codes_info = model.graph.output[0]
        model.graph.node.append(helper.make_node("Cast", [codes_info.name], ["numbers"], to=1))
        codes_info.CopyFrom(helper.make_tensor_value_info("numbers", 1, x.shape))
        yield model, feeds


@pytest.mark.parametrize("version", VERSIONS)
def test_every_kind_type_and_code(
    native_library: pathlib.Path, tmp_path: pathlib.Path, version: str
) -> None:
    """The same bits as in the version here, which other tests compare with the definition."""
    models = [*_models()]
    done, outputs = run_in(version, native_library, tmp_path, models)
    assert (done.returncode, done.stdout) == (0, f"{version}\n"), done.stderr
    for (model, feeds), arrays in zip(models, outputs, strict=True):
        for a, b in zip(arrays, run(native_library, model, feeds).values(), strict=True):
            assert a.tobytes() == b.tobytes()
