"""The plugin libraries in the genuine registries of TensorRT lean and TensorRT-RTX, on a CPU."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest

import rmsnorm_export as rx
from rmsnorm_export.lower.plugin import creator_names
from rmsnorm_export.op.spec import PLUGIN_NAMESPACE, Kind, NormSpec
from tests.plugins.adapter_build import find_tensorrt, succeeded
from toolbox.command import module_environment
from toolbox.node_model import node_model

CREATORS = len(creator_names())


def needs(flavour: str) -> pytest.MarkDecorator:
    """Skip without that TensorRT; look, but do not load it into the process of the tests."""
    package = f"{flavour}_cu13" if flavour == "tensorrt_lean" else flavour
    missing = importlib.util.find_spec(flavour) is None
    return pytest.mark.skipif(missing, reason=f"needs {flavour}: pip install {package}")


with_flavour = pytest.mark.parametrize(
    "flavour", [pytest.param(name, marks=needs(name)) for name in ("tensorrt_lean", "tensorrt_rtx")]
)


@pytest.fixture
def plain(adapter: pathlib.Path) -> pathlib.Path:
    """The library that a registry loads, of the major version of the wheels."""
    header = (find_tensorrt() or adapter) / "NvInferVersion.h"
    major = re.search(r"(?:NV_TENSORRT_MAJOR|TRT_MAJOR_ENTERPRISE) +(\d+)", header.read_text())
    if major is None or major[1] != "11":
        pytest.skip("libraries of that TensorRT cannot serve that of the wheels")
    return adapter / "librmsnorm_plugin.so"


@pytest.fixture
def autoload(plain: pathlib.Path) -> pathlib.Path:
    """The library that registers itself."""
    return plain.with_name("librmsnorm_plugin_autoload.so")


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    words, env = [*map(str, command)], module_environment() | environment
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=300, check=False)


def steps(*names: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "tests.plugins.registry_process", *names, **environment)


@with_flavour
@pytest.mark.parametrize(
    "ways",
    ["load", "dlopen", "load dlopen", "dlopen load", "dlopen dlopen", "dlopen copy", "load copy"],
)
def test_loading(
    plain: pathlib.Path, autoload: pathlib.Path, flavour: str, ways: str, tmp_path: pathlib.Path
) -> None:
    """Either library, both, the same twice, two copies: always one set of creators."""
    copy = shutil.copy(autoload, tmp_path / "copy.so")
    commands = {"load": f"load={plain}", "dlopen": f"dlopen={autoload}", "copy": f"dlopen={copy}"}
    loads = (commands[way] for way in ways.split())
    process = succeeded(steps(f"import={flavour}", *loads, f"create={flavour}"))
    assert f"creators {CREATORS}\n" in process.stdout


@needs("tensorrt_lean")
@needs("tensorrt_rtx")
def test_two_flavours_in_one_process(autoload: pathlib.Path) -> None:
    imports = ("import=tensorrt_lean", "import=tensorrt_rtx")
    creates = ("create=tensorrt_lean", "create=tensorrt_rtx")
    process = succeeded(steps(*imports, f"dlopen={autoload}", *creates))
    assert process.stdout.count(f"creators {CREATORS}\n") == 2
    assert "no plugin for this TensorRT" not in process.stderr


def test_a_tensorrt_that_is_missing_or_of_another_major_version(
    plain: pathlib.Path, autoload: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Says so and does no harm: a registry of another is an address that nothing may be read
    from."""
    twice = f"import ctypes\nfor _ in range(2): ctypes.CDLL('{autoload}')"
    process = succeeded(run(sys.executable, "-c", twice))
    assert process.stderr.count("no TensorRT is loaded in this process") == 1
    source, foreign = tmp_path / "foreign.c", tmp_path / "libnvinfer_foreign.so"
    source.write_text(
        "void *getPluginRegistry(void) { return (void *)16; }\n"
        "int getInferLibMajorVersion(void) { return 99; }\n"
        "const void *ask(const void *(*get)(int *), int *n) { const void *r = get(n); return r; }\n"
    )
    subprocess.run(["gcc", "-O0", "-shared", "-fPIC", "-o", foreign, source], check=True)
    process = run(
        sys.executable, "-c",
        f"import ctypes\nforeign = ctypes.CDLL('{foreign}')\nctypes.CDLL('{autoload}')\n"
        f"plugin = ctypes.CDLL('{plain}')\nn = ctypes.c_int(-1)\n"
        "foreign.ask(plugin.getCreators, ctypes.byref(n))\nprint('creators', n.value)",
    )  # fmt: skip
    assert (process.returncode, process.stdout) == (0, "creators 0\n"), process.stderr
    assert process.stderr.count("found 99; build it with the headers of that version") == 2


@needs("tensorrt_rtx")
@pytest.mark.parametrize("kind", ["RMSNorm", "SkipRMSNorm", "GatedRMSNorm"])
def test_the_parser_finds_the_plugin(
    plain: pathlib.Path, autoload: pathlib.Path, kind: Kind, tmp_path: pathlib.Path
) -> None:
    """With the fields that ``optimize`` writes, and no warning; the function without the library.

    That parser has no plugin layers: it aborts once the plugin is made, so its log is all there is.
    Why a node is refused, the sentence of the plugin, is in the user's own log, not on stderr.
    """
    x, scale = np.ones((2, 5, 64), np.float16), np.full(64, 1.5, np.float16)
    source, _ = node_model(NormSpec(kind=kind), x, scale, None, x)
    path, refused = tmp_path / "model.onnx", tmp_path / "refused.onnx"
    rx.optimize(rx.optimize(source, target="plain").model, target="portable").save(path)
    model = onnx.load(path)
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "activation":
            attribute.s = b"gelu"
    onnx.save(model, refused)
    for loading in (f"load={plain}", f"dlopen={autoload}"):
        process = steps("import=tensorrt_rtx", loading, f"parse={path}")
        log = process.stdout + process.stderr
        assert f"plugin_namespace: {PLUGIN_NAMESPACE}" in log
        assert f"Successfully created plugin: {kind}" in log
        assert "not found in plugin node" not in log
        assert not re.search(r"Severity\.(WARNING|ERROR)", log)
        if kind == "GatedRMSNorm":
            process = steps("import=tensorrt_rtx", loading, f"parse={refused}")
            sentence = "activation must be one of: silu sigmoid; found 'gelu'"
            assert re.search(rf"Severity\.ERROR GatedRMSNorm '.*': {sentence}", process.stdout)
            assert sentence not in process.stderr
    process = succeeded(steps("import=tensorrt_rtx", f"parse={path}"))
    assert "parsed True" in process.stdout
    assert "Successfully created plugin" not in process.stdout
    assert int(re.findall(r"layers (\d+)", process.stdout)[0]) > 5


LEAN = ("import=tensorrt_lean", "create=tensorrt_lean")


@needs("tensorrt_lean")
@pytest.mark.parametrize("there", [True, False])
def test_loaded_before_tensorrt(
    autoload: pathlib.Path, tmp_path: pathlib.Path, there: bool
) -> None:
    """As Polygraphy does it: TensorRT is then loaded where the loader finds it.

    The lean runtime stands in under the name of the full one, which cannot be had here.
    """
    if there:
        package = importlib.util.find_spec("tensorrt_lean_libs")
        folder = pathlib.Path((package.submodule_search_locations or [""])[0])
        (tmp_path / "libnvinfer.so.11").symlink_to(next(folder.glob("libnvinfer_lean.so*")))
    process = succeeded(steps(f"dlopen={autoload}", *LEAN, LD_LIBRARY_PATH=str(tmp_path)))
    assert process.stdout.split() == ["creators", str(CREATORS if there else 0)]
    assert ("does not find libnvinfer.so.11" in process.stderr) == (not there)


@needs("tensorrt_lean")
def test_preloaded(autoload: pathlib.Path) -> None:
    """Nothing is loaded or said in a process without TensorRT; else all are there with the first
    runtime that is asked for."""
    preload = {"LD_PRELOAD": str(autoload)}
    child = succeeded(run("cat", "/proc/self/maps", **preload))
    assert child.stderr == ""
    assert "rmsnorm_plugin_autoload" in child.stdout
    assert "nvinfer" not in child.stdout
    process = succeeded(steps(*LEAN, "runtime", **preload))
    assert re.findall(r"creators (\d+)", process.stdout) == ["0", str(CREATORS)]
