"""The options of a build, and the plugin library that it loads."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from rmsnorm_export.errors import BackendMissingError, UsageError
from rmsnorm_export.options import Options, option
from rmsnorm_export.runtime.sizes import RANGES, Dims, Shapes, dims_option, shapes_option
from rmsnorm_export.tensorrt.engine.backends import TENSORRT, BackendInfo
from rmsnorm_export.tensorrt.engine.result import PluginUse


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions(Options):
    """The options of ``build_engine``, of the command ``build`` and of the table [build]."""

    backend: Literal["auto", "tensorrt", "tensorrt-rtx"] = option(
        "auto", help="auto: TensorRT where it and a GPU are, else TensorRT-RTX, which needs no GPU."
    )
    shapes: Shapes | None = shapes_option(
        RANGES,
        metavar='"NAME=MIN,OPT,MAX;..."',
        help="Smallest, usual and largest shape of every input with dynamic sizes, e.g. "
        '"ids=1x1,4x128,8x2048"; one shape fixes it. Repeat for several profiles.',
    )
    dims: Dims | None = dims_option(RANGES)
    plugin: PluginUse = option(
        "auto",
        help="auto: use the plugin where TensorRT builds, a library is there and the model has "
        "nodes for it; require: exit code 6 if there is none; never. TensorRT-RTX has no plugin "
        "layers.",
    )
    hardware_compatible: bool = option(
        False,
        help="Run on every GPU from Ampere on, at some cost in speed. TensorRT-RTX always builds "
        "so on a machine without a GPU.",
    )
    tf32: bool = option(False, help="Let TensorRT round f32 operands of products to 10 bits.")
    memory_limit: Annotated[float, Meta(ge=0.001, le=1e6)] | None = option(
        None, metavar="GIB", help="Limit of the workspace of the engine, in GiB."
    )
    force: bool = option(False, toml=False, help="Replace an existing engine and its record.")

    def flags(self) -> dict[str, bool | int | float | str | None]:
        """Return what the worker gets and the record keeps."""
        names = ("hardware_compatible", "tf32", "memory_limit")
        return {name: getattr(self, name) for name in names}


def plan_plugin(use: PluginUse, info: BackendInfo, *, own: bool) -> tuple[Path | None, str]:
    """Return the plugin library to load, if any, and why it is or is not.

    ``auto``: where the backend has plugin layers, a library is built and the model has nodes of its
    ``own`` domain, which the plugin could take.

    Raises:
        UsageError: ``require`` where no plugin can take part.
        BackendMissingError: ``require`` and no library is built, or it is damaged.
    """
    from rmsnorm_export.tensorrt.plugin.libraries import find_build

    reason = ""
    if use == "never":
        reason = "not asked for"
    elif info is not TENSORRT:
        reason = f"{info.label} has no plugin layers; it compiles the function bodies of the model"
    elif not own:
        reason = "the model has no node of the domain rmsnorm_export"
    if reason and use == "require":
        what = "The plugin would not be used."
        fix = "use --backend tensorrt and a model of optimize --target portable, or no --plugin"
        raise UsageError(what, found=f"--plugin require; {reason}", fix=fix)
    if reason:
        return None, reason
    try:
        return find_build().path("load_library"), "built, and the model has nodes for it"
    except BackendMissingError as error:
        if use == "require":
            raise
        return None, f"{error.what} {error.found}"
