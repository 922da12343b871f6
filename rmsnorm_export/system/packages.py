"""Python packages that are installed, asked about without importing them."""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.system.process import Request, Say

_OURS = "rmsnorm-export"


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


def pip_install(*packages: str) -> str:
    """The command that brings packages, in versions that this one declares to work with.

    It names what an extra stands for: ``rmsnorm-export[torch]`` itself can be installed only from
    where this package came from, which need not be an index.

    Args:
        packages: distributions; in brackets, e.g. ``[torch]``, an extra of this package; and
            ``rmsnorm-export``, which is installed again from where it came from.
    """
    declared: dict[str, list[str]] = {}
    try:
        for line in metadata.requires(_OURS) or ():
            requirement, _, marker = (part.strip() for part in line.partition(";"))
            extra = re.search(r"extra == [\"']([^\"']+)", marker)
            declared.setdefault(f"[{extra[1]}]" if extra else "", []).append(requirement)
    except metadata.PackageNotFoundError:
        declared = {}
    versions: dict[str, str] = {}
    for requirement in (one for several in declared.values() for one in several):
        versions.setdefault(_normal(requirement), requirement)
    wanted: list[str] = []
    for package in packages:
        if package == _OURS:
            wanted += ["--force-reinstall", *_origin()]
        elif package.startswith("["):
            wanted += declared.get(package) or _origin(package)
        else:
            wanted.append(versions.get(_normal(package), package))
    return shlex.join(["pip", "install", *dict.fromkeys(wanted)])


def _normal(requirement: str) -> str:
    """The name of a distribution, which may be written in several ways, without the versions."""
    name = re.match(r"[A-Za-z0-9._-]*", requirement)
    return re.sub(r"[-_.]+", "-", name[0] if name else "").lower()


def _origin(extra: str = "") -> list[str]:
    """Where this package came from, as arguments of pip: a folder, a URL, or its name."""
    try:
        text = metadata.distribution(_OURS).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return ["-e", f"{Path(__file__).resolve().parents[2]}{extra}"]
    origin = json.loads(text) if text else {}
    url = origin.get("url", "")
    if "dir_info" in origin:
        editable = ["-e"] if origin["dir_info"].get("editable") else []
        return [*editable, unquote(urlsplit(url).path) + extra]
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return [f"{_OURS}{extra} @ {url}" if url else _OURS + extra]


def require_package(module: str, what: str, *packages: str) -> None:
    """Raise ``BackendMissingError`` unless ``module`` can be found; it is not imported.

    Args:
        module: as it is imported.
        what: needs it, e.g. ``[bench]``.
        packages: that bring it, as for ``pip_install``.
    """
    if not is_installed(module):
        raise BackendMissingError(
            f"{what} needs a package that is not installed.",
            found=f"no package {module}",
            fix=pip_install(*packages),
        )


def try_import(request: Request, say: Say) -> None:
    """Import ``module``, in a process of its own: a broken one may raise anything, or hang.

    Args:
        request: ``module`` and ``remark``, an expression of the module ``m``, or "".
        say: tells one event, ``imported``, with the module's ``version`` and the ``remark``.
    """
    module = importlib.import_module(request["module"])
    remark = eval(request["remark"] or "''", {"m": module})
    say("imported", version=str(getattr(module, "__version__", "")), remark=remark)
