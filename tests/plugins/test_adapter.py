"""The TensorRT adapter of plugins/tensorrt, by a program that plays TensorRT to it."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import adapter_build
import numpy as np
import pytest
from adapter_cases import BAD_TOGETHER, BAD_VALUES, RAW, REFUSED, TAKEN
from player import (
    BF16,
    FLOAT,
    FORMATS,
    FP8,
    HALF,
    INT8,
    LINEAR,
    TYPES,
    Fields,
    Node,
    Player,
    Tensor,
    field,
    nodes,
    raw_field,
)  # fmt: skip

from rmsnorm_export.errors import UsageError
from rmsnorm_export.lower.portable import creator_names
from rmsnorm_export.op.body_key import assign_bodies, body_key
from rmsnorm_export.op.native import KINDS, ROW_KINDS
from rmsnorm_export.op.spec import (
    BFLOAT16,
    FLOAT16,
    PLUGIN_NAMESPACE,
    PLUGIN_VERSION,
    Kind,
    NormSpec,
)
from rmsnorm_export.op.spec import FLOAT as FLOAT32

pytestmark = pytest.mark.parametrize("headers", adapter_build.header_parameters())
OPSET = 18


OPERATORS = (*KINDS, *(f"Quantized{kind}" for kind in ROW_KINDS))
PROGRAMS = ("rmsnorm_adapter_player", "rmsnorm_adapter_player_sanitized")
LIBRARY = "9.8.7, kernels 0123456789ab"


@pytest.fixture(params=PROGRAMS)
def player(headers: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[Player]:
    """One that every test ends in peace."""
    playing = Player(adapter_build.build(headers) / "tests" / "adapter" / request.param)
    yield playing
    playing.close()


def _creators(headers: pathlib.Path) -> dict[str, list[str]]:
    playing = Player(adapter_build.build(headers) / "tests" / "adapter" / PROGRAMS[0])
    rows = [row.split() for row in playing.ask("creators").split(";") if row.strip()]
    playing.close()
    assert {tuple(row[1:3]) for row in rows} == {(PLUGIN_NAMESPACE, PLUGIN_VERSION)}
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: [field.split(":")[0] for field in row[3:]] for row in rows}


def _expected(node: Node, weights: int) -> set[tuple[int, ...]]:
    """Combinations of types, in the order of the tensors."""
    every = set()
    stash = int(node.fields["stash_type"])
    for x, onnx_type in ((FLOAT, 1), (HALF, 10), (BF16, 16)):
        if stash not in (1, onnx_type):
            continue
        for angles, scale, bias in itertools.product({x, FLOAT}, repeat=3):
            types = {role: t.type for role, t in node.tensors(x, x, weights).items()}
            chosen = {"cos": angles, "sin": angles, "scale": scale, "bias": bias}
            every.add(tuple((types | {r: chosen[r] for r in chosen if r in types}).values()))
    return every


def _negotiated(player: Player, node: Node, weights: int) -> set[tuple[int, ...]]:
    """Those that the plugin supports, asked position by position as the builder does."""
    inputs, outputs = node.roles(weights)
    counts = len(inputs), len(outputs)
    combinations: list[tuple[int, ...]] = [()]
    for _ in inputs + outputs:
        longer = []
        for types in combinations:
            before = [Tensor(one, (-1, 4, 64)) for one in types]
            for kind, layout in itertools.product(TYPES, FORMATS):
                last = Tensor(kind, (-1, 4, 64), layout)
                if player.ask("formats", "a", *counts, *before, last) == "1":
                    assert layout == LINEAR
                    longer.append((*types, kind))
        combinations = longer
    return set(combinations)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPERATORS)
def test_what_the_builder_asks(player: Player, op: str) -> None:
    """Number, types and shapes of outputs, formats, configuration, tactics; for every attribute."""
    ids = set()
    for node in nodes(op):
        assert player.create(op, node.fields), player.logged
        words = player.ask("describe", "a").split(" ", 12)
        kinds = ["CORE", "BUILD", "RUNTIME"]
        assert words[:3] == [op, PLUGIN_VERSION, PLUGIN_NAMESPACE]
        assert words[3:7] == [*(f"PLUGIN_V3ONE_{kind}" for kind in kinds), "0"]
        assert words[7:11] == [str(len(node.roles(0)[1])), "2", "1", "2"]
        ids.add(" ".join(words[11:]))
        for weights in range("scale_offset" in dict(node.changes), 3):
            inputs, outputs = node.roles(weights)
            tensors = node.tensors(node.type, FLOAT, weights)
            answer = player.ask("types", "a", len(outputs), *(tensors[r].type for r in inputs))
            assert answer.split() == ["0", *(str(tensors[r].type) for r in outputs)]
            rows = list("012")
            rows[node.rows] = "." * len(rows[node.rows])
            shapes = ["".join(rows) if r == "row_scale" else "012" for r in outputs]
            answer = player.ask("shapes", "a", len(inputs), len(outputs), 3)
            assert answer.split() == ["0", *shapes]
            for sizes in ((2, 4, 64), (-1, 4, 64), (-1, -1, -1)):
                of_sizes = node.tensors(node.type, FLOAT, weights, sizes).values()
                assert player.ask("configure", "a", len(inputs), *of_sizes) == "0", player.logged
            if not node.changes or "stash_type" in dict(node.changes):
                assert _negotiated(player, node, weights) == _expected(node, weights)
    assert len(ids) == len(nodes(op))
    assert not player.logged


def test_nodes_that_are_taken_and_refused(player: Player) -> None:
    """Each case changes one thing in a node that is configured."""
    every = [*((op, fields, weights, (2, 4, 64), change, "")
               for op, fields, weights, change in TAKEN), *REFUSED]  # fmt: skip
    for op, fields, weights, sizes, change, word in every:
        node = Node(op, tuple(fields.items()))
        assert player.create(op, node.fields)
        tensors = node.tensors(HALF, HALF, weights, sizes)
        tensors = change(tensors) if change else tensors
        inputs = len(tensors) - len(node.roles(weights)[1])
        answer = player.ask("configure", "a", inputs, *tensors.values())
        assert (answer == "0") == (not word), (op, fields, word)
        assert word in player.logged
        assert not word or op in player.logged
    assert player.create("RMSNorm", Node("RMSNorm").fields)
    assert player.ask("types", "a", 1, HALF, BF16)[0] != "0"
    assert "bfloat16" in player.logged
    assert player.ask("types", "a", 2, HALF)[0] != "0"
    assert player.ask("shapes", "a", 1, 1, 0)[0] != "0"
    assert player.ask("formats", "a", 4, 1, Tensor(HALF, (2, 64))) == "0"


KERNEL_TYPES = {FLOAT: 0, HALF: 1, BF16: 2, FP8: 3, INT8: 4}


def _launch(player: Player, node: Node, weights: int, plugin: str) -> dict[str, float]:
    """What came to the kernels for more than 2^31 rows, with the addresses checked."""
    inputs, outputs = node.roles(weights)
    tensors = node.tensors(node.type, node.type, weights, (2**33, 4, 64))
    assert player.ask("shape", plugin, len(inputs), *tensors.values()) == "0", player.logged
    status, *words = player.ask("enqueue", plugin, len(inputs), "all", *tensors.values()).split()
    assert status == "0", player.logged
    launch = {name: float(value) for name, value in (word.split("=") for word in words)}
    addresses = {role: float(i) for i, role in enumerate(inputs + outputs, 1)}
    taken = {name[3:]: value for name, value in launch.items() if name[:3] == "at_" and value}
    assert taken == addresses
    return launch


@pytest.mark.parametrize("op", OPERATORS)
def test_what_the_runtime_does(player: Player, op: str) -> None:
    """Serialised, made again, cloned, attached without its origin, and launched."""
    for node in nodes(op):
        assert player.create(op, node.fields)
        fields = [field(name, value) for name, value in node.fields.items()]
        assert player.fields() == fields
        serialized = player.ask("fields", "a").split()
        assert serialized[-1].startswith("library:6:")
        assert player.ask("create", "restored", op, "layer", "all", *serialized) == "made"
        assert player.fields("restored") == fields
        assert player.ask("tactic", "a", 2) == "0"
        for how, origin, copy in (("clone", "a", "b"), ("attach", "b", "c")):
            assert player.ask(how, origin, copy) == "made"
            player.ask("free", origin)
            assert player.fields(copy) == fields
        least = "scale_offset" in dict(node.changes)
        for weights in range(least, 3):
            launch = _launch(player, node, weights, "c")
            given = dict(node.fields)
            expected: dict[str, float] = {
                "kind": KINDS.index(node.kind), "tactic": 2, "stream": 0x77,
                "x": KERNEL_TYPES[node.type], "has_scale": weights > 0, "has_bias": weights > 1,
                "quantize": 1 if node.static else 2 if node.per_row else 0,
                "stash_half": given.pop("stash_type") != 1,
                "activation": given.pop("activation", "silu") == "sigmoid",
            }  # fmt: skip
            axis, last = int(given.pop("axis")), int(given.pop("last_axis"))
            expected["n"] = {(-1, -1): 64, (-2, -1): 256, (-2, -2): 4}[axis, last]
            expected["inner"] = 64 if last == -2 else 1
            expected["rows"] = 2**33 * {(-1, -1): 4, (-2, -1): 1, (-2, -2): 64}[axis, last]
            y = KERNEL_TYPES[next(reversed(node.tensors(node.type, node.type, 0).values())).type]
            expected["y"] = y if op == "QuantizedRMSNorm" and node.static else launch["y"]
            if node.kind == "RotaryRMSNorm":
                runs = {"run_0": 2**33, "run_1": 4, "stride_2": 1, "stride_1": 0}
                expected |= {"table": expected["x"], "table_width": node.width, **runs}
            given.pop("quantize", None)
            expected |= {name: np.float32(value) for name, value in given.items()}
            assert {name: launch[name] for name in expected} == expected
        assert player.ask("tactic", "c", 0) == "0"
        assert _launch(player, node, least, "c")["tactic"] == 1
        assert _launch(player, node, least, "restored")["tactic"] == 1
        empty = node.tensors(node.type, node.type, least, (0, 4, 64))
        inputs = len(node.roles(least)[0])
        where = list(empty).index("scale") if least else "none"
        assert player.ask("shape", "c", inputs, *empty.values()) == "0"
        assert player.ask("enqueue", "c", inputs, where, *empty.values()) == "0"
        assert not player.logged


def test_launches_that_are_refused(player: Player) -> None:
    node = Node("RMSNorm")
    assert player.create("RMSNorm", node.fields)
    good = list(node.tensors(HALF, HALF, 1, (4, 64)).values())
    x, scale, y = good
    bad = [x, dataclasses.replace(scale, sizes=(32,)), y]
    null = [x, dataclasses.replace(scale, sizes=None), y]

    def launches(tensors: list[Tensor], addresses: object = "all") -> str:
        return player.ask("enqueue", "a", 2, addresses, *tensors)

    assert launches(good)[0] != "0"
    assert "found 0" in player.logged
    assert player.ask("shape", "a", 2, *bad) != "0"
    assert "32" in player.logged
    assert "=" not in launches(bad)
    assert "32" in player.logged
    assert player.ask("shape", "a", 2, *good) == "0"
    assert launches(good).startswith("0 kind=")
    player.ask("answer", 701)
    assert launches(good).startswith("701 ")
    assert "launched" in player.logged
    player.ask("answer", 0)
    for tensors, addresses in ((null, "all"), (good, "0")):
        assert player.ask("shape", "a", 2, *tensors) == "0"
        answer = launches(tensors, addresses)
        assert "has_scale=0" in answer
        assert "at_scale=0" in answer
    for tactic in (-1, 3):
        assert player.ask("tactic", "a", tactic) != "0"
        assert "tactic" in player.logged
    if not pathlib.Path("/dev/nvidia0").exists():
        player.ask("answer", -1)
        assert not launches(good).startswith("0 ")
        assert "launched" in player.logged


def test_attributes_that_are_taken_and_refused(player: Player) -> None:
    for op, name, values in BAD_VALUES:
        for value in values:
            assert not player.create(op, Node(op).fields | {name: value}), (op, name, value)
            assert name in player.logged
            assert op in player.logged
    for op, fields, word in BAD_TOGETHER:
        assert not player.create(op, Node(op).fields | fields), (op, fields)
        assert word in player.logged
    for count, tokens, taken in RAW:
        made = player.ask("create", "a", "RMSNorm", "layer", count, *tokens) == "made"
        assert made == taken, (count, tokens)
        assert bool(player.logged) == (not taken)
    assert player.ask("create", "a", "RMSNorm", "-", "-10") != "made"
    sigmoid = raw_field("activation", 6, 7, b"sigmoid")  # without its NUL
    assert player.ask("create", "a", "GatedRMSNorm", "layer", "all", sigmoid) == "made"


@pytest.mark.parametrize("op", ["RMSNorm", "GatedRMSNorm", "QuantizedSkipRMSNorm", "RotaryRMSNorm"])
def test_engines_of_other_versions(player: Player, op: str) -> None:
    """What an earlier library did not write has its default; what a later one did is refused."""
    whole: Fields = Node(op).fields | {"epsilon": 1e-5}
    for name in whole:
        less = {key: value for key, value in whole.items() if key != name}
        assert player.create(op, less) == (name != "quantize")
        if name != "quantize":
            assert player.fields() == [field(*one) for one in whole.items()]
    later = whole | {"of_the_future": 0}
    assert not player.create(op, later)
    assert "'of_the_future'" in player.logged
    assert "another version" in player.logged
    for library, word in ((LIBRARY, LIBRARY), ("x" * 1000, "xxxx"), (7, "another version")):
        assert not player.create(op, later | {"library": library})
        assert word in player.logged
    assert player.create(op, whole | {"library": LIBRARY})


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
        [{"stash_type": stash} for stash in (FLOAT32, FLOAT16, BFLOAT16)],
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
            [{"table_dtype": None}, {"table_dtype": FLOAT32}],
        ]
    names = set()
    for changes in choices:
        for order in itertools.permutations(changes):
            for dtype, stash in ((FLOAT16, FLOAT32), (FLOAT16, FLOAT16), (BFLOAT16, BFLOAT16)):
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
