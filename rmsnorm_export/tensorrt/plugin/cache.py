"""The builds that are kept: one folder each, whole or not at all.

``<cache>/<key>/`` holds the libraries, ``manifest.json`` with their SHA-256, and ``build.log``. A
folder is made beside its place; names that start with a dot belong to work that is in progress or
was killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from rmsnorm_export.errors import InputError
from rmsnorm_export.records import Unfit, decode, to_dict
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.files import StrPath, copy_file, locked, refusals_as, write_whole
from rmsnorm_export.system.folders import Stage
from rmsnorm_export.system.reading import read_json
from rmsnorm_export.tensorrt.plugin.result import (
    BUILD_FILES,
    Built,
    Entry,
    Library,
    PluginRuntime,
    runtime_of,
)

MANIFEST = "manifest.json"
MANIFEST_COPY = "librmsnorm_plugin.json"
"""The manifest's name among files that are not ours; ``.json`` after the library's for others."""

_PACKAGED = Path(__file__).parent / "_built"
"""The build that a wheel has inside (setup.py)."""

LOG = "build.log"
_SCHEMA = 1


@dataclasses.dataclass(frozen=True, slots=True)
class _Manifest:
    """The file beside the libraries; ``libraries`` has the SHA-256 of each by its name."""

    schema: int
    key: str
    tensorrt: str
    cuda: str
    compiler: str
    created: str
    architectures: tuple[str, ...]
    libraries: dict[str, str]


_RECORDED = ("key", "tensorrt", "cuda", "compiler", "created", "architectures")
"""What a build and its manifest both have."""


def cache_folder(cache: StrPath | None = None) -> Path:
    """Where the builds are: ``cache``, else ``rmsnorm_export/plugins`` in the user's cache."""
    if cache is not None:
        return Path(cache).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME")
    root = Path(home) if home and os.path.isabs(home) else Path.home() / ".cache"
    return root / "rmsnorm_export" / "plugins"


def key_of(
    facts: Mapping[str, object], runtime: PluginRuntime, tensorrt: str, names: tuple[str, ...]
) -> str:
    """A name for the build that all of ``facts`` lead to, readable as far as it can be."""
    text = json.dumps(facts, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    built_for = f"trt{tensorrt}" if tensorrt else runtime
    return f"{built_for}-{'' if runtime == 'onnxruntime' else 'sm'}{'_'.join(names)}-{digest}"


def read_entry(folder: Path) -> Entry:
    """What ``folder`` holds; every library is read and compared with the manifest."""
    try:
        content = read_json(folder / MANIFEST)
        if content["schema"] != _SCHEMA:
            raise ValueError(f"{MANIFEST} is of schema {content['schema']!r}, not {_SCHEMA}")
        manifest: _Manifest = decode(content, _Manifest)
        files = BUILD_FILES[runtime_of(manifest.tensorrt, manifest.cuda, manifest.key)]
        libraries = tuple(
            Library(style, folder / name, manifest.libraries[name], (folder / name).stat().st_size)
            for style, name in files.items()
        )
    except FileNotFoundError as error:
        return Entry(folder, f"{Path(str(error.filename)).name} is missing", None)
    except Unfit as unfit:
        return Entry(folder, f"{MANIFEST}: {unfit}", None)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Entry(folder, f"{type(error).__name__}: {error}", None)
    for library in libraries:
        if sha256_of(library.path) != library.sha256:
            problem = f"{library.path.name} is not the file that was built (its SHA-256 differs)"
            return Entry(folder, problem, None)
    facts = {name: getattr(manifest, name) for name in _RECORDED}
    return Entry(folder, "", Built(folder=folder, libraries=libraries, cached=True, **facts))


def kept_builds(cache: StrPath | None = None) -> tuple[Entry, ...]:
    """Every build: that of the wheel, unless a folder is given, then those that are kept."""
    packaged = (read_entry(_PACKAGED),) if cache is None and _PACKAGED.is_dir() else ()
    return (*packaged, *_entries(cache_folder(cache)))


def _entries(cache: Path) -> tuple[Entry, ...]:
    """Every build in ``cache``, newest first, then those that are of no use."""
    if not cache.is_dir():
        return ()
    folders = [f for f in sorted(cache.iterdir()) if f.is_dir() and not f.name.startswith(".")]
    kept = [read_entry(folder) for folder in folders]
    kept.sort(key=lambda entry: entry.built.created if entry.built else "", reverse=True)
    return tuple(kept)


@contextlib.contextmanager
def building(cache: Path, key: str) -> Iterator[None]:
    """Only one build of ``key`` at a time; the others wait. What killed ones left is removed.

    Where the file system has no locks all build, and the last rename counts.

    Raises:
        InputError: the cache cannot be written.
    """
    with contextlib.ExitStack() as held:
        with writable(cache):
            cache.mkdir(parents=True, exist_ok=True)
            alone = held.enter_context(locked(cache / f".{key}.lock", required=False))
        if alone:
            for left in cache.glob(f".{key}.*.tmp"):
                shutil.rmtree(left, ignore_errors=True)
        yield


def install(cache: Path, built: Built, products: Mapping[str, Path], log: Path) -> Built:
    """Put a finished build in its place: what was built, the libraries by file name, and the log.

    Raises:
        InputError: the cache cannot be written, or the disk is full.
    """
    place = cache / built.key
    with writable(cache), Stage(place, cache) as stage:
        for name, path in products.items():
            copy_file(path, stage.folder / name)
            shutil.copymode(path, stage.folder / name)
        copy_file(log, stage.folder / LOG)
        manifest = _Manifest(
            schema=_SCHEMA,
            libraries={name: sha256_of(stage.folder / name) for name in products},
            **{name: getattr(built, name) for name in _RECORDED},
        )
        write_whole(stage.folder / MANIFEST, json.dumps(to_dict(manifest), indent=2) + "\n")
        stage.keep({*products, LOG, MANIFEST})
        stage.publish()
    entry = read_entry(place)
    if entry.built is None:
        raise InputError(
            "The build was not kept whole.",
            found=f"{place}: {entry.problem}",
            fix="check the disk, or give another folder with --cache DIR",
        )
    return dataclasses.replace(entry.built, cached=False, notes=built.notes)


def writable(cache: Path) -> contextlib.AbstractContextManager[None]:
    """What the file system refuses in a block, as an ``InputError``."""
    return refusals_as(
        "The folder for built plugins cannot be written.",
        cache,
        fix="free some space, or give a writable folder with --cache DIR or XDG_CACHE_HOME",
    )
