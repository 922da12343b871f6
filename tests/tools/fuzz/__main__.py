"""Mutates exports and holds what `optimize` makes of them against what they compute.

Each mutant is an export (every norm class of transformers and torch by three exporters in four
float types, or the .onnx files of a folder) after one to three random mutations. What `optimize`
makes of it for every target is compared in float64, in the declared types in NumPy and in ONNX
Runtime, on ordinary rows, on rows at the edges of the types, with NaN and infinities and without
elements; the bounds are intervals computed from the mutant (`intervals.py`).

A finding is written to the folder as NAME.onnx and NAME.json, which says what is wrong, after all
mutations that it does not need are undone. A run that was stopped goes on where it was when it is
started again with the same seed, jobs and folder. Exit code 1: something was found.
"""

from __future__ import annotations

import collections
import json
import multiprocessing
import signal
import sys
import time
from pathlib import Path

from tests.tools.fuzz.found import shares
from tests.tools.fuzz.work import Counts, Plan, Sources, process, replay
from tests.tools.lib.command import parser, say


def _ended(process: multiprocessing.process.BaseProcess) -> bool:
    return process.exitcode is not None and process.exitcode >= 0


def _replayed(paths: list[Path]) -> int:
    """One line for each file; 1 if one of them is still wrong."""
    wrong = 0
    for path in paths:
        findings = replay(path)
        wrong += bool(findings)
        words = "; ".join(f"{f.kind} ({f.setting}): {f.detail}" for f in findings)
        print(f"{path.name}: {words or 'nothing is wrong'}")
    return int(wrong > 0)


def _found(seed: int, count: int, sources: Sources) -> None:
    """A line for each mutation, with one to three of them at once, and the sum."""
    by_mutation = shares(sources.seeds(), seed, count, most=3)
    for name, share in by_mutation.items():
        print(f"{name}: {share}")
    kept, found = (sum(getattr(s, k) for s in by_mutation.values()) for k in ("kept", "found"))
    print(f"all: {found} of {kept}")


def main() -> None:
    options = parser("tests.tools.fuzz", __doc__)
    add = options.add_argument
    add("--count", type=int, default=20_000, metavar="N", help="mutants to draw; default 20,000")
    add("--hours", type=float, default=0, metavar="H", help="stop after so long; default: never")
    add("--seed", type=int, default=0, metavar="N", help="of the mutants; default 0")
    add("--jobs", type=int, default=1, metavar="N", help="processes; default 1")
    add("--only", default="", metavar="NAME", help="a piece of the names of the exports")
    add("--architectures", nargs="+", default=[], metavar="NAME",
        help="mutate tiny whole models, too: llama, mamba2, see tests/tools/corpus")  # fmt: skip
    add("--models", type=Path, metavar="FOLDER", help="mutate the .onnx files of a folder, too")
    add("--no-corpus", action="store_true", help="only those of --models and --architectures")
    add(
        "--every", action="store_true", help="every target with every numerics, and a proof of each"
    )
    add("--found", action="store_true",
        help="count the norms that are found behind mutations that keep their value")  # fmt: skip
    add("--output", type=Path, default=Path("fuzz-findings"), metavar="FOLDER",
        help="of the findings and the state; default fuzz-findings")  # fmt: skip
    add("--replay", type=Path, nargs="+", metavar="NAME.onnx", help="judge findings again")
    given = options.parse_args()
    if given.replay:
        sys.exit(_replayed(given.replay))
    if given.count < 1 or given.jobs < 1 or given.seed < 0 or given.hours < 0:
        options.error("--count and --jobs take numbers from 1, --seed and --hours from 0")
    if given.found:
        _found(given.seed, given.count, Sources(None if given.no_corpus else given.only,
               tuple(given.architectures), given.models))  # fmt: skip
        return
    # Terminated, it ends its processes first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    until = time.time() + 3600 * given.hours if given.hours else 0.0
    context = multiprocessing.get_context("spawn")
    only = None if given.no_corpus else given.only
    sources = Sources(only, tuple(given.architectures), given.models)
    running: dict[int, multiprocessing.process.BaseProcess] = {}
    plans = [
        Plan(given.seed, job, given.jobs, given.count, until, given.every, given.output)
        for job in range(given.jobs)
    ]
    left = list(range(given.jobs))
    while left:
        for job in left:
            if job not in running:
                arguments = (plans[job], sources)
                running[job] = context.Process(target=process, args=arguments, daemon=True)
                running[job].start()
        running[left[0]].join(timeout=5)
        for job in list(left):
            if running[job].exitcode is None:
                continue
            if _ended(running[job]):
                left.remove(job)
            else:  # killed by a signal: counted by its successor, which leaves that mutant out
                say(f"process {job} ended with signal {-(running[job].exitcode or 0)}; once more")
                del running[job]
    total: collections.Counter[str] = collections.Counter()
    causes: collections.Counter[str] = collections.Counter()
    for plan in plans:
        counts = Counts(plan.state)
        total.update(counts.numbers)
        causes.update(counts.causes)
    print(json.dumps({"numbers": dict(sorted(total.items())), "causes": dict(causes)}, indent=1))
    sys.exit(1 if causes else max((child.exitcode or 0) for child in running.values()))


if __name__ == "__main__":
    main()
