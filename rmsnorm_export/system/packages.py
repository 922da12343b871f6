"""Python packages that are installed, asked about without importing them."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from rmsnorm_export.errors import BackendMissingError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_OURS = "rmsnorm-export"

TOOLS = (
    "rmsnorm-export onnx onnx-ir onnxscript onnxruntime onnxruntime-gpu torch transformers"
    " tensorrt tensorrt_rtx polygraphy numpy ml_dtypes"
)
"""The packages whose versions a result depends on, and its record names."""

TRANSFORMERS = "transformers>=5.23,<5.25"
"""The releases with which decoders were exported; of an older one the exporter records too little,
and of a newer one nobody knows."""


def _spec(module: str) -> ModuleSpec | None:
    with contextlib.suppress(ImportError, ValueError):
        return find_spec(module)
    return None


def is_installed(module: str) -> bool:
    """Return whether there is a module of that name; a mere folder is none."""
    spec = _spec(module)
    return spec is not None and spec.origin is not None


def package_folders(name: str) -> tuple[Path, ...]:
    """Return the folders of an installed package, of a namespace too; () without one."""
    spec = _spec(name)
    return tuple(map(Path, (spec and spec.submodule_search_locations) or ()))


def version_of(distribution: str) -> str:
    """Return its version; "" where it is not installed."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution)
    return ""


def versions_of(distributions: Iterable[str] = ()) -> dict[str, str]:
    """Return the version of each that is installed; without names, of ``TOOLS``."""
    names = distributions or TOOLS.split()
    return {name: version for name in names if (version := version_of(name))}


def _declared() -> list[Requirement]:
    """Return what this package asks for, extras included."""
    from packaging.requirements import Requirement

    lines = (metadata.requires(_OURS) if version_of(_OURS) else None) or ()
    return [Requirement(line) for line in lines]


def required_packages() -> list[str]:
    """Return the modules without which this package does not work here."""
    core = (r for r in _declared() if r.marker is None or r.marker.evaluate({"extra": ""}))
    return [requirement.name.replace("-", "_") for requirement in core]


def pip_install(*packages: str) -> str:
    """Return the command that brings packages, in versions that this one declares to work with.

    It names what an extra stands for: ``rmsnorm-export[torch]`` itself can be installed only from
    where this package came from, which need not be an index.

    Args:
        packages: distributions; in brackets, e.g. ``[torch]``, an extra of this package.
    """
    declared = _declared()

    def named(package: str) -> Iterator[str]:
        extra = package.strip("[]")
        for one in declared if extra != package else ():
            if one.marker and f'extra == "{extra}"' in str(one.marker):
                nested = [f"[{name}]" for name in sorted(one.extras)] if one.name == _OURS else ()
                yield from chain(*map(named, nested)) if nested else [f"{one.name}{one.specifier}"]
        if extra == package:
            yield tried_versions(package) or package

    arguments = [[*named(one)] or [f"{_OURS}{one}"] for one in packages]
    return shlex.join(["pip", "install", *dict.fromkeys(chain(*arguments))])


def tried_versions(distribution: str) -> str:
    """Return a package with the versions that are declared to work; "" where none are."""
    name = distribution.replace("_", "-").lower()
    declared = (r for r in _declared() if r.name.replace("_", "-").lower() == name)
    return next((f"{r.name}{r.specifier}" for r in declared), "")


def untried(requirement: str) -> str:
    """Return a sentence where another version of a package is installed than those tried, or ""."""
    from packaging.requirements import Requirement

    tried = Requirement(requirement)
    version = version_of(tried.name)
    if tried.specifier.contains(version, prereleases=True):
        return ""
    return f"{tried.name} {version or 'of no known version'} was not tried, {tried} was"


def require_package(module: str, what: str, *packages: str) -> None:
    """Raise ``BackendMissingError`` unless a module can be found; it is not imported.

    Args:
        module: as it is imported.
        what: needs it, e.g. ``[bench]``.
        packages: that bring it, as for ``pip_install``.
    """
    if not is_installed(module):
        what, found = f"{what} needs a package that is not installed.", f"no package {module}"
        raise BackendMissingError(what, found=found, fix=pip_install(*packages))
