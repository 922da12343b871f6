"""The contenders of scripts/bench_layernorm: what is timed, and proof that it computes a norm.

Every contender is a function without arguments that computes one norm once on the same input. Its
result is compared with the formula in float64 before it is timed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import torch
from onnx import numpy_helper

import rmsnorm_export as rx
import rmsnorm_export.torch as rt

EPSILON = 1e-5
BASE = "LayerNorm"
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.08}
"""Largest difference from float64: outputs are below 8, of which bfloat16 rounds 2**-8 twice."""


@dataclasses.dataclass(frozen=True, slots=True)
class Contender:
    """Something to time.

    Attributes:
        group: backend and pass; only contenders of one group are compared.
        name: whose norm; ``BASE`` is what the others are compared with.
        run: computes it once.
    """

    group: str
    name: str
    run: Callable[[], object]


class WrittenOut(torch.nn.Module):
    """RMSNorm as model code writes it: float32 inside, rounded, then scaled."""

    def __init__(self, n: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(n, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + EPSILON)
        return self.weight * h.to(x.dtype)


def truth(x: np.ndarray, *, centred: bool) -> np.ndarray:
    """LayerNorm (``centred``) or RMSNorm in float64, gain 1, bias 0."""
    wide = x.astype(np.float64)
    if centred:
        wide = wide - wide.mean(-1, keepdims=True)
    return wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + EPSILON)


def torch_contenders(
    rows: int, n: int, dtype: torch.dtype, *, compiled: bool
) -> tuple[list[Contender], list[str]]:
    """The norms of PyTorch, eager and (``compiled``) through torch.compile; and what was wrong."""
    # Each input is compiled for its own shape: none is the dynamic recompilation of another.
    torch.compiler.reset()
    torch.manual_seed(0)
    x = torch.randn(rows, n).to(dtype)
    upstream = torch.randn(rows, n).to(dtype)
    modules: dict[str, torch.nn.Module] = {
        BASE: torch.nn.LayerNorm(n, eps=EPSILON, dtype=dtype),
        "torch.nn.RMSNorm": torch.nn.RMSNorm(n, eps=EPSILON, dtype=dtype),
        "written out": WrittenOut(n, dtype),
        "ours": rt.RMSNorm(n, EPSILON, dtype=dtype),
    }
    found, wrong = [], []
    for label in ("eager", "compiled")[: 1 + compiled]:
        for name, module in modules.items():
            function = (
                torch.compile(module, fullgraph=True, dynamic=False)
                if label == "compiled"
                else module
            )
            expected = truth(x.double().numpy(), centred=name == BASE)
            with torch.no_grad():
                got = function(x).double().numpy()
            if np.abs(got - expected).max() > TOLERANCE[dtype]:
                wrong.append(f"torch {label}, {name}: {np.abs(got - expected).max():.2g} off")
                continue
            found += [
                Contender(f"torch {label}, forward", name, _forward(function, x)),
                Contender(
                    f"torch {label}, forward + backward",
                    name,
                    _training(function, module, x, upstream),
                ),
            ]
    return found, wrong


def _forward(function: Callable[..., torch.Tensor], x: torch.Tensor) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return function(x)

    return run


def _training(
    function: Callable[..., torch.Tensor],
    module: torch.nn.Module,
    x: torch.Tensor,
    upstream: torch.Tensor,
) -> Callable[[], object]:
    leaf = x.clone().requires_grad_()
    leaves = [leaf, *module.parameters()]
    return lambda: torch.autograd.grad(function(leaf), leaves, upstream)


def onnx_contenders(rows: int, n: int) -> tuple[list[Contender], list[str]]:
    """The norms of ONNX Runtime in float32: LayerNormalization, and RMSNorm as we write it."""
    x = np.random.default_rng(0).normal(size=(rows, n)).astype(np.float32)
    written = _written_out(n)
    models = {
        BASE: _layer_norm(n),
        "as torch exports it": written,
        "ours, portable": _optimized(written, "portable"),
        "ours, ort": _optimized(written, "ort"),
        "ours, onnx": _optimized(written, "onnx"),
    }
    found, wrong = [], []
    for name, model in models.items():
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        error = np.abs(session.run(None, {"x": x})[0] - truth(x, centred=name == BASE)).max()
        if error > TOLERANCE[torch.float32]:
            wrong.append(f"ONNX Runtime, {name}: {error:.2g} off")
            continue
        run = _session_run(session, x, (rows, n))
        found.append(Contender("ONNX Runtime, forward", name, run))
    return found, wrong


def _session_run(
    session: ort.InferenceSession, x: np.ndarray, shape: tuple[int, int]
) -> Callable[[], object]:
    # Bound once: no copy of the input and no allocation of the output is timed.
    binding = session.io_binding()
    kept = ort.OrtValue.ortvalue_from_numpy(x)
    output = ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32)
    binding.bind_ortvalue_input("x", kept)
    binding.bind_ortvalue_output("y", output)
    return lambda: session.run_with_iobinding(binding)


def _norm_model(n: int, text: str, **weights: object) -> onnx.ModelProto:
    """A model of ``y`` from ``x``, [rows, n] in float32, with its nodes as text."""
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 18]> norm (float[rows, {n}] x)'
        f" => (float[rows, {n}] y) {{ {text} }}"
    )
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def _layer_norm(n: int) -> onnx.ModelProto:
    text = f"y = LayerNormalization <epsilon = {EPSILON}> (x, g, b)"
    return _norm_model(n, text, g=np.ones(n, np.float32), b=np.zeros(n, np.float32))


def _written_out(n: int) -> onnx.ModelProto:
    """RMSNorm in the operators that torch.onnx.export writes below opset 23."""
    text = """
        square = Pow (x, two)
        mean = ReduceMean <keepdims = 1> (square, axis)
        stabilised = Add (mean, epsilon)
        rms = Sqrt (stabilised)
        inverse = Reciprocal (rms)
        normal = Mul (x, inverse)
        y = Mul (g, normal)
    """
    weights = {"two": np.float32(2), "axis": np.array([-1]), "epsilon": np.float32(EPSILON)}
    return _norm_model(n, text, g=np.ones(n, np.float32), **weights)


def _optimized(model: onnx.ModelProto, target: str) -> onnx.ModelProto:
    result = rx.optimize(model, target=target)
    if len(result.report.fused) != 1:
        raise SystemExit(f"error: the norm was not fused for the target {target}")
    return ir.to_proto(result.model)
