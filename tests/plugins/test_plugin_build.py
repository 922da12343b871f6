"""Building: the cache, its key, damage, races, failures, and copies.

The project is a stand-in (see plugin_standin); CMake, the compiler and the files are real. At the
end the real sources are built with the real compiler where TensorRT's headers are at hand.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rmsnorm_export.errors import BackendMissingError, InputError, UsageError
from rmsnorm_export.tensorrt import plugin
from rmsnorm_export.tensorrt.plugin import cache as store
from rmsnorm_export.tensorrt.plugin.building import cmake_architectures
from tests.plugins.plugin_standin import (
    TENSORRT,
    Standin,
    make_standin,
    needs_build,
    needs_headers,
    write_headers,
)

pytestmark = needs_build


@pytest.fixture
def standin(tmp_path: Path) -> Standin:
    return make_standin(tmp_path)


def _build(standin: Standin, **changes: Any) -> plugin.Built:
    return plugin.build(**{**standin.arguments, **changes})


def test_a_build_and_the_same_again(standin: Standin) -> None:
    steps: list[tuple[str, int, int]] = []
    first = _build(standin, progress=lambda *step: steps.append(step))
    assert not first.cached
    assert (first.architectures, first.tensorrt, first.cuda) == (("90",), "11.1.0", "13.0.88")
    assert [library.path.name for library in first.libraries] == [
        "librmsnorm_plugin.so",
        "librmsnorm_plugin_autoload.so",
    ]
    for library in first.libraries:
        assert store.sha256_of(library.path) == library.sha256
        assert library.path.stat().st_size == library.bytes
    manifest = json.loads((first.folder / "manifest.json").read_text())
    assert manifest["architectures"] == ["90"]
    assert "plugin.cpp" in (first.folder / "build.log").read_text()
    assert steps[0] == ("configuring", 0, 1)
    assert any("plugin.cpp" in what for what, _, _ in steps)
    assert steps[-1][1] == steps[-1][2]
    again = _build(standin)
    assert again.cached
    assert again.seconds < 2
    assert again.libraries == first.libraries
    assert standin.builds() == 1
    assert not _build(standin, force=True).cached
    assert standin.builds() == 2


def test_onnxruntime_with_cuda(standin: Standin) -> None:
    """A runtime of its own in the cache: neither the CPU's build nor PyTorch's is taken for it."""
    built = _build(standin, runtime="onnxruntime", tensorrt_include=None)
    assert (built.runtime, built.tensorrt, built.cuda) == ("onnxruntime-cuda", "", "13.0.88")
    assert built.key.startswith("onnxruntime-cuda-sm90-")
    library = plugin.onnxruntime_library(cuda=True, cache=standin.cache)
    assert library == built.path("register")
    assert library.name == "librmsnorm_onnxruntime_cuda.so"
    with pytest.raises(BackendMissingError, match="kernels for ONNX Runtime are not built"):
        plugin.onnxruntime_library(cache=standin.cache)
    with pytest.raises(BackendMissingError, match="kernels for PyTorch are not built"):
        plugin.use_in_torch(cache=standin.cache)
    for lines in (
        plugin.command_lines(cache=standin.cache),
        plugin.command_lines(library=library, cache=standin.cache),
    ):
        assert [line.loader for line in lines.lines] == ["onnxruntime-cuda", "triton-cuda"]
        assert {line.library for line in lines.lines} == {library}
    with pytest.raises(UsageError, match="only those for TensorRT its headers"):
        _build(standin, runtime="onnxruntime")


def test_nothing_is_left_but_the_entry(standin: Standin) -> None:
    built = _build(standin)
    assert [p.name for p in standin.cache.iterdir() if p.is_dir()] == [built.key]
    assert sorted(p.name for p in built.folder.iterdir()) == [
        "build.log",
        "librmsnorm_plugin.so",
        "librmsnorm_plugin_autoload.so",
        "manifest.json",
    ]


def test_the_key_is_made_of_all_that_matters(
    standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [_build(standin).key]
    keys.append(_build(standin, arch="90,100").key)
    write_headers(standin.headers, (10, 9, 0))
    keys.append(_build(standin).key)
    standin.nvcc.write_text(standin.nvcc.read_text().replace("V13.0.88", "V13.0.99"))
    keys.append(_build(standin).key)
    (standin.source / "plugin.cpp").open("a").write("// changed\n")
    keys.append(_build(standin).key)
    monkeypatch.setenv("CXXFLAGS", "-O1")
    keys.append(_build(standin).key)
    assert len(set(keys)) == len(keys) == standin.builds()
    assert "trt10.9.0-sm90-" in keys[2]


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.cache_folder() == tmp_path / "rmsnorm_export" / "plugins"
    for unusable in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        expected = tmp_path / "home" / ".cache" / "rmsnorm_export" / "plugins"
        assert store.cache_folder() == expected
    monkeypatch.chdir(tmp_path)
    assert store.cache_folder("c") == tmp_path / "c"


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda f: (f / "librmsnorm_plugin.so").open("ab").write(b"x"), "SHA-256"),
        (lambda f: (f / "librmsnorm_plugin.so").unlink(), "librmsnorm_plugin.so is missing"),
        (lambda f: (f / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda f: (f / "manifest.json").write_text("{"), "JSONDecodeError"),
        (lambda f: (f / "manifest.json").write_text("[]"), "TypeError"),
        (lambda f: (f / "manifest.json").write_text('{"schema": 9}'), "schema 9"),
    ],
)
def test_a_damaged_build_is_made_again_and_said(standin: Standin, damage: Any, word: str) -> None:
    built = _build(standin)
    damage(built.folder)
    (entry,) = plugin.list_plugins(cache=standin.cache).entries
    assert entry.built is None
    assert word in entry.problem
    with pytest.raises(BackendMissingError, match="damaged"):
        plugin.library(cache=standin.cache)
    again = _build(standin)
    assert not again.cached
    assert any(word in note and "built again" in note for note in again.notes)
    assert standin.builds() == 2
    assert _build(standin).cached
    (entry,) = plugin.list_plugins(cache=standin.cache).entries
    assert entry.problem == ""


def test_builds_at_the_same_time_share_one_compilation(standin: Standin) -> None:
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: _build(standin), range(4)))
    assert standin.builds() == 1
    assert sorted(one.cached for one in built) == [False, True, True, True]
    assert len({one.libraries for one in built}) == 1


def test_processes_at_the_same_time_share_one_compilation(standin: Standin) -> None:
    code = "from rmsnorm_export import plugin; import sys; plugin.build(arch='90', "
    code += f"source={str(standin.source)!r}, cuda={str(standin.nvcc)!r}, "
    code += f"tensorrt_include={str(standin.headers)!r}, cache={str(standin.cache)!r})"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [process.wait(timeout=120) for process in started] == [0, 0, 0]
    assert standin.builds() == 1


def test_forced_builds_at_the_same_time_do_not_clash(standin: Standin) -> None:
    with ThreadPoolExecutor(3) as pool:
        built = list(pool.map(lambda _: _build(standin, force=True), range(3)))
    assert standin.builds() == 3
    assert not any(one.cached for one in built)
    assert _build(standin).cached


def test_what_a_killed_build_left_is_removed(standin: Standin) -> None:
    key = _build(standin).key
    left = standin.cache / f".{key}.0123abcd.tmp"
    other = standin.cache / ".another.0123abcd.tmp"
    for folder in (left, other):
        folder.mkdir()
    _build(standin, force=True)
    assert (left.exists(), other.exists()) == (False, True)
    assert len(plugin.list_plugins(cache=standin.cache).entries) == 1


def test_a_compile_error_is_shown_and_logged(standin: Standin) -> None:
    (standin.source / "plugin.cpp").write_text("int main() { return no_such_name; }\n")
    with pytest.raises(plugin.BuildError, match="did not compile") as caught:
        _build(standin)
    error = caught.value
    assert "no_such_name" in error.found
    assert any("plugin.cpp" in line for line in error.tail)
    assert error.log.parent == standin.cache
    assert str(error.log) in error.fix
    assert "no_such_name" in error.log.read_text()
    assert plugin.list_plugins(cache=standin.cache).entries == ()


def test_a_project_that_cmake_refuses(standin: Standin) -> None:
    (standin.source / "CMakeLists.txt").write_text('message(FATAL_ERROR "nothing works today")')
    with pytest.raises(plugin.BuildError, match="set the build up") as caught:
        _build(standin)
    assert "nothing works today" in caught.value.found


def test_a_failed_build_leaves_the_old_one(standin: Standin) -> None:
    good = _build(standin)
    text = standin.nvcc.read_text()
    (standin.source / "CMakeLists.txt").open("a").write("if(DEFINED ENV{BREAK})\n  no()\nendif()\n")
    kept = _build(standin)
    standin.nvcc.write_text(text)
    os.environ["BREAK"] = "1"
    try:
        with pytest.raises(plugin.BuildError):
            _build(standin, force=True)
    finally:
        del os.environ["BREAK"]
    assert _build(standin).cached
    assert kept.libraries != good.libraries


def _no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")


def test_a_full_disk(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "copy_file", _no_space)
    with pytest.raises(InputError, match="cannot be written") as caught:
        _build(standin)
    assert "No space left" in caught.value.found
    assert "--cache" in caught.value.fix
    assert plugin.list_plugins(cache=standin.cache).entries == ()
    assert [p for p in standin.cache.iterdir() if p.is_dir()] == []


def test_a_disk_that_is_full_for_the_compiler(standin: Standin) -> None:
    text = 'message(FATAL_ERROR "ld: final link failed: No space left on device")'
    (standin.source / "CMakeLists.txt").write_text(text)
    with pytest.raises(InputError, match="disk is full") as caught:
        _build(standin)
    assert "TMPDIR" in caught.value.fix


def test_a_cache_that_cannot_be_written(standin: Standin, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written") as caught:
        _build(standin, cache=tmp_path / "file" / "cache")
    assert "XDG_CACHE_HOME" in caught.value.fix


def test_a_build_that_makes_no_library(standin: Standin) -> None:
    path = standin.source / "CMakeLists.txt"
    target = "set_target_properties(rmsnorm_plugin_autoload PROPERTIES OUTPUT_NAME other)\n"
    path.write_text(path.read_text() + target)
    with pytest.raises(plugin.BuildError, match="made no librmsnorm_plugin_autoload"):
        _build(standin)


def test_copies(standin: Standin, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    built = _build(standin, output=out)
    assert [path.name for path in built.copies] == [
        "librmsnorm_plugin.so",
        "librmsnorm_plugin_autoload.so",
        "librmsnorm_plugin.json",
    ]
    for library in built.libraries:
        assert (out / library.path.name).read_bytes() == library.path.read_bytes()
    before = {path: path.stat().st_mtime_ns for path in built.copies}
    assert _build(standin, output=out).copies == built.copies
    assert {path: path.stat().st_mtime_ns for path in built.copies} == before
    (out / "librmsnorm_plugin.so").write_text("mine")
    with pytest.raises(UsageError, match="replace another file"):
        _build(standin, output=out)
    assert (out / "librmsnorm_plugin.so").read_text() == "mine"
    _build(standin, output=out, force=True)
    assert plugin.inspect_library(out / "librmsnorm_plugin.so").style == "load_library"
    assert len(list(out.iterdir())) == 3


def test_a_copy_that_fails_does_not_lose_the_build(standin: Standin, tmp_path: Path) -> None:
    (tmp_path / "out" / "librmsnorm_plugin.so").mkdir(parents=True)
    with pytest.raises(InputError) as caught:
        _build(standin, output=tmp_path / "out", force=True)
    (entry,) = plugin.list_plugins(cache=standin.cache).entries
    assert entry.built is not None
    assert f"the libraries are built, and kept in {entry.folder}" in caught.value.fix


def test_an_output_that_is_no_folder_is_refused_before_the_build(
    standin: Standin, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    for output in (tmp_path / "file", "-", ""):
        with pytest.raises((InputError, UsageError)):
            _build(standin, output=output)
    assert standin.builds() == 0
    assert (tmp_path / "file").read_text() == "mine"


def test_options_that_cannot_be_used(standin: Standin) -> None:
    for wrong in ({"arch": "hopper"}, {"jobs": 0}, {"arch": "75"}):
        with pytest.raises(UsageError):
            _build(standin, **wrong)
    with pytest.raises(BackendMissingError):
        _build(standin, tensorrt_include=standin.source)
    assert standin.builds() == 0


def test_ctrl_c_ends_the_compiler_and_leaves_nothing(standin: Standin, tmp_path: Path) -> None:
    started = tmp_path / "started"
    text = f'execute_process(COMMAND sh -c "echo $$ > {started}; sleep 60")\n'
    (standin.source / "CMakeLists.txt").write_text(text)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    code = "from rmsnorm_export import plugin; plugin.build(arch='90', "
    code += f"source={str(standin.source)!r}, cuda={str(standin.nvcc)!r}, "
    code += f"tensorrt_include={str(standin.headers)!r}, cache={str(standin.cache)!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"TMPDIR": str(temporary)},
        stderr=subprocess.DEVNULL,
        # What was started in the background ignores the signal, and its children do.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 30
    while not (started.exists() and started.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child = int(started.read_text())
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) != 0
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()
    assert list(temporary.iterdir()) == []
    assert [p for p in standin.cache.iterdir() if p.is_dir()] == []


def test_code_for_each_architecture_and_ptx_of_the_last() -> None:
    assert cmake_architectures(["90"]) == ["90"]
    assert cmake_architectures(["80", "90a", "120"]) == ["80-real", "90a-real", "120"]


@needs_headers
@pytest.mark.slow
def test_the_real_plugin(tmp_path: Path) -> None:
    built = plugin.build(arch="90", tensorrt_include=TENSORRT, output=tmp_path)
    assert built.architectures == ("90",)
    info = plugin.inspect_library(tmp_path / "librmsnorm_plugin.so")
    assert (info.style, info.problem) == ("load_library", "")
    assert {"RMSNorm", "SkipRMSNorm", "GatedRMSNorm"} <= {c.name for c in info.creators}
    assert not [name for name in info.needed if "nvinfer" in name or "cudart" in name]
    assert plugin.build(arch="90", tensorrt_include=TENSORRT).cached
