"""Whole architectures from ``transformers``: tiny, random weights, with their norms counted."""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from toolbox.corpus import cache, exporters
from toolbox.corpus.arch_table import COMMON, ENTRIES, Entry
from toolbox.corpus.norm_classes import norm_classes
from toolbox.corpus.weights import DTYPES, randomise

TYPES = ("float32", "float16")
"""Types in which the corpus holds every architecture."""

_CHUNKED = ("torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention")
_CHUNK = 8


def make(name: str, dtype: str = "float32") -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return the model, which maps its one input to logits or hidden states, and an example input.

    Args:
        name: of ``ENTRIES``.
        dtype: ``float32``, ``float16`` or ``bfloat16``, of the weights.
    """
    return make_entry(ENTRIES[name], dtype)


def make_entry(
    entry: Entry, dtype: str, tokens: tuple[int, int] = (2, 7)
) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Return the same of any entry; tokens are of this shape, of the first 64 of a vocabulary."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _model(entry, DTYPES[dtype])
    for number, module in enumerate(model.modules()):
        if _name(module) in _norm_names():
            randomise(module, seed=number)
    generator = torch.Generator().manual_seed(1)
    if entry.kind == "pixels":
        example = torch.randn((2, 3, 16, 16), generator=generator).to(DTYPES[dtype])
    else:
        example = torch.randint(3, 64, tokens, generator=generator)
    return _FirstOutput(model, entry.input).eval(), {entry.input: example}


class _FirstOutput(torch.nn.Module):
    """A model as a function of one tensor, with one tensor as its result."""

    def __init__(self, model: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.model = model
        self.name = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cached = self.name == "input_ids" and self.model.config.model_type != "t5"
        with _exportable(self.model):
            out = self.model(**{self.name: x}, **({"use_cache": False} if cached else {}))
        return out.logits if hasattr(out, "logits") else out[0]


def count_norms(model: torch.nn.Module, *inputs: torch.Tensor) -> dict[str, int]:
    """Count RMSNorm calls in one forward pass: modules by their class, the function by itself.

    A module called twice counts twice, one that is never called does not count. The function counts
    where no ``torch.nn.RMSNorm`` calls it.
    """
    calls: collections.Counter[str] = collections.Counter()
    inside: list[torch.nn.Module] = []

    def enter(module: torch.nn.Module, _args: Any) -> None:
        inside.append(module)
        calls[type(module).__name__] += 1

    def leave(*_: Any) -> None:
        inside.pop()

    function = torch.nn.functional.rms_norm

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls["rms_norm"] += not inside
        return function(*args, **kwargs)

    with contextlib.ExitStack() as hooks, torch.no_grad():
        for module in model.modules():
            if _name(module) in _norm_names():
                hooks.callback(module.register_forward_pre_hook(enter).remove)
                hooks.callback(module.register_forward_hook(leave).remove)
        hooks.enter_context(mock.patch.object(torch.nn.functional, "rms_norm", counted))
        model(*inputs)
    return {name: count for name, count in calls.items() if count}


def export_architecture(name: str, dtype: str = "float32") -> exporters.Export:
    """Return the ONNX file of an architecture, from the cache when it is there.

    TorchDynamo at opset 18 with symbolic batch and sequence; where that fails, with a symbolic
    batch, then with fixed shapes, then TorchScript.
    """

    def example() -> exporters.Example:
        model, inputs = make(name, dtype)
        return model, inputs, sum(count_norms(model, *inputs.values()).values())

    axes = ((0,), ()) if ENTRIES[name].kind == "pixels" else ((0, 1), (0,), ())
    attempts = [*(("dynamo18", symbolic) for symbolic in axes), ("torchscript17", ())]
    depends = f"{ENTRIES[name]} {COMMON} {cache.source_hash('architectures')}"
    return exporters.cached("architectures", f"{name}-{dtype}", depends, example, attempts)


def _model(entry: Entry, dtype: torch.dtype) -> torch.nn.Module:
    import transformers

    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = entry.config()
        # one matrix product over all experts: a loop over the experts in use cannot be exported
        for name, value in {"attn": "eager", "experts": "batched_mm"}.items():
            with contextlib.suppress(AttributeError):
                setattr(config, f"_{name}_implementation", value)
        kind = getattr(transformers, entry.model or "AutoModelForCausalLM")
        make = getattr(kind, "from_config", None) or kind._from_config
        return make(config, dtype=dtype)


@contextlib.contextmanager
def _exportable(model: torch.nn.Module) -> Iterator[None]:
    """Functions of the model's own file replaced by equals that an exporter can take.

    Linear attention goes in chunks of 8 tokens, not 64: an export unrolls the loop over a chunk.
    """
    module = sys.modules[type(model).__module__]
    with contextlib.ExitStack() as stack:
        for name in _CHUNKED:
            if function := getattr(module, name, None):
                chunked = functools.partial(function, chunk_size=_CHUNK)
                stack.enter_context(mock.patch.object(module, name, chunked))
        yield


def _name(module: torch.nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__name__}"


@functools.cache
def _norm_names() -> frozenset[str]:
    return frozenset(m for norm in norm_classes() if norm.is_rmsnorm for m in norm.members)
