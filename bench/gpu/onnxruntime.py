"""ONNX Runtime's provider on a GPU:

  rounding  a norm, and one with a residual sum, in half types against every way to round it: which
            does the provider follow, and from which size on do squares overflow
  ours      the nodes of this package by --kernels, on random problems, each against the operator
  blocks    a norm and its residual Add, eight times: 1, 64 and 2,048 rows, each form of the file
  decoder   a decoder of random weights that is exported here: a prompt and a token after it, each
            form of the graphs beside the export; a static cache in a CUDA graph

Times are ratios to the file as it is, or the export, which is timed in turn with the others, with
the range of the middle half of the samples. A session that falls back to the CPU is wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import parser

import rmsnorm_export as rx
from bench.gpu.steps import Step, Tell
from bench.lib import decoding
from bench.lib.measure import samples
from rmsnorm_export.op.native import MICROSOFT_DOMAIN, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.op.reference import reference_float64
from rmsnorm_export.op.spec import BFLOAT16, FLOAT16, NormSpec
from rmsnorm_export.runtime.metrics import BFLOAT16_DTYPE
from rmsnorm_export.runtime.session import session_options
from rmsnorm_export.runtime.support import CPU, CUDA
from toolbox.node_model import node_model

TYPES = {"float16": (FLOAT16, np.dtype(np.float16)), "bfloat16": (BFLOAT16, BFLOAT16_DTYPE)}
GPU = "onnxruntime-gpu"
"""The runtime that `optimize` and `export` make a file for."""
EPSILON = 1e-3
_BLOCKS = 8


_LLAMA = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16, "vocab_size": 32000,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 2048,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Run:
    """What a step is given.

    Attributes:
        provider: of the sessions.
        kernels: a library of our nodes.
        tell: where results go.
        width: elements of a row.
        rows: of the blocks.
        problems: of our nodes.
        rounds: of samples.
        model: configuration of the decoder.
        prompt: its tokens.
    """

    provider: str
    kernels: Path | None = None
    tell: Callable[[str, Any], None] = print
    width: int = 4096
    rows: tuple[int, ...] = (1, 64, 2048)
    problems: int = 500
    rounds: int = 30
    model: Mapping[str, int] = dataclasses.field(default_factory=lambda: _LLAMA)
    prompt: int = 512

    @property
    def device(self) -> str:
        return "cuda" if self.provider == CUDA else "cpu"

    def session(
        self, model: onnx.ModelProto | Path, *, kernels: Path | None = None, graph: bool = False
    ) -> Any:
        """Return a session on the provider; a fallback to another is an error."""
        options = session_options(optimize=True, threads=1, kernels=kernels)
        settings = {"enable_cuda_graph": "1"} if graph and self.provider == CUDA else {}
        source = str(model) if isinstance(model, Path) else model.SerializeToString()
        session = onnxruntime.InferenceSession(source, options, [(self.provider, settings)])
        if session.get_providers()[0] != self.provider:
            raise RuntimeError(f"{session.get_providers()[0]} took the place of {self.provider}")
        return session

    def bound(self, session: Any, feeds: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
        """Return a function that runs a session on values of the device, and its binding."""
        binding = session.io_binding()
        for entry in session.get_inputs():
            held = onnxruntime.OrtValue.ortvalue_from_numpy(feeds[entry.name], self.device, 0)
            binding.bind_ortvalue_input(entry.name, held)
        for entry in session.get_outputs():
            binding.bind_output(entry.name, self.device)

        def run() -> None:
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        return run, binding

    def table(self, name: str, forms: Mapping[str, Callable[[], object]]) -> None:
        """Time functions in turn, and tell the ratios to the first."""
        taken = samples(dict(forms), self.rounds, least=0.002)
        base = float(np.median(next(iter(taken.values()))))
        for form, seconds in taken.items():
            low, middle, high = np.quantile(seconds, (0.25, 0.5, 0.75))
            ratio = f"{middle / base:.2f} ({low / base:.2f} to {high / base:.2f})"
            self.tell("rows", {"name": name, "cells": [form, f"{middle * 1e6:.0f}", ratio]})


def _as_edges(model_body: str, dtype: str, n: int, inputs: str) -> onnx.ModelProto:
    """A model of ``inputs`` in float32 whose body is in ``dtype``: NumPy has no bfloat16."""
    code = TYPES[dtype][0]
    casts = "\n".join(f" {name} = Cast <to = {code}> ({name}32)" for name in inputs)
    ends = ", ".join(f"float[{'R, ' if name != 'w' else ''}{n}] {name}32" for name in inputs)
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17, "{MICROSOFT_DOMAIN}" : 1]>'
        f" g ({ends}) => (float[R, {n}] out) {{ {casts}\n {model_body}\n"
        f" out = Cast <to = 1> (y) }}"
    )


def rounding(run: Run) -> None:
    """Compare each norm of the provider with the ways to round that the operators may have."""
    n, random = run.width, np.random.default_rng(0)
    x, r = random.standard_normal((2, 64, n)).astype(np.float32)
    w = random.uniform(0.5, 1.5, n).astype(np.float32)
    for name, (_, dtype) in TYPES.items():
        x_, r_, w_ = (array.astype(dtype).astype(np.float64) for array in (x, r, w))
        total = x_ + r_
        rounded = total.astype(dtype).astype(np.float64)
        sums = {"the sum is rounded": rounded, "the sum is not rounded": total}
        for operator, inputs, ways in (
            (SIMPLIFIED, "xw", {"error": x_}), (SKIP_SIMPLIFIED, "xrw", sums),
        ):  # fmt: skip
            domain = f"{MICROSOFT_DOMAIN}." if operator == SKIP_SIMPLIFIED else ""
            body = f" y = {domain}{operator} <epsilon = {EPSILON}> ({', '.join(inputs)})"
            session = run.session(_as_edges(body, name, n, inputs))
            feeds = {f"{k}32": v for k, v in {"x": x, "r": r, "w": w}.items() if k in inputs}
            (out,) = session.run(None, feeds)
            unit = float(np.finfo(np.float16).eps) if name == "float16" else 2.0**-7
            errors = {}
            for way, total in ways.items():
                exact = total / np.sqrt((total**2).mean(-1, keepdims=True) + EPSILON) * w_
                ulps = np.abs(out - exact) / (unit * np.maximum(np.abs(exact), 1e-3))
                errors[way] = float(ulps.max())
            best = min(errors, key=errors.__getitem__)
            distances = ", ".join(f"{way} {error:.2f} ulp" for way, error in errors.items())
            run.tell("seen", f"{operator} {name}: {distances}")
            if errors[best] > 1:
                run.tell("wrong", f"{operator} {name}: {errors[best]:.1f} ulp from every way")
            large = {k: (np.full_like(v, 300) if k != "w32" else v) for k, v in feeds.items()}
            finite = np.isfinite(session.run(None, large)[0]).all()
            where = "do not overflow" if finite else "OVERFLOW: squares are of the half type"
            run.tell("seen", f"{operator} {name}: rows of 300 {where}")


def ours(run: Run) -> None:
    """Run random problems of our nodes, each against the operator in float64."""
    if run.kernels is None:
        run.tell("not run", "ours: no --kernels")
        return
    random, worst = np.random.default_rng(1), 0.0
    for _ in range(run.problems):
        shape = (int(random.integers(1, 9)), int(random.integers(2, 2 * run.width)))
        x, second = random.standard_normal((2, *shape)).astype(np.float16)
        w = random.uniform(0.5, 1.5, shape[1]).astype(np.float16)
        kind = ("RMSNorm", "SkipRMSNorm")[int(random.integers(2))]
        spec = NormSpec(kind=kind, epsilon=EPSILON)
        more = {"residual": second} if kind == "SkipRMSNorm" else {}
        model, feeds = node_model(spec, x, w, None, more.get("residual"))
        out = run.session(model, kernels=run.kernels).run(["y"], feeds)[0]
        result = reference_float64(spec, x, w, **more)
        exact = result[0] if isinstance(result, tuple) else result
        ulps = 2**10 * np.abs(out - exact) / np.maximum(np.abs(exact), 2.0**-14)
        worst = max(worst, float(ulps.max()))
    run.tell("checked", f"ours: {run.problems} problems, at most {worst:.2f} ulp")
    if worst > 2:
        run.tell("wrong", f"ours: {worst:.1f} ulp")


def _sessions(raw: onnx.ModelProto, run: Run) -> dict[str, Any]:
    """Return sessions of a file as it is, and of what is made of it."""
    ways: dict[str, dict[str, Any]] = {
        "portable": {"target": "portable"},
        "ort, sum outside": {"target": "ort"},
        "ort, sum in the node": {"runtime": GPU},
    }
    models = {name: ir.to_proto(rx.optimize(raw, **way).model) for name, way in ways.items()}
    sessions = {name: run.session(model) for name, model in {"as it is": raw, **models}.items()}
    if run.kernels is not None:
        sessions["ours (--kernels)"] = run.session(models["portable"], kernels=run.kernels)
    return sessions


def blocks(run: Run) -> None:
    """Time eight norms with their residual Adds, as LLaMA computes them."""
    n, random = run.width, np.random.default_rng(2)
    one = (
        " c{i} = Cast <to = 1> (x{i})\n p{i} = Mul (c{i}, c{i})\n"
        " m{i} = ReduceMean <axes = [-1], keepdims = 1> (p{i})\n e{i} = Add (m{i}, eps)\n"
        " s{i} = Sqrt (e{i})\n d{i} = Div (c{i}, s{i})\n h{i} = Cast <to = {t}> (d{i})\n"
        " y{i} = Mul (w, h{i})\n x{j} = Add (x{i}, y{i})\n"
    )
    for name, (code, _) in TYPES.items():
        body = " x0 = Identity (x)\n eps = Constant <value_float = 0.001> ()\n"
        body += "".join(one.format(i=i, j=i + 1, t=code) for i in range(_BLOCKS))
        raw = _as_edges(f"{body} y = Identity (x{_BLOCKS})", name, n, "xw")
        try:
            sessions = _sessions(raw, run)
        except Exception as error:  # ONNX Runtime's CPU provider has no Mul of bfloat16
            run.tell("not run", f"blocks, {name}: {str(error)[:200]}")
            continue
        for rows in run.rows:
            feeds = {"x32": random.standard_normal((rows, n)), "w32": random.uniform(0.5, 1.5, n)}
            feeds = {key: array.astype(np.float32) for key, array in feeds.items()}
            runs = {form: run.bound(session, feeds)[0] for form, session in sessions.items()}
            run.table(f"{_BLOCKS} blocks, {name}, {rows} rows of {n}", runs)


def _exports(model: Any, place: Path) -> Iterator[tuple[str, Path]]:
    """Yield the forms of a decoder's graphs, of which each kind of cache is traced once."""
    raw, static = place / "raw", place / "static"
    rx.export_generation(model, raw, target="plain")
    yield "as exported", raw
    fusions: dict[str, Any] = {"fusions": "cuda"}
    for form, options in {"norms": {}, "--fusions cuda": fusions}.items():
        rx.optimize(raw, runtime=GPU, **options).save(place / form)
        yield form, place / form
    rx.export_generation(model, static, runtime=GPU, static_cache=1024, **fusions)
    yield "--static-cache", static


def decoder(run: Run) -> None:
    """Time the prompt and a token after it of a decoder in float16, by each form of its graphs.

    Each is told as it comes, beside the first one: the exports may take all the time that there is.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**run.model)
    model = transformers.LlamaForCausalLM(config).to(torch.float16).eval()
    heads = config.num_key_value_heads, config.head_dim
    sizes = {"prefill": (0, run.prompt), "decode": (run.prompt, 1)}
    first: dict[str, tuple[int, Callable[[], object]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for form, folder in _exports(model, Path(scratch)):
            static = form == "--static-cache"
            for name, (past, tokens) in sizes.items():
                session = run.session(folder / f"{name}.onnx", graph=static and name == "decode")
                once, binding = run.bound(session, decoding.inputs(session, past, tokens, heads))
                once()
                logits = binding.copy_outputs_to_cpu()[0]
                token = int(np.argmax(logits.reshape(-1, logits.shape[-1])[-1]))
                expected, of_export = first.setdefault(name, (token, once))
                if not static and token != expected:
                    run.tell("wrong", f"{form}, {name}: token {token}, not {expected}")
                if of_export is not once:
                    title = f"decoder, {name}, {run.prompt} tokens"
                    run.table(title, {"as exported": of_export, form: once})


def steps(provider: str, kernels: Path | None, **sizes: Any) -> list[Step]:
    """Return them in order; ``sizes`` are fields of ``Run``.

    Raises:
        ImportError: ONNX Runtime has no such provider here.
    """
    name = {"cuda": CUDA, "cpu": CPU}[provider]
    if name not in (available := onnxruntime.get_available_providers()):
        found = f"ONNX Runtime has no {name} here, but {', '.join(available)}"
        raise ImportError(f"{found}: pip install onnxruntime-gpu, or --provider cpu")
    run = Run(name, kernels, **sizes)
    functions = (rounding, 60), (ours, 90), (blocks, 150), (decoder, 420)
    return [
        Step(one.__name__, seconds, functools.partial(step, one, run)) for one, seconds in functions
    ]


def step(function: Callable[[Run], None], run: Run, tell: Tell, end: float) -> None:  # noqa: ARG001
    """Do one, and tell."""
    function(dataclasses.replace(run, tell=tell))


def tables(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the cells of the times, by the name of a table."""
    by_name: dict[str, list[list[str]]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row["cells"])
    return {"tables": by_name}
