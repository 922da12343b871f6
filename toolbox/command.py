"""The command line of a tool: its options, its words on stderr, and modules as processes."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


def say(text: str) -> None:
    """Print a line on stderr: stdout is for the outcome."""
    print(text, file=sys.stderr, flush=True)


def parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the docstring of its module."""
    return argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_output(options: argparse.ArgumentParser, name: str) -> None:
    """Add the option for the file of the results, ``name`` in bench/results by default."""
    text = f"JSON file, with a page beside it; default bench/results/{name}"
    options.add_argument("--output", type=Path, default=RESULTS / name, help=text)


def module_command(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module, with ``module_environment``."""
    return [sys.executable, "-m", name, *arguments]


def module_environment() -> dict[str, str]:
    """Return the environment in which this checkout is found from every folder."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
