"""A library is whole, of nobody else, and the one that was checked."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.system import libraries
from rmsnorm_export.system.libraries import check_library, check_owners, loadable

NOBODY = 65534


@pytest.mark.parametrize(("size", "words"), [(0, "no shared"), (63, "cut"), (-1, "cut")])
def test_a_library_is_whole(size: int, words: str, tmp_path: Path) -> None:
    data = Path(sys.executable).resolve().read_bytes()
    (tmp_path / "lib.so").write_bytes(data)
    check_library(tmp_path / "lib.so")
    (tmp_path / "lib.so").write_bytes(data[:size])
    with pytest.raises(ValueError, match=words):
        check_library(tmp_path / "lib.so")


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "lib" / "lib.so"
    path.parent.mkdir(parents=True)
    path.write_bytes(Path(sys.executable).resolve().read_bytes())
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("place", "mode", "is_taken"),
    [
        (".", 0o755, True), (".", 0o777, False), (".", 0o757, False), ("lib", 0o777, False),
        ("lib", 0o700, True), (".", 0o1777, True), ("lib/lib.so", 0o666, False),
        ("lib/lib.so", 0o1757, False), ("lib/lib.so", 0o444, True),
    ],
)  # fmt: skip
def test_a_mode_decides(library: Path, place: str, mode: int, is_taken: bool) -> None:
    part = library.parents[1] / place
    part.chmod(mode)
    if is_taken:
        assert Path(loadable(library)).read_bytes() == library.read_bytes()
        return
    with pytest.raises(BackendMissingError, match="nobody else can write") as refusal:
        loadable(library)
    assert f"{part}: others can write to it (mode {mode:04o})" in refusal.value.found
    assert f"chmod go-w '{part}'" in refusal.value.fix


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("place", [".", "lib", "lib/lib.so"])
@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_an_owner_decides(library: Path, place: str, mode: int) -> None:
    part = library.parents[1] / place
    part.chmod(mode)
    os.chown(part, NOBODY, NOBODY)
    with pytest.raises(BackendMissingError, match=f"{part}: it belongs to user {NOBODY}"):
        check_library(library)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_group_of_others_decides(library: Path) -> None:
    """The user's own group, which has the user's name, may write."""
    library.parent.chmod(0o775)
    check_owners(library)
    os.chown(library.parent, -1, NOBODY)
    with pytest.raises(BackendMissingError, match="others can write"):
        check_owners(library)


def test_a_link_is_followed_and_both_ends_are_checked(library: Path, tmp_path: Path) -> None:
    link = tmp_path / "open" / "lib.so"
    link.parent.mkdir()
    link.symlink_to(library)
    check_owners(link)
    link.parent.chmod(0o777)
    with pytest.raises(BackendMissingError, match=f"{link.parent}: others can write"):
        check_owners(link)
    link.parent.chmod(0o755)
    library.parent.chmod(0o777)
    with pytest.raises(BackendMissingError, match=f"{library.parent}: others can write"):
        check_owners(link)


def test_what_was_checked_is_what_is_loaded(library: Path) -> None:
    """Also behind the check, and no name is given twice: the linker knows libraries by names."""
    before, name = library.read_bytes(), loadable(library)
    other = library.with_name("other.so")
    other.write_bytes(before + b"other")
    other.replace(library)
    assert Path(name).read_bytes() == before
    again = loadable(library)
    assert again != name
    assert Path(again).read_bytes() == before + b"other"
    assert loadable(library) == again


def test_who_can_write_this_package_needs_no_library(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.parent.chmod(0o777)
    monkeypatch.setattr(libraries, "_PACKAGE", library.parents[1])
    check_owners(library)
