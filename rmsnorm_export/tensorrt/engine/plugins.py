"""Whether the plugin takes part in a build: only this module knows the plugin's package."""

from __future__ import annotations

from pathlib import Path

from rmsnorm_export.errors import BackendMissingError, UsageError
from rmsnorm_export.tensorrt.engine.backends import BackendInfo
from rmsnorm_export.tensorrt.engine.result import PluginUse


def plan_plugin(use: PluginUse, info: BackendInfo, *, own: bool) -> tuple[Path | None, str]:
    """The plugin library to load, if any, and why it is or is not.

    ``auto``: where the backend has plugin layers, a library is built and the model has nodes of its
    ``own`` domain, which the plugin could take.

    Raises:
        UsageError: ``require`` where no plugin can take part.
        BackendMissingError: ``require`` and no library is built, or it is of no use.
    """
    if use == "never":
        return None, "not wanted"
    what = reason = fix = ""
    if not info.plugins:
        what = f"{info.label} cannot use the plugin."
        reason = f"{info.label} has no plugin layers; it compiles the function bodies of the model"
        fix = "use --backend tensorrt, or leave --plugin away"
    elif not own:
        what = "The plugin would not be used."
        reason = "the model has no node of the domain rmsnorm_export"
        fix = "make the model with optimize --target portable, or leave --plugin away"
    if reason and use == "require":
        raise UsageError(what, found=f"--plugin require; {reason}", fix=fix)
    if reason:
        return None, reason
    try:
        return _library(), "built, and the model has nodes for it"
    except BackendMissingError as error:
        if use == "require":
            raise
        return None, f"{error.what} {error.found}".strip()


def _library() -> Path:
    """The library of the best build.

    Raises:
        BackendMissingError: none is built, or it cannot be used here.
    """
    from rmsnorm_export.tensorrt.plugin.libraries import best_build, inspect_library

    path = best_build().path("load_library")
    info = inspect_library(path, creators=False)
    if info.problem:
        raise BackendMissingError(
            "The plugin library cannot be used.", found=f"{path}: {info.problem}", fix=info.fix
        )
    return path


def library_or_none() -> str:
    """The path of a library that can be loaded; "" without one."""
    try:
        return str(_library())
    except BackendMissingError:
        return ""
