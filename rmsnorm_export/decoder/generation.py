"""A decoder's export against PyTorch while both write the same text."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.compare.outputs import Bounds, compare_outputs, describe_feeds
from rmsnorm_export.compare.result import GREEDY, OutputComparison, Verification, not_run
from rmsnorm_export.decoder.bundle import bundle_at, open_folder
from rmsnorm_export.decoder.caches import whole_caches
from rmsnorm_export.decoder.encoders import encoders_of, replaced
from rmsnorm_export.decoder.inputs import greedy, positions_of, sample_inputs, written_name
from rmsnorm_export.decoder.named import FolderGraphs, not_together
from rmsnorm_export.decoder.release import naming_release, other_release
from rmsnorm_export.decoder.source import load_generative
from rmsnorm_export.errors import Error, InputError, NotRunError, UsageError
from rmsnorm_export.op.type_names import FloatName, float_name
from rmsnorm_export.options import Progress
from rmsnorm_export.printable import first_line, plural
from rmsnorm_export.runtime.inputs import read_npz
from rmsnorm_export.runtime.session import runtime_name
from rmsnorm_export.torch.export.convert import inference
from rmsnorm_export.torch.export.failure import collected
from rmsnorm_export.torch_options import SourceOptions

TOKENS = 32
"""Greedy tokens that are compared by default."""

COMPARING = "comparing with PyTorch"


def verify_export(a: Any, b: Any, options: VerifyOptions) -> Verification:
    """``verify`` with ``generate``: a model of transformers, or its source, against its export.

    A source is loaded in the type of the export.

    Args:
        a, b, options: of ``verify``.

    Raises:
        UsageError: ``b`` is no folder of an export.
        InputError, BackendMissingError: as `verify_generation`, and where ``a`` cannot be loaded.
    """
    bundle = bundle_at(b)
    if bundle is None or bundle_at(a) is not None:
        what = "Generated tokens of a model are compared with the folder of an export."
        fix = "give the model as A, and as B the folder that export --task generation made; two "
        fix += "folders are compared without --generate"
        paths = (str, os.PathLike)
        names = [str(x) if isinstance(x, paths) else f"a {type(x).__name__}" for x in (a, b)]
        found = f"A is {names[0]}, B {names[1]}"
        raise UsageError(what, found=found, fix=fix)
    inputs, model = options.inputs or {}, a
    arrays = inputs if isinstance(inputs, Mapping) else read_npz(inputs)
    if isinstance(a, str | os.PathLike):
        named = bundle.manifest is None
        dtype = FolderGraphs(bundle).dtype if named else _type_of(bundle.metadata)
        model, _, _ = load_generative(os.fspath(a), SourceOptions(dtype=dtype), seed=options.seed)
    return verify_generation(
        model,
        bundle.folder,
        {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()},
        tokens=options.generate,
        rtol=options.rtol,
        progress=options.progress,
    )


def _type_of(metadata: Mapping[str, Any]) -> FloatName:
    """Return the type of the weights of an export."""
    try:
        return float_name(str(metadata.get("export_dtype")))
    except UsageError as error:
        what, fix = "The manifest of the export has no type of its weights.", "export it again"
        raise InputError(what, found=f"export_dtype {error.found}", fix=fix) from error


@naming_release()
def verify_generation(
    model: Any,
    path: str | os.PathLike[str],
    inputs: Mapping[str, Any],
    *,
    tokens: int | None = None,
    rtol: float | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Compare the logits of a model and of its export at every step of one text.

    Both run in one ``model.generate``; the export, in ONNX Runtime, beside ``model.forward``. It is
    given the model's own greedy tokens, whatever it would choose: where another one is as likely
    within the bound, it may choose that. Logits are compared as they come, and not kept.

    Args:
        model: of transformers, which was exported.
        path: the folder that ``export_generation`` made, or another exporter, of one graph, or
            an encoder and two, with names as ``past_key_values.0.key``. A graph that counts
            positions itself is given rows without padding.
        inputs: as for ``export_generation``.
        tokens: how many to generate; None: 32, or as many as the cache and the positions hold.
        rtol: the largest difference relative to the largest logit of a step; None: 1e-4 for
            float32, 1e-2 for float16, 4e-2 for bfloat16.
        progress: called at every token.

    Raises:
        InputError: the folder cannot be loaded, or the model cannot generate on these inputs.
        UsageError: the static cache, or the model's positions, do not hold so many tokens.
    """
    bundle = open_folder(path)
    graphs, settings = FolderGraphs(bundle), bundle.metadata.get("export_config") or {}
    static_cache = settings.get("static_cache")
    feeds = sample_inputs(model, inputs, part="language-model" if graphs.read_text else "whole")
    if bundle.manifest is None and not graphs.pads and "attention_mask" not in inputs:
        feeds["attention_mask"] = torch.ones_like(feeds["attention_mask"])
    prompt = feeds[written_name(model)]
    tokens = _number_of_tokens(model, prompt.shape[1], tokens, static_cache)
    how: Any = {
        "runtime": f"PyTorch {torch.__version__} (CPU) and {runtime_name()}",
        "backends": ("torch", "onnxruntime"),
    }
    # generate() gives logits as float32, whatever type they were computed in
    bounds = Bounds(rtol=rtol, through=str(model.dtype).removeprefix("torch."))
    outputs: list[OutputComparison] = []
    same: list[bool] = []

    def compare(call: Callable[..., Any], **kwargs: Any) -> Any:
        result, computed = graphs.forward(call, **kwargs)
        a, b = (one[:, -1].float().numpy() for one in (result.logits, computed))
        name = f"logits of token {len(outputs) + 1}"
        outputs.extend(compare_outputs({name: a}, {name: b}, bounds))
        same.extend((a.argmax(-1) == b.argmax(-1)).tolist())
        if progress is not None:
            progress(COMPARING, len(outputs), tokens)
        return result

    try:
        if graphs.encoders - encoders_of(model).keys():
            raise not_together(", ".join(bundle.files))
        with collected(), inference(model), _beside(model, graphs, compare):
            config = greedy(model, static_cache)
            config.max_new_tokens = config.min_new_tokens = tokens
            config.max_length = None
            _generate(model, feeds, config)
    except NotRunError as error:
        return not_run(error, **how)
    tensors = {name: one for name, one in feeds.items() if isinstance(one, torch.Tensor)}
    return Verification(
        outputs=tuple(outputs),
        inputs=describe_feeds({name: one.numpy() for name, one in tensors.items()}),
        source=f"{plural(tokens, 'token')} {GREEDY}",
        notes=(f"{sum(same):,} of {plural(len(same), 'greedy token')} are the same",),
        **how,
    )


def _number_of_tokens(model: Any, prompt: int, tokens: int | None, static_cache: int | None) -> int:
    """Return how many tokens are generated; the last one is not kept.

    Raises:
        UsageError: the cache, or the positions of the model, do not hold so many.
    """
    positions = positions_of(model)
    places = {
        f"a cache for {static_cache}": static_cache,
        f"{positions} positions of the model": positions,
    }
    rooms = {place: size - prompt + 1 for place, size in places.items() if size is not None}
    for place, room in rooms.items():
        if room < (tokens or 1):
            fix = f"compare {room} at most" if room > 0 else "give a shorter prompt"
            fix += "; or export with a larger --static-cache" if static_cache else ""
            found = f"{prompt} and {tokens or 1} tokens, in {place}"
            raise UsageError("There is no place for so long a text.", found=found, fix=fix)
    return tokens or min([TOKENS, *rooms.values()])


def _generate(model: Any, inputs: Mapping[str, Any], config: Any) -> None:
    try:
        model.generate(**copy.deepcopy(dict(inputs)), generation_config=config)
    except Error:
        raise
    except Exception as error:
        usual = "give inputs and a number of tokens that model.generate() takes; --debug tells more"
        found = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(
            "The model cannot generate.", found=found, fix=other_release() or usual
        ) from error


@contextlib.contextmanager
def _beside(model: Any, graphs: FolderGraphs, compare: Callable[..., Any]) -> Iterator[None]:
    """Let ``model.forward`` be compared at every call, and encoders run beside their graphs."""
    with contextlib.ExitStack() as stack:
        forward = functools.partial(compare, model.forward)
        stack.enter_context(replaced(model, "forward", forward))
        for name, (owner, method) in encoders_of(model).items():
            if name in graphs.encoders:
                by = functools.partial(graphs.encode, name, getattr(owner, method))
                stack.enter_context(replaced(owner, method, by))
        stack.enter_context(whole_caches(static=True))
        yield
