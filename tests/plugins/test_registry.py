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
import pytest

import rmsnorm_export as rx
from rmsnorm_export.lower.portable import creator_names
from rmsnorm_export.op.native import KINDS
from rmsnorm_export.op.spec import PLUGIN_NAMESPACE

HERE = pathlib.Path(__file__).parent
CREATORS = sum(len(creator_names(kind)) for kind in KINDS)
FLAVOURS = {"tensorrt_lean": "libnvinfer_lean.so*", "tensorrt_rtx": "libtensorrt_rtx.so*"}

with_headers = pytest.mark.parametrize("headers", adapter_build.header_parameters())


def needs(flavour: str) -> pytest.MarkDecorator:
    """Skips without that TensorRT; looks, but does not load it into the process of the tests."""
    package = f"{flavour}_cu13" if flavour == "tensorrt_lean" else flavour
    missing = importlib.util.find_spec(flavour) is None
    return pytest.mark.skipif(missing, reason=f"needs {flavour}: pip install {package}")


with_flavour = pytest.mark.parametrize(
    "flavour", [pytest.param(name, marks=needs(name)) for name in FLAVOURS]
)


def python(*arguments: object) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": path}, check=False,
    )  # fmt: skip


def steps(flavour: str, *names: str) -> subprocess.CompletedProcess[str]:
    return python(HERE / "registry_process.py", flavour, *names)


def plain(headers: pathlib.Path) -> pathlib.Path:
    return adapter_build.build(headers) / "librmsnorm_plugin.so"


def autoload(headers: pathlib.Path) -> pathlib.Path:
    return adapter_build.build(headers) / "librmsnorm_plugin_autoload.so"


def library_of(flavour: str) -> pathlib.Path:
    found = importlib.util.find_spec(f"{flavour}_libs")
    assert found is not None
    assert found.submodule_search_locations
    return next(pathlib.Path(found.submodule_search_locations[0]).glob(FLAVOURS[flavour]))


def serves(headers: pathlib.Path) -> bool:
    """Whether libraries of these headers are for the TensorRT 11 of the wheels."""
    return int(adapter_build.version(headers).split(".")[0]) >= 11


@with_headers
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
    process = steps(flavour, *(commands[way] for way in ways.split()), "create")
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    count = CREATORS if serves(headers) else 0
    assert f"creators {count}\n" in process.stdout
    assert process.stdout.count("created ") == count
    if not serves(headers):
        assert "build it with the headers of that version" in process.stderr


@with_headers
@needs("tensorrt_lean")
@needs("tensorrt_rtx")
def test_two_flavours_in_one_process(headers: pathlib.Path) -> None:
    library = f"dlopen={autoload(headers)}"
    process = steps(
        "tensorrt_lean", "import=tensorrt_rtx", library, "create", "create_in=tensorrt_rtx"
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    count = CREATORS if serves(headers) else 0
    assert process.stdout.count(f"creators {count}\n") == 2
    assert process.stderr.count("no plugin for this TensorRT") == (0 if count else 2)


@with_headers
@with_flavour
@pytest.mark.parametrize("library", [plain, autoload])
def test_the_command_finds_it_good(headers: pathlib.Path, flavour: str, library) -> None:
    """``plugin check``, in this registry; one of another version is no fault of the library."""
    result = rx.plugin.check(library(headers))
    (trial,) = (one for one in result.runtimes if one.runtime == flavour)
    assert trial.status == ("passed" if serves(headers) else "failed"), trial.detail
    assert len(trial.checks) == CREATORS


@with_headers
def test_autoload_without_tensorrt(headers: pathlib.Path) -> None:
    """Says so once and does no harm."""
    process = python("-c", f"import ctypes\nfor _ in range(2): ctypes.CDLL('{autoload(headers)}')")
    assert process.returncode == 0
    assert process.stderr.count("no TensorRT is loaded in this process") == 1
    assert "import tensorrt" in process.stderr


@with_headers
def test_a_tensorrt_of_another_major_version(headers: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Its registry is left alone: the one here is an address that nothing may be read from."""
    source = tmp_path / "foreign.c"
    source.write_text(
        "void *getPluginRegistry(void) { return (void *)16; }\n"
        "int getInferLibMajorVersion(void) { return 99; }\n"
        "const void *ask(const void *(*get)(int *), int *n) { const void *r = get(n); return r; }\n"
    )
    foreign = tmp_path / "libnvinfer_foreign.so"
    subprocess.run(["gcc", "-O0", "-shared", "-fPIC", "-o", foreign, source], check=True)
    process = python(
        "-c",
        f"import ctypes\nforeign = ctypes.CDLL('{foreign}')\nctypes.CDLL('{autoload(headers)}')\n"
        f"plugin = ctypes.CDLL('{plain(headers)}')\nn = ctypes.c_int(-1)\n"
        "foreign.ask(plugin.getCreators, ctypes.byref(n))\nprint('creators', n.value)",
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout == "creators 0\n"
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


def optimized(kind: str, path: pathlib.Path) -> onnx.ModelProto:
    """The chain as an exporter writes it, after ``optimize``; saved at ``path``."""
    second, body, outputs = BODIES[kind]
    source = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]>\n'
        f"chain (float16[2, s, 64] x{second}) => ({outputs})\n"
        f"<float16[64] w = {{{WEIGHTS}}}, float two = {{2.0}}, float epsilon = {{0.00001}}, "
        f"int64[1] axes = {{-1}}> {{ {body} }}"
    )
    rx.optimize(source, target="portable").save(path)
    model = onnx.load(path)
    assert [node.op_type for node in model.graph.node] == [kind]
    return model


def parse(path: pathlib.Path, *loading: str) -> tuple[str, int]:
    process = steps("tensorrt_rtx", *loading, f"parse={path}")
    return process.stdout + process.stderr, process.returncode


@with_headers
@needs("tensorrt_rtx")
@pytest.mark.parametrize("kind", BODIES)
def test_the_parser_finds_the_plugin(
    headers: pathlib.Path, kind: str, tmp_path: pathlib.Path
) -> None:
    """With the fields that ``optimize`` writes, and no warning; the function without the library.

    That parser has no plugin layers: it aborts once the plugin is made, so its log is all there is.
    """
    if not serves(headers):
        pytest.skip("TensorRT-RTX has the interfaces of TensorRT 11, these headers are older")
    model = tmp_path / "model.onnx"
    optimized(kind, model)
    for loading in (f"load={plain(headers)}", f"dlopen={autoload(headers)}"):
        log, _ = parse(model, loading)
        assert f"plugin_namespace: {PLUGIN_NAMESPACE}" in log
        assert f"Successfully created plugin: {kind}" in log
        assert "not found in plugin node" not in log
        assert "Severity.WARNING" not in log
        assert "Severity.ERROR" not in log
    log, code = parse(model)
    assert code == 0, log[-2000:]
    assert "parsed True" in log
    assert "Successfully created plugin" not in log
    assert int(re.findall(r"layers (\d+)", log)[0]) > 5


@with_headers
@needs("tensorrt_rtx")
def test_the_parser_shows_why_a_node_is_refused(
    headers: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The sentence of the plugin is in the user's own log, not on stderr."""
    if not serves(headers):
        pytest.skip("TensorRT-RTX has the interfaces of TensorRT 11, these headers are older")
    path = tmp_path / "model.onnx"
    model = optimized("GatedRMSNorm", path)
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "activation":
            attribute.s = b"gelu"
    onnx.save(model, path)
    for loading in (f"load={plain(headers)}", f"dlopen={autoload(headers)}"):
        process = steps("tensorrt_rtx", loading, f"parse={path}")
        sentence = "activation must be one of: silu sigmoid; found 'gelu'"
        assert re.search(rf"Severity\.ERROR GatedRMSNorm '.*': {sentence}", process.stdout)
        assert sentence not in process.stderr


@with_headers
@needs("tensorrt_lean")
@pytest.mark.parametrize("found", [True, False])
def test_loaded_before_tensorrt(headers: pathlib.Path, tmp_path: pathlib.Path, found: bool) -> None:
    """As Polygraphy does it: TensorRT is then loaded where the loader finds it.

    The lean runtime stands in under the name of the full one, which cannot be had here.
    """
    if not serves(headers):
        pytest.skip("libraries of TensorRT 10 cannot serve the TensorRT 11 of the wheels")
    if found:
        (tmp_path / "libnvinfer.so.11").symlink_to(library_of("tensorrt_lean"))
    code = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1]); import tensorrt_lean as trt; "
        "ours = [c for c in trt.get_plugin_registry().all_creators"
        f" if c.plugin_namespace == {PLUGIN_NAMESPACE!r}]; print(len(ours))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(autoload(headers))],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(CREATORS if found else 0)
    assert ("does not find libnvinfer.so.11" in done.stderr) == (not found)


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


@with_headers
@needs("tensorrt_lean")
def test_preloaded(headers: pathlib.Path) -> None:
    """Nothing is loaded or said in a process without TensorRT; else all are there with the first
    runtime that is asked for."""
    environment = {**os.environ, "LD_PRELOAD": str(autoload(headers))}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False, env=environment
        )

    child = run("cat", "/proc/self/maps")
    assert (child.returncode, child.stderr) == (0, "")
    assert "rmsnorm_plugin_autoload" in child.stdout
    assert "nvinfer" not in child.stdout
    done = run(sys.executable, "-c", PRELOADED)
    if serves(headers):
        assert done.stdout.split()[-2:] == ["0", str(CREATORS)], done.stdout + done.stderr
    else:
        assert "build it with the headers of that version" in done.stderr
