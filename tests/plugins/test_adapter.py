"""The TensorRT adapter of plugins/tensorrt, by the C++ programs of plugins/tests/adapter."""

from __future__ import annotations

import itertools
import pathlib
import re
import subprocess
from typing import Any

import adapter_build
import pytest

from rmsnorm_export.errors import UsageError
from rmsnorm_export.lower.portable import creator_names
from rmsnorm_export.op.body_key import assign_bodies, body_key
from rmsnorm_export.op.native import KINDS, ROW_KINDS
from rmsnorm_export.op.spec import BFLOAT16, FLOAT, FLOAT16, Kind, NormSpec

pytestmark = pytest.mark.parametrize("headers", adapter_build.header_parameters())
OPSET = 18


def _program(headers: pathlib.Path, name: str, *arguments: str) -> str:
    path = adapter_build.build(headers) / "tests" / "adapter" / name
    process = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    failed = [line for line in process.stdout.splitlines() if line.startswith("FAIL")]
    assert process.returncode == 0, "\n".join([*failed[:20], process.stdout[-500:], process.stderr])
    return process.stdout


def _creators(headers: pathlib.Path) -> dict[str, list[str]]:
    lines = _program(headers, "rmsnorm_adapter_tests", "--names").splitlines()
    return {name: fields for name, *fields in map(str.split, lines)}


@pytest.mark.slow
@pytest.mark.parametrize("program", ["rmsnorm_adapter_tests", "rmsnorm_adapter_tests_sanitized"])
def test_builder_and_runtime(headers: pathlib.Path, program: str) -> None:
    """Every creator goes through what TensorRT does with it, and refuses what it should."""
    passed, failed = re.findall(r"(\d+) passed, (\d+) failed", _program(headers, program))[-1]
    assert int(failed) == 0
    assert int(passed) > 7000


@pytest.mark.parametrize("kind", KINDS)
def test_fields_are_the_attributes(headers: pathlib.Path, kind: Kind) -> None:
    """In order; a field that the node lacks would make the parser warn."""
    creators = _creators(headers)
    attributes = list(NormSpec(kind=kind).attributes())
    assert creators[kind] == attributes
    if kind in ROW_KINDS:
        for name in creator_names(kind):
            if name.startswith("Quantized"):
                assert creators[name] == [*attributes, "quantize"]
    for name, fields in creators.items():
        if re.fullmatch(f"{kind}_.*", name):
            assert fields == attributes


def test_creators_are_the_names_that_optimize_writes(headers: pathlib.Path) -> None:
    """Every name of a second body that one attribute makes and that has no size in it."""
    named = {name for kind in KINDS for name in creator_names(kind)}
    assert set(_creators(headers)) == named
    written = {name for kind in KINDS for name in _second_names(kind)}
    # What is clamped or over channels differs from LLaMA's norm, and a stash that is half, too.
    two = re.compile(r"_association_\d$|_stash_b?float16_(epsilon_clamp|channels)")
    aliases = {name for name in written if not two.search(name)}
    codes = {name for name in named if name.startswith("Quantized")}
    assert named == aliases | set(KINDS) | codes
    assert len(codes) == 5 * len(ROW_KINDS)


def _second_names(kind: Kind) -> set[str]:
    """Names of the second and third body of specs that differ in one attribute, or in the axes."""
    volume, image = ({"axis": axis, "last_axis": axis} for axis in (-4, -3))
    choices: list[list[dict[str, object]]] = [
        *([{name: value} for value in (False, True)]
          for name in ("scale_before_cast", "round_rstd", "epsilon_outside", "epsilon_clamp")),
        [{"stash_type": stash} for stash in (FLOAT, FLOAT16, BFLOAT16)],
        *([{name: size} for size in (0, 16, 32)] for name in ("partial_size", "group_size")),
        [{"axis": axis} for axis in (-1, -2, -3)],
        [{}, volume, image],
        [{}, {**volume, "epsilon_clamp": True}],
        [{"association": order} for order in (0, 1, 2)],
    ]  # fmt: skip
    if kind == "GatedRMSNorm":
        choices += [[{"activation": "silu"}, {"activation": "sigmoid"}]]
        choices += [[{"gate_first": first} for first in (False, True)]]
    if kind == "RotaryRMSNorm":
        choices += [
            [{"rotary_dim": 0}, {"rotary_dim": 16}],
            [{"rotary_interleaved": flag} for flag in (False, True)],
            [{"half_table": flag} for flag in (False, True)],
            [{"table_dtype": None}, {"table_dtype": FLOAT}],
        ]
    names = set()
    for changes in choices:
        for order in itertools.permutations(changes):
            for dtype, stash in ((FLOAT16, FLOAT), (FLOAT16, FLOAT16), (BFLOAT16, BFLOAT16)):
                keys = [_key(kind, dtype, {"stash_type": stash, **change}) for change in order]
                if None not in keys:
                    # The more sites a body has, the earlier it is named.
                    sites = [key for at, key in enumerate(keys[::-1], 1) for _ in range(at)]
                    names |= {name for name, _ in assign_bodies(sites)} - {kind}
    return names


def _key(kind: Kind, dtype: int, changes: dict[str, object]) -> object:
    """None where the specification has no such norm."""
    try:
        table: Any = {name: changes[name] for name in changes if "table" in name}
        spec = NormSpec(kind=kind, **{k: v for k, v in changes.items() if k not in table})  # type: ignore[arg-type]
        types = {"dtype": dtype, "scale_dtype": dtype, "bias_dtype": None}
        return body_key(spec, **types, opset=OPSET, **table)
    except (ValueError, UsageError):
        return None


@pytest.mark.parametrize(
    ("library", "exports"),
    [
        (
            "librmsnorm_plugin.so",
            ["getCreators", "setLoggerFinder"],
        ),
        (
            "librmsnorm_plugin_autoload.so",
            [
                "createInferBuilder_INTERNAL",
                "createInferRuntime_INTERNAL",
            ],
        ),
    ],
)
def test_what_a_library_shows_and_needs(
    headers: pathlib.Path, library: str, exports: list[str]
) -> None:
    """Only the entry points; no TensorRT and no shared CUDA runtime."""
    path = adapter_build.build(headers) / library
    symbols = _said(["nm", "-D", "--defined-only", path])
    assert [line.split()[-1] for line in symbols.splitlines()] == exports
    needed = re.findall(r"NEEDED.*\[(.*)\]", _said(["readelf", "-d", path]))
    assert not [name for name in needed if re.search("nvinfer|tensorrt|cuda", name)]


def test_the_adapter_calls_nothing_that_breaks_a_graph(headers: pathlib.Path) -> None:
    """Of CUDA only the text of an error: no allocation, no synchronisation."""
    folder = adapter_build.build(headers) / "CMakeFiles" / "rmsnorm_adapter.dir"
    sources = {path.name for path in (adapter_build.PLUGINS / "tensorrt").glob("*.cpp")}
    # The folder is kept between runs, and may hold objects of sources that are gone.
    objects = [path for path in sorted(folder.rglob("*.o")) if path.stem in sources]
    assert {path.stem for path in objects} == {"attributes.cpp", "creators.cpp"}
    undefined = re.findall(r"\bU (cu\w+)", _said(["nm", "-u", *objects]))
    assert set(undefined) == {"cudaGetErrorString"}


def _said(command: list[object]) -> str:
    process = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    return process.stdout
