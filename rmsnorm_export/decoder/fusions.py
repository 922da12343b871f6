"""transformers' fusions for ONNX Runtime: attention, rotary embeddings, MoE, packed products.

They run after ours, and after onnxscript's optimizer, which brings a graph into the forms that they
look for: without it no rotary embedding goes into its attention.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from rmsnorm_export.decoder import buffers
from rmsnorm_export.decoder.redundant import drop_redundant
from rmsnorm_export.decoder.release import naming_release
from rmsnorm_export.decoder.tokens import as_text
from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.op.native import MICROSOFT_DOMAIN, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.printable import first_line
from rmsnorm_export.proof.comparison import (
    Reference,
    WrongError,
    changed_by_others,
    compare_with,
    run_reference,
)
from rmsnorm_export.rewrite.options import FusionProvider
from rmsnorm_export.rewrite.result import Fusions
from rmsnorm_export.runtime.session import Device, onnxruntime
from rmsnorm_export.runtime.support import CUDA
from rmsnorm_export.system.packages import TRANSFORMERS, pip_install

_NORMS = (SIMPLIFIED, SKIP_SIMPLIFIED, "RMSNormalization")
_COUNTED = ("MatMul", "Softmax", "Gemm", *_NORMS)
"""Operators whose numbers say what became of a graph, beside those that are new in it."""

_PROVIDERS = {"cuda": CUDA, "webgpu": "WebGpuExecutionProvider", "dml": "DmlExecutionProvider"}
"""Names of the providers in ONNX Runtime; the others run on the CPU."""

_NOT_ON_CPU = "_pack_sibling_matmuls"
"""transformers' step that makes one product of several: no faster on a CPU, for what is split
behind it is copied, and the weights are no longer those of a graph that is left alone."""

Step = Callable[[ir.Model], object]


@naming_release()
def fuse(
    model: ir.Model, provider: FusionProvider, *, seed: int = 0, prompts_alone: bool = False
) -> tuple[ir.Model, Fusions]:
    """Return the model with transformers' fusions for one provider of ONNX Runtime.

    The result is run beside the model, on random inputs. Where it does not run, is off by more than
    ``verify`` allows, or has fewer norms, attention nodes are not made to rotate; where that does
    not help, nothing is fused, and constants are folded alone: so the weights are those
    of graphs that were fused, and are stored once with them.

    Args:
        model: whose norms are one node; left as it is.
        provider: what the fusions are for.
        seed: of the inputs.
        prompts_alone: several tokens of several rows never follow a cache, as in
            onnxruntime-genai: GroupQueryAttention takes them then, and cache in one buffer.

    Raises:
        BackendMissingError: transformers with its exporters, or ONNX Runtime, is missing.
    """
    problem = compared = not_compared = ""
    calls = buffers.CALLS if prompts_alone else (None,)
    attempts = _attempts(model, provider, prompts_alone)
    prepare = as_text(model.graph)
    references = [run_reference(model, seed=seed, dims=dims, prepare=prepare) for dims in calls]
    for left_out in attempts:
        try:
            fused = attempts[left_out]()
            for reference in references:
                compared, not_compared = _compare(reference, fused, provider)
            break
        except WrongError as error:
            problem = problem or str(error)
    else:
        fused = model
    before, after = _operators(model), _operators(fused)
    counted = {*_COUNTED, *(n.op_type for n in fused.graph.all_nodes() if n.domain)}
    changed = [name for name in sorted(counted) if before[name] != after[name]]
    return fused, Fusions(
        provider=provider,
        operators={name: (before[name], after[name]) for name in changed},
        norms=_norms_in_attention(fused),
        residuals=after[SKIP_SIMPLIFIED] - before[SKIP_SIMPLIFIED],
        left_out=left_out,
        problem=problem,
        compared=compared,
        not_compared=not_compared,
    )


def _attempts(
    model: ir.Model, provider: FusionProvider, prompts_alone: bool
) -> Mapping[str, Callable[[], ir.Model]]:
    """Return the ways to fuse, to be tried in turn, by what they leave out.

    Without a cache, GroupQueryAttention counts positions up from the first element of
    ``position_ids``, for every row, which is wrong in a batch with padding on the left: so
    embeddings may be left out, and stay nodes of their own.

    Raises:
        BackendMissingError: transformers has no such module, or onnxscript is missing.
    """
    try:
        from onnxscript import optimizer
        from transformers.exporters.onnxruntime_fusions import _STEPS
    except ImportError as error:
        raise BackendMissingError(
            "The fusions are those of transformers, which cannot be imported.",
            found=first_line(error),
            fix=pip_install(TRANSFORMERS, "[torch]"),
        ) from error
    listed: list[Any] = [
        step
        for step, only in _STEPS
        if (only is None or provider in only)
        and not (provider == "cpu" and getattr(step, "__name__", "") == _NOT_ON_CPU)
    ]
    # Once more at the end: lengths that fusions ask for are known.
    again = functools.partial(optimizer.optimize, num_iterations=1)
    last: list[Step] = [again, buffers.count_by_mask if prompts_alone else drop_redundant]

    def applied(steps: Sequence[Step], before: ir.Model) -> ir.Model:
        return _applied([*map(buffers.as_one_row, steps)] if prompts_alone else steps, before)

    folded = functools.cache(lambda: _applied([optimizer.optimize], model))
    attention = next((i for i, step in enumerate(listed) if _may_rotate(step)), len(listed))
    common = functools.cache(lambda: applied(listed[:attention], folded()))
    rest = listed[attention:]
    plain = [functools.partial(one, rotary=False) if _may_rotate(one) else one for one in rest]
    return {
        "": lambda: applied([*rest, *last], common()),
        "rotary embeddings in attention nodes": lambda: applied([*plain, *last], common()),
        "all of them": folded,
    }


def _may_rotate(step: Step) -> bool:
    return "rotary" in inspect.signature(step).parameters


def _applied(steps: Sequence[Step], before: ir.Model) -> ir.Model:
    """Return a copy of a model on which the steps were run.

    Raises:
        WrongError: one of them fails, or loses an output, or takes a norm apart.
    """

    def change(model: ir.Model) -> ir.Model:
        for step in steps:
            step(model)
        return model

    try:
        model = changed_by_others(before, change)
    except Exception as error:  # whatever another package raises
        raise WrongError(f"a fusion fails: {type(error).__name__}: {first_line(error)}") from error
    for value in model.graph.initializers.values():
        if value.const_value is not None:  # scalars are written as vectors, and called scalars
            value.shape = ir.Shape(value.const_value.shape.numpy())
    for node in model.graph.all_nodes():
        model.opset_imports.setdefault(node.domain, 1)
    if (remaining := _norms(model)) < (norms := _norms(before)):
        raise WrongError(f"{remaining} of {norms} norms are left one node")
    return model


def _compare(reference: Reference, fused: ir.Model, provider: str) -> tuple[str, str]:
    """Return how far the outputs are from those of the model before; or why that is not known.

    Raises:
        WrongError: further than is allowed.
    """
    elsewhere = _PROVIDERS.get(provider) not in (None, *onnxruntime().get_available_providers())
    absent = f"this ONNX Runtime has no provider for {provider}, and its CPU provider does not"
    if elsewhere and _norms_in_attention(fused):
        return "", f"{absent} normalise queries and keys in the attention"
    device: Device = "cuda" if provider == "cuda" and not elsewhere else "cpu"
    outcome = compare_with(reference, fused, device=device)
    if outcome.after_fails and not elsewhere:
        raise WrongError(f"ONNX Runtime does not run it: {outcome.unknown}")
    unknown = f"{absent} run the graph: {outcome.unknown}"
    return outcome.words(), unknown if outcome.after_fails else outcome.unknown


def _operators(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.all_nodes())


def _norms(model: ir.Model) -> int:
    """Count the norms that are one node, or in one."""
    return sum(_operators(model)[name] for name in _NORMS) + _norms_in_attention(model)


def _norms_in_attention(model: ir.Model) -> int:
    """Count the norms of queries and of keys that attention nodes compute themselves."""
    return 2 * sum(
        node.domain == MICROSOFT_DOMAIN and "qk_norm_epsilon" in node.attributes
        for node in model.graph.all_nodes()
    )
