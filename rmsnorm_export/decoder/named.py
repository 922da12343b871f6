"""The graphs of a folder beside what a model computes, by the names of their tensors.

In folders of transformers these are the paths by which its exporter names the tensors of a call.
optimum, onnxruntime-genai and its builder call a cache ``past_key_values.0.key`` and
``present.0.key``; behind an encoder ``past_key_values.0.decoder.key`` and ``.0.encoder.key``.

The model's own methods run beside them, and give what each step is compared with. The graphs are
fed with what graphs gave before; what one does not give is NaN, or refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from rmsnorm_export.compare.pytorch import to_array, to_tensor
from rmsnorm_export.decoder.bundle import Bundle, state_name, states_of
from rmsnorm_export.decoder.caches import CachePart, cache_in, cache_parts
from rmsnorm_export.decoder.encoders import inputs_of
from rmsnorm_export.decoder.inputs import TEXT
from rmsnorm_export.decoder.names import OF_DECODER
from rmsnorm_export.errors import Error, NotRunError
from rmsnorm_export.graph.load import load_model, serialize
from rmsnorm_export.op.type_names import FloatName, float_name
from rmsnorm_export.runtime.inputs import graph_inputs
from rmsnorm_export.runtime.session import open_session, run_session

_CACHE_TYPES = ("float32", "float16")
_STATE = re.compile(r"(?:past_key_values|present)\.(\d+)\.(?:decoder\.|(encoder\.))?(key|value)")


class FolderGraphs:
    """The graphs of a folder, and what ``generate`` has to give them.

    They are ``decode``, which takes a cache; beside it ``prefill`` and encoders, or none.

    Attributes:
        encoders: the names of the encoders.
        dtype: of the caches, and so of the weights before they were quantized.
        pads: rows may be padded: an encoder masks them, or positions are an input.
        read_text: they take nothing else, beside a cache.
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
        self._loaded = loaded
        self._inputs = {role: graph_inputs(one.model) for role, one in loaded.items()}
        decode, states = self._inputs["decode"], states_of(loaded["decode"].model.graph)
        types = {decode[name].dtype for name in states} or {"none"}
        if self._by_layer:
            kept = {name for name, output in states.items() if output or ".encoder." in name}
            others = states.keys() - filter(_part, kept)
            problem = ", ".join(sorted(others) or sorted(types - {*_CACHE_TYPES}))
            if len(loaded) not in (1, 3) or problem:
                raise not_together((problem and f"caches {problem}") or ", ".join(bundle.files))
            self.dtype: FloatName = float_name(types.pop())
        self.pads = bool(self.encoders) or "position_ids" in decode
        first = self._inputs.get("prefill", decode)
        self.read_text = not self.encoders and first.keys() <= {*TEXT, *states}
        self._session: dict[str, Any] = {}
        self._seen = 0
        self._states: dict[str, torch.Tensor] = {}
        self._encoded: dict[int, tuple[str, torch.Tensor, torch.Tensor]] = {}

    def _run(
        self, role: str, value_of: Callable[[str], torch.Tensor | None]
    ) -> dict[str, torch.Tensor]:
        """Return the outputs of a graph, which alone is loaded: two hold the weights twice.

        Raises:
            NotRunError: an input is not known, or the graph does not run.
            NoKernelError, VerificationError: ONNX Runtime does not load it.
        """
        feeds = {}
        for name, declared in self._inputs[role].items():
            if (value := value_of(name)) is None:
                what = "The graph takes an input that generate() does not give."
                raise NotRunError(what, found=name, fix="compare it without --generate")
            feeds[name] = to_array(value.to(getattr(torch, declared.dtype)))
        if role not in self._session:
            self._session.clear()
            content, folder = serialize(self._loaded[role].model), self._loaded[role].folder
            how = {"optimize": True, "external_folder": folder, "frugal": True}
            self._session[role] = open_session(content, **how)
        try:
            answers = run_session(self._session[role], feeds)
        except Error as error:
            what = "A graph of the folder does not run on what generate() gives it."
            fix = "export without --multi-token: the prompt then has a graph of its own"
            raise NotRunError(what, found=error.found, fix=fix) from error
        return {name: to_tensor(array) for name, array in answers.items()}

    def encode(self, role: str, call: Callable[..., Any], *args: Any, **feeds: Any) -> Any:
        """Return what an encoder's method returns; graphs are given the numbers of its graph."""
        taken = inputs_of(call, *args, **feeds)
        result = call(*args, **feeds)
        computed = self._run(role, taken.get)
        leaves = _leaves(result)
        for path, leaf in leaves.items():
            own = torch.full_like(leaf, torch.nan) if leaf.is_floating_point() else leaf
            self._encoded[id(leaf)] = role, leaf, _checked(path, computed.get(path, own), leaf)
        return result

    def forward(self, call: Callable[..., Any], **kwargs: Any) -> tuple[Any, torch.Tensor]:
        """Return what ``model.forward`` returns, and the logits of a graph for the same tokens."""
        role = "decode" if self._seen or "prefill" not in self._loaded else "prefill"
        inputs = self._inputs[role]
        given, before = _leaves(kwargs), dict[str, torch.Tensor]()
        used = set()
        for path, leaf in given.items():
            encoder, _, numbers = self._encoded.get(id(leaf), ("", leaf, leaf))
            used.add(encoder)
            before[path] = numbers.clone()
        if not self._seen and {role for role, _, _ in self._encoded.values()} - used:
            raise not_together("an encoder whose result the model changes before it is given")
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
                grows = path in parts and not isinstance((inputs[name].shape or ())[2], int)
                return torch.zeros_like(own[:, :, :0] if grows else own)
            if path in masks:  # generate() omits one of ones alone
                return _mask_of_ones(ids, masks[path], inputs[name].shape)
            return None

        answers = {path_of(name): value for name, value in self._run(role, value_of).items()}
        self._states |= {path: value for path, value in answers.items() if path in held}
        last = answers["logits"][:, -result.logits.shape[1] :]  # generate() may ask for that alone
        return result, _checked("logits", last, result.logits)


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


def _checked(path: str, answer: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a graph, which have the shape of the model's."""
    if answer.shape != leaf.shape:
        what = "A graph of the folder gives something else than the model."
        found = f"{path} of {[*answer.shape]}, the model's has {[*leaf.shape]}"
        raise NotRunError(what, found=found, fix="export the model again")
    return answer


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
