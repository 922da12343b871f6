"""Model level: whole architectures, with random weights, from PyTorch to ONNX Runtime."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch

import rmsnorm_export as rx
from rmsnorm_export.op.dtypes import Array, Float64Array, numpy_dtype
from rmsnorm_export.proof.bounds import UNIT_ROUNDOFF
from rmsnorm_export.runtime.metrics import DEFAULT_RTOL, ulp_unit
from rmsnorm_export.torch import replace_norms
from rmsnorm_export.torch.export.export import convert
from tests.tools.corpus.architectures import Architecture, architecture, architectures, count_norms
from tests.tools.parity import arrays, float64, onnx_models
from tests.tools.parity.measure import (
    EAGER,
    OURS,
    PAIRS,
    RUNTIMES,
    TARGETS,
    Cell,
    Distance,
    Error,
    histogram,
)
from tests.tools.parity.variants import ELEMENT_TYPES

QUICK = ("llama", "qwen3_next", "gemma3", "mamba2", "t5_encoder")
EXPORTED = (
    *("llama", "mistral", "qwen2", "qwen3", "qwen3_next", "gemma", "gemma2", "gemma3", "gemma4"),
    *("phi3", "olmo2", "olmoe", "glm4", "deepseek_v3", "gpt_oss", "granite", "smollm3", "exaone4"),
    *("mamba2", "bamba", "falcon_h1", "llama4", "nanochat", "helium", "t5_encoder"),
    "aimv2_vision",
)
"""Those that go to ONNX Runtime as well; PyTorch and float64 take all."""

_NUDGES = 16
_SHARE = {"float32": 1.0, "float16": 2.0**-10, "bfloat16": 2.0**-10}


def subjects() -> list[Architecture]:
    """Every architecture of the corpus with an RMSNorm."""
    return [a for a in architectures() if a.name not in ("cohere", "nemotron")]


def examine(name: str, dtype: str, *, export: bool) -> Cell:
    """One architecture in one type.

    Args:
        name: of the architecture.
        dtype: of its weights.
        export: also run the files of every target.
    """
    arch = architecture(name)
    model, inputs = arch.make(dtype)
    calls = sum(count_norms(model, inputs).values())
    results, absent, notes = {}, {}, {}
    with torch.no_grad():
        results[EAGER] = arrays.array(model(*inputs))
        with replace_norms(model) as replacement:
            results[OURS] = arrays.array(model(*inputs))
    notes["norms"], notes["replaced"] = calls, len(replacement.replaced)
    numerics: dict[str, str] = {}
    if export and dtype == "bfloat16" and onnx_models.bfloat16_matmul():
        absent = dict.fromkeys(RUNTIMES, onnx_models.bfloat16_matmul())
    elif export:
        files, proofs = _files(model, inputs)
        found, absent = onnx_models.run(files, {"x": inputs[0].numpy()})
        results |= {side: values[0] for side, values in found.items()}
        numerics = files.numerics
        notes |= {"sites": files.sites, "refused": files.refused, "proved": proofs}
    else:
        absent = dict.fromkeys(RUNTIMES, "not exported in this run")
    wide = float64.run(copy.deepcopy(model), inputs).numpy()
    notes["noise"] = _noise(model, inputs, replacement.replaced, wide, dtype)
    notes["rms"] = {side: rms_error(value, wide) for side, value in results.items()}
    unit = float(ulp_unit(numpy_dtype(ELEMENT_TYPES[dtype]), np.abs(wide).max())[()])
    pairs, errors = _measure_logits(
        {s: v.astype(np.float64) for s, v in results.items()}, wide, unit
    )
    return Cell(
        level="model",
        subject=name,
        dtype=dtype,
        n=0,
        scale="",
        elements=wide.size,
        pairs=pairs,
        errors=errors,
        numerics=numerics,
        absent=absent,
        notes=notes,
    )


def _measure_logits(
    sides: dict[str, Array], truth: Float64Array, unit: float
) -> tuple[dict[tuple[str, str], Distance], dict[str, Error]]:
    """As ``measure.measure``, in ulp of the largest logit in the type of the weights.

    Single logits are differences of large numbers; and some models return float32 logits.
    """
    pairs = {}
    for a, b in PAIRS:
        if {a, b} <= sides.keys():
            steps = np.abs(sides[a] - sides[b]) / unit
            steps = np.where(np.isfinite(steps), steps, np.inf)
            differ = float((steps != 0).mean())
            pairs[a, b] = Distance(
                float(steps.max()), float(steps.mean()), differ, histogram(steps)
            )
    apart = {side: np.abs(value - truth) / unit for side, value in sides.items()}
    errors = {side: Error(float(value.max()), float(value.mean())) for side, value in apart.items()}
    return pairs, errors


def _files(
    model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]
) -> tuple[onnx_models.Files, dict[str, str]]:
    """The file of every target; target -> ``sites that hold/sites that were proved``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = convert(model, inputs, opset=onnx_models.OPSET, prove=True).result
    reports = {"portable": converted.report}
    for target in TARGETS[1:]:
        reports[target] = rx.optimize(converted.model, target=target, prove=True).report
    proofs = {}
    for target, report in reports.items():
        sites = [site.proof for site in (*report.fused, *report.kept) if site.proof is not None]
        proofs[target] = f"{sum(proof.passed for proof in sites)}/{len(sites)}"
    return onnx_models.for_targets(converted.model), proofs


def rms_error(values: Array, truth: Float64Array) -> float:
    """Root mean square of the error, relative to that of the truth."""
    apart = values.astype(np.float64) - truth
    return float(np.sqrt(np.square(apart).mean() / np.square(truth).mean()))


def _noise(
    model: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    replaced: tuple[object, ...],
    truth: Float64Array,
    dtype: str,
) -> dict[str, float]:
    """Error of PyTorch eager when the last bits of its own norms fall otherwise.

    In ``_NUDGES`` runs the norms' results are moved to a neighbour, or not, at random: all elements
    in float32; in half types one of 1,024, as ties are. Mean and standard deviation of `rms_error`.
    """
    paths = {found.path for found in replaced}  # type: ignore[attr-defined]
    modules = [module for path, module in model.named_modules() if path in paths]
    found = []
    for seed in range(_NUDGES):
        generator = torch.Generator().manual_seed(seed)
        nudge = _nudger(generator, _SHARE[dtype])
        handles = [module.register_forward_hook(nudge) for module in modules]
        with torch.no_grad():
            found.append(rms_error(arrays.array(model(*inputs)), truth))
        for handle in handles:
            handle.remove()
    return {"mean": float(np.mean(found)), "deviation": float(np.std(found, ddof=1))}


def _nudger(generator: torch.Generator, share: float) -> Callable[..., torch.Tensor]:
    def nudge(_module: torch.nn.Module, _args: object, y: torch.Tensor) -> torch.Tensor:
        way = torch.randint(-1, 2, y.shape, generator=generator)
        chosen = torch.rand(y.shape, generator=generator) < share
        moved = torch.nextafter(y, torch.copysign(torch.full_like(y, math.inf), way.to(y.dtype)))
        return torch.where(chosen & (way != 0), moved, y)

    return nudge


def relative_distance(cell: Cell, side: str) -> float:
    """Largest distance from ours, relative to the largest logit; for ``DEFAULT_RTOL``.

    Half an ulp of a number is between a half and one unit of roundoff of it: the larger is taken.
    """
    return cell.pairs[OURS, side].max * 2 * UNIT_ROUNDOFF[ELEMENT_TYPES[cell.dtype]]


def allowed_distance(cell: Cell) -> float:
    """What ``rx.verify`` allows by default."""
    return DEFAULT_RTOL[cell.dtype]


def z_score(cell: Cell) -> float:
    """How far the error of ours is above that of eager, in standard deviations of its noise."""
    noise, rms = cell.notes["noise"], cell.notes["rms"]
    above = rms[OURS] - max(rms[EAGER], noise["mean"])
    if above <= 0:
        return 0.0
    return above / noise["deviation"] if noise["deviation"] else math.inf


def names(*, quick: bool) -> Iterator[str]:
    """The architectures to examine."""
    yield from QUICK if quick else (arch.name for arch in subjects())
