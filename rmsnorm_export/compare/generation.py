"""A decoder's export against PyTorch while both write the same text."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rmsnorm_export.compare.options import VerifyOptions
from rmsnorm_export.compare.outputs import (
    Bounds,
    compare_outputs,
    describe_feeds,
    failed_outputs,
)
from rmsnorm_export.compare.result import OutputComparison, Verification, not_run
from rmsnorm_export.errors import Error, InputError, NotRunError, UsageError, VerificationError
from rmsnorm_export.graph.bundle import EXPORT_FILE, Bundle, bundle_at, open_folder
from rmsnorm_export.graph.encode import serialize
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import first_line, one_line, plural, short
from rmsnorm_export.runtime.inputs import read_npz
from rmsnorm_export.runtime.session import open_session, runtime_name
from rmsnorm_export.torch.export.chatter import collected
from rmsnorm_export.torch.export.trace import inference
from rmsnorm_export.torch.generation.components import (
    sample_inputs,
    whole_static_caches,
    written_name,
)
from rmsnorm_export.torch.generation.export import plain_component
from rmsnorm_export.torch.generation.source import load_frame, load_generative
from rmsnorm_export.torch.generation.structures import checked_metadata

TOKENS = 32
"""Greedy tokens that are compared where nobody says how many."""

_CACHE = "past_key_values"
_CACHE_TYPES = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16}


def verify_export(
    a: Any, b: Any, options: VerifyOptions, compare: Callable[..., Verification]
) -> Verification:
    """``verify`` with ``generate``: a model, its source or another folder against an export of it.

    A source is loaded in the type of the export.

    Args:
        a, b, options: of ``verify``.
        compare: ``verify`` for two files.

    Raises:
        UsageError: ``b`` is no folder of an export.
        InputError, BackendMissingError: as `verify_generation`, and where ``a`` cannot be loaded.
    """
    assert options.generate is not None
    bundle = bundle_at(b)
    if bundle is None or bundle.manifest is None:
        raise UsageError(
            "Generated tokens can be compared with the folder of an export only.",
            found=short(os.fspath(b), 300)
            if isinstance(b, str | os.PathLike)
            else type(b).__name__,
            fix="give the folder that export --task generation made with transformers' names as B",
        )
    try:
        metadata = [entry["metadata"] for entry in bundle.manifest["components"].values()]
        dtype, config = str(metadata[-1]["export_dtype"]), metadata[-1]["export_config"]
        settings = dict(config)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            "The manifest of the export cannot be used.",
            found=f"{bundle.folder / EXPORT_FILE}: {first_line(error) or type(error).__name__}",
            fix="export the model again",
        ) from error
    inputs: Mapping[str, Any] = {}
    if isinstance(options.inputs, Mapping):
        inputs = options.inputs
    elif options.inputs is not None:
        inputs = read_npz(options.inputs)
    model, other = a, bundle_at(a)
    if other is not None:
        model = load_frame(other.folder, str(metadata[-1].get("architecture")), dtype)
    elif isinstance(a, str | os.PathLike):
        model, _, _ = load_generative(
            os.fspath(a), arguments={}, dtype=dtype, shapes=None, dims=None, seed=options.seed
        )
    given = {name: torch.from_numpy(np.asarray(array)) for name, array in inputs.items()}
    feeds = sample_inputs(model, given, seed=options.seed)
    how: Any = {
        "tokens": options.generate,
        "static_cache": settings.get("static_cache"),
        "rtol": options.rtol,
    }
    reference = None if other is None else other.folder
    outcome = verify_generation(model, bundle.folder, feeds, **how, reference=reference)
    if outcome.verdict != "differ" or not options.bisect:
        return outcome
    return _located(outcome, model, bundle, other, feeds, options, compare)


def _located(
    outcome: Verification,
    model: Any,
    bundle: Bundle,
    other: Bundle | None,
    feeds: Mapping[str, Any],
    options: VerifyOptions,
    compare: Callable[..., Verification],
) -> Verification:
    """The outcome with the place where the first step that differs begins to.

    The component of that step is given the step's own inputs, and is compared, value by value, with
    that of the other folder; or, where the other is PyTorch, with a new export of the model in
    which no norm is rewritten.
    """
    config = (bundle.manifest or {})["components"][list(bundle.files)[-1]]["metadata"]
    settings = config["export_config"]
    step = next(n for n, one in enumerate(outcome.outputs) if not one.passed)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="rmsnorm-verify-") as name,
            collected(),
            inference(model),
        ):
            kept: dict[str, Any] = {"step": int(outcome.outputs[step].name.rsplit(" ", 1)[1]) - 1}
            generating = _settings(model, kept["step"] + 1, settings.get("static_cache"))
            place = bundle.folder if other is None else other.folder
            with contextlib.ExitStack() as stack:
                if other is not None:
                    stack.enter_context(_in_place_of_forward(model, place))
                expected = _generated(model, feeds, generating)
            chosen = expected.sequences[:, -len(expected.logits) :]
            with _in_place_of_forward(model, bundle.folder, kept):
                _generated(model, feeds, generating, _Forced(chosen))
            component = kept["component"]
            if other is not None:
                first = other.files[component]
            else:
                first = plain_component(model, feeds, component, settings, Path(name))
            found = compare(first, bundle.files[component], inputs=kept["feeds"], rtol=options.rtol)
    except Error as error:
        what = f"{one_line(error.what, 200)} {one_line(error.found, 300)}".strip()
        note = f"the first difference was not looked for: {what}"
        return dataclasses.replace(outcome, notes=(*outcome.notes, note))
    note = f"token {kept['step'] + 1} is computed by {component}"
    if found.passed:
        note += (
            ", which agrees with "
            + ("a new export without rewrites" if other is None else "that of the other folder")
            + " on the inputs of that step: the difference is in what came before, or in the export"
            " itself"
        )
    return dataclasses.replace(
        outcome,
        first_difference=found.first_difference,
        notes=(*outcome.notes, note, *found.notes),
    )


def verify_made(
    model: Any,
    path: str | os.PathLike[str],
    inputs: Mapping[str, Any],
    *,
    static_cache: int | None = None,
    tokens: int | None = None,
    rtol: float | None = None,
) -> Verification:
    """`verify_generation` of what was just exported, with inputs as for ``export_generation``.

    Args:
        tokens: None: 32, or as many as a static cache holds.
    """
    feeds = sample_inputs(model, inputs)
    room = TOKENS if static_cache is None else static_cache - feeds[written_name(model)].shape[1]
    how: Any = {"tokens": tokens or min(TOKENS, room), "static_cache": static_cache, "rtol": rtol}
    return verify_generation(model, path, feeds, **how)


def verify_generation(
    model: Any,
    path: str | os.PathLike[str],
    inputs: Mapping[str, Any],
    *,
    tokens: int,
    static_cache: int | None = None,
    rtol: float | None = None,
    reference: Path | None = None,
) -> Verification:
    """Greedy tokens of a model and of its export, and their logits at every step.

    Both run in ``model.generate``; the export, in ONNX Runtime, in the place of ``model.forward``.
    It is given the model's own tokens, whatever it would choose, so that the logits of every step
    are of one text. Where its choice is another one, the report says by how much less likely the
    model held that token; it is within bounds when no difference of logits that is allowed could
    decide it.

    Args:
        model: of transformers, which was exported.
        path: the folder that ``export_generation`` made, with transformers' names.
        inputs: of ``model.generate``.
        tokens: how many to generate.
        static_cache: of the export.
        rtol: the largest difference relative to the largest logit of a step; None: 1e-4 for
            float32, 1e-2 for float16, 4e-2 for bfloat16.
        reference: a folder that computes what the model would; its weights are not used then.

    Raises:
        InputError: the folder cannot be loaded, or the model cannot generate on these inputs.
    """
    how: Any = {
        "runtime": f"PyTorch {torch.__version__} (CPU) and {runtime_name()}",
        "optimized": (False, True),
        "backends": ("torch", "onnxruntime"),
    }
    if reference is not None:
        how = {"runtime": runtime_name(), "optimized": (True, True)}
    config = _settings(model, tokens, static_cache)
    feeds = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    with collected(), inference(model):
        try:
            with contextlib.ExitStack() as stack:
                if reference is not None:
                    stack.enter_context(_in_place_of_forward(model, reference))
                expected = _generated(model, inputs, config)
            chosen = expected.sequences[:, -len(expected.logits) :]
            with _in_place_of_forward(model, Path(path)):
                computed = _generated(model, inputs, config, _Forced(chosen))
        except NotRunError as error:
            return not_run(error, **how)
    outputs: list[OutputComparison] = []
    notes: list[str] = []
    other = 0
    # generate() gives logits as float32, whatever type they were computed in
    bounds = Bounds(rtol=rtol, weights=str(model.dtype).removeprefix("torch."))
    whose = "PyTorch" if reference is None else "the first folder"
    for step, (one, two) in enumerate(zip(expected.logits, computed.logits, strict=True), 1):
        name = f"logits of token {step}"
        outputs += compare_outputs({name: _array(one)}, {name: _array(two)}, bounds)
        likeliest, picked = one.argmax(-1), two.argmax(-1)
        for row in torch.nonzero(picked != likeliest).flatten().tolist():
            other += 1
            wanted, got = int(likeliest[row]), int(picked[row])
            margin = float(one[row, wanted]) - float(one[row, got])
            if len(notes) < 3:
                notes.append(
                    f"token {step}, row {row}: the export chooses {got} instead of {wanted}, whose "
                    f"logit in {whose} is larger by {margin:.3g}; logits may differ by "
                    f"{outputs[-1].bound_abs:.3g} each"
                )
            if margin > 2 * outputs[-1].bound_abs:
                outputs += compare_outputs(
                    {f"token {step}, row {row}": np.asarray([wanted])},
                    {f"token {step}, row {row}": np.asarray([got])},
                    Bounds(),
                )
    total = chosen.numel()
    notes.insert(0, f"{total - other:,} of {plural(total, 'greedy token')} are the same")
    return Verification(
        passed=all(output.passed for output in outputs),
        reason=failed_outputs(outputs),
        outputs=tuple(outputs),
        inputs=describe_feeds({name: value.numpy() for name, value in feeds.items()}),
        source=f"{plural(tokens, 'token')} generated greedily",
        notes=tuple(notes),
        **how,
    )


def _settings(model: Any, tokens: int, static_cache: int | None) -> Any:
    """Greedy, so many tokens and no fewer, with their logits."""
    config = copy.deepcopy(model.generation_config)
    config.do_sample, config.num_beams, config.use_cache = False, 1, True
    config.max_new_tokens = config.min_new_tokens = tokens
    config.max_length = None
    config.return_dict_in_generate = config.output_logits = True
    if static_cache is not None:
        config.cache_implementation, config.max_cache_len = "static", static_cache
    return config


class _Forced:
    """A processor of logits that lets ``generate`` choose the given tokens."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self._tokens, self._step = tokens, 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        del input_ids
        forced = torch.full_like(scores, -torch.inf)
        forced.scatter_(1, self._tokens[:, self._step, None], 0.0)
        self._step += 1
        return forced


def _generated(model: Any, inputs: Mapping[str, Any], config: Any, *processors: Any) -> Any:
    try:
        return model.generate(
            **copy.deepcopy(dict(inputs)),
            generation_config=copy.deepcopy(config),
            logits_processor=list(processors),
        )
    except NotRunError:
        raise
    except Exception as error:
        raise InputError(
            "The model cannot generate.",
            found=f"{type(error).__name__}: {first_line(error)}",
            fix="give inputs and a number of tokens that model.generate() takes; --debug prints "
            "the traceback",
        ) from error


@contextlib.contextmanager
def _in_place_of_forward(
    model: Any, folder: Path, kept: dict[str, Any] | None = None
) -> Iterator[None]:
    """``model.forward`` runs the components of a folder.

    Args:
        model: of transformers.
        folder: of its export.
        kept: gets, of the call number ``step``, the name of the component and its inputs.

    Raises:
        InputError: it is no folder of an export, or its manifest names what is not looked up.
        NotRunError: ONNX Runtime does not load a component.
    """
    from transformers.exporters.utils import onnx_feed

    runners = _runners(model, folder)
    if not {"decode"} <= runners.keys() <= {"encoder", "prefill", "decode"}:
        raise NotRunError(
            "The components of this model cannot be run together here.",
            found=", ".join(runners),
            fix="compare two folders component by component, without --generate",
        )
    seen = calls = 0

    def forward(**kwargs: Any) -> Any:
        nonlocal seen, calls
        tokens = kwargs[written_name(model)]
        if not seen and "prefill" not in runners:
            _fill_with_nothing(kwargs[_CACHE], runners["decode"].session, len(tokens))
        component = "decode" if seen or "prefill" not in runners else "prefill"
        runner = runners[component]
        if kept is not None and kept["step"] == calls:
            names = [one.name for one in runner.session.get_inputs()]
            fed = onnx_feed(names, kwargs)
            copies = {name: np.copy(array) for name, array in fed.items()}
            kept.update(component=component, feeds=copies)
        calls += 1
        answer = _run(runner, **kwargs)
        seen += tokens.shape[1]
        _count(answer.get(_CACHE), seen)
        return answer

    with contextlib.ExitStack() as stack:
        stack.enter_context(_forward_of(model, forward))
        if "encoder" in runners:
            encode = functools.partial(_run, runners["encoder"])
            stack.enter_context(_forward_of(model.get_encoder(), encode))
        stack.enter_context(whole_static_caches())
        yield


def _runners(model: Any, folder: Path) -> dict[str, Any]:
    """transformers' runner of each component, with what the manifest says of it written anew."""
    from transformers.exporters.metadata import ExportMetadata
    from transformers.exporters.runners.runner_onnx import OnnxModelRunner

    bundle = open_folder(folder)
    if bundle.manifest is None:
        raise InputError(
            "The folder cannot be loaded as the export of a decoder.",
            found=f"{folder} has no {EXPORT_FILE}",
            fix="give a folder that export --task generation made with transformers' names",
        )
    runners: dict[str, Any] = {}
    for name, file in bundle.files.items():
        entry = bundle.manifest["components"][name]["metadata"]
        metadata = ExportMetadata(**checked_metadata(model, name, entry))
        loaded = load_model(file)
        try:
            session = open_session(
                serialize(loaded.model), optimize=True, external_folder=loaded.folder
            )
        except VerificationError as error:
            raise NotRunError(
                "ONNX Runtime cannot load a component.",
                found=f"{file}: {error.found}",
                fix="choose another --target or --dtype",
            ) from error
        runners[name] = OnnxModelRunner(metadata, session)
    return runners


@contextlib.contextmanager
def _forward_of(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """A module computes what ``forward`` does; ``generate`` looks at its parameters."""
    original = module.forward
    module.forward = functools.wraps(original)(forward)
    try:
        yield
    finally:
        module.forward = original


def _run(runner: Any, **kwargs: Any) -> Any:
    return runner(**{key: kwargs[key] for key in runner.metadata.kwargs if key in kwargs})


def _count(cache: Any, seen: int) -> None:
    """Tell the layers with a sliding window how many tokens they have seen.

    They count in Python, so that the number is the one of the tracing in what a runner returns.
    """
    for layer in getattr(cache, "layers", ()):
        for name in ("cumulative_length", "cumulative_length_int"):
            if type(getattr(layer, name, None)) is int:
                setattr(layer, name, seen)


def _fill_with_nothing(cache: Any, session: Any, rows: int) -> None:
    """The empty cache of one graph for prefill and decode: keys and values of no token."""
    declared = {value.name: value for value in session.get_inputs()}
    for number in itertools.count():
        names = [f"input.{_CACHE}.layers.{number}.{kind}" for kind in ("keys", "values")]
        if not all(name in declared for name in names):
            return
        made = []
        for name in names:
            _, heads, _, width = declared[name].shape
            made.append(torch.zeros(rows, heads, 0, width, dtype=_CACHE_TYPES[declared[name].type]))
        cache.update(*made, number)


def _array(logits: torch.Tensor) -> Array:
    return logits.float().numpy() if logits.dtype == torch.bfloat16 else logits.numpy()
