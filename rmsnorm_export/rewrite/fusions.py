"""transformers' fusions for ONNX Runtime: attention, rotary embeddings, MoE, packed products.

They run after ours, and after onnxscript's optimizer, which brings a graph into the forms that they
look for: measured on LLaMA, Qwen3, Gemma 3 and Phi-3 (float32 for cpu; Qwen3, Gemma 3 in float16
for cuda) this order leaves as many norms and attentions one node as either alone; without the
optimizer no rotary embedding goes into its attention.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import inspect
import itertools
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import BackendMissingError, Error
from rmsnorm_export.graph.bundle import is_state, write_models
from rmsnorm_export.graph.encode import LARGE_BYTES
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.op.native import MICROSOFT_DOMAIN, SIMPLIFIED, SKIP_SIMPLIFIED
from rmsnorm_export.printable import first_line, one_line
from rmsnorm_export.rewrite.caches import masks
from rmsnorm_export.rewrite.describe import count_nodes
from rmsnorm_export.rewrite.options import FusionProvider
from rmsnorm_export.rewrite.result import Fusions
from rmsnorm_export.runtime.input_sizes import Declared
from rmsnorm_export.runtime.inputs import (
    SIZE_CHOICES,
    declared_inputs,
    index_limits,
    input_shapes,
    make_inputs,
)
from rmsnorm_export.runtime.metrics import DEFAULT_RTOL, compare_arrays, is_float, without_evidence
from rmsnorm_export.runtime.session import onnxruntime, open_session, run_session
from rmsnorm_export.runtime.sizes import Shape
from rmsnorm_export.runtime.support import CUDA
from rmsnorm_export.system.packages import pip_install, version_of

_NORMS = frozenset({SIMPLIFIED, SKIP_SIMPLIFIED, "RMSNormalization"})
_ATTENTION = "GroupQueryAttention"
_PROVIDERS = {
    "cuda": CUDA,
    "webgpu": "WebGpuExecutionProvider",
    "dml": "DmlExecutionProvider",
}
"""Names of the providers in ONNX Runtime; the others run on the CPU."""

Step = Callable[[ir.Model], object]


def fuse(model: ir.Model, provider: FusionProvider, *, seed: int = 0) -> tuple[ir.Model, Fusions]:
    """Return the model with transformers' fusions for one provider of ONNX Runtime.

    The result is run beside the model, on random inputs. Where it does not run, is off by more than
    ``verify`` allows, or has fewer norms, attention nodes are told not to rotate; where that does
    not help, the model stays as it was.

    Args:
        model: whose norms are one node; left as it is.
        provider: what the fusions are for.
        seed: of the inputs.

    Raises:
        BackendMissingError: transformers with its exporters, or ONNX Runtime, is missing.
    """
    steps = _provider_steps(provider)
    with tempfile.TemporaryDirectory(prefix="rmsnorm-export-fusions-") as folder:
        judge = _Judge(model, provider, Path(folder), seed)
        fused, problem = judge.attempt(steps)
        left_out = ""
        if problem:
            fused, still = judge.attempt([_unrotated(step) for step in steps])
            left_out = "rotary embeddings in attention nodes"
            if still:
                fused, left_out = model, "all of them"
    before, after = _operators(model), _operators(fused)
    new = {node.op_type for node in fused.graph.all_nodes() if node.domain == MICROSOFT_DOMAIN}
    return fused, Fusions(
        provider=provider,
        version=version_of("transformers"),
        operators={
            name: (before[name], after[name])
            for name in sorted(before | after)
            if before[name] != after[name] and (name in _COUNTED or name in new)
        },
        norms=_norms_in_attention(fused),
        residuals=after[SKIP_SIMPLIFIED] - before[SKIP_SIMPLIFIED],
        nodes_before=count_nodes(model),
        nodes_after=count_nodes(fused),
        left_out=left_out,
        problem=problem,
        compared=judge.compared if fused is not model else "",
        not_compared=judge.not_compared,
    )


def fuse_as_they_do(model: ir.Model, provider: FusionProvider) -> ir.Model:
    """Return a copy with their fusions alone, none compared: what ours are measured by.

    Raises:
        BackendMissingError: transformers with its exporters is missing.
    """
    model = _copy(model)
    for step in _provider_steps(provider):
        step(model)
    return model


def share_weights(models: Iterable[ir.Model]) -> None:
    """Let equal weights that the fusions have made in several graphs be one piece of memory."""
    first: dict[Hashable, Array] = {}
    for model in models:
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.Tensor) and isinstance(tensor.raw, np.ndarray):
                digest = hashlib.sha256(memoryview(_bytes_of(tensor.raw))).digest()
                key = tensor.dtype, tuple(tensor.shape), digest
                one = first.setdefault(key, tensor.raw)
                value.const_value = ir.Tensor(one, dtype=tensor.dtype, name=tensor.name)


def _bytes_of(array: Array) -> Any:
    """Its memory, of a type that every hash takes."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


_COUNTED = frozenset({"MatMul", "Softmax", "Gemm", *_NORMS})
"""Operators of ONNX whose numbers say what became of a graph, beside those that are new in it."""


def _provider_steps(provider: FusionProvider) -> list[Step]:
    """Return what is done: onnxscript's optimizer, our own step, transformers' fusions.

    Raises:
        BackendMissingError: there is no such module.
    """
    try:
        from onnxscript import optimizer
        from transformers.exporters import onnxruntime_fusions as theirs
    except ImportError as error:
        raise BackendMissingError(
            "The fusions are those of transformers, which cannot be imported.",
            found=first_line(error),
            fix=pip_install("transformers>=5.20", "[torch]"),
        ) from error
    # Their own steps, where this release has them apart.
    listed: Sequence[tuple[Any, Any]] = getattr(theirs, "_STEPS", ()) or [
        (functools.partial(theirs.fuse_for_onnxruntime, ort_fusions=provider), None)
    ]
    steps = [step for step, providers in listed if providers is None or provider in providers]
    return [optimizer.optimize, _uncast_norms, *steps]


def _unrotated(step: Step) -> Step:
    """Return a step that leaves rotary embeddings to nodes of their own, where it is told to.

    Without a cache, GroupQueryAttention counts positions up from the first element of
    ``position_ids``, for every row, which is wrong in a batch with padding on the left.
    """
    if "rotary" not in inspect.signature(getattr(step, "func", step)).parameters:
        return step
    unrotated: Callable[..., object] = step
    return functools.partial(unrotated, rotary=False)


def _uncast_norms(model: ir.Model) -> None:
    """Take the casts from around norms whose scale half precision holds exactly, in place.

    ONNX Runtime computes such a norm in float32 and rounds it once, as the casts did; and a
    residual sum only goes into a norm of its own type.
    """
    narrowed: dict[tuple[str | None, ir.DataType], ir.Value | None] = {}
    for node in list(model.graph.all_nodes()):
        up = node.inputs[0].producer() if node.op_type == SIMPLIFIED and node.inputs[0] else None
        downs = [use.node for use in node.outputs[0].uses()]
        if up is None or {up.op_type, *(down.op_type for down in downs)} != {"Cast"}:
            continue
        x, scale = up.inputs[0], node.inputs[1]
        assert x is not None
        assert scale is not None
        kinds = {down.attributes.get_int("to", 0) for down in downs}
        if x.dtype not in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) or kinds != {x.dtype}:
            continue
        if any(
            value.is_graph_output() for value in (*node.outputs, *(d.outputs[0] for d in downs))
        ):
            continue
        key = scale.name, x.dtype
        if key not in narrowed:
            narrowed[key] = _exactly(scale, x.dtype, model.graph)
        small = narrowed[key]
        if small is None:
            continue
        node.replace_input_with(0, x)
        node.replace_input_with(1, small)
        node.outputs[0].type = ir.TensorType(x.dtype)
        for down in downs:
            down.outputs[0].replace_all_uses_with(node.outputs[0])
            model.graph.remove(down, safe=True)


def _exactly(scale: ir.Value, dtype: ir.DataType, graph: ir.Graph) -> ir.Value | None:
    """A constant in another type, where that changes no number."""
    if scale.const_value is None:
        return None
    values = scale.const_value.numpy()
    small = values.astype(dtype.numpy())
    if not np.array_equal(small.astype(values.dtype), values):
        return None
    name = f"{scale.name}_{dtype.name.lower()}"
    made = ir.Value(name=name, const_value=ir.Tensor(small, dtype=dtype, name=name))
    made.dtype, made.shape = dtype, ir.Shape(small.shape)
    graph.register_initializer(made)
    return made


class _Judge:
    """Apply steps to copies of one model and compare the outputs."""

    def __init__(self, model: ir.Model, provider: str, folder: Path, seed: int) -> None:
        self._model, self._provider, self._folder, self._seed = model, provider, folder, seed
        self._expected: dict[str, Array] | None = None
        self._feeds: dict[str, Array] = {}
        self._filled = 0  # slots of a cache of fixed size that tokens were written to
        self.compared = self.not_compared = self._unknown = ""
        name = _PROVIDERS.get(provider)
        self._elsewhere = name is not None and name not in onnxruntime().get_available_providers()

    def attempt(self, steps: Sequence[Step]) -> tuple[ir.Model, str]:
        """Return the model after the steps, and what is wrong with it, or ""."""
        model = _copy(self._model)
        kept = [(value.name, value.type, value.shape) for value in model.graph.outputs]
        self.compared = self.not_compared = ""
        with _tied_weights_kept(model):
            try:
                for step in steps:
                    step(model)
            except Exception as error:
                return model, f"a fusion fails: {type(error).__name__}: {first_line(error)}"
        if [value.name for value in model.graph.outputs] != [name for name, _, _ in kept]:
            return model, "the outputs have other names"
        for value, (_, of_type, shape) in zip(model.graph.outputs, kept, strict=True):
            value.type, value.shape = of_type, shape
        for node in model.graph.all_nodes():
            model.opset_imports.setdefault(node.domain, 1)
        before, after = _operators(self._model), _operators(model)
        had = sum(before[name] for name in _NORMS)
        has = sum(after[name] for name in _NORMS) + _norms_in_attention(model)
        if has < had:
            return model, f"{has} of {had} norms are left one node"
        return model, self._compare(model)

    def _compare(self, model: ir.Model) -> str:
        """Return why the outputs are not those of the model before, or ""."""
        if self._expected is None:
            self._expected = self._reference()
            if none := without_evidence(self._expected):
                self._unknown = "; ".join(f"{name}: {why}" for name, why in none.items())
                self._expected = {}
        if not self._expected:
            self.not_compared = self._unknown
            return ""
        if self._elsewhere and _norms_in_attention(model):
            return self._not_here("does not normalise queries and keys in the attention")
        try:
            path = self._write(model)
            device: Any = "cuda" if self._provider == "cuda" and not self._elsewhere else "cpu"
            computed = run_session(open_session(path, device=device), self._feeds)
        except Error as error:
            if not self._elsewhere:
                return f"ONNX Runtime does not run it: {one_line(error.found, 300)}"
            return self._not_here(f"does not run the graph: {one_line(error.found, 300)}")
        furthest = 0.0
        for name, expected in self._expected.items():
            made = computed[name]
            if self._filled and is_state(name) and expected.ndim == 4:
                made, expected = made[:, :, : self._filled], expected[:, :, : self._filled]
            metrics = compare_arrays(made, expected)
            share = metrics.max_abs / _largest(expected)
            furthest = max(furthest, share)
            allowed = DEFAULT_RTOL[metrics.dtype] if is_float(expected.dtype) else 0.0
            if not metrics.nan_inf_agree or share > allowed:
                return f"{name} is off by {share:.2g} of its largest element, {allowed:g} allowed"
        self.compared = (
            f"{len(self._expected)} outputs differ by at most {furthest:.2g} of the largest element"
        )
        return ""

    def _not_here(self, why: str) -> str:
        self.not_compared = (
            f"this ONNX Runtime has no provider for {self._provider}, and its CPU provider {why}"
        )
        return ""

    def _reference(self) -> dict[str, Array]:
        """Outputs of the model as it was; none where it cannot be run here."""
        try:
            session = open_session(self._write(self._model))
            declared, limits = declared_inputs(session), index_limits(self._model)
        except Error as error:
            return self._unknown_before(error)
        for sizes in SIZE_CHOICES:
            try:
                shapes = input_shapes(declared, None, usual={}, sizes=sizes)
                shapes = _with_whole_mask(shapes, declared)
                self._feeds = make_inputs(declared, limits, shapes, seed=self._seed)
                self._filled = _like_tokens(self._feeds)
                return run_session(session, self._feeds)
            except Error as error:
                self._unknown_before(error)
        return {}

    def _unknown_before(self, error: Error) -> dict[str, Array]:
        self._unknown = f"the graph before them does not run: {one_line(error.found, 300)}"
        return {}

    def _write(self, model: ir.Model) -> Path:
        """A file of the model, in a folder that later ones replace."""
        for entry in self._folder.iterdir():
            entry.unlink()
        return write_models({"model": model}, self._folder)[0]


def _with_whole_mask(
    shapes: Mapping[str, Shape], declared: Mapping[str, Declared]
) -> dict[str, Shape]:
    """The shapes, with a mask over the cache and the tokens, also where no name tells its sizes."""
    ids, mask = shapes.get("input_ids", ()), shapes.get("attention_mask", ())
    if len(ids) != 2 or len(mask) != 2:
        return dict(shapes)
    cache = next((s for name, s in shapes.items() if "past_key_values" in name and len(s) == 4), ())
    whole = ids[0], ids[1] + (cache[2] if cache else 0)
    sizes = zip(declared["attention_mask"].shape or (), whole, strict=False)
    fitted = tuple(size if isinstance(size, int) else wanted for size, wanted in sizes)
    return {**shapes, "attention_mask": fitted}


def _like_tokens(feeds: Mapping[str, Array]) -> int:
    """A first row that is padded on the left, and positions after it, in place.

    Ones alone would hide that an attention takes one row's positions for all. Masks of a cache of
    fixed size, and its counters, are of one text, too.

    Returns:
        How many slots of such a cache have tokens; 0 without one. What the others hold is never
        seen, and an attention that takes the cache in leaves them undefined.
    """
    mask, positions = feeds.get("attention_mask"), feeds.get("position_ids")
    fixed = {
        one: array.shape
        for one, array in feeds.items()
        if one.startswith("attention_mask") and array.ndim == 4
    }
    if fixed:
        rows, _, count, slots = next(iter(fixed.values()))
        cached = any(is_state(one) and array.ndim == 4 for one, array in feeds.items())
        start = (slots - count) // 2 if cached else 0
        mask = np.ones((rows, start + count), np.int64)
        for one, array in feeds.items():
            if is_state(one) and array.ndim == 0:  # what each layer counts
                array[...] = start
    if mask is None or mask.ndim != 2:
        return 0
    mask[0, 0] = 0
    if fixed:
        for one, seen in masks(mask, count, slots, dict.fromkeys(fixed, 0)).items():
            feeds[one][:] = seen
    if positions is not None and positions.ndim == 2:
        counted = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, -positions.shape[1] :]
        if counted.shape == positions.shape:
            positions[:] = counted
    return mask.shape[1] if fixed else 0


def _largest(array: Array) -> float:
    """The largest finite magnitude; 1 where there is none above 0."""
    finite = np.abs(array.astype(np.float64))
    finite = finite[np.isfinite(finite)]
    return float(finite.max(initial=0.0)) or 1.0


@contextlib.contextmanager
def _tied_weights_kept(model: ir.Model) -> Iterator[None]:
    """In the block a weight of several uses counts as an input, which no step folds: a tied
    embedding would be stored again, transposed."""
    tied = [value for value in model.graph.initializers.values() if _is_tied(value)]
    log = logging.getLogger("onnx_ir.passes")  # it warns of every initializer that is an input
    level = log.level
    model.graph.inputs.extend(tied)
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
        for value in tied:
            if value in model.graph.inputs:
                model.graph.inputs.remove(value)


def _is_tied(value: ir.Value) -> bool:
    """It is a matrix of weights that nodes of several kinds read."""
    tensor, readers = value.const_value, {node.op_type for node in value.consumers()}
    matrix = tensor is not None and len(tensor.shape) == 2 and tensor.nbytes >= LARGE_BYTES
    return matrix and len(readers) > 1 and not value.is_graph_input()


def _copy(model: ir.Model) -> ir.Model:
    """A clone whose values have types of their own: a step that sets one would change both."""
    model = model.clone()
    for graph in model.graphs():
        nodes = (node.outputs for node in graph)
        for value in itertools.chain(graph.inputs, graph.initializers.values(), *nodes):
            value.type = copy.copy(value.type)
    return model


def _operators(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.all_nodes())


def _norms_in_attention(model: ir.Model) -> int:
    """Norms of queries and of keys that attention nodes compute themselves."""
    return 2 * sum(
        node.op_type == _ATTENTION
        and node.domain == MICROSOFT_DOMAIN
        and "qk_norm_epsilon" in node.attributes
        for node in model.graph.all_nodes()
    )
