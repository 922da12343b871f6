"""The TensorRT adapter of plugins/tensorrt, by a program that plays TensorRT to it."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rmsnorm_export.errors import UsageError
from rmsnorm_export.lower.plugin import creator_names
from rmsnorm_export.op import spec
from rmsnorm_export.op.body_key import assign_bodies, body_key
from rmsnorm_export.op.native import KINDS, QUANTIZED_KINDS, ROW_KINDS
from rmsnorm_export.op.spec import PLUGIN_NAMESPACE, PLUGIN_VERSION, Kind, NormSpec
from tests.plugins import adapter_cases, kernel_build
from tests.plugins.player import BF16, FLOAT, HALF, Node, Player, Tensor, field, nodes, raw_field

OPERATORS = (*KINDS, *QUANTIZED_KINDS)
LIBRARY = "9.8.7, kernels 0123456789ab"


@pytest.fixture
def player(adapter: pathlib.Path) -> Iterator[Player]:
    """One that every test ends in peace."""
    playing = Player(adapter / "tests" / "adapter" / "rmsnorm_adapter_player")
    yield playing
    playing.close()


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


@pytest.mark.slow
@pytest.mark.parametrize("op", OPERATORS)
def test_what_the_builder_asks(player: Player, op: str) -> None:
    """Number, types and shapes of outputs, formats, configuration; for every attribute."""
    ids = set()
    for node in nodes(op):
        assert player.create(op, node.fields), player.logged
        words = player.ask("describe", "a").split(" ", 10)
        kinds = ["CORE", "BUILD", "RUNTIME"]
        assert words[:3] == [op, PLUGIN_VERSION, PLUGIN_NAMESPACE]
        assert words[3:7] == [*(f"PLUGIN_V3ONE_{kind}" for kind in kinds), "0"]
        assert words[7:9] == [str(len(node.roles(0)[1])), "0"]
        ids.add(" ".join(words[9:]))
        for weights in range("scale_offset" in node.changes, 3):
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
            if not node.changes or "stash_type" in node.changes:
                negotiated = player.negotiate(len(inputs), len(outputs))
                assert negotiated == _expected(node, weights)
    assert len(ids) == len(nodes(op))
    assert not player.logged


def test_nodes_that_are_taken_and_refused(player: Player) -> None:
    """Each case changes one thing in a node that is configured."""
    for op, fields, weights, sizes, changes, word in adapter_cases.NODES:
        node = Node(op, fields)
        assert player.create(op, node.fields)
        tensors = node.tensors(HALF, HALF, weights, tuple(sizes))
        tensors = adapter_cases.changed(tensors, changes)
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
        for how, origin, copy in (("clone", "a", "b"), ("attach", "b", "c")):
            assert player.ask(how, origin, copy) == "made"
            player.ask("free", origin)
            assert player.fields(copy) == fields
        least = "scale_offset" in node.changes
        for weights in range(least, 3):
            launch, fields_left = _launch(player, node, weights, "c"), dict(node.fields)
            tensors = node.tensors(node.type, node.type, weights)
            axes = fields_left.pop("axis"), fields_left.pop("last_axis")
            sizes = {(-1, -1): (64, 1, 4), (-2, -1): (256, 1, 1), (-2, -2): (4, 64, 64)}
            n, inner, rows = sizes[axes]
            expected: dict[str, float] = {
                "kind": KINDS.index(node.kind), "stream": 0x77,
                "x": tensors["x"].kernel_type, "y": tensors["y"].kernel_type,
                "has_scale": weights > 0, "has_bias": weights > 1,
                "quantize": 1 if node.static else 2 if node.per_row else 0,
                "stash_half": fields_left.pop("stash_type") != 1,
                "activation": fields_left.pop("activation", "silu") == "sigmoid",
                "n": n, "inner": inner, "rows": 2**33 * rows,
            }  # fmt: skip
            if node.kind == "RotaryRMSNorm":
                runs = {"run_0": 2**33, "run_1": 4, "stride_2": 1, "stride_1": 0}
                expected |= {"table": expected["x"], "table_width": node.width, **runs}
            fields_left.pop("quantize", None)
            expected |= {name: np.float32(value) for name, value in fields_left.items()}
            assert {name: launch[name] for name in expected} == expected
        assert _launch(player, node, least, "restored") == _launch(player, node, least, "c")
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
    if not pathlib.Path("/dev/nvidia0").exists():
        player.ask("answer", -1)
        assert not launches(good).startswith("0 ")
        assert "launched" in player.logged


def test_attributes_that_are_taken_and_refused(player: Player) -> None:
    for op, rows in adapter_cases.BAD.items():
        for word, value in ((word, value) for word, every in rows.items() for value in every):
            fields = value if isinstance(value, dict) else {word: value}
            assert not player.create(op, Node(op).fields | fields), (op, fields)
            assert word in player.logged
            assert op in player.logged
    for count, tokens, taken in adapter_cases.RAW:
        answer = player.ask("create", "a", "RMSNorm", "layer", count, *tokens)
        assert (answer == "made") == taken, (count, tokens)
        assert bool(player.logged) == (not taken)
    assert player.ask("create", "a", "RMSNorm", "-", "-10") != "made"
    sigmoid = raw_field("activation", 6, 7, b"sigmoid")  # without its NUL
    assert player.ask("create", "a", "GatedRMSNorm", "layer", "all", sigmoid) == "made"


@pytest.mark.parametrize("op", ["RMSNorm", "GatedRMSNorm", "QuantizedSkipRMSNorm", "RotaryRMSNorm"])
def test_engines_of_other_versions(player: Player, op: str) -> None:
    """What an earlier library did not write has its default; what a later one did is refused."""
    whole = Node(op).fields | {"epsilon": 1e-5}
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


def test_creators_have_the_attributes_as_fields(player: Player) -> None:
    """In order; a field that the node lacks would make the parser warn."""
    rows = [row.split() for row in player.ask("creators").split(";") if row.strip()]
    assert {tuple(row[1:3]) for row in rows} == {(PLUGIN_NAMESPACE, PLUGIN_VERSION)}
    assert sorted(row[0] for row in rows) == sorted(creator_names())
    for name, _, _, *fields in rows:
        assert [field.split(":")[0] for field in fields] == [*Node(name).fields]


def test_creators_are_the_names_that_optimize_writes() -> None:
    """Every name of a second body that one attribute makes and that has no size in it."""
    named = creator_names()
    written = {name for kind in KINDS for name in _second_names(kind)}
    # What is clamped or over channels differs from LLaMA's norm, and a stash that is half, too.
    two = re.compile(r"_association_\d$|_stash_b?float16_(epsilon_clamp|channels)")
    aliases = {name for name in written if not two.search(name)}
    codes = {name for name in named if name.startswith("Quantized")}
    assert named == aliases | set(KINDS) | codes
    assert len(codes) == 5 * len(ROW_KINDS)


_FLAGS = ("scale_before_cast", "round_rstd", "epsilon_outside", "epsilon_clamp", "gate_first")
_VALUES: dict[str, tuple[object, ...]] = {
    **dict.fromkeys((*_FLAGS, "rotary_interleaved", "half_table"), (False, True)),
    **dict.fromkeys(("partial_size", "group_size"), (0, 16, 32)),
    "stash_type": (spec.FLOAT, spec.FLOAT16, spec.BFLOAT16),
    "axis": (-1, -2, -3),
    "association": (0, 1, 2),
    "activation": ("silu", "sigmoid"),
    "rotary_dim": (0, 16),
    "table_dtype": (None, spec.FLOAT),
}
_VOLUME, _IMAGE = ({"axis": axis, "last_axis": axis} for axis in (-4, -3))
_CHOICES: list[list[dict[str, object]]] = [
    [{}, _VOLUME, _IMAGE],
    [{}, {**_VOLUME, "epsilon_clamp": True}],
    *([{name: value} for value in values] for name, values in _VALUES.items()),
]
_TYPES = ((spec.FLOAT16, spec.FLOAT), *((half, half) for half in (spec.FLOAT16, spec.BFLOAT16)))


def _second_names(kind: Kind) -> set[str]:
    """Names of the second and third body of specs that differ in one attribute, or in the axes."""
    names = set()
    orders = (order for changes in _CHOICES for order in itertools.permutations(changes))
    for order, (dtype, stash) in itertools.product(orders, _TYPES):
        keys = [_key(kind, dtype, {"stash_type": stash, **change}) for change in order]
        if None not in keys:
            # The more sites a body has, the earlier it is named.
            sites = [key for at, key in enumerate(keys[::-1], 1) for _ in range(at)]
            names |= {name for name, _ in assign_bodies(sites)} - {kind}
    return names


def _key(kind: Kind, dtype: int, changes: dict[str, Any]) -> object:
    """None where the specification has no such norm."""
    table = {name: changes.pop(name) for name in ("half_table", "table_dtype") if name in changes}
    types = {"dtype": dtype, "scale_dtype": dtype, "bias_dtype": None}
    if (table and kind != "RotaryRMSNorm") or changes.keys() - NormSpec(kind=kind).attributes():
        return None
    try:
        return body_key(NormSpec(kind=kind, **changes), **types, opset=18, **table)
    except (ValueError, UsageError):
        return None


EXPORTS = {
    "librmsnorm_plugin.so": ["getCreators", "setLoggerFinder"],
    "librmsnorm_plugin_autoload.so": [f"createInfer{x}_INTERNAL" for x in ("Builder", "Runtime")],
}


def test_what_a_library_shows_and_needs(adapter: pathlib.Path) -> None:
    """Only the entry points; no TensorRT and no shared CUDA runtime.

    Of CUDA the adapter has only the text of an error: no allocation, no synchronisation.
    """
    for library, exports in EXPORTS.items():
        assert kernel_build.exported(adapter / library) == exports
        dynamic = kernel_build.run(["readelf", "-d", adapter / library])
        assert not re.search(r"NEEDED.*(nvinfer|tensorrt|cuda)", dynamic)
    folder = adapter / "CMakeFiles" / "rmsnorm_adapter.dir" / "tensorrt"
    objects = [folder / f"{source}.cpp.o" for source in ("attributes", "creators")]
    undefined = re.findall(r"\bU (cu\w+)", kernel_build.run(["nm", "-u", *objects]))
    assert set(undefined) == {"cudaGetErrorString"}
