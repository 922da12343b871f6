"""What each runtime does with each form of our files: installs the runtimes, and prints a table.

python -m scripts.runtimes --install             every runtime, 1.5 GB in the user's cache
python -m scripts.runtimes onnxruntime openvino  these
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

from scripts.lib.command import say
from scripts.runtimes import models
from scripts.runtimes.catalogue import CATALOGUE
from scripts.runtimes.measure import Outcome, run_files


def main() -> int:
    """Exit code 1 when a runtime could not be installed."""
    options = argparse.ArgumentParser(description=__doc__)
    options.formatter_class = argparse.RawDescriptionHelpFormatter
    options.add_argument("names", nargs="*", help="runtimes, or runtime@version; all by default")
    options.add_argument("--install", action="store_true", help="install, and measure nothing")
    options.add_argument("--errors", action="store_true", help="say what each runtime said")
    given = options.parse_args()
    chosen = [
        entry
        for entry in CATALOGUE
        if not given.names or entry.runtime in given.names or entry.label in given.names
    ]
    if given.install:
        problems = {entry.label: entry.install() for entry in chosen}
        for label, problem in problems.items():
            say(f"{label}: {problem or 'ready'}")
        return int(any(problems.values()))
    with tempfile.TemporaryDirectory() as scratch:
        files = models.write_files(pathlib.Path(scratch))
        for entry in chosen:
            if missing := entry.missing():
                say(f"{entry.label}: {missing}")
                continue
            outcomes = run_files(entry, files, models.feed())
            for label, outcome in outcomes.items():
                norms = "" if outcome.norms is None else f"{outcome.norms} norms are one"
                print(f"{entry.label:24} {label:18} {_words(outcome, label):16} {norms}")
                if given.errors and outcome.error:
                    print(f"    {outcome.error}")
    return 0


def _words(outcome: Outcome, label: str) -> str:
    if outcome.error:
        return "fails"
    off = max(outcome.off)
    return "ok" if off <= models.BOUNDS[label.rpartition("-")[2]] else f"WRONG by {off:.3g}"


if __name__ == "__main__":
    sys.exit(main())
