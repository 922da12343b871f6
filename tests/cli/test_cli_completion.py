"""Completion in real shells: each is asked at a terminal what it makes of a line with a tab."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

_FIRST = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
_LOAD = {
    "bash": 'PS1="ready> "; eval "$(_RMSNORM_EXPORT_COMPLETE=bash_source rmsnorm-export)"',
    "zsh": 'PS1="ready> "; autoload -Uz compinit; compinit -u -D; '
    'eval "$(_RMSNORM_EXPORT_COMPLETE=zsh_source rmsnorm-export)"',
}

LINES = [
    ("rmsnorm-export insp", "inspect"),
    ("rmsnorm-export optimize --tar", "--target"),
    ("rmsnorm-export optimize one.onnx --target port", "portable"),
    ("rmsnorm-export inspect one.o", "one.onnx"),
    ("rmsnorm-export optimize one.onnx -o oth", "other.onnx"),
    ("rmsnorm-export plugin chec", "check"),
]
"""What is typed, and the word that it becomes."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a shell that finds the command, whatever else is installed."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "rmsnorm-export"
    root = Path(__file__).resolve().parents[2]
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(root)!r})\n"
        "from rmsnorm_export.cli.main import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    home = tmp_path_factory.mktemp("home")
    return {"PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "TERM": "dumb"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("one.onnx", "other.onnx", "pipeline.toml"):
        (tmp_path / name).touch()
    return tmp_path


class Terminal:
    """A shell with a terminal of its own."""

    def __init__(self, shell: str, place: Path, environment: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        self.shown = ""
        self.process = subprocess.Popen(
            _FIRST[shell], stdin=slave, stdout=slave, stderr=slave, cwd=place, env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait(self, pattern: str, seconds: float = 30) -> str:
        """What has been shown since the last call, up to the pattern."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.shown)) and time.monotonic() < end:
            if select.select([self.master], [], [], 0.1)[0]:
                self.shown += os.read(self.master, 65536).decode(errors="replace")
        assert found, f"{pattern} is not in {self.shown!r}"
        before, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_tab_completes_commands_options_values_and_files(
    shell: str, place: Path, program: dict[str, str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    terminal = Terminal(shell, place, program)
    try:
        terminal.type(_LOAD[shell] + "; echo loa''ded\n")
        terminal.wait("loaded\r\n")
        terminal.wait("ready> ")
        for line, word in LINES:
            # The rest of the word is what the shell adds; ctrl-u empties the line.
            rest = word.removeprefix(line.split()[-1])
            terminal.type(f"{line}\t")
            terminal.wait(re.escape(line))
            terminal.wait(re.escape(rest))
            terminal.type("\x15\n")
            terminal.wait("ready> ")
    finally:
        terminal.close()


def test_fish_completes_commands_options_values_and_files(
    place: Path, program: dict[str, str]
) -> None:
    """fish says what it would offer without a terminal."""
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed: apt-get install fish")
    load = "_RMSNORM_EXPORT_COMPLETE=fish_source rmsnorm-export | source"
    asked = "; ".join(f"echo '# {n}'; complete -C '{line}'" for n, (line, _) in enumerate(LINES))
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"{load}; {asked}"],
        cwd=place, env=program, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    offered = re.split(r"^# \d+\n", done.stdout, flags=re.M)[1:]
    for (line, word), words in zip(LINES, offered, strict=True):
        assert word in [each.split("\t")[0] for each in words.splitlines()], (line, words)


def test_the_page_has_the_lines_of_each_shell() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md"
    text = page.read_text(encoding="utf-8")
    for shell in ("bash", "zsh", "fish"):
        assert f"_RMSNORM_EXPORT_COMPLETE={shell}_source rmsnorm-export" in text
