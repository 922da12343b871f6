"""transformers' fusions for ONNX Runtime: attention, rotary embeddings, MoE, packed products.

They run after ours, and after onnxscript's optimizer, which brings a graph into the forms that they
look for: without it no rotary embedding goes into its attention.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common as passes

from rmsnorm_export.decoder import buffers
from rmsnorm_export.decoder.attention import (
    ATTENTION,
    UNKNOWN,
    attentions,
    cap_of,
    leave_unseen_rows,
    left_apart,
    lift_caps,
    put_caps,
)
from rmsnorm_export.decoder.redundant import drop_redundant
from rmsnorm_export.decoder.release import naming_release
from rmsnorm_export.decoder.tokens import Held, as_text
from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.op.native import MICROSOFT_DOMAIN, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.options import Progress
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
from rmsnorm_export.runtime.sizes import Dims
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


ROTARY = "rotary embeddings in attention nodes"
_FIRST_ROW = (
    "of a prompt GroupQueryAttention rotates every row by the positions of the first one, "
    "which are others where a row is padded on the left"
)

_Attempt = Callable[[], ir.Model]


@naming_release()
def fuse(
    model: ir.Model,
    provider: FusionProvider,
    *,
    seed: int = 0,
    one_buffer: bool = False,
    held: Held | None = None,
    progress: Progress | None = None,
) -> tuple[ir.Model, Fusions]:
    """Return the model with transformers' fusions for one provider of ONNX Runtime.

    The result is run beside the model, on random inputs. Where it does not run, is off by more than
    ``verify`` allows, or has fewer norms, attention nodes are not made to rotate; where that does
    not help, nothing is fused, and constants are folded alone: so the weights are those
    of graphs that were fused, and are stored once with them.

    A graph that begins a text and goes on takes several tokens after a cache for one row alone
    then: GroupQueryAttention refuses them for several.

    Args:
        model: whose norms are one node; left as it is.
        provider: what the fusions are for.
        seed: of the inputs.
        one_buffer: a cache in one buffer is counted by the mask, as in onnxruntime-genai.
        held: what the graphs before gave of the cache, which is not random then; what this one
            gives is added.
        progress: called before the first run, each step of the fusions and each comparison.

    Raises:
        BackendMissingError: transformers with its exporters, or ONNX Runtime, is missing.
    """
    problem = compared = not_compared = left_out = ""
    fused, goes_on = model, bool(buffers.calls_of(model.graph))
    tell = progress or (lambda *_: None)
    if attempts := _attempts(model, provider, one_buffer, tell):
        tell("running the graph before its fusions", 0, 1)
        references = references_of(model, seed=seed, held=Held() if held is None else held)
    else:
        left_out, problem = "all of them", f"in every attention {UNKNOWN}: export the model itself"
    for left_out in attempts:
        try:
            fused = attempts[left_out]()
            for number, reference in enumerate(references):
                tell("comparing the fused graph", number, len(references))
                compared, not_compared = _compare(reference, fused, provider)
            break
        except WrongError as error:
            problem, fused = problem or str(error), model
    before, after = _operators(model), _operators(fused)
    if left_out == ROTARY and not problem:  # it was not tried: a graph that begins a text goes on
        left_out, problem = (ROTARY, _FIRST_ROW) if after["RotaryEmbedding"] else ("", "")
    counted = {*_COUNTED, *(n.op_type for n in fused.graph.all_nodes() if n.domain)}
    changed = [name for name in sorted(counted) if before[name] != after[name]]
    return fused, Fusions(
        provider=provider,
        operators={name: (before[name], after[name]) for name in changed},
        nodes=(before.total(), after.total()),
        norms=_norms_in_attention(fused),
        residuals=after[SKIP_SIMPLIFIED] - before[SKIP_SIMPLIFIED],
        left_out=left_out,
        problem=problem,
        apart={} if fused is model else left_apart(model.graph, fused.graph),
        one_row=goes_on and after[ATTENTION] > before[ATTENTION],
        compared=compared,
        not_compared=not_compared,
    )


def references_of(model: ir.Model, *, seed: int, held: Held) -> list[Reference]:
    """Return what the model gives at each call of a text, one after another; as for `fuse`."""
    calls: tuple[Dims | None, ...] = buffers.calls_of(model.graph) or (None,)
    references = []
    for dims in calls:
        given, prepare = held.given(model.graph), as_text(model.graph, held)
        reference = run_reference(model, seed=seed, dims=dims, given=given, prepare=prepare)
        references.append(reference)
        held.keep(reference)
    return references


def _attempts(
    model: ir.Model, provider: FusionProvider, one_buffer: bool, tell: Progress
) -> Mapping[str, _Attempt]:
    """Return the ways to fuse, to be tried in turn, by what they leave out; {}: none can help.

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
    if _heads_are_unknown(model):
        return {}
    listed: list[Any] = [
        step
        for step, only in _STEPS
        if (only is None or provider in only)
        and not (provider == "cpu" and getattr(step, "__name__", "") == _NOT_ON_CPU)
    ]
    # Once more at the end: lengths that fusions ask for are known.
    last: list[Step] = [functools.partial(optimizer.optimize, num_iterations=1), drop_redundant]
    last += [leave_unseen_rows] if provider == "cpu" else []
    last += [buffers.count_by_mask] if one_buffer else []
    names = [str(value.name) for value in buffers.open_caches(model.graph)]
    last += [functools.partial(buffers.read_in_its_sizes, names=names)]
    cap, every = cap_of(model.graph), len(attentions(model.graph))
    goes_on = bool(buffers.calls_of(model.graph))
    attention = next((i for i, step in enumerate(listed) if _may_rotate(step)), len(listed))

    done, total = itertools.count(), 1 + len(listed) + len(last) + 2 * (cap is not None)

    def telling(step: Step) -> Step:
        def run(model: ir.Model) -> None:
            tell("fusing", next(done) % total, total)  # each way to fuse begins anew
            step(model)

        return run

    def applied(steps: Sequence[Step], before: ir.Model) -> ir.Model:
        steps = [*map(buffers.as_one_row, steps)] if goes_on else steps
        return _applied([buffers.know_sizes, *map(telling, steps)], before)

    folded = functools.cache(lambda: _applied([telling(optimizer.optimize)], model))

    @functools.cache
    def common(lifted: bool) -> ir.Model:
        return applied([lift_caps] * lifted + listed[:attention], folded())

    def attempt(*, rotary: bool, lifted: bool) -> ir.Model:
        how = {} if rotary else {"rotary": False}
        rest = [functools.partial(s, **how) if _may_rotate(s) else s for s in listed[attention:]]
        caps = [functools.partial(put_caps, cap=cap or 0.0, count=every)] * lifted
        hide = functools.partial(buffers.hide_states, count=len(model.graph.outputs))
        return applied([buffers.show_states, *rest, hide, *last, *caps], common(lifted))

    capped, attempts = cap is not None, dict[str, _Attempt]()
    if not goes_on:
        attempts[""] = functools.partial(attempt, rotary=True, lifted=capped)
    attempts[ROTARY] = functools.partial(attempt, rotary=False, lifted=capped)
    if capped:
        attempts["caps in attention nodes"] = functools.partial(attempt, rotary=False, lifted=False)
    return attempts | {"all of them": folded}


def _heads_are_unknown(model: ir.Model) -> bool:
    """Return whether no attention has a number of heads that ONNX's inference of shapes finds."""

    def known(graph: ir.Graph) -> bool:
        every = attentions(graph)
        return not every or any(one.heads_are_known for one in every)

    return not (known(model.graph) or known(_applied([passes.ShapeInferencePass()], model).graph))


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
