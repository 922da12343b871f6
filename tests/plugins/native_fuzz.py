"""Nodes with any attributes and any tensors: each is computed, as defined, or refused.

    python -m tests.plugins.native_fuzz LIBRARY COUNT [wild]

prints `N computed, N refused`. A library compiled with AddressSanitizer needs its runtime
preloaded; which instruction set it runs is a matter of the environment. With `wild`, for kernels
that a GPU runs, none is compared with the definition, and doubles, which those refuse, are few.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from rmsnorm_export.errors import UsageError
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.native import ROW_KINDS
from rmsnorm_export.op.spec import Kind, NormSpec, scaled_by
from rmsnorm_export.runtime.metrics import ulp_distance
from rmsnorm_export.runtime.session import run_session
from rmsnorm_export.tensorrt.plugin.libraries import session_options
from tests.plugins.native_process import TYPES, defined
from tests.plugins.test_native_codes import HOWS
from toolbox.command import module_command, module_environment
from toolbox.node_model import node_model

FLAGS = ("scale_before_cast", "epsilon_outside", "epsilon_clamp", "round_rstd", "gate_first")

OF_RUNTIME = r"Type 'tensor\(double\)' of input parameter \(\w+\) of operator .* is invalid"
"""The kernels for CUDA declare no doubles: ONNX Runtime refuses them before it asks the library."""


def set_attributes(model: onnx.ModelProto, **attributes: Any) -> None:
    """Give the one node these attributes."""
    (node,) = model.graph.node
    others = [attribute for attribute in node.attribute if attribute.name not in attributes]
    del node.attribute[:]
    node.attribute.extend(others + [helper.make_attribute(*item) for item in attributes.items()])


class Fuzz:
    """Random nodes, and how many of them were computed and refused."""

    types = (*TYPES,)
    """The element types that are drawn, each as often as it stands here."""

    def __init__(self, options: Any, seed: int = 7) -> None:
        self.options, self.random = options, np.random.default_rng(seed)
        self.options.enable_cpu_mem_arena = False  # each tensor an allocation of its own
        self.options.log_severity_level = 4
        self.computed = self.refused = 0

    def chance(self, of: int) -> bool:
        return int(self.random.integers(of)) == 0

    def attributes(self, kind: Kind) -> dict[str, Any]:
        """Those that most nodes have are the rarer ones here: a few of them at a time."""
        pick = self.random.choice
        axis = int(pick([-1, -1, -2, -3]))
        values: dict[str, Any] = {
            "epsilon": float(pick([0.0, 2.0**-17, 0.5])),
            "axis": axis,
            "last_axis": axis if self.chance(2) else -1,
            "stash_type": int(pick(self.types)),
            "scale_offset": float(pick([0, 1, 2])),
            "partial_size": int(pick([1, 3, 100])),
            "group_size": int(pick([1, 3, 5])),
            "association": int(pick([1, 2])),
            **dict.fromkeys(FLAGS, 1),
        }
        if kind == "GatedRMSNorm":
            values["activation"] = str(pick(["silu", "sigmoid"]))
        if kind == "RotaryRMSNorm":
            values |= {"rotary_interleaved": 1, "rotary_dim": int(self.random.integers(10))}
        # The default is no number of float32, in which a node has it.
        return {n: value for n, value in values.items() if n == "epsilon" or self.chance(6)}

    def any_bits(self, dtype: Any, shape: tuple[int, ...]) -> Array:
        """NaN, infinities and subnormal numbers are among them."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(self.random.bytes(size), np.uint8).view(dtype).reshape(shape)

    def wild(self) -> None:
        """Tensors of any type, shape and bits; codes and tables among them."""
        kind: Any = str(self.random.choice([*ROW_KINDS, "RotaryRMSNorm"]))
        dtype = self.random.choice(self.types)
        rank = int(self.random.integers(1, 5)) if not self.chance(10) else 12
        shape = tuple(map(int, self.random.integers(0, 10 if rank < 12 else 3, rank)))
        shape = (*shape[:-1], int(self.random.integers(400))) if self.chance(2) else shape
        own = [shape[-1:], shape[-1:], shape[-1:], shape, shape[:-1], (*shape[-2:], 1)]
        of_weights = self.random.choice(self.types, 2)
        scale, bias = (
            self.any_bits(TYPES[of], own[self.random.integers(len(own))])
            if self.chance(2)
            else None
            for of in of_weights
        )
        second = self.any_bits(TYPES[dtype], shape[: -1 if self.chance(30) else None])
        half = shape[-1] // int(self.random.integers(1, 3))
        turned = tuple(size if self.chance(2) else 1 for size in shape[:-1])
        table = (*turned[int(self.random.integers(rank)) :], half)
        of_table = TYPES[1 if self.chance(4) else dtype]
        tables = (self.any_bits(of_table, table), self.any_bits(of_table, table))
        rotary = kind == "RotaryRMSNorm"
        how: Any = str(self.random.choice(HOWS)) if not rotary and self.chance(3) else None
        step = self.any_bits(np.float32, ()) if how and scaled_by(how) == "tensor" else None
        x = self.any_bits(TYPES[dtype], shape)
        model, feeds = node_model(NormSpec(kind=kind), x, scale, bias, second, tables, how, step)
        set_attributes(model, **self.attributes(kind))
        self.run(model, feeds)

    def defined(self) -> None:
        """Refused where the definition refuses the node, else what the definition makes of it."""
        kind: Any = str(self.random.choice(ROW_KINDS))
        dtype = TYPES[self.random.choice([*TYPES])]
        shape = tuple(map(int, self.random.integers(0, 21, self.random.integers(1, 5))))
        x, second = (self.random.normal(0, 1, shape).astype(dtype) for _ in range(2))
        scale = self.random.normal(0, 1, shape[-1:]).astype(np.float32)
        tensors = (x, scale if self.chance(2) else None, None, second)
        attributes = self.attributes(kind)
        model, feeds = node_model(NormSpec(kind=kind), *tensors)
        del model.graph.node[0].attribute[:]
        set_attributes(model, **attributes)
        expected: tuple[Array, ...] | None = None
        with contextlib.suppress(ValueError, UsageError):
            expected = defined(NormSpec.from_attributes(kind, attributes), *tensors).expected
        outputs = self.run(model, feeds)
        assert (outputs is None) == (expected is None), (kind, attributes, shape, dtype)
        for a, b in zip(outputs or (), expected or (), strict=True):
            assert a.shape == b.shape
            far = np.nanmax(ulp_distance(a, b), initial=0) if a.size else 0
            assert far <= 4, (far, kind, attributes, shape, dtype)

    def run(self, model: onnx.ModelProto, feeds: dict[str, Array]) -> tuple[Array, ...] | None:
        """The outputs; None where the node was refused, which a sentence has to say: the library's,
        or the runtime's where a type is none that was declared."""
        try:
            session = onnxruntime.InferenceSession(model.SerializeToString(), self.options)
            outputs = tuple(run_session(session, feeds).values())
        except Exception as error:
            sentence = str(error)
        else:
            self.computed += 1
            return outputs
        ours = "rmsnorm_export: " in sentence and "RMSNorm node 'a norm': " in sentence
        assert ours or re.search(OF_RUNTIME, sentence), sentence
        self.refused += 1
        return None


def fuzz_in_a_process(library: pathlib.Path, count: int, *words: str, **environment: str) -> None:
    """Check that the process ends well, and that many nodes were computed, and many refused."""
    done = subprocess.run(
        module_command("tests.plugins.native_fuzz", str(library), str(count), *words),
        env={**module_environment(), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.fullmatch(r"(\d+) computed, (\d+) refused\n", done.stdout)
    assert counts is not None, done.stdout
    assert all(int(number) > count // 5 for number in counts.groups()), done.stdout


if __name__ == "__main__":
    fuzz = Fuzz(session_options(sys.argv[1], threads=4))
    is_wild = "wild" in sys.argv[3:]
    if is_wild:
        fuzz.types = (1, 10, 16) * 12 + (11,)
    for number in range(int(sys.argv[2])):
        if number % 2 or is_wild:
            fuzz.wild()
        else:
            fuzz.defined()
    print(f"{fuzz.computed} computed, {fuzz.refused} refused")
