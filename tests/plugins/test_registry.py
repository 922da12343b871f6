"""The plugin libraries in the genuine registries of TensorRT lean and TensorRT-RTX, on a CPU."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

import adapter_build
import onnx
import onnx.parser
import pytest

import rmsnorm_export as rx
from rmsnorm_export.lower.portable import creator_names
from rmsnorm_export.op.native import KINDS
from rmsnorm_export.op.spec import PLUGIN_NAMESPACE

HERE = pathlib.Path(__file__).parent
FLAVOURS = {"tensorrt_lean": "libnvinfer_lean.so*", "tensorrt_rtx": "libtensorrt_rtx.so*"}

pytestmark = pytest.mark.parametrize("headers", adapter_build.header_parameters())


def needs(flavour: str) -> pytest.MarkDecorator:
    """Skips without that TensorRT; looks, but does not load it into the process of the tests."""
    package = f"{flavour}_cu13" if flavour == "tensorrt_lean" else flavour
    missing = importlib.util.find_spec(flavour) is None
    return pytest.mark.skipif(missing, reason=f"needs {flavour}: pip install {package}")


with_flavour = pytest.mark.parametrize(
    "flavour", [pytest.param(name, marks=needs(name)) for name in FLAVOURS]
)


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": path, **environment}, check=False,
    )  # fmt: skip


def steps(flavour: str, *names: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, HERE / "registry_process.py", flavour, *names)


def plain(headers: pathlib.Path) -> pathlib.Path:
    return adapter_build.build(headers) / "librmsnorm_plugin.so"


def autoload(headers: pathlib.Path) -> pathlib.Path:
    return adapter_build.build(headers) / "librmsnorm_plugin_autoload.so"


def library_of(flavour: str) -> pathlib.Path:
    spec = importlib.util.find_spec(f"{flavour}_libs")
    assert spec is not None
    assert spec.submodule_search_locations
    return next(pathlib.Path(spec.submodule_search_locations[0]).glob(FLAVOURS[flavour]))


def creators(headers: pathlib.Path) -> int:
    """How many there are in the TensorRT 11 of the wheels; none of older headers' libraries."""
    serves = int(adapter_build.version(headers).split(".")[0]) >= 11
    return sum(len(creator_names(kind)) for kind in KINDS) if serves else 0


@with_flavour
@pytest.mark.parametrize(
    "ways",
    ["load", "dlopen", "load dlopen", "dlopen load", "dlopen dlopen", "dlopen copy", "load copy"],
)
def test_loading(headers: pathlib.Path, flavour: str, ways: str, tmp_path: pathlib.Path) -> None:
    """Either library, both, the same twice, two copies: always one set of creators."""
    copy = shutil.copy(autoload(headers), tmp_path / "copy.so")
    commands = {
        "load": f"load={plain(headers)}",
        "dlopen": f"dlopen={autoload(headers)}",
        "copy": f"dlopen={copy}",
    }
    process = steps(flavour, *(commands[way] for way in ways.split()), f"create={flavour}")
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    count = creators(headers)
    assert f"creators {count}\n" in process.stdout
    assert process.stdout.count("created ") == count
    assert count or "build it with the headers of that version" in process.stderr


@needs("tensorrt_lean")
@needs("tensorrt_rtx")
def test_two_flavours_in_one_process(headers: pathlib.Path) -> None:
    both = ("create=tensorrt_lean", "create=tensorrt_rtx")
    library = f"dlopen={autoload(headers)}"
    process = steps("tensorrt_lean", "import=tensorrt_rtx", library, *both)
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    count = creators(headers)
    assert process.stdout.count(f"creators {count}\n") == 2
    assert process.stderr.count("no plugin for this TensorRT") == (0 if count else 2)


@with_flavour
@pytest.mark.parametrize("library", [plain, autoload])
def test_the_command_passes_it(headers: pathlib.Path, flavour: str, library) -> None:
    """``plugin check``, in this registry; one of another version is no fault of the library."""
    result = rx.plugin.check(library(headers))
    (trial,) = (one for one in result.runtimes if one.runtime == flavour)
    assert trial.status == ("passed" if creators(headers) else "failed"), trial.detail
    assert len(trial.checks) == sum(len(creator_names(kind)) for kind in KINDS)


def test_a_tensorrt_that_is_missing_or_of_another_major_version(
    headers: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Says so and does no harm: a registry of another is an address that nothing may be read
    from."""
    twice = f"import ctypes\nfor _ in range(2): ctypes.CDLL('{autoload(headers)}')"
    process = run(sys.executable, "-c", twice)
    assert process.returncode == 0
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
        f"import ctypes\nforeign = ctypes.CDLL('{foreign}')\nctypes.CDLL('{autoload(headers)}')\n"
        f"plugin = ctypes.CDLL('{plain(headers)}')\nn = ctypes.c_int(-1)\n"
        "foreign.ask(plugin.getCreators, ctypes.byref(n))\nprint('creators', n.value)",
    )  # fmt: skip
    assert (process.returncode, process.stdout) == (0, "creators 0\n"), process.stderr
    assert process.stderr.count("found 99; build it with the headers of that version") == 2


WEIGHTS = ", ".join(["15872"] * 64)  # the bits of 1.5
CHAIN = """
   square = Pow(row, two)
   mean = ReduceMean <keepdims = 1> (square, axes)
   stabilised = Add(mean, epsilon)
   root = Sqrt(stabilised)
   ratio = Div(row, root)
   cast = Cast <to = 10> (ratio)
"""
BODIES = {
    "RMSNorm": ("", f"row = Cast <to = 1> (x) {CHAIN} y = Mul(cast, w)", "float16[2, s, 64] y"),
    "SkipRMSNorm": (
        ", float16[2, s, 64] r",
        f"h = Add(x, r) row = Cast <to = 1> (h) {CHAIN} y = Mul(cast, w)",
        "float16[2, s, 64] y, float16[2, s, 64] h",
    ),
    "GatedRMSNorm": (
        ", float16[2, s, 64] g",
        f"row = Cast <to = 1> (x) {CHAIN} norm = Mul(cast, w) norm32 = Cast <to = 1> (norm)"
        "gate = Cast <to = 1> (g) sigmoid = Sigmoid(gate) silu = Mul(gate, sigmoid)"
        "gated = Mul(norm32, silu) y = Cast <to = 10> (gated)",
        "float16[2, s, 64] y",
    ),
}


@needs("tensorrt_rtx")
@pytest.mark.parametrize("kind", BODIES)
def test_the_parser_finds_the_plugin(
    headers: pathlib.Path, kind: str, tmp_path: pathlib.Path
) -> None:
    """With the fields that ``optimize`` writes, and no warning; the function without the library.

    That parser has no plugin layers: it aborts once the plugin is made, so its log is all there is.
    Why a node is refused, the sentence of the plugin, is in the user's own log, not on stderr.
    """
    if not creators(headers):
        pytest.skip("TensorRT-RTX has the interfaces of TensorRT 11, these headers are older")
    second, body, outputs = BODIES[kind]
    source = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]>\n'
        f"chain (float16[2, s, 64] x{second}) => ({outputs})\n"
        f"<float16[64] w = {{{WEIGHTS}}}, float two = {{2.0}}, float epsilon = {{0.00001}}, "
        f"int64[1] axes = {{-1}}> {{ {body} }}"
    )
    path, refused = tmp_path / "model.onnx", tmp_path / "refused.onnx"
    rx.optimize(source, target="portable").save(path)
    model = onnx.load(path)
    (node,) = model.graph.node
    for attribute in node.attribute:
        if attribute.name == "activation":
            attribute.s = b"gelu"
    onnx.save(model, refused)
    for loading in (f"load={plain(headers)}", f"dlopen={autoload(headers)}"):
        process = steps("tensorrt_rtx", loading, f"parse={path}")
        log = process.stdout + process.stderr
        assert f"plugin_namespace: {PLUGIN_NAMESPACE}" in log
        assert f"Successfully created plugin: {kind}" in log
        assert "not found in plugin node" not in log
        assert not re.search(r"Severity\.(WARNING|ERROR)", log)
        if kind == "GatedRMSNorm":
            process = steps("tensorrt_rtx", loading, f"parse={refused}")
            sentence = "activation must be one of: silu sigmoid; found 'gelu'"
            assert re.search(rf"Severity\.ERROR GatedRMSNorm '.*': {sentence}", process.stdout)
            assert sentence not in process.stderr
    process = steps("tensorrt_rtx", f"parse={path}")
    assert (process.returncode, "parsed True" in process.stdout) == (0, True)
    assert "Successfully created plugin" not in process.stdout
    assert int(re.findall(r"layers (\d+)", process.stdout)[0]) > 5


LOADED_FIRST = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
import tensorrt_lean as trt
ours = [c for c in trt.get_plugin_registry().all_creators if c.plugin_namespace == sys.argv[2]]
print(len(ours))
"""
PRELOADED = """
import os
import tensorrt_lean as trt
registry = trt.get_plugin_registry()
ours = lambda: sum(c.plugin_namespace == "rmsnorm_export" for c in registry.all_creators)
before = ours()
runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
print(before, ours(), flush=True)
os._exit(0)  # without a GPU it is a runtime of no use, whose end crashes
"""


@needs("tensorrt_lean")
@pytest.mark.parametrize("there", [True, False])
def test_loaded_before_tensorrt(headers: pathlib.Path, tmp_path: pathlib.Path, there: bool) -> None:
    """As Polygraphy does it: TensorRT is then loaded where the loader finds it.

    The lean runtime stands in under the name of the full one, which cannot be had here.
    """
    if not creators(headers):
        pytest.skip("libraries of TensorRT 10 cannot serve the TensorRT 11 of the wheels")
    if there:
        (tmp_path / "libnvinfer.so.11").symlink_to(library_of("tensorrt_lean"))
    arguments = (LOADED_FIRST, autoload(headers), PLUGIN_NAMESPACE)
    done = run(sys.executable, "-c", *arguments, LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(creators(headers) if there else 0)
    assert ("does not find libnvinfer.so.11" in done.stderr) == (not there)


@needs("tensorrt_lean")
def test_preloaded(headers: pathlib.Path) -> None:
    """Nothing is loaded or said in a process without TensorRT; else all are there with the first
    runtime that is asked for."""
    preload = {"LD_PRELOAD": str(autoload(headers))}
    child = run("cat", "/proc/self/maps", **preload)
    assert (child.returncode, child.stderr) == (0, "")
    assert "rmsnorm_plugin_autoload" in child.stdout
    assert "nvinfer" not in child.stdout
    done = run(sys.executable, "-c", PRELOADED, **preload)
    if creators(headers):
        expected = ["0", str(creators(headers))]
        assert done.stdout.split()[-2:] == expected, done.stdout + done.stderr
    else:
        assert "build it with the headers of that version" in done.stderr
