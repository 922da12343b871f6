"""The options of ``package``: how the server runs the model."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from rmsnorm_export.options import (
    Count,
    FilePath,
    Most,
    Options,
    Progress,
    only_api,
    option,
    progress_option,
)
from rmsnorm_export.runtime.sizes import RANGES, Dims, Shapes, dims_option, shapes_option

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
"""Name of a model, and of a pipeline: of a folder, of files, and a part of a URL."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PackageOptions(Options):
    """The options of ``package_model``, of the command ``package`` and of the table [package]."""

    name: str | None = option(None, help="Name of the model.", shown="of the file")
    version: Count = option(
        1, metavar="N", help="Version of the model; existing versions are kept."
    )
    max_batch: Most | None = option(
        None,
        metavar="N",
        help="Most requests in a batch; 0: none.",
        shown="of the shapes or the engine, or 8, where all inputs and outputs share a dynamic "
        "leading axis",
    )
    kind: Literal["gpu", "cpu", "auto"] | None = option(
        None,
        help="Where it runs; auto: on a GPU where the server has one.",
        shown="cpu where there is no GPU here, or its kernels are for the CPU; gpu for an engine; "
        "else auto",
    )
    shapes: Shapes | None = shapes_option(
        RANGES,
        metavar='"NAME=MIN,OPT,MAX;..."',
        help="Shapes of requests, as for build: for the check and the largest batch. An engine has "
        "its own.",
    )
    dims: Dims | None = dims_option(RANGES)
    plugin: FilePath | None = option(
        None,
        metavar="FILE",
        help="Plugin for an engine that uses it; or for a model that ONNX Runtime runs the "
        "kernels of plugin build --runtime onnxruntime.",
        shown="for an engine that of plugin build, for a model none",
    )
    owner: str = only_api(
        "", help="Who packages: a version of the same owner is replaced without ``force``."
    )
    check: bool = option(
        True, cli=False, help="Run the packaged model in ONNX Runtime on the CPU first."
    )
    force: bool = option(
        False,
        toml=False,
        help="Replace the version, and write the configuration anew. Files that this tool did not "
        "make are kept.",
    )
    progress: Progress | None = progress_option()
