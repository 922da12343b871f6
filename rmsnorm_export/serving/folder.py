"""``package`` for a decoder: a model of each graph, and a client that generates text with them.

The cache goes with the requests. Triton's implicit state belongs to one model, so that prefill
could not hand its cache to decode; and it keeps the state of a sequence on one instance until a
timeout, while here every request stands alone, any instance answers it, and what a client that went
away held is gone with it. On one host the cache costs no copy through the network with Triton's
shared memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.bundle import Bundle, Components, is_state, open_folder, state_name
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.options import keywords, takes
from rmsnorm_export.rewrite.caches import masks
from rmsnorm_export.runtime.inputs import declared_tensor, given_inputs
from rmsnorm_export.runtime.sizes import RANGES
from rmsnorm_export.serving.options import PackageOptions
from rmsnorm_export.serving.package import package_model
from rmsnorm_export.serving.place import find_place, model_name
from rmsnorm_export.serving.result import Packaged
from rmsnorm_export.system.files import StrPath

_FED = frozenset({"input_ids", "position_ids"})
_MASK = re.compile(r"attention_mask(?:\.(?:full|(sliding))_attention)?")

_CLIENT = '''\
from __future__ import annotations

import numpy as np

INPUTS = {inputs!r}
START = {start!r}  # of the cache, beside the batch: shapes and types
SLOTS = {slots!r}  # tokens that a cache of fixed size holds; 0: it grows
WINDOWS = {windows!r}  # tokens that a layer sees, by its mask; 0: all
SHORTEST = {shortest!r}  # tokens that a prompt needs, as a convolution is wide


{masks}

def generate(infer, ids, mask, tokens):
    """The likeliest tokens [batch, tokens] after ids [batch, sequence].

    mask is 0 where a row is padded, on the left, and 1 elsewhere.
    """
    made = []
    padding = (0, 0), (max(0, SHORTEST - ids.shape[1]), 0)
    ids, mask = np.pad(ids, padding), np.pad(mask, padding)
    cache = {{
        name: np.zeros([len(ids) if size == "batch" else size for size in shape], kind)
        for name, (shape, kind) in START.items()
    }}
    for step in range(tokens):
        model = {decode!r} if step else {prefill!r}
        positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -ids.shape[1] :]
        given = {{"input_ids": ids, "position_ids": positions, **cache}}
        given |= masks(mask, ids.shape[1], SLOTS, WINDOWS)
        answer = infer(model, {{name: given[name] for name in INPUTS[model]}})
        ids = answer["logits"][:, -1:].argmax(-1)
        mask = np.concatenate([mask, np.ones_like(ids)], axis=1)
        cache = {{
            "input." + name.removeprefix("output."): value
            for name, value in answer.items()
            if name != "logits"
        }}
        cache |= {{name.removeprefix("input."): value for name, value in cache.items()}}
        made.append(ids)
    return np.concatenate(made, axis=1)


def triton(url="localhost:8000"):
    """infer, for a Triton server."""
    import tritonclient.http as http
    from tritonclient.utils import np_to_triton_dtype

    client = http.InferenceServerClient(url)

    def infer(model, given):
        inputs = []
        for name, array in given.items():
            inputs.append(http.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
            inputs[-1].set_data_from_numpy(np.ascontiguousarray(array))
        answer = client.infer(model, inputs)
        names = [one["name"] for one in answer.get_response()["outputs"]]
        return {{name: answer.as_numpy(name) for name in names}}

    return infer


if __name__ == "__main__":
    prompt = np.array([[1, 2, 3]])  # of the model's tokenizer
    print(generate(triton(), prompt, np.ones_like(prompt), 16))
'''


@takes(PackageOptions)
def package_decoder(folder: StrPath, repository: StrPath, options: PackageOptions) -> Components:
    """Put every graph of a folder into a Triton model repository, as ``NAME_COMPONENT``.

    The cards hold a client that generates text, where prefill and decode have a cache of keys and
    values that grows. Whatever goes wrong, models that were not there before are taken back.

    Args:
        folder: as for ``optimize``.
        repository: as for `package_model`.

    Returns:
        A ``Packaged`` for each component.

    Raises:
        UsageError: an option that one file has; and as `package_model`.
        InputError: it is no folder of ONNX graphs, or its manifest and its files disagree.
        InputError, VerificationError, BackendMissingError: as `package_model`.
    """
    bundle = open_folder(folder)
    if options.report is not None or options.onnx is not None:
        raise UsageError(
            "A report, and the model of an engine, are of one file.",
            found=f"{'report' if options.report is not None else 'onnx'}, and {folder} is a folder",
            fix="leave it away, or package the file of one component",
        )
    base = options.name or model_name(None, bundle.folder)
    names = component_names(base, bundle.files)
    client = _client(bundle, names)
    new = [
        find_place(repository, one, options.version, force=options.force) for one in names.values()
    ]
    made_repository = not os.path.exists(repository)
    results: dict[str, Packaged] = {}
    try:
        for name, (shapes, dims) in bundle.sizes(options.shapes, options.dims, RANGES).items():
            own = dataclasses.replace(
                options, name=names[name], shapes=shapes, dims=dims, client=client
            )
            results[name] = package_model(bundle.files[name], repository, **keywords(own))
    except BaseException:
        for place in new:
            if place.record is None and place.folder.name in {names[name] for name in results}:
                shutil.rmtree(place.folder, ignore_errors=True)
        if made_repository and os.path.isdir(repository) and not os.listdir(repository):
            os.rmdir(repository)
        raise
    return Components(Path(os.path.abspath(repository)), results)


def component_names(base: str, components: Iterable[str]) -> dict[str, str]:
    """The models that are made of the components of a folder, by the names of these."""
    return {name: model_name(f"{base}_{name}", None) for name in components}


@dataclasses.dataclass(frozen=True, slots=True)
class Feeding:
    """What generating with prefill and decode takes.

    Attributes:
        inputs: of each component.
        start: of the cache, before the first token: shapes, with ``batch``, and types.
        slots: tokens that a cache of fixed size holds; 0: it grows.
        windows: tokens that a layer sees, by its mask; 0: all.
        shortest: tokens that a prompt needs, as a convolution is wide.
    """

    inputs: dict[str, tuple[str, ...]]
    start: dict[str, tuple[list[int | str | None], str]]
    slots: int
    windows: dict[str, int]
    shortest: int


def _client(bundle: Bundle, names: Mapping[str, str]) -> str:
    """The client's Python; "" where the graphs are no prefill and decode of text."""
    known = feeding_of(bundle)
    if known is None:
        return ""
    inputs = {names[name]: [*declared] for name, declared in known.inputs.items()}
    return _CLIENT.format(
        **{**dataclasses.asdict(known), "inputs": inputs},
        masks=inspect.getsource(masks),
        prefill=names["prefill"],
        decode=names["decode"],
    )


def feeding_of(bundle: Bundle) -> Feeding | None:
    """How a folder's prefill and decode are fed; None where they are others than of text."""
    if bundle.files.keys() != {"prefill", "decode"}:
        return None
    models = {name: load_model(file).model for name, file in bundle.files.items()}
    inputs = {
        name: {one.name: one for one in map(declared_tensor, given_inputs(model))}
        for name, model in models.items()
    }
    if not all("logits" in {value.name for value in one.graph.outputs} for one in models.values()):
        return None
    given = {state_name(str(value.name)) for value in models["prefill"].graph.outputs}
    masks, start, slots, shortest = {}, {}, 0, 0
    for component, declared in inputs.items():
        for name, one in declared.items():
            sizes = one.shape or ()
            if mask := _MASK.fullmatch(name):
                width = sizes[3] if len(sizes) == 4 else None
                if isinstance(width, int):
                    slots = width
                elif len(sizes) != 2:
                    return None
                masks[name] = mask[1]
            elif name in _FED:
                continue
            elif not is_state(name) or state_name(name) not in given:
                return None
            elif component == "prefill":
                if not all(isinstance(size, int) or size == "batch" for size in sizes):
                    return None
                start[name] = (list(sizes), one.dtype)
            elif "conv_states" in name and sizes and isinstance(sizes[-1], int):
                shortest = max(shortest, sizes[-1])
    windows = dict.fromkeys(masks, 0)
    if slots:
        config = _text_config(bundle.folder)
        kinds = set(config.get("layer_types") or ("sliding_attention",))
        if not kinds <= {"sliding_attention", "full_attention"}:
            return None
        for name, sliding in masks.items():
            alone = name == "attention_mask" and kinds == {"sliding_attention"}
            windows[name] = int(config.get("sliding_window") or 0) if sliding or alone else 0
    return Feeding(
        inputs={name: tuple(declared) for name, declared in inputs.items()},
        start=start,
        slots=slots,
        windows=windows,
        shortest=shortest,
    )


def _text_config(folder: Path) -> dict[str, Any]:
    """What the model's config says of its layers; empty where there is none."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        config = json.loads((folder / "config.json").read_text("utf-8"))
        return dict(config.get("text_config") or config)
    return {}
