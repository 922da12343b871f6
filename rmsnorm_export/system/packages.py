"""Python packages that are installed, asked about without importing them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from rmsnorm_export.system.process import Request, Say


def is_installed(module: str) -> bool:
    """Whether there is a module of that name; a mere folder is none."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def package_folders(name: str) -> tuple[Path, ...]:
    """The folders of an installed package, of a namespace too; () without one."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return ()
    return tuple(Path(folder) for folder in (spec and spec.submodule_search_locations) or ())


def version_of(distribution: str) -> str:
    """Its version; "" where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def versions_of(distributions: Iterable[str]) -> dict[str, str]:
    """The version of each that is installed."""
    return {name: version for name in distributions if (version := version_of(name))}


def try_import(request: Request, say: Say) -> None:
    """Import ``module``, in a process of its own: a broken one may raise anything, or hang.

    Args:
        request: ``module`` and ``remark``, an expression of the module ``m``, or "".
        say: tells one event, ``imported``, with the module's ``version`` and the ``remark``.
    """
    module = importlib.import_module(request["module"])
    remark = eval(request["remark"] or "''", {"m": module})
    say("imported", version=str(getattr(module, "__version__", "")), remark=remark)
