"""The timing cache is extended, and nobody's file is lost."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from rmsnorm_export.tensorrt.engine.worker import save_timing_cache, timing_note


class Cache:
    """``ITimingCache``: a set of names, a magic word in front."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def serialize(self) -> bytes:
        return b"cache" + json.dumps(sorted(self.names)).encode()

    def combine(self, other: Cache, *, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        if "other gpu" in other.names:
            return False
        self.names |= other.names
        return True


class Config:
    """``IBuilderConfig``: what it does not know becomes an empty cache, as TensorRT does it."""

    def __init__(self, *names: str) -> None:
        self._cache = Cache(set(names))

    def get_timing_cache(self) -> Cache:
        return self._cache

    def create_timing_cache(self, data: bytes) -> Cache:
        known = data.startswith(b"cache")
        return Cache(set(json.loads(data[5:])) if known else set())


def names(path: Path) -> set[str]:
    return Config().create_timing_cache(path.read_bytes()).names


def test_made_and_extended(tmp_path: Path) -> None:
    path = tmp_path / "t.cache"
    assert "0 bytes before" in save_timing_cache(Config("a"), str(path))
    save_timing_cache(Config("b"), str(path))
    assert names(path) == {"a", "b"}
    assert "has all" in save_timing_cache(Config("a"), str(path))
    assert {p.name for p in tmp_path.iterdir()} == {"t.cache", ".t.cache.lock"}


@pytest.mark.parametrize(
    "content", [b"my thesis", b"cach", Cache({"other gpu"}).serialize(), b"\0" * 100]
)
def test_what_is_no_cache_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "thesis.txt"
    path.write_bytes(content)
    assert "left as it is" in save_timing_cache(Config("a"), str(path))
    assert path.read_bytes() == content


def test_an_empty_file_and_an_empty_cache_are_filled(tmp_path: Path) -> None:
    for content in (b"", Cache(set()).serialize()):
        path = tmp_path / "t.cache"
        path.write_bytes(content)
        save_timing_cache(Config("a"), str(path))
        assert names(path) == {"a"}


def test_builds_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.cache"
    threads = [
        threading.Thread(target=save_timing_cache, args=(Config(str(i)), str(path)))
        for i in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(path) == {str(i) for i in range(20)}


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "t.cache"
    save_timing_cache(Config("a"), str(path))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_timing_cache(Config("b"), str(path))
    assert names(path) == {"a"}
    assert {p.name for p in tmp_path.iterdir()} == {"t.cache", ".t.cache.lock"}
    note = timing_note(Config("b"), str(path))  # the engine is written by then, and is kept
    assert note == "t.cache was not extended: [Errno 28] No space left on device"
