"""Small faults of bounds, tolerances, guards and refusals, each with the test that notices it.

A row of ``mutants.toml`` is what a careless maintainer could write: in a file of the package one
text becomes another. It is written into a copy of the package, never into the working tree, and
there the named test of the default run has to fail.

``scripts/test --thorough tests/test_mutants.py`` runs all, with ``-k`` some of them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.tools.tables import table

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "rmsnorm_export"
TIMEOUT = 600

# An editable installation would import the working tree, wherever Python runs.
_PYTEST = """\
import os, sys
for finder in [one for one in sys.meta_path if "_editable" in getattr(one, "__module__", "")]:
    sys.meta_path.remove(finder)
import rmsnorm_export
assert os.path.abspath(rmsnorm_export.__file__).startswith(os.getcwd() + os.sep)
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


class Mutant(NamedTuple):
    """One fault.

    Attributes:
        file: below the package.
        old: what stands there exactly once.
        new: what stands there instead.
        test: that fails then, below ``tests/``.
    """

    file: str
    old: str
    new: str
    test: str

    @property
    def name(self) -> str:
        """The file, and what stands in it."""
        words = self.new.split() or ["without", *self.old.split()]
        return f"{self.file}: {' '.join(words)}"

    def problem(self, package: Path) -> str:
        """Return a sentence if the row does not fit the files any more, or ""."""
        count = (package / self.file).read_text(encoding="utf-8").count(self.old)
        if count != 1:
            return f"{self.file} has {self.old!r} {count} times, and not once: mend the row."
        file, _, test = self.test.partition("::")
        source = (ROOT / "tests" / file).read_text(encoding="utf-8")
        if not re.search(rf"^def {re.escape(test.partition('[')[0])}\(", source, re.MULTILINE):
            return f"There is no test {self.test}, which is to notice {self.name!r}: name another."
        return ""


_ROWS = table(__file__)["mutant"]
MUTANTS = tuple(Mutant(**row) for row in _ROWS)


def copy_of_package(folder: Path) -> Path:
    """Return the root of a checkout whose package is a copy, and whose rest is the working tree."""
    for entry in ROOT.iterdir():
        if entry.name == PACKAGE:
            shutil.copytree(entry, folder / PACKAGE)
        elif not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    return folder / PACKAGE


def failure(package: Path, *tests: str) -> str:
    """Return the last lines of the tests that fail with this package; "" if they all pass.

    Raises:
        RuntimeError: they do not run at all, as with a package that cannot be imported.
    """
    names = (f"tests/{test}" for test in dict.fromkeys(tests))
    done = subprocess.run(
        [sys.executable, "-B", "-c", _PYTEST, "-qx", "-p", "no:cacheprovider", *names],
        cwd=package.parent, capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        raise RuntimeError(f"The tests do not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout[-2000:] if done.returncode else ""


def killed(package: Path, mutant: Mutant) -> bool:
    """Return whether the test of a mutant fails with it; the package is then what it was."""
    if problem := mutant.problem(package):
        raise ValueError(problem)
    file = package / mutant.file
    source = file.read_text(encoding="utf-8")
    file.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        return bool(failure(package, mutant.test))
    finally:
        file.write_text(source, encoding="utf-8")
