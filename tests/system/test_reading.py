"""What is read from files that somebody else may have written, and what is refused."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from rmsnorm_export.errors import InputError
from rmsnorm_export.strict import DEEPEST, parse_json
from rmsnorm_export.system.reading import open_regular, read_file, read_json, read_text


@pytest.mark.parametrize("size", [0, 1, 5, (1 << 20) + 1])
def test_a_file_is_read_whole_up_to_its_limit(size: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data := os.urandom(size))
    assert read_file(path, size) == data
    if size:
        with pytest.raises(OSError, match="are too many"):
            read_file(path, size - 1)


def test_a_file_of_the_system_says_no_size() -> None:
    assert b"Name:" in read_file("/proc/self/status")
    with pytest.raises(OSError, match="are too many"):
        read_file("/proc/self/status", 10)


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "folder", "link to a device"])
def test_only_regular_files_are_opened(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "socket":
        monkeypatch.chdir(tmp_path)  # names of sockets are short
        socket.socket(socket.AF_UNIX).bind("file")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match=r"device, pipe or socket|directory"):
        open_regular(path)
    with pytest.raises(InputError, match="Unreadable"):
        read_text(path, "Unreadable.", fix="x")


@pytest.mark.parametrize(
    ("content", "words"), [(None, "No such file"), (b"\xff", "utf-8"), (b"12", "")]
)
def test_a_text_is_read_or_refused(content: bytes | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    if not words:
        assert (read_text(path, "Unreadable.", fix="x"), read_json(path)) == ("12", 12)
        return
    with pytest.raises(InputError, match="Unreadable") as caught:
        read_text(path, "Unreadable.", fix="x")
    assert words in caught.value.found


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1}',
        '[{"b": [{"a": {}, "c": 0, "a": null}]}]',
        '{"a": 1, "\\u0061": 2}',
        "NaN",
        "[Infinity]",
        '{"a": -Infinity}',
        "[1e999]",
        "[-1e999]",
        "1" * 5000,
        "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
        '{"a":' * (DEEPEST + 1) + "0" + "}" * (DEEPEST + 1),
        "[" * 1_000_000,
        b"\xff",
        b"\xef\xbb\xbf1",
        "",
        "1 2",
    ],
)
def test_what_readers_could_take_in_two_ways_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (
            '{"a": {"a": 1}, "b": [1.5, -2, true, null]}',
            {"a": {"a": 1}, "b": [1.5, -2, True, None]},
        ),
        (r'"\ud83d\ude00 \" [[["', '\U0001f600 " [[['),
        (r'"\udc80"', "\udc80"),  # a name of a file that is no UTF-8
        ("[" * DEEPEST + "]" * DEEPEST, None),
        ("[" + '"[", [], ' * DEEPEST + "0]", ["[", []] * DEEPEST + [0]),
    ],
)
def test_ordinary_json_is_read(text: str, content: object) -> None:
    assert parse_json(text) == content or content is None
