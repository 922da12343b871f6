"""Speaks to plugins/tests/adapter/player.cpp, which plays TensorRT to the plugin library."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import struct
import subprocess
from collections.abc import Sequence

from rmsnorm_export.op.spec import IN_KERNELS, Kind, NormSpec

FLOAT, HALF, INT8, INT32, BOOL, UINT8, FP8, BF16, INT64, INT4 = TYPES = range(10)
"""``nvinfer1::DataType``."""
LINEAR, FORMATS = 0, (0, 1, 2)
Value = float | str
Fields = dict[str, Value]


def field(name: str, value: Value) -> str:
    """A plugin field as the parser of TensorRT passes it: texts end with their NUL."""
    if isinstance(value, str):
        return raw_field(name, 6, len(value) + 1, value.encode() + b"\0")
    if isinstance(value, int):
        return raw_field(name, 5, 1, struct.pack("<i", value))
    return raw_field(name, 1, 1, struct.pack("<f", value))


def raw_field(name: str, kind: int, length: int, content: bytes | None) -> str:
    return f"{name}:{kind}:{length}:{'-' if content is None else content.hex()}"


@dataclasses.dataclass(frozen=True)
class Tensor:
    """What TensorRT says of a tensor; without sizes it is a null one."""

    type: int
    sizes: tuple[int, ...] | None
    format: int = LINEAR

    @property
    def kernel_type(self) -> int:
        """Its number in ``rmsnorm_export::Type``."""
        return (FLOAT, HALF, BF16, FP8, INT8).index(self.type)

    def __str__(self) -> str:
        sizes = "none" if self.sizes is None else ",".join(map(str, self.sizes))
        return f"{self.type}:{self.format}:{sizes}"


class Player:
    """The program, with plugins in it by name."""

    def __init__(self, program: pathlib.Path) -> None:
        self._process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.logged = ""

    def ask(self, command: str, *words: object) -> str:
        """The answer; ``logged`` is the last error that the plugin logged on the way, or ""."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, (command, *words))) + "\n")
        answer, _, self.logged = self._process.stdout.readline().rstrip("\n").rpartition("\t")
        assert self._process.poll() is None, (command, words)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(60) == 0

    def create(self, op: str, fields: Fields, plugin: str = "a") -> bool:
        tokens = [field(name, value) for name, value in fields.items()]
        return self.ask("create", plugin, op, "layer", "all", *tokens) == "made"

    def negotiate(self, inputs: int, outputs: int) -> set[tuple[int, ...]]:
        """Combinations of types that it supports, asked position by position as a builder does."""
        combinations: list[tuple[int, ...]] = [()]
        for _ in range(inputs + outputs):
            longer = []
            for types in combinations:
                before = [Tensor(one, (-1, 4, 64)) for one in types]
                for kind, layout in itertools.product(TYPES, FORMATS):
                    last = Tensor(kind, (-1, 4, 64), layout)
                    if self.ask("formats", "a", inputs, outputs, *before, last) == "1":
                        assert layout == LINEAR
                        longer.append((*types, kind))
            combinations = longer
        return set(combinations)

    def fields(self, plugin: str = "a") -> list[str]:
        """Fields to serialise, but the library."""
        return [one for one in self.ask("fields", plugin).split() if one[:8] != "library:"]


@dataclasses.dataclass(frozen=True)
class Node:
    """A node of an operator, with the tensors that it has."""

    op: str
    changes: Fields = dataclasses.field(default_factory=dict)
    width: int = 64

    @property
    def kind(self) -> Kind:
        return self.op.removeprefix("Quantized").split("_")[0]  # type: ignore[return-value]

    @property
    def fields(self) -> Fields:
        codes: Fields = {"quantize": "fp8"} if self.op.startswith("Quantized") else {}
        own = NormSpec(kind=self.kind).attributes().items()
        known = {name: value for name, value in own if name in IN_KERNELS}
        return {**known, "epsilon": 1e-6, **codes, **self.changes}

    @property
    def static(self) -> bool:
        return self.fields.get("quantize") in ("fp8", "int8")

    @property
    def per_row(self) -> bool:
        return str(self.fields.get("quantize")).endswith("_per_row")

    @property
    def type(self) -> int:
        """One of X that the node's stash_type allows."""
        return {1: HALF, 10: HALF, 16: BF16}[int(self.fields["stash_type"])]

    @property
    def rows(self) -> slice:
        """The normalised axes."""
        axis, last = int(self.fields["axis"]), int(self.fields["last_axis"])
        return slice(axis, last + 1 or None)

    def roles(self, weights: int) -> tuple[list[str], list[str]]:
        """Names of the inputs and of the outputs, in order."""
        inputs = ["x"]
        inputs += ["other"] * (self.kind in ("SkipRMSNorm", "GatedRMSNorm"))
        inputs += ["cos", "sin"] * (self.kind == "RotaryRMSNorm")
        inputs += ["scale", "bias"][:weights] + ["quant_scale"] * self.static
        outputs = ["y"] + ["sum"] * (self.kind == "SkipRMSNorm") + ["row_scale"] * self.per_row
        return inputs, outputs

    def tensors(
        self, type: int, weight: int, weights: int, sizes: Sequence[int] = (2, 4, 64)
    ) -> dict[str, Tensor]:
        """By role, inputs and then outputs, at X of these sizes."""
        rows = list(sizes)
        rows[self.rows] = [1] * len(rows[self.rows])
        x = Tensor(type, tuple(sizes))
        code = INT8 if str(self.fields.get("quantize")).startswith("int8") else FP8
        angles = Tensor(weight, (sizes[-2], self.width))
        gain = Tensor(weight, tuple(sizes[self.rows]))
        of_role = {"x": x, "other": x, "sum": x, "cos": angles, "sin": angles}
        of_role |= {"scale": gain, "bias": gain, "quant_scale": Tensor(FLOAT, ())}
        of_role |= {"y": Tensor(code if "quantize" in self.fields else type, tuple(sizes))}
        of_role |= {"row_scale": Tensor(FLOAT, tuple(rows))}
        inputs, outputs = self.roles(weights)
        return {role: of_role[role] for role in inputs + outputs}


def nodes(op: str) -> list[Node]:
    """Every attribute of an operator away from its default at least once."""
    changes: list[Fields] = [
        {}, {"scale_before_cast": 1}, {"scale_offset": 1.0},
        {"epsilon_outside": 1, "epsilon": 0.0}, {"round_rstd": 1},
        {"stash_type": 10, "association": 2},
        {"stash_type": 16, "association": 1, "round_rstd": 1},
        {"epsilon_clamp": 1, "epsilon": 1e-3},
    ]  # fmt: skip
    if op == "RotaryRMSNorm":
        rotary = [Node(op, {"rotary_dim": 32}, 16), Node(op, {"rotary_interleaved": 1})]
        return [*(Node(op, change) for change in changes), *rotary]
    changes += [{"partial_size": 16}, {"group_size": 16}, {"axis": -2}]
    changes += [{"axis": -2, "last_axis": -2}]
    if "Gated" in op:
        changes += [{"activation": "sigmoid"}, {"gate_first": 1}]
    if op.startswith("Quantized"):
        changes += [{"quantize": how} for how in ("int8", "fp8_per_row", "int8_per_row")]
    return [Node(op, change) for change in changes]
