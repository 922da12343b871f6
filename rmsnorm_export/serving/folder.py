"""``package`` for a decoder: a model of each graph, and a client that generates text with them.

The cache goes with the requests. Triton's implicit state belongs to one model, so that prefill
could not hand its cache to decode; and it keeps the state of a sequence on one instance until a
timeout, while here every request stands alone, any instance answers it, and what a client that went
away held is gone with it. On one host the cache costs no copy through the network with Triton's
shared memory.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.bundle import Bundle, Components, open_folder
from rmsnorm_export.graph.load import load_model
from rmsnorm_export.options import keywords, takes
from rmsnorm_export.runtime.input_sizes import Declared
from rmsnorm_export.runtime.inputs import declared_tensor, given_inputs
from rmsnorm_export.runtime.sizes import RANGES
from rmsnorm_export.serving.options import PackageOptions
from rmsnorm_export.serving.package import package_model
from rmsnorm_export.serving.place import find_place, model_name
from rmsnorm_export.serving.result import Packaged
from rmsnorm_export.system.files import StrPath

_FED = frozenset({"input_ids", "attention_mask", "position_ids"})
_CACHE = re.compile(r"(input\.)?past_key_values\.")

_CLIENT = '''\
import numpy as np

INPUTS = {inputs!r}


def generate(infer, ids, mask, tokens):
    """The likeliest tokens [batch, tokens] after ids [batch, sequence].

    mask is 0 where a row is padded, on the left, and 1 elsewhere.
    """
    cache, made = {{}}, []
    for step in range(tokens):
        model = {decode!r} if step else {prefill!r}
        positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -ids.shape[1] :]
        given = {{"input_ids": ids, "attention_mask": mask, "position_ids": positions, **cache}}
        answer = infer(model, {{name: given[name] for name in INPUTS[model]}})
        ids = answer["logits"][:, -1:].argmax(-1)
        mask = np.concatenate([mask, np.ones_like(ids)], axis=1)
        cache = {{
            "input." + name.removeprefix("output."): value
            for name, value in answer.items()
            if name != "logits"
        }}
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
        folder: as for ``optimize_folder``.
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
    names = {name: model_name(f"{base}_{name}", None) for name in bundle.files}
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


def _client(bundle: Bundle, names: Mapping[str, str]) -> str:
    """The client's Python; "" where the graphs are no such prefill and decode."""
    if bundle.files.keys() != {"prefill", "decode"}:
        return ""
    inputs: dict[str, list[str]] = {}
    for name, file in bundle.files.items():
        values = [declared_tensor(value) for value in given_inputs(load_model(file).model)]
        if not all(one.name in _FED or _grows(one, name) for one in values):
            return ""
        inputs[names[name]] = [one.name for one in values]
    return _CLIENT.format(inputs=inputs, prefill=names["prefill"], decode=names["decode"])


def _grows(value: Declared, component: str) -> bool:
    """Whether an input of decode is a part of a cache of no fixed size."""
    sizes = value.shape or ()
    known = component == "decode" and _CACHE.match(value.name) is not None
    return known and len(sizes) == 4 and not isinstance(sizes[2], int)
