"""What a library file is, which one a loader gets, and the lines that load it."""

from __future__ import annotations

import json
import shlex
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmsnorm_export.errors import BackendMissingError, InputError, UsageError
from rmsnorm_export.tensorrt import plugin
from rmsnorm_export.tensorrt.plugin import libraries, lines
from tests.plugins.plugin_standin import (
    AUTOLOAD,
    PLUGIN,
    Standin,
    compile_library,
    fake_plugin,
    make_standin,
    needs_build,
    write_headers,
)

pytestmark = needs_build


def _problem(path: Path) -> str:
    info = plugin.inspect_library(path)
    assert (info.style is None) == bool(info.problem)
    assert bool(info.fix) == bool(info.problem)
    return info.problem


def test_files_that_are_no_library(tmp_path: Path) -> None:
    assert "no such file" in _problem(tmp_path / "missing.so")
    assert "folder" in _problem(tmp_path)
    path = tmp_path / "l.so"
    for data, word in [
        (b"", "empty"),
        (b"hello world, this is text", "begins with b'hell'"),
        (b"\x7fELF\x02\x01\x01", "cut short"),
    ]:
        path.write_bytes(data)
        assert word in _problem(path)
    assert "object file or a program" in _problem(
        compile_library(tmp_path / "o.o", PLUGIN, "-c", "-fno-lto")
    )
    whole = compile_library(path, PLUGIN).read_bytes()
    for size in (100, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:size])
        assert "cut short or damaged" in _problem(path)


def test_every_damage_is_an_answer(tmp_path: Path) -> None:
    path = compile_library(tmp_path / "l.so", PLUGIN)
    whole = path.read_bytes()
    for offset in (*range(16, 64, 2), *range(len(whole) - 1500, len(whole), 9)):
        path.write_bytes(whole[:offset] + b"\xff\xff" + whole[offset + 2 :])
        plugin.inspect_library(path, creators=False)


@pytest.mark.parametrize(
    ("machine", "name"), [(183, "aarch64"), (62, "x86-64"), (21, "machine 21")]
)
def test_a_library_for_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: int, name: str
) -> None:
    path = compile_library(tmp_path / "l.so", PLUGIN)
    data = path.read_bytes()
    path.write_bytes(data[:18] + struct.pack("<H", machine) + data[20:])
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert f"it is for {name}, this machine is riscv64" in _problem(path)


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("int f() { return 1; }", "no plugin library"),
        (PLUGIN.splitlines()[0], "not setLoggerFinder"),
        (PLUGIN.splitlines()[1], "not getCreators"),
        (PLUGIN + AUTOLOAD, "registers them as well"),
        ("static " + PLUGIN.splitlines()[0].removeprefix('extern "C" '), "no plugin library"),
    ],
)
def test_libraries_that_are_no_plugins(tmp_path: Path, source: str, word: str) -> None:
    assert word in _problem(compile_library(tmp_path / "l.so", source))


def test_what_a_good_library_says(tmp_path: Path) -> None:
    info = plugin.inspect_library(fake_plugin(tmp_path))
    assert (info.style, info.problem) == ("load_library", "")
    assert "libc.so.6" in info.needed
    assert [(c.name, c.version, c.namespace) for c in info.creators] == [
        ("RMSNorm", "1", "rmsnorm_export")
    ]
    info = plugin.inspect_library(compile_library(tmp_path / "a.so", AUTOLOAD))
    assert (info.style, info.problem, info.creators) == ("dlopen", "", ())


def test_a_library_that_ends_the_process_ends_another(tmp_path: Path) -> None:
    info = plugin.inspect_library(fake_plugin(tmp_path, "abort"))
    assert "SIGABRT" in info.problem


@pytest.fixture
def standin(tmp_path: Path) -> Standin:
    return make_standin(tmp_path)


def _build(standin: Standin, **changes: Any) -> plugin.Built:
    return plugin.build(**{**standin.arguments, **changes})


def test_each_loader_gets_its_library(standin: Standin) -> None:
    built = _build(standin)
    for loader, style in plugin.LOADERS.items():
        if style == "register":
            with pytest.raises(BackendMissingError, match="ONNX Runtime are not built"):
                plugin.library(loader, cache=standin.cache)
            continue
        path = plugin.library(loader, cache=standin.cache)
        assert path == built.path(style)
        assert plugin.inspect_library(path, creators=False).style == style
    with pytest.raises(UsageError, match="unknown"):
        plugin.library("tensorflow", cache=standin.cache)


def test_the_build_that_fits_is_taken(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendMissingError) as caught:
        plugin.library(cache=standin.cache)
    assert (caught.value.exit_code, caught.value.fix) == (6, "rmsnorm-export plugin build")
    hopper = _build(standin)
    write_headers(standin.headers, (10, 9, 0))
    old = _build(standin, arch="80")
    write_headers(standin.headers, (11, 1, 0))
    newest = _build(standin, arch="100")

    def taken(gpus: tuple[str, ...], major: str) -> str:
        monkeypatch.setattr(libraries, "of_gpus", lambda: gpus)
        monkeypatch.setattr(libraries, "installed_major", lambda: major)
        return plugin.library(cache=standin.cache).parent.name

    assert taken((), "") == newest.key
    assert taken(("90",), "") == hopper.key
    assert taken((), "10") == old.key
    assert taken(("90",), "10") == old.key  # another GPU is slow or refused, another version always
    assert taken(("120",), "12") == newest.key


def test_the_list_is_newest_first_and_shows_damage(standin: Standin) -> None:
    first = _build(standin)
    second = _build(standin, arch="100")
    assert [e.folder.name for e in plugin.list_plugins(cache=standin.cache).entries] == [
        second.key,
        first.key,
    ]
    (second.folder / "manifest.json").write_text("")
    found = plugin.list_plugins("missing.so", cache=standin.cache)
    assert [bool(entry.problem) for entry in found.entries] == [False, True]
    assert found.libraries[0].problem == "there is no such file"
    assert plugin.list_plugins(cache=standin.cache / "nowhere").entries == ()


def test_the_lines_name_the_right_library(standin: Standin) -> None:
    built = _build(standin)
    own, auto = (str(built.path(style)) for style in ("load_library", "dlopen"))
    found = plugin.command_lines("my model.onnx", cache=standin.cache)
    text = {line.loader: line.text for line in found.lines}
    of_tensorrt = [n for n in plugin.PROGRAMS if plugin.LOADERS[n] != "register"]
    assert list(text) == of_tensorrt
    assert set(plugin.PROGRAMS) <= set(plugin.LOADERS)
    words = {name: shlex.split(line) for name, line in text.items() if name[0] in "tp"}
    assert words["trtexec"] == [
        "trtexec",
        "--onnx=my model.onnx",
        "--saveEngine=my model.engine",
        f"--dynamicPlugins={own}",
        f"--setPluginsToSerialize={own}",
    ]
    assert words["trtexec-static"][-1] == f"--staticPlugins={auto}"
    assert words["polygraphy"][:5] == ["polygraphy", "run", "my model.onnx", "--trt", "--plugins"]
    assert words["polygraphy"][5:] == ["libnvinfer.so.11", auto]
    assert words["triton"][-1] == f"--backend-config=tensorrt,plugins={auto}"
    assert words["triton-preload"][0] == f"LD_PRELOAD={auto}"
    assert f"'trt_extra_plugin_lib_paths': '{auto}'" in text["onnxruntime"]
    assert text["python"] == f"tensorrt.get_plugin_registry().load_library({own!r})"
    for name in ("onnxruntime", "python"):
        compile(text[name], name, "eval")
    (only,) = plugin.command_lines(loader="python", cache=standin.cache).lines
    assert only.text == text["python"]
    with pytest.raises(UsageError):
        plugin.command_lines(loader="dlopen", cache=standin.cache)


def test_the_lines_for_a_library_take_the_one_beside_it(tmp_path: Path, standin: Standin) -> None:
    _build(standin, output=tmp_path / "out")
    own = tmp_path / "out" / "librmsnorm_plugin.so"
    auto = tmp_path / "out" / "librmsnorm_plugin_autoload.so"
    for given in (own, auto):
        found = plugin.command_lines(library=given)
        assert {line.library for line in found.lines} == {own, auto}
        assert all(
            line.library == (own if line.style == "load_library" else auto) for line in found.lines
        )
    assert "libnvinfer.so.11" in found.lines[2].text  # from the manifest among the copies
    auto.unlink()
    with pytest.raises(InputError, match="cannot be loaded in this way"):
        plugin.command_lines(loader="polygraphy", library=own)
    with pytest.raises(InputError):
        plugin.command_lines(library=tmp_path / "missing.so")


def test_polygraphy_gets_the_tensorrt_of_the_python_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tensorrt_libs"
    package.mkdir()
    (package / "libnvinfer.so.11").write_text("")
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert lines.library_of_package("libnvinfer.so.11") == str(package / "libnvinfer.so.11")
    assert lines.library_of_package("libnvinfer.so.10") is None
    line = lines.loader_line("polygraphy", "m.onnx", tmp_path / "l.so", "11.4.0")
    assert f"--plugins {package}/libnvinfer.so.11 " in line.text


def test_polygraphy_knows_the_option() -> None:
    program = Path(sys.executable).with_name("polygraphy")
    if not program.exists():
        pytest.skip("no polygraphy: pip install polygraphy to enable")
    done = subprocess.run([program, "run", "--help"], capture_output=True, text=True, check=True)
    for option in ("--plugins PLUGINS [PLUGINS ...]", "--trt "):
        assert option in done.stdout


def test_the_manifest_tells_the_version(tmp_path: Path) -> None:
    assert lines.version_beside(tmp_path / "l.so") == ""
    (tmp_path / "manifest.json").write_text("[]")
    assert lines.version_beside(tmp_path / "l.so") == ""
    (tmp_path / "librmsnorm_plugin.json").write_text(json.dumps({"tensorrt": "10.9.0"}))
    assert lines.version_beside(tmp_path / "l.so") == "10.9.0"
