"""``package`` for a decoder's folder: a model of each graph.

The cache goes with the requests. Triton's implicit state belongs to one model, so that prefill
could not hand its cache to decode. On one host the cache costs no copy through the network with
Triton's shared memory. ``docs/examples/triton_decoder.py`` is a client.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable

from rmsnorm_export.deploy.options import PackageOptions
from rmsnorm_export.deploy.packaged import Packaged, PackagedModel
from rmsnorm_export.deploy.place import find_place, model_name
from rmsnorm_export.errors import UsageError
from rmsnorm_export.graph.bundle import Bundle
from rmsnorm_export.runtime.sizes import RANGES
from rmsnorm_export.system.files import StrPath


def package_bundle(
    bundle: Bundle, repository: StrPath, options: PackageOptions, put_model: Callable[..., Packaged]
) -> Packaged:
    """Put every graph of a folder into the repository, as ``NAME_COMPONENT``.

    Whatever goes wrong, models that were not there before are taken back. ``put_model`` packages
    one of them.

    Raises:
        UsageError: an option that one file has; and as ``package_model``.
        InputError, VerificationError, BackendMissingError: as ``package_model``.
    """
    if options.report is not None or options.onnx is not None:
        found = f"{'report' if options.report is not None else 'onnx'}, and a folder"
        raise UsageError("The option is for one file.", found=found, fix="omit it for a folder")
    base = options.name or model_name(None, bundle.folder)
    names = {name: model_name(f"{base}_{name}", None) for name in bundle.files}
    places = [find_place(repository, one, options) for one in names.values()]
    new = [place.folder for place in places if not place.folder.exists()]
    models: list[PackagedModel] = []
    root = places[0].folder.parent
    made_root = not root.exists()
    try:
        for name, (shapes, dims) in bundle.sizes(options.shapes, options.dims, RANGES).items():
            own = dataclasses.replace(options, name=names[name], shapes=shapes, dims=dims)
            models += put_model(bundle.files[name], repository, own).models
    except BaseException:
        for folder in new:
            shutil.rmtree(folder, ignore_errors=True)
        if made_root and root.exists():
            root.rmdir()
        raise
    return Packaged(root, tuple(models))
