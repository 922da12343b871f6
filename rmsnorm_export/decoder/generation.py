"""A decoder's export against PyTorch while both write the same text."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
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
from rmsnorm_export.decoder.inputs import sample_inputs, written_name
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
    metadata: Mapping[str, Any] = {}
    if bundle.manifest is not None:
        metadata = [entry["metadata"] for entry in bundle.manifest["components"].values()][-1]
    settings, inputs, model = metadata.get("export_config") or {}, options.inputs or {}, a
    arrays = inputs if isinstance(inputs, Mapping) else read_npz(inputs)
    if isinstance(a, str | os.PathLike):
        dtype = FolderGraphs(bundle).dtype if bundle.manifest is None else _type_of(metadata)
        model, _, _ = load_generative(os.fspath(a), SourceOptions(dtype=dtype), seed=options.seed)
    return verify_generation(
        model,
        bundle.folder,
        {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()},
        tokens=options.generate,
        static_cache=settings.get("static_cache"),
        part=settings.get("part", "whole"),
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
    static_cache: int | None = None,
    part: str = "whole",
    rtol: float | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Compare the logits of a model and of its export at every step of one text.

    Both run in ``model.generate``; the export, in ONNX Runtime, in the place of ``model.forward``.
    It is given the model's own greedy tokens, whatever it would choose: where another one is as
    likely within the bound, it may choose that.

    Args:
        model: of transformers, which was exported.
        path: the folder that ``export_generation`` made, or another exporter, of one graph, or
            an encoder and two, with names as ``past_key_values.0.key``. A graph that counts
            positions itself is given rows without padding.
        inputs: as for ``export_generation``.
        tokens: how many to generate; None: 32, or as many as a static cache holds.
        static_cache, part: of the export.
        rtol: the largest difference relative to the largest logit of a step; None: 1e-4 for
            float32, 1e-2 for float16, 4e-2 for bfloat16.
        progress: called at every token of both.

    Raises:
        InputError: the folder cannot be loaded, or the model cannot generate on these inputs.
        UsageError: the static cache does not hold so many tokens.
    """
    feeds, bundle = sample_inputs(model, inputs, part=part), open_folder(path)
    graphs = FolderGraphs(bundle)
    if bundle.manifest is None and not graphs.pads and "attention_mask" not in inputs:
        feeds["attention_mask"] = torch.ones_like(feeds["attention_mask"])
    prompt = feeds[written_name(model)].shape[1]
    room = TOKENS if static_cache is None else static_cache - prompt
    if static_cache is not None and (tokens or 1) > room + 1:  # the last one is not kept
        raise UsageError(
            "The static cache does not hold the text.",
            found=f"{prompt} and {tokens or 1} tokens, in a cache for {static_cache}",
            fix="compare fewer, or export with a larger --static-cache",
        )
    config = _settings(model, tokens or min(TOKENS, room), static_cache)
    how: Any = {
        "runtime": f"PyTorch {torch.__version__} (CPU) and {runtime_name()}",
        "backends": ("torch", "onnxruntime"),
    }
    try:
        if graphs.encoders - encoders_of(model).keys():
            raise not_together(", ".join(bundle.files))
        with collected(), inference(model):
            count = _counting(progress, config.max_new_tokens)
            expected = _generated(model, feeds, config, count)
            chosen = expected.sequences[:, -len(expected.logits) :]
            with _in_place(model, graphs):
                computed = _generated(model, feeds, config, count, _forced(chosen))
    except NotRunError as error:
        return not_run(error, **how)
    # generate() gives logits as float32, whatever type they were computed in
    bounds = Bounds(rtol=rtol, through=str(model.dtype).removeprefix("torch."))
    outputs: list[OutputComparison] = []
    same = 0
    for step, pair in enumerate(zip(expected.logits, computed.logits, strict=True), 1):
        first, second = ({f"logits of token {step}": one.float().numpy()} for one in pair)
        outputs += compare_outputs(first, second, bounds)
        same += int((pair[0].argmax(-1) == pair[1].argmax(-1)).sum())
    tensors = {name: one for name, one in feeds.items() if isinstance(one, torch.Tensor)}
    return Verification(
        outputs=tuple(outputs),
        inputs=describe_feeds({name: one.numpy() for name, one in tensors.items()}),
        source=f"{plural(config.max_new_tokens, 'token')} {GREEDY}",
        notes=(f"{same:,} of {plural(chosen.numel(), 'greedy token')} are the same",),
        **how,
    )


def _settings(model: Any, tokens: int, static_cache: int | None) -> Any:
    """Ask for greedy tokens, so many and no fewer, with their logits."""
    config = copy.deepcopy(model.generation_config)
    config.do_sample, config.num_beams, config.use_cache = False, 1, True
    config.max_new_tokens = config.min_new_tokens = tokens
    config.max_length = None
    config.return_dict_in_generate = config.output_logits = True
    if static_cache is not None:
        config.cache_implementation, config.max_cache_len = "static", static_cache
    return config


def _counting(progress: Progress | None, tokens: int) -> Callable[..., torch.Tensor]:
    """Return a processor of logits that tells how far two texts of so many tokens are."""
    done = itertools.count(1)

    def count(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if progress is not None:
            progress(COMPARING, next(done), 2 * tokens)
        return scores

    return count


def _forced(tokens: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Return a processor of logits that lets ``generate`` choose the given tokens."""
    steps = iter(tokens.T)

    def force(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -torch.inf).scatter_(1, next(steps)[:, None], 0.0)

    return force


def _generated(model: Any, inputs: Mapping[str, Any], config: Any, *processors: Any) -> Any:
    try:
        return model.generate(
            **copy.deepcopy(dict(inputs)),
            generation_config=copy.deepcopy(config),
            logits_processor=list(processors),
        )
    except Error:
        raise
    except Exception as error:
        usual = "give inputs and a number of tokens that model.generate() takes; --debug tells more"
        found = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(
            "The model cannot generate.", found=found, fix=other_release() or usual
        ) from error


@contextlib.contextmanager
def _in_place(model: Any, graphs: FolderGraphs) -> Iterator[None]:
    """Let graphs run in the place of ``model.forward`` and of encoders."""
    with contextlib.ExitStack() as stack:
        forward = functools.partial(graphs.forward, model.forward)
        stack.enter_context(replaced(model, "forward", forward))
        for name, (owner, method) in encoders_of(model).items():
            if name in graphs.encoders:
                by = functools.partial(graphs.encode, name, getattr(owner, method))
                stack.enter_context(replaced(owner, method, by))
        stack.enter_context(whole_caches(static=True))
        yield
