"""The kernels in earlier versions of ONNX Runtime, each in a process with that one installed."""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from onnx import helper

from rmsnorm_export.op.native import ROW_KINDS
from rmsnorm_export.op.reference import reference_exact
from rmsnorm_export.op.spec import NormSpec, scaled_by
from rmsnorm_export.runtime.metrics import ulp_distance
from tests.plugins.test_native_codes import HOWS, reference_codes
from tests.tools.corpus import cache
from tests.tools.node_model import node_model

VERSIONS = ("1.17.3", "1.20.1", "1.23.2", "1.32.0")

_CHILD = """
import sys
import numpy, onnxruntime
library, folder, count = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(library)
for i in range(int(count)):
    session = onnxruntime.InferenceSession(f"{folder}/{i}.onnx", options)
    found = session.run(None, dict(numpy.load(f"{folder}/{i}.npz")))
    numpy.savez(f"{folder}/{i}.out.npz", *found)
print(onnxruntime.__version__)
"""

VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"scale_before_cast": True, "scale_offset": 1.0},
    {"group_size": 37, "epsilon_outside": True},
)
TYPES = (np.float32, np.float16, np.float64)


def run_in(version: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    place = cache.root().parent / "runtimes" / f"onnxruntime-{version}"
    if not place.is_dir():
        pytest.skip(f"pip install --target {place} onnxruntime=={version} 'numpy<2'")
    return subprocess.run(
        [sys.executable, "-c", _CHILD, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_every_kind_and_type(
    native_library: pathlib.Path, tmp_path: pathlib.Path, version: str
) -> None:
    random, expected = np.random.default_rng(0), []
    for kind, values, dtype in itertools.product(ROW_KINDS, VARIANTS, TYPES):
        spec = NormSpec(kind=kind, epsilon=2.0**-17, **values)
        x, second = (random.normal(0, 2, (5, 111)).astype(dtype) for _ in range(2))
        scale = random.normal(0, 1, 111).astype(np.float32)
        given = None if kind == "RMSNorm" else second
        model, feeds = node_model(spec, x, scale, None, given)
        stem = tmp_path / str(len(expected))
        stem.with_suffix(".onnx").write_bytes(model.SerializeToString())
        np.savez(stem.with_suffix(".npz"), **feeds)
        named = {"SkipRMSNorm": {"residual": given}, "GatedRMSNorm": {"gate": given}}
        result = reference_exact(spec, x, scale, **named.get(kind, {}))
        expected.append(result if isinstance(result, tuple) else (result,))
    done = run_in(version, native_library, tmp_path, len(expected))
    assert (done.returncode, done.stdout) == (0, f"{version}\n"), done.stderr
    for i, arrays in enumerate(expected):
        with np.load(tmp_path / f"{i}.out.npz") as found:
            for a, b in zip(found.values(), arrays, strict=True):
                assert ulp_distance(a, b).max() <= (0 if a.itemsize == 2 else 4)


@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_codes_of_a_norm(
    native_library: pathlib.Path, tmp_path: pathlib.Path, version: str
) -> None:
    """Each way to make them, of float16, whose norm is the reference to the bit."""
    random, expected = np.random.default_rng(0), []
    spec = NormSpec(kind="SkipRMSNorm", epsilon=2.0**-17)
    for how in HOWS:
        x, residual = (random.normal(0, 2, (5, 96)).astype(np.float16) for _ in range(2))
        step = np.array(0.02, np.float32) if scaled_by(how) == "tensor" else None
        model, feeds = node_model(spec, x, None, None, residual, quantize=how, step=step)
        # NumPy has no FP8: the codes as numbers.
        model.opset_import[0].version = 19
        codes_info = model.graph.output[0]
        model.graph.node.append(helper.make_node("Cast", [codes_info.name], ["numbers"], to=1))
        codes_info.CopyFrom(helper.make_tensor_value_info("numbers", 1, x.shape))
        stem = tmp_path / str(len(expected))
        stem.with_suffix(".onnx").write_bytes(model.SerializeToString())
        np.savez(stem.with_suffix(".npz"), **feeds)
        y, total = reference_exact(spec, x, None, residual=residual)
        codes = reference_codes(y, how, 0.02)
        expected.append((codes[0].astype(np.float32), total, *codes[1:]))
    done = run_in(version, native_library, tmp_path, len(expected))
    assert (done.returncode, done.stdout) == (0, f"{version}\n"), done.stderr
    for i, arrays in enumerate(expected):
        with np.load(tmp_path / f"{i}.out.npz") as found:
            assert len(found) == len(arrays)
            for a, b in zip(found.values(), arrays, strict=True):
                assert (a.dtype, a.tolist()) == (b.dtype, b.tolist())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_bad_attribute_is_named(
    native_library: pathlib.Path, tmp_path: pathlib.Path, version: str
) -> None:
    model, _ = node_model(NormSpec(), np.ones((2, 8), np.float32), None, None, None)
    (epsilon,) = (a for a in model.graph.node[0].attribute if a.name == "epsilon")
    epsilon.f = -1.0
    (tmp_path / "0.onnx").write_bytes(model.SerializeToString())
    done = run_in(version, native_library, tmp_path, 1)
    assert done.returncode == 1
    assert "RMSNorm node 'a norm': epsilon is -1" in done.stderr
