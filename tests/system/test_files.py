"""Locks, whole files, and what the operating system refuses."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmsnorm_export.errors import InputError
from rmsnorm_export.system.digest import sha256_of, sha256_of_all
from rmsnorm_export.system.files import locked, refusals_as, write_whole

_HOLD = """
import sys, pathlib
from rmsnorm_export.system.files import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_held_by_one_and_let_go_of_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", _HOLD, str(path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(BlockingIOError), locked(path, wait=False):
        pass
    holder.kill()
    holder.communicate()
    with locked(path, wait=False) as held:
        assert held
    assert path.exists()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with locked(tmp_path / "lock", required=False) as held:
        assert not held
    with pytest.raises(OSError, match="lock"), locked(tmp_path / "lock"):
        pass


@pytest.mark.parametrize(
    ("number", "name", "words", "fix"),
    [
        (errno.EACCES, "there", "there: Permission denied", "look"),
        (errno.EACCES, None, "here: Permission denied", "look"),
        (errno.ENOSPC, "there", "here: No space left on device", "free"),
    ],
)
def test_a_refusal_names_the_place(number: int, name: str | None, words: str, fix: str) -> None:
    with (
        pytest.raises(InputError) as caught,
        refusals_as("No.", "here", fix="look", fix_full="free"),
    ):
        raise OSError(number, os.strerror(number), name)
    assert (caught.value.what, caught.value.found, caught.value.fix) == ("No.", words, fix)


def test_a_file_is_written_whole_or_not(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, "one\n")
    with pytest.raises(FileExistsError):
        write_whole(path, "two\n", replace=False)
    assert path.read_bytes() == b"one\n"
    write_whole(path, b"\x00")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.txt", b"\x00")]


def test_digests_tell_names_and_contents_apart(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "b").write_bytes(b"x")
    one, other = tmp_path / "a", tmp_path / "b"
    assert sha256_of(one) == sha256_of(other)
    assert sha256_of_all([one], tmp_path) != sha256_of_all([other], tmp_path)
    assert len(sha256_of_all([], tmp_path)) == 64
