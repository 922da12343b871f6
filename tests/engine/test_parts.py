"""Messages, progress, the choice of a backend, the plugin and the options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmsnorm_export.errors import BackendMissingError, UsageError
from rmsnorm_export.tensorrt.engine import backends, plugins
from rmsnorm_export.tensorrt.engine.backends import RTX, TENSORRT, choose
from rmsnorm_export.tensorrt.engine.build import MESSAGE_LIMIT, collect_messages, message_kind
from rmsnorm_export.tensorrt.engine.options import BuildOptions
from rmsnorm_export.tensorrt.engine.plugins import plan_plugin
from rmsnorm_export.tensorrt.engine.result import sidecar_path
from rmsnorm_export.tensorrt.engine.worker import TOTAL, Phases


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Detected layernorm nodes in FP16.", "half-norm"),
        (
            "Running layernorm after self-attention with FP16 Reduce or Pow may cause overflow.",
            "half-norm",
        ),
        ("ModelImporter.cpp:1071: Make sure input ids has Int64 binding.", "index-type"),
        (
            "ImporterContext.hpp:501: A node named f.sum already exists, the output tensors of this"
            " new instance will not be queryable.",
            "function-names",
        ),
        ("layernorm is nice", "other"),
        ("Profile kMAX values are not self-consistent.", "other"),
    ],
)
def test_kinds_of_messages(text: str, kind: str) -> None:
    assert message_kind(text) == kind


def test_messages_of_one_kind_are_one() -> None:
    found = collect_messages(
        [
            ("parse", "a.cpp:1: Make sure input a has Int64 binding."),
            ("parse", "a.cpp:1: Make sure input b has Int64 binding."),
            ("build", "one"),
            ("build", "two"),
            ("build", "one"),
        ]
    )
    assert [(m.stage, m.kind, m.text, m.count) for m in found] == [
        ("parse", "index-type", "Make sure input a has Int64 binding.", 2),
        ("build", "other", "one", 2),
        ("build", "other", "two", 1),
    ]
    assert len(collect_messages([("build", str(i)) for i in range(1000)])) == MESSAGE_LIMIT


def test_progress_grows_to_the_end_through_nested_phases() -> None:
    phases = Phases()
    phases.start("build", None, 4)
    seen = [phases.done()]
    for step in range(4):
        phases.start(f"part {step}", "build", 10)
        for inner in range(10):
            phases.step(f"part {step}", inner)
            seen.append(phases.done())
        phases.finish(f"part {step}")
        seen.append(phases.done())  # the step that it was a part of is not over yet
        phases.step("build", step)
        seen.append(phases.done())
    phases.start("late", "gone", 3)
    seen.append(phases.done())
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0, TOTAL)
    assert seen[5] == pytest.approx(TOTAL / 8, abs=1)
    assert len(set(seen)) > 30


def test_progress_survives_odd_phases() -> None:
    phases = Phases()
    phases.start("a", "b", 0)
    phases.start("b", "a", 2)  # each other's parent
    phases.step("a", 7)
    phases.step("unknown", 1)
    assert 0 <= phases.done() <= TOTAL


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch):
    """Say what is installed, and whether there is a GPU."""

    def say(*modules: str, gpu: bool = False) -> None:
        monkeypatch.setattr(backends, "is_installed", lambda module: module in modules)
        monkeypatch.setattr(backends, "gpu_visible", lambda: gpu)

    return say


def test_auto_takes_what_can_build_here(here) -> None:
    here("tensorrt", "tensorrt_rtx", "polygraphy", gpu=True)
    assert choose("auto")[0] is TENSORRT
    here("tensorrt", "tensorrt_rtx", "polygraphy")
    assert choose("auto")[0] is RTX
    here("tensorrt", "polygraphy")
    assert choose("auto")[0] is TENSORRT
    here("tensorrt_rtx", "polygraphy", gpu=True)
    info, reason = choose("auto")
    assert info is RTX
    assert "TensorRT-RTX" in reason
    assert "a GPU is visible" in reason


@pytest.mark.parametrize(
    ("modules", "choice", "missing"),
    [
        ((), "auto", "'tensorrt_rtx>"),
        (("tensorrt_rtx",), "auto", "'polygraphy>"),
        (("tensorrt_rtx", "polygraphy"), "tensorrt", "'tensorrt>"),
        (("polygraphy",), "tensorrt-rtx", "'tensorrt_rtx>"),
    ],
)
def test_a_missing_backend_says_what_brings_it(here, modules, choice, missing) -> None:
    here(*modules)
    with pytest.raises(BackendMissingError) as caught:
        choose(choice)
    assert "pip install" in caught.value.fix
    assert missing in caught.value.fix


@pytest.mark.parametrize("option", ["backend", "plugin"])
def test_an_unknown_name(option: str) -> None:
    with pytest.raises(UsageError, match=f"no such {option}"):
        BuildOptions(**{option: "openvino"})  # type: ignore[arg-type]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch):
    """Say which library is built; None: none is."""

    def say(path: str | None) -> None:
        def find() -> Path:
            if path is None:
                raise BackendMissingError("The plugin is not built.", found="none", fix="build")
            return Path(path)

        monkeypatch.setattr(plugins, "_library", find)

    return say


def test_the_plugin_takes_part_where_it_can(library) -> None:
    library("/p.so")
    assert plan_plugin("auto", TENSORRT, own=True)[0] == Path("/p.so")
    assert plan_plugin("require", TENSORRT, own=True)[0] == Path("/p.so")
    assert plan_plugin("never", TENSORRT, own=True)[0] is None
    assert plan_plugin("auto", TENSORRT, own=False)[0] is None
    none, reason = plan_plugin("auto", RTX, own=True)
    assert none is None
    assert "no plugin layers" in reason
    library(None)
    assert plan_plugin("auto", TENSORRT, own=True)[0] is None


def test_require_where_no_plugin_can_take_part(library) -> None:
    library(None)
    with pytest.raises(BackendMissingError):
        plan_plugin("require", TENSORRT, own=True)
    library("/p.so")
    with pytest.raises(UsageError, match="TensorRT-RTX has no plugin layers"):
        plan_plugin("require", RTX, own=True)
    with pytest.raises(UsageError, match="--target portable"):
        plan_plugin("require", TENSORRT, own=False)


def test_the_real_lookup_without_a_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert plugins.library_or_none() == ""
    with pytest.raises(BackendMissingError) as caught:
        plan_plugin("require", TENSORRT, own=True)
    assert "plugin build" in caught.value.fix


@pytest.mark.parametrize(
    ("options", "info", "word"),
    [
        ({"version_compatible": True}, RTX, "--version-compatible"),
        ({"embed_plugin": True}, TENSORRT, "--embed-plugin"),
        (
            {"plugin": "never", "embed_plugin": True, "version_compatible": True},
            TENSORRT,
            "--plugin never",
        ),
        ({"memory_limit": 0}, TENSORRT, "0"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], info, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        BuildOptions(**options).check(info)
    assert word in str(caught.value)


def test_options_that_mean_less_are_noted() -> None:
    options = BuildOptions(hardware_compatible=True, tf32=True)
    assert options.notes(TENSORRT) == []
    assert len(options.notes(RTX)) == 2
    assert options.request(RTX)["hardware_compatible"] is False
    assert options.request(TENSORRT)["hardware_compatible"] is True
    BuildOptions(version_compatible=True, embed_plugin=True, memory_limit=1).check(TENSORRT)


@pytest.mark.parametrize(
    ("name", "content", "record", "engine", "backend"),
    [
        ("a.engine", None, "", True, ""),
        ("a.TRT", b"", "", True, ""),
        ("a.bin", b"ptrt....", "", True, "tensorrt"),
        ("a.bin", b"vtrt....", "", True, "tensorrt-rtx"),
        ("a.onnx", b"vtrt....", "", False, "tensorrt-rtx"),
        ("a.bin", b"\x08\x0a", '{"schema_version": 1, "kind": "engine_record"}', True, ""),
        ("a.bin", b"\x08\x0a", '{"schema_version": 1, "kind": "report"}', False, ""),
        ("a.onnx", b"\x08\x0a", "", False, ""),
        ("a.bin", b"pt", "", False, ""),
    ],
)
def test_what_an_engine_is(
    tmp_path: Path, name: str, content: bytes | None, record: str, engine: bool, backend: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    if record:
        sidecar_path(path).write_text(record)
    assert backends.is_engine(path) is backends.is_engine(str(path)) is engine
    info = backends.backend_of_file(path)
    assert ("" if info is None else info.name) == backend


def test_what_no_engine_can_be(tmp_path: Path) -> None:
    for source in (b"ptrt", None, "", ".", "no\0path", tmp_path):
        assert not backends.is_engine(source)
