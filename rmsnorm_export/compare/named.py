"""Graphs whose caches are named by layer, in the place of PyTorch's ``forward``.

optimum, onnxruntime-genai and its builder call them ``past_key_values.0.key`` and
``present.0.key``; behind an encoder ``past_key_values.0.decoder.key`` and ``.0.encoder.key``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
import torch

from rmsnorm_export.errors import NotRunError
from rmsnorm_export.graph.bundle import Bundle, states_of
from rmsnorm_export.graph.load import LoadedModel, load_model, serialize
from rmsnorm_export.op.type_names import FloatName, float_name
from rmsnorm_export.runtime.inputs import graph_inputs
from rmsnorm_export.runtime.session import load_session, open_session, run_session
from rmsnorm_export.torch.generation.caches import CachePart, cache_in, caches_of
from rmsnorm_export.torch.generation.encoders import inputs_of
from rmsnorm_export.torch.generation.names import OF_DECODER

_CACHE_TYPES = {"float32": torch.float32, "float16": torch.float16}

Calls = Mapping[str, Callable[..., Any]]
"""What runs in the place of methods, by a name."""

_STATE = re.compile(r"(?:past_key_values|present)\.(\d+)\.(?:decoder\.|(encoder\.))?(key|value)")


class NamedDecoder:
    """The graphs, and what ``generate`` has to give them.

    They are ``decode``, which takes a cache; beside it ``encoder`` and ``prefill``, or none.

    Attributes:
        dtype: of the caches, and so of the weights before they were quantized.
        encoders: what runs in the place of an encoder, whose method is the first argument.
        pads: rows may be padded: an encoder masks them, or positions are an input.
    """

    def __init__(self, bundle: Bundle) -> None:
        """Read the graphs.

        Raises:
            NotRunError: they are others, or the caches have other names.
        """
        loaded = map(load_model, bundle.files.values())
        self._graphs = {_role(one.model.graph): one for one in loaded}
        self._inputs = {role: graph_inputs(one.model) for role, one in self._graphs.items()}
        decode = self._graphs.get("decode")
        states = states_of(decode.model.graph) if decode else {}
        types = {self._inputs["decode"][name].dtype for name in states} or {"none"}
        kept = {name for name, output in states.items() if output or ".encoder." in name}
        others = states.keys() - filter(_part, kept)
        problem = ", ".join(sorted(others) or sorted(types - _CACHE_TYPES.keys()))
        if not len(self._graphs) == len(bundle.files) in (1, 3) or problem:
            raise not_together((problem and f"caches {problem}") or ", ".join(bundle.files))
        self._type = types.pop()
        self.dtype: FloatName = float_name(self._type)
        self.encoders: Calls = {"encoder": self._encode} if "encoder" in self._graphs else {}
        self.pads = bool(self.encoders) or "position_ids" in self._inputs["decode"]

    def open(self, reference: Any) -> None:
        """Load the graphs in ONNX Runtime.

        Args:
            reference: a cache of the model, filled, from which sizes of an empty one are taken.
        """
        self._sessions = {role: session_of(loaded) for role, loaded in self._graphs.items()}
        self._reference = reference

    def _encode(self, call: Callable[..., Any], *args: Any, **feeds: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        answers = self._run("encoder", inputs_of(call, *args, **feeds))
        return BaseModelOutput(last_hidden_state=answers["last_hidden_state"])

    def forward(self, **kwargs: Any) -> Any:
        """Return the logits, and add to the cache what the graph adds."""
        from transformers.modeling_outputs import CausalLMOutputWithPast

        cache = cache_in(kwargs)
        caches, past = caches_of(cache), cache.get_seq_length()
        role = "decode" if past or "prefill" not in self._graphs else "prefill"
        lengths = {}
        if (encoded := kwargs.get("encoder_outputs")) is not None:
            kwargs = {OF_DECODER.get(name, name): value for name, value in kwargs.items()}
            kwargs["encoder_hidden_states"] = encoded[0]
            lengths["encoder_attention_mask"] = encoded[0].shape[1]
        rows, tokens = kwargs["input_ids"].shape
        for name, length in (lengths | {"attention_mask": past + tokens}).items():
            if kwargs.get(name) is None:  # generate() omits one of ones alone
                kwargs[name] = torch.ones((rows, length), dtype=torch.int64)
        filled = caches if past else caches_of(self._reference)
        for name in self._inputs[role]:
            if part := _part(name):
                held = getattr(filled[part.cross].layers[part.layer], f"{part.kind}s")
                held = held if part.cross else held[:, :, :past]
                kwargs[name] = held.to(_CACHE_TYPES[self._type])
        answers = self._run(role, kwargs)
        states = {part: answers[name] for name in answers if (part := _part(name))}
        for part, keys in states.items():
            if part.kind == "key" and not (part.cross and past):
                values = states[dataclasses.replace(part, kind="value")]
                start = 0 if part.cross else past
                caches[part.cross].update(keys[:, :, start:], values[:, :, start:], part.layer)
        return CausalLMOutputWithPast(logits=answers["logits"])

    def _run(self, role: str, values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        for name in self._inputs[role]:
            if not isinstance(values.get(name), torch.Tensor):
                what = "The graph takes an input that generate() does not give."
                raise NotRunError(what, found=name, fix="compare it without --generate")
        feeds = {name: values[name].numpy() for name in self._inputs[role]}
        answers = run_session(self._sessions[role], feeds)
        return {name: torch.from_numpy(array) for name, array in answers.items()}


def not_together(graphs: str) -> NotRunError:
    """Return the error for a folder whose graphs are others than a model calls."""
    what = "The graphs of this folder are not put together here."
    fix = "compare two folders component by component, without --generate"
    return NotRunError(what, found=graphs, fix=fix)


def session_of(loaded: LoadedModel, *, here: bool = False) -> Any:
    """Load a graph in ONNX Runtime, which optimizes it; ``here``: in this process."""
    opened = load_session if here else open_session
    return opened(serialize(loaded.model), optimize=True, external_folder=loaded.folder)


def _role(graph: ir.Graph) -> str:
    gives = any(_part(str(value.name)) for value in graph.outputs)
    return "decode" if states_of(graph) else "prefill" if gives else "encoder"


def _part(name: str) -> CachePart | None:
    """Return what an input or output of a cache is; None of another one."""
    if not (match := _STATE.fullmatch(name)):
        return None
    return CachePart(int(match[1]), "key" if match[3] == "key" else "value", bool(match[2]))
