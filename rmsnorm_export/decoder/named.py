"""The graphs of a folder in the place of what a model computes, by the names of their tensors.

In folders of transformers these are the paths by which its exporter names the tensors of a call.
optimum, onnxruntime-genai and its builder call a cache ``past_key_values.0.key`` and
``present.0.key``; behind an encoder ``past_key_values.0.decoder.key`` and ``.0.encoder.key``.

The model's own methods run as well, for the structure of what they return. All numbers in it are
those of the graphs then, which are fed with what they gave before; what one does not give is NaN,
or refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from rmsnorm_export.compare.pytorch import to_array, to_tensor
from rmsnorm_export.decoder.bundle import Bundle, state_name, states_of
from rmsnorm_export.decoder.caches import CachePart, cache_in, cache_parts
from rmsnorm_export.decoder.encoders import inputs_of
from rmsnorm_export.decoder.names import OF_DECODER
from rmsnorm_export.errors import Error, NotRunError
from rmsnorm_export.graph.load import LoadedModel, load_model, serialize
from rmsnorm_export.op.type_names import FloatName, float_name
from rmsnorm_export.runtime.inputs import graph_inputs
from rmsnorm_export.runtime.session import open_session, run_session
from rmsnorm_export.runtime.sizes import Declared

Tensors = Mapping[str, torch.Tensor]

_CACHE_TYPES = ("float32", "float16")
_STATE = re.compile(r"(?:past_key_values|present)\.(\d+)\.(?:decoder\.|(encoder\.))?(key|value)")


class FolderGraphs:
    """The graphs of a folder, and what ``generate`` has to give them.

    They are ``decode``, which takes a cache; beside it ``prefill`` and encoders, or none.

    Attributes:
        encoders: the names of the encoders.
        dtype: of the caches, and so of the weights before they were quantized.
        pads: rows may be padded: an encoder masks them, or positions are an input.
    """

    def __init__(self, bundle: Bundle) -> None:
        """Read the graphs.

        Raises:
            NotRunError: they are others, or the caches have other names.
        """
        loaded = {name: load_model(file) for name, file in bundle.files.items()}
        self._by_layer = bundle.manifest is None
        if self._by_layer:
            loaded = {_role(one.model.graph): one for one in loaded.values()}
        self.encoders = loaded.keys() - {"prefill", "decode"}
        if "decode" not in loaded or len(loaded) != len(bundle.files):
            raise not_together(", ".join(bundle.files))
        self._graphs = {role: _Graph(one) for role, one in loaded.items()}
        decode = self._graphs["decode"]
        states = states_of(loaded["decode"].model.graph)
        types = {decode.inputs[name].dtype for name in states} or {"none"}
        if self._by_layer:
            kept = {name for name, output in states.items() if output or ".encoder." in name}
            others = states.keys() - filter(_part, kept)
            problem = ", ".join(sorted(others) or sorted(types - {*_CACHE_TYPES}))
            if len(loaded) not in (1, 3) or problem:
                raise not_together((problem and f"caches {problem}") or ", ".join(bundle.files))
            self.dtype: FloatName = float_name(types.pop())
        self.pads = bool(self.encoders) or "position_ids" in decode.inputs
        self._seen = 0
        self._states: dict[str, torch.Tensor] = {}

    def _opened(self, role: str) -> _Graph:
        """Return a graph, which alone is loaded: sessions of two hold the weights twice."""
        for name, graph in self._graphs.items():
            if name != role:
                graph.close()
        return self._graphs[role]

    def encode(self, role: str, call: Callable[..., Any], *args: Any, **feeds: Any) -> Any:
        """Return what an encoder's method returns, with the numbers of its graph."""
        taken = inputs_of(call, *args, **feeds)
        result = call(*args, **feeds)
        _put(_leaves(result), self._opened(role).run(taken.get))
        return result

    def forward(self, call: Callable[..., Any], **kwargs: Any) -> Any:
        """Return what ``model.forward`` returns, with the logits of a graph."""
        role = "decode" if self._seen or "prefill" not in self._graphs else "prefill"
        graph = self._opened(role)
        before = {path: leaf.clone() for path, leaf in _leaves(kwargs).items()}
        result = call(**kwargs)
        cache = {name: value for name, value in kwargs.items() if value is cache_in(kwargs)}
        held, parts = _leaves(cache), cache_parts(cache)
        paths, begins = {part: path for path, part in parts.items()}, not self._seen
        ids = before.get("decoder_input_ids", before.get("input_ids"))
        assert ids is not None  # generate() gives them
        self._seen += ids.shape[1]
        if self._by_layer and "encoder_outputs.last_hidden_state" in before:
            before = {OF_DECODER.get(path, path): leaf for path, leaf in before.items()}
        masks = {"attention_mask": self._seen}
        if (encoded := before.get("encoder_hidden_states")) is not None:
            masks["encoder_attention_mask"] = encoded.shape[1]

        def path_of(name: str) -> str:
            return paths[part] if (part := _part(name)) in paths else state_name(name)

        def value_of(name: str) -> torch.Tensor | None:
            path = path_of(name)
            own = held.get(path)
            counts = own is None or not own.is_floating_point()  # of the text, as PyTorch does
            if path in self._states:
                return self._states[path]
            if path in before and (begins or counts):
                return before[path]
            if own is not None and begins:  # no token was cached yet
                grows = path in parts and not isinstance((graph.inputs[name].shape or ())[2], int)
                return torch.zeros_like(own[:, :, :0] if grows else own)
            if path in masks:  # generate() omits one of ones alone
                return _mask_of_ones(ids, masks[path], graph.inputs[name].shape)
            return None

        answers = {path_of(name): value for name, value in graph.run(value_of).items()}
        self._states |= {path: value for path, value in answers.items() if path in held}
        last = answers["logits"][:, -result.logits.shape[1] :]  # generate() may ask for that alone
        _put({"logits": result.logits}, {"logits": last})
        return result


class _Graph:
    """A graph that runs on what it finds by the names of its inputs."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._session: Any = None
        self.inputs: Mapping[str, Declared] = graph_inputs(loaded.model)

    def close(self) -> None:
        self._session = None

    def run(self, value_of: Callable[[str], torch.Tensor | None]) -> dict[str, torch.Tensor]:
        """Return the outputs.

        Raises:
            NotRunError: an input is not known, or the graph does not run.
            NoKernelError, VerificationError: ONNX Runtime does not load it.
        """
        feeds = {}
        for name, declared in self.inputs.items():
            if (value := value_of(name)) is None:
                what = "The graph takes an input that generate() does not give."
                raise NotRunError(what, found=name, fix="compare it without --generate")
            feeds[name] = to_array(value.to(getattr(torch, declared.dtype)))
        if self._session is None:
            content, folder = serialize(self._loaded.model), self._loaded.folder
            self._session = open_session(content, optimize=True, external_folder=folder)
        try:
            answers = run_session(self._session, feeds)
        except Error as error:
            what = "A graph of the folder does not run on what generate() gives it."
            fix = "export without --multi-token: the prompt then has a graph of its own"
            raise NotRunError(what, found=error.found, fix=fix) from error
        return {name: to_tensor(array) for name, array in answers.items()}


def _mask_of_ones(ids: torch.Tensor, seen: int, shape: Sequence[object] | None) -> torch.Tensor:
    """Return the mask of rows without padding that are so long by now.

    Over the slots of a cache of fixed size it holds for each token what is before it.
    """
    rows, tokens = ids.shape
    slots = shape[-1] if shape is not None and len(shape) == 4 else None
    if not isinstance(slots, int):
        return torch.ones((rows, seen), dtype=torch.int64)
    places = torch.arange(seen - tokens, seen)[:, None]
    return (torch.arange(slots) <= places).expand(rows, 1, tokens, slots)


def _put(leaves: Tensors, answers: Tensors) -> None:
    """Replace numbers by those of a graph, in place; by NaN where it gives none."""
    for path in leaves.keys() - answers.keys():
        if leaves[path].is_floating_point():
            leaves[path].fill_(torch.nan)
    for path in leaves.keys() & answers.keys():
        leaf, answer = leaves[path], answers[path]
        if answer.shape != leaf.shape:
            what = "A graph of the folder gives something else than the model."
            found = f"{path} of {[*answer.shape]}, the model's has {[*leaf.shape]}"
            raise NotRunError(what, found=found, fix="export the model again")
        leaf.copy_(answer)


def not_together(graphs: str) -> NotRunError:
    """Return the error for a folder whose graphs are others than a model calls."""
    what = "The graphs of this folder are not put together here."
    fix = "compare two folders component by component, without --generate"
    return NotRunError(what, found=graphs, fix=fix)


def _leaves(values: Any) -> dict[str, torch.Tensor]:
    from transformers.exporters.utils import get_leaf_tensors

    return get_leaf_tensors(values)


def _role(graph: ir.Graph) -> str:
    gives = any(_part(str(value.name)) for value in graph.outputs)
    return "decode" if states_of(graph) else "prefill" if gives else "encoder"


def _part(name: str) -> CachePart | None:
    """Return what an input or output of a cache is, where it is named by layer; else None."""
    if not (match := _STATE.fullmatch(name)):
        return None
    return CachePart(int(match[1]), "key" if match[3] == "key" else "value", bool(match[2]))
