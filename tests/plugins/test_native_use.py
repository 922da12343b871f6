"""The kernels of ONNX Runtime where they are used: verify, bench, packages, proofs, check."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import rmsnorm_export as rx
from bench.gpu import onnxruntime as gpu
from rmsnorm_export.errors import BackendMissingError, InputError, UsageError
from rmsnorm_export.op.body import build_function
from rmsnorm_export.op.body_key import assign_bodies, body_key
from rmsnorm_export.op.spec import DOMAIN, NormSpec
from rmsnorm_export.proof.prove import prove_site
from rmsnorm_export.proof.site import Proving
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.support import CPU
from tests.plugins.native_process import TYPES
from tests.proof.sites import F32_EPSILON, LLAMA, match_of, one_node, source
from toolbox.node_model import node_model


@pytest.fixture
def kept_library(
    native_library: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is the build that this machine has."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    builds = tmp_path / "rmsnorm_export" / "plugins"
    builds.mkdir(parents=True)
    (builds / native_library.parents[1].name).symlink_to(native_library.parents[1])


@pytest.mark.usefixtures("kept_library")
def test_verify_runs_what_only_the_kernels_can() -> None:
    """A node without its body, in bfloat16, of which ONNX Runtime has no norm on the CPU."""
    model, _ = node_model(NormSpec(), np.ones((2, 8), TYPES[16]), None, None, None)
    native = ("onnxruntime-native", "onnxruntime-native")
    verified = rx.verify(model, model, backend_a=native[0], backend_b=native[1])
    assert (verified.passed, verified.backends) == (True, native)
    assert "the kernels of rmsnorm-export" in verified.runtime
    assert not rx.verify(model, model).passed


def test_a_package_has_the_library(native_library: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A node without its body answers with the kernels alone; the server is told of them."""
    model, _ = node_model(NormSpec(), np.ones((2, 8), np.float32), None, None, None)
    options = {"name": "norm", "plugin": native_library}
    packaged = rx.package_model(model, tmp_path / "models", kind="cpu", **options)
    copied = packaged.path / "norm/1" / native_library.name
    assert copied.read_bytes() == native_library.read_bytes()
    config = (packaged.path / "norm/config.pbtxt").read_text()
    assert f'op_library_filename: "/models/norm/1/{native_library.name}"' in config
    assert packaged.models[0].answers.startswith("onnxruntime")
    rx.package_model(model, tmp_path / "other", **options)
    assert "KIND_CPU" in (tmp_path / "other/norm/config.pbtxt").read_text()
    with pytest.raises(InputError, match="cannot be used"):
        rx.package_model(model, tmp_path / "third", kind="gpu", **options)


@pytest.mark.parametrize("dtype", [1, 10, 16])
def test_a_proof_runs_the_kernels(native_library: pathlib.Path, dtype: int) -> None:
    """In bfloat16 as well, of which ONNX Runtime has no norm of its own."""
    model = source(LLAMA, dtype=dtype)
    report = rx.optimize(model, prove=True, kernels=str(native_library)).report
    (site,) = report.fused
    assert site.proof is not None
    assert site.proof.passed
    assert "the kernels in onnxruntime" in site.proof.runtime
    with pytest.raises(UsageError, match="proof"):
        rx.optimize(model, kernels=str(native_library))


def test_a_node_whose_kernel_is_another_norm_than_its_body_is_not_proved(
    native_library: pathlib.Path,
) -> None:
    model = source(LLAMA, dtype=16)
    match = match_of(model, NormSpec(epsilon=F32_EPSILON), 16)
    key = body_key(match.spec, dtype=16, scale_dtype=16, bias_dtype=None, opset=18)
    ((name, body),) = assign_bodies([key])
    function = build_function(name, body, 18)
    # The group size is of no concern to the body.
    new = one_node(match, f"{DOMAIN}.{name} <epsilon = {F32_EPSILON}, group_size = 48>")
    types, imports = Types(model), {"": 18, DOMAIN: 1}
    assert prove_site(match, new, Proving(types, imports, [function])).passed
    with_kernels = Proving(types, imports, [function], kernels=str(native_library))
    proof = prove_site(match, new, with_kernels)
    assert not proof.passed
    assert "the kernels in onnxruntime" in proof.reason


def test_a_library_that_is_cut_short_is_named(
    native_library: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    broken = tmp_path / "librmsnorm_onnxruntime.so"
    broken.write_bytes(native_library.read_bytes()[:5000])
    with pytest.raises(BackendMissingError, match="does not take the library") as refused:
        rx.optimize(source(LLAMA), prove=True, kernels=str(broken))
    assert "cut short" in refused.value.found


def test_the_check_of_our_nodes_on_a_gpu(native_library: pathlib.Path) -> None:
    """The step ``ours`` of ``bench.gpu onnxruntime``, here on the CPU's provider."""
    told: list[tuple[str, Any]] = []
    gpu.ours(gpu.Run(CPU, native_library, lambda *line: told.append(line), problems=50))
    assert [section for section, _ in told] == ["checked"], told
