"""A decoder's export against PyTorch while both write the same text."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import os
from collections.abc import Iterator, Mapping
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
from rmsnorm_export.errors import InputError, NotRunError, UsageError
from rmsnorm_export.graph.bundle import EXPORT_FILE
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.printable import first_line, plural
from rmsnorm_export.runtime.inputs import read_npz
from rmsnorm_export.runtime.session import runtime_name
from rmsnorm_export.system.files import read_text
from rmsnorm_export.torch.export.chatter import collected
from rmsnorm_export.torch.export.trace import inference
from rmsnorm_export.torch.generation.components import sample_inputs
from rmsnorm_export.torch.generation.source import load_generative

_CACHE = "past_key_values"
_CACHE_TYPES = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16}


def verify_export(a: Any, b: Any, options: VerifyOptions, tokens: int) -> Verification:
    """``verify`` with ``generate``: a model, or its source, against the folder of its export.

    The source is loaded in the type of the export.

    Raises:
        UsageError: ``b`` is no folder of an export.
        InputError, BackendMissingError: as `verify_generation`, and where ``a`` cannot be loaded.
    """
    path = Path(b) if isinstance(b, str | os.PathLike) else Path()
    manifest = path / EXPORT_FILE
    if not manifest.is_file():
        raise UsageError(
            "Generated tokens are compared with the folder of an export.",
            found=f"no {manifest}" if isinstance(b, str | os.PathLike) else type(b).__name__,
            fix="give the folder that export --task generation made with transformers' names as B",
        )
    fix = "export the model again"
    text = read_text(manifest, "The manifest of the export cannot be read.", fix=fix)
    try:
        metadata = [entry["metadata"] for entry in json.loads(text)["components"].values()]
        dtype, config = str(metadata[-1]["export_dtype"]), metadata[-1]["export_config"]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            "The manifest of the export cannot be used.",
            found=f"{manifest}: {first_line(error) or type(error).__name__}",
            fix=fix,
        ) from error
    inputs: Mapping[str, Any] = {}
    if isinstance(options.inputs, Mapping):
        inputs = options.inputs
    elif options.inputs is not None:
        inputs = read_npz(options.inputs)
    model = a
    if isinstance(a, str | os.PathLike):
        model, _, _ = load_generative(
            os.fspath(a), arguments={}, dtype=dtype, shapes=None, dims=None, seed=options.seed
        )
    given = {name: torch.from_numpy(np.asarray(array)) for name, array in inputs.items()}
    return verify_generation(
        model,
        path,
        sample_inputs(model, given, seed=options.seed),
        tokens=tokens,
        static_cache=config.get("static_cache"),
        rtol=options.rtol,
    )


def verify_generation(
    model: Any,
    path: str | os.PathLike[str],
    inputs: Mapping[str, Any],
    *,
    tokens: int,
    static_cache: int | None = None,
    rtol: float | None = None,
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

    Raises:
        InputError: the folder cannot be loaded, or the model cannot generate on these inputs.
    """
    how: Any = {
        "runtime": f"PyTorch {torch.__version__} (CPU) and {runtime_name()}",
        "optimized": (False, True),
        "backends": ("torch", "onnxruntime"),
    }
    config = copy.deepcopy(model.generation_config)
    config.do_sample, config.num_beams, config.use_cache = False, 1, True
    config.max_new_tokens = config.min_new_tokens = tokens
    config.max_length = None
    config.return_dict_in_generate = config.output_logits = True
    if static_cache is not None:
        config.cache_implementation, config.max_cache_len = "static", static_cache
    feeds = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    length = next(iter(feeds.values())).shape[1]
    with collected(), inference(model):
        expected = _generated(model, inputs, config)
        chosen = expected.sequences[:, -len(expected.logits) :]
        try:
            with _in_place_of_forward(model, Path(path)):
                computed = _generated(model, inputs, config, _Forced(chosen, length))
        except NotRunError as error:
            return not_run(error, **how)
    outputs: list[OutputComparison] = []
    notes: list[str] = []
    other = 0
    bounds = Bounds(rtol=rtol)
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
                    f"logit in PyTorch is larger by {margin:.3g}; logits may differ by "
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


class _Forced:
    """A processor of logits that lets ``generate`` choose the given tokens."""

    def __init__(self, tokens: torch.Tensor, length: int) -> None:
        self._tokens, self._length, self._step = tokens, length, 0

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
def _in_place_of_forward(model: Any, folder: Path) -> Iterator[None]:
    """``model.forward`` runs the components of a folder.

    Raises:
        InputError: it is no folder of an export.
        NotRunError: ONNX Runtime does not load a component.
    """
    from transformers.exporters.base import ExportedModel

    try:
        exported = ExportedModel.from_pretrained(folder, device="cpu", local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            "The folder cannot be loaded as the export of a decoder.",
            found=f"{folder}: {first_line(error)}",
            fix="give a folder that export --task generation made with transformers' names",
        ) from error
    except Exception as error:  # ONNX Runtime's own errors
        raise NotRunError(
            "ONNX Runtime cannot load a component.",
            found=f"{folder}: {first_line(error)}",
            fix="choose another --target or --dtype",
        ) from error
    runners: dict[str, Any] = exported.runners
    original = model.forward
    seen = 0

    @functools.wraps(original)  # generate() looks at its parameters
    def forward(**kwargs: Any) -> Any:
        nonlocal seen
        if not seen and "prefill" not in runners:
            _fill_with_nothing(kwargs[_CACHE], runners["decode"].session, len(kwargs["input_ids"]))
        runner = runners["decode" if seen or "prefill" not in runners else "prefill"]
        answer = runner(**{key: kwargs[key] for key in runner.metadata.kwargs if key in kwargs})
        seen += kwargs["input_ids"].shape[1]
        _count(answer.get(_CACHE), seen)
        return answer

    model.forward = forward
    try:
        yield
    finally:
        model.forward = original


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
