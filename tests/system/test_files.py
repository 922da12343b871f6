"""Files of others are read within bounds; ours are whole, and refused in words."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from rmsnorm_export.errors import InputError
from rmsnorm_export.records import DEEPEST, parse_json
from rmsnorm_export.system.files import read_text, refusals_as, write_whole
from rmsnorm_export.system.reading import file_within, open_regular, read_file
from tests.cli.conftest import model


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 1])
def test_a_file_is_read_whole_up_to_its_limit(size: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data := os.urandom(size))
    assert read_file(path, size) == data
    assert b"Name:" in read_file("/proc/self/status")  # the system says no size
    for name, limit in ((path, size - 1), ("/proc/self/status", 10)):
        if limit >= 0:
            with pytest.raises(OSError, match="are too many"):
                read_file(name, limit)


def test_only_regular_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    os.mkfifo("pipe")
    socket.socket(socket.AF_UNIX).bind("socket")
    os.symlink("/dev/zero", "link to a device")
    for name in ("pipe", "socket", "link to a device", "/dev/zero", "/"):
        with pytest.raises(OSError, match="device, pipe or socket"):
            open_regular(Path(name))
        with pytest.raises(InputError, match="Unreadable"):
            read_text(Path(name), "Unreadable.", fix="x")


@pytest.mark.parametrize(("home", "count"), [("models--one--two", 2), ("net", 1)])
def test_what_is_within_a_folder(tmp_path: Path, home: str, count: int) -> None:
    """A blob is in a snapshot of Hugging Face's cache."""
    snapshot, blobs = tmp_path / home / "snapshots" / "a", tmp_path / home / "blobs"
    for folder in (snapshot, blobs):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (snapshot / "blob").symlink_to("../../blobs/file")
    (snapshot / "out").symlink_to("/etc/passwd")
    names = ("file", "blob", "out", "../../blobs/file", str(snapshot / "file"))
    assert [name for name in names if file_within(snapshot, name)] == ["file", "blob"][:count]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1}', '[{"b": [{"a": {}, "c": 0, "a": null}]}]', '{"a": 1, "\\u0061": 2}',
        "NaN", "[Infinity]", '{"a": -Infinity}', "[1e999]", "[-1e999]", "1" * 5000,
        "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
        '{"a":' * (DEEPEST + 1) + "0" + "}" * (DEEPEST + 1),
        "[" * 1_000_000, b"\xff", b"\xef\xbb\xbf1", "", "1 2",
    ],
)  # fmt: skip
def test_json_that_readers_could_take_in_two_ways_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('{"a": {"a": 1}, "b": [1.5, -2, null]}', {"a": {"a": 1}, "b": [1.5, -2, None]}),
        (r'"\ud83d\ude00 \" [[["', '\U0001f600 " [[['),
        (r'"\udc80"', "\udc80"),  # a name of a file that is no UTF-8
        ("[" + '"[", [], ' * DEEPEST + "0]", ["[", []] * DEEPEST + [0]),
    ],
)
def test_ordinary_json_is_read(text: str, content: object) -> None:
    assert parse_json(text) == content


@pytest.mark.parametrize(
    ("number", "name", "words"),
    [(errno.EACCES, "there", "there: Permission"), (errno.ENOSPC, None, "here: No space")],
)
def test_a_refusal_names_the_place(number: int, name: str | None, words: str) -> None:
    with pytest.raises(InputError, match=words), refusals_as("No.", "here", fix="look"):
        raise OSError(number, os.strerror(number), name)


def test_a_file_is_written_whole_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    write_whole(path, "one\n")
    for exchange in (True, False):  # file systems without it
        with pytest.raises(FileExistsError):
            write_whole(path, "two\n", replace=False)
        if exchange:
            monkeypatch.setattr("rmsnorm_export.system.files.renameat2", lambda *_: False)
    write_whole(path, b"\x00")
    write_whole(tmp_path / "b.txt", "new", replace=False)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a.txt": b"\0", "b.txt": b"new"}


# What a command does not use, it does not wait for; what it uses is there.

PROGRAM = """
import sys
from rmsnorm_export.cli.main import main

sys.argv[1:] = ["inspect", sys.argv[1]]
assert main() == 0
assert "onnx_ir" in sys.modules
assert "sympy.core" not in sys.modules

import onnx_ir

half = onnx_ir.SymbolicDim("N") // 2
assert str(half.simplify()) == str(onnx_ir.SymbolicDim("floor(N/2)").simplify())
assert "sympy.core" in sys.modules
import sympy
assert sympy.Integer(2) + 1 == 3
print("as usual")
"""


def test_sympy_is_loaded_when_it_is_used(tmp_path: Path) -> None:
    three = tmp_path / "three.onnx"
    onnx.save(model(3), three)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, three], capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("as usual\n"), done.stderr
