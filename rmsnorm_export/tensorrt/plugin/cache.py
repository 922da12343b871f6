"""The builds that are kept: one folder each, whole or not at all.

``<cache>/<key>/`` holds the libraries, ``manifest.json`` with their SHA-256, and ``build.log``. A
folder is made beside its place and renamed; names that start with a dot belong to work that is in
progress or was killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from rmsnorm_export.errors import InputError
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.tensorrt.plugin.result import FILES, Built, Entry, Library

MANIFEST = "manifest.json"
LOG = "build.log"
_SCHEMA = 1

_TEXTS = ("key", "tensorrt", "cuda", "compiler", "created")


def cache_folder(cache: str | os.PathLike[str] | None = None) -> Path:
    """Where the builds are: ``cache``, else ``rmsnorm_export/plugins`` in the user's cache."""
    if cache is not None:
        return Path(cache).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME")
    root = Path(home) if home and os.path.isabs(home) else Path.home() / ".cache"
    return root / "rmsnorm_export" / "plugins"


def key_of(facts: Mapping[str, object], tensorrt: str, architectures: tuple[str, ...]) -> str:
    """A name for the build that all of ``facts`` lead to, readable as far as it can be."""
    text = json.dumps(facts, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"trt{tensorrt}-sm{'_'.join(architectures)}-{digest}"


def read_entry(folder: Path) -> Entry:
    """What ``folder`` holds; every library is read and compared with the manifest."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        libraries = _libraries(folder, manifest)
        built = Built(
            key=_text(manifest, "key"),
            tensorrt=_text(manifest, "tensorrt"),
            cuda=_text(manifest, "cuda"),
            compiler=_text(manifest, "compiler"),
            created=_text(manifest, "created"),
            folder=folder,
            libraries=libraries,
            architectures=tuple(str(name) for name in manifest["architectures"]),
            cached=True,
        )
    except FileNotFoundError as error:
        return Entry(folder, f"{Path(str(error.filename)).name} is missing", None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Entry(folder, f"{type(error).__name__}: {error}", None)
    for library in libraries:
        if sha256_of(library.path) != library.sha256:
            problem = f"{library.path.name} is not the file that was built (its SHA-256 differs)"
            return Entry(folder, problem, None)
    return Entry(folder, "", built)


def _text(manifest: Mapping[str, object], name: str) -> str:
    value = manifest[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} in {MANIFEST} is not a text")
    return value


def _libraries(folder: Path, manifest: Mapping[str, object]) -> tuple[Library, ...]:
    if manifest["schema"] != _SCHEMA:
        raise ValueError(f"{MANIFEST} is of schema {manifest['schema']!r}, not {_SCHEMA}")
    hashes = manifest["libraries"]
    if not isinstance(hashes, dict):
        raise TypeError(f"libraries in {MANIFEST} is not an object")
    found = []
    for style, name in FILES.items():
        path = folder / name
        found.append(Library(style, path, _text(hashes, name), path.stat().st_size))
    return tuple(found)


def entries(cache: Path) -> tuple[Entry, ...]:
    """Every build in ``cache``, newest first, then those that are of no use."""
    if not cache.is_dir():
        return ()
    folders = [f for f in sorted(cache.iterdir()) if f.is_dir() and not f.name.startswith(".")]
    found = [read_entry(folder) for folder in folders]
    found.sort(key=lambda entry: entry.built.created if entry.built else "", reverse=True)
    return tuple(found)


@contextlib.contextmanager
def locked(cache: Path, key: str) -> Iterator[None]:
    """Only one build of ``key`` at a time; the others wait. What killed ones left is removed.

    Where the file system has no locks all build, and the last rename counts.

    Raises:
        InputError: the cache cannot be written.
    """
    with writable(cache):
        cache.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(cache / f".{key}.lock", os.O_CREAT | os.O_RDWR, 0o666)
    try:
        alone = False
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            alone = True
        if alone:
            for left in cache.glob(f".{key}.*.tmp"):
                shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(descriptor)


def install(cache: Path, built: Built, products: Mapping[str, Path], log: Path) -> Built:
    """Put a finished build in its place.

    Args:
        cache: the folder of the builds.
        built: everything about it but ``folder`` and ``libraries``.
        products: the libraries, by file name.
        log: what the build printed.

    Raises:
        InputError: the cache cannot be written, or the disk is full.
    """
    place = cache / built.key
    stage = cache / f".{built.key}.{secrets.token_hex(4)}.tmp"
    old = cache / f".{built.key}.{secrets.token_hex(4)}.tmp"
    try:
        with writable(cache):
            stage.mkdir()
            for name, path in products.items():
                shutil.copy2(path, stage / name)
            shutil.copyfile(log, stage / LOG)
            manifest = {name: getattr(built, name) for name in _TEXTS}
            manifest |= {
                "schema": _SCHEMA,
                "architectures": list(built.architectures),
                "libraries": {name: sha256_of(stage / name) for name in products},
            }
            text = json.dumps(manifest, indent=2) + "\n"
            (stage / MANIFEST).write_text(text, encoding="utf-8")
            _sync(stage)
            if os.path.lexists(place):
                place.rename(old)
            stage.rename(place)
    finally:
        for leftover in (stage, old):
            shutil.rmtree(leftover, ignore_errors=True)
    entry = read_entry(place)
    if entry.built is None:
        raise InputError(
            "The build was not kept whole.",
            found=f"{place}: {entry.problem}",
            fix="check the disk, or give another folder with --cache DIR",
        )
    return dataclasses.replace(entry.built, cached=False, notes=built.notes)


def _sync(folder: Path) -> None:
    """Make the contents of the files durable before the folder gets its name."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


@contextlib.contextmanager
def writable(cache: Path) -> Iterator[None]:
    """Turn what the file system refuses into an error that says which folder, and why.

    Raises:
        InputError: instead of every ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise InputError(
            "The folder for built plugins cannot be written.",
            found=f"{error.strerror or error}: {error.filename or cache}",
            fix="free some space, or give a writable folder with --cache DIR or XDG_CACHE_HOME",
        ) from error
