"""A decoder of one graph whose caches are named by layer, in the place of PyTorch's ``forward``.

optimum, onnxruntime-genai and its builder call them ``past_key_values.0.key`` and
``present.0.key``.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from rmsnorm_export.errors import NotRunError
from rmsnorm_export.graph.bundle import Bundle, states_of
from rmsnorm_export.graph.load import load_model, serialize
from rmsnorm_export.op.type_names import FloatName, float_name
from rmsnorm_export.runtime.inputs import graph_inputs
from rmsnorm_export.runtime.session import open_session, run_session
from rmsnorm_export.torch.generation.caches import cache_in

_CACHE_TYPES = {"float32": torch.float32, "float16": torch.float16}

_STATE = re.compile(r"past_key_values\.(\d+)\.(key|value)")


class NamedDecoder:
    """The graph, and what ``generate`` has to give it.

    Attributes:
        dtype: of its caches, and so of the weights before they were quantized.
        pads: it takes positions, so that rows may be padded on the left.
    """

    def __init__(self, bundle: Bundle) -> None:
        """Read the graph.

        Raises:
            NotRunError: there are several, or its caches have other names.
        """
        self._loaded = load_model(next(iter(bundle.files.values())))
        graph = self._loaded.model.graph
        self._inputs = graph_inputs(self._loaded.model)
        self._states: dict[str, tuple[int, str, str]] = {}
        outputs = {str(value.name) for value in graph.outputs}
        for name, output in states_of(graph).items():
            if (match := _STATE.fullmatch(name)) and output in outputs:
                self._states[name] = int(match[1]), match[2], output
        unknown = states_of(graph).keys() - self._states.keys()
        types = {self._inputs[name].dtype for name in self._states} or {"none"}
        problem = ", ".join(sorted(unknown) or sorted(types - _CACHE_TYPES.keys()))
        if len(bundle.files) > 1 or problem:
            found = (problem and f"caches {problem}") or ", ".join(bundle.files)
            what = "The graphs of this folder are not put together here."
            fix = "compare two folders component by component, without --generate"
            raise NotRunError(what, found=found, fix=fix)
        self._type = types.pop()
        self.dtype: FloatName = float_name(self._type)
        self.pads = "position_ids" in self._inputs

    def open(self, reference: Any) -> None:
        """Load the graph in ONNX Runtime.

        Args:
            reference: a cache of the model, filled, from which sizes of an empty one are taken.
        """
        content, where = serialize(self._loaded.model), self._loaded.folder
        self._session = open_session(content, optimize=True, external_folder=where)
        self._reference = reference

    def forward(self, **kwargs: Any) -> Any:
        """Return the logits, and add to the cache what the graph adds."""
        from transformers.modeling_outputs import CausalLMOutputWithPast

        cache, feeds = cache_in(kwargs), {}
        rows, tokens = kwargs["input_ids"].shape
        past = cache.get_seq_length()
        if kwargs.get("attention_mask") is None:  # generate() omits one of ones alone
            kwargs["attention_mask"] = torch.ones((rows, past + tokens), dtype=torch.int64)
        for name in self._inputs:
            if name in self._states:
                number, kind, _ = self._states[name]
                held = getattr((cache if past else self._reference).layers[number], f"{kind}s")
                feeds[name] = held[:, :, :past].to(_CACHE_TYPES[self._type]).numpy()
            elif isinstance(value := kwargs.get(name), torch.Tensor):
                feeds[name] = value.numpy()
            else:
                what = "The graph takes an input that generate() does not give."
                raise NotRunError(what, found=name, fix="compare it without --generate")
        answers = {n: torch.from_numpy(a) for n, a in run_session(self._session, feeds).items()}
        added = {
            (layer, kind): answers[output][:, :, past:]
            for layer, kind, output in self._states.values()
        }
        for layer in sorted({layer for layer, _ in added}):
            cache.update(added[layer, "key"], added[layer, "value"], layer)
        return CausalLMOutputWithPast(logits=answers["logits"])
