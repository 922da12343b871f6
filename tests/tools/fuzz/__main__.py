"""Mutate exports of the norm classes and judge what `optimize` makes of them.

A finding is written to the folder as NAME.onnx and NAME.json, which says what is wrong and how the
export was mutated. Exit code 1: something is wrong.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.tools.fuzz.mutants import corpus_seeds
from tests.tools.fuzz.work import work
from tests.tools.lib.command import parser


def main() -> None:
    options = parser("tests.tools.fuzz", __doc__)
    add = options.add_argument
    add("--minutes", type=float, default=10, metavar="N", help="stop after so long; default 10")
    add("--seed", type=int, default=0, metavar="N", help="of the mutants; default 0")
    add("--only", default="", metavar="NAME", help="a piece of the names of the exports")
    add("--output", type=Path, default=Path("fuzz-findings"), metavar="FOLDER",
        help="of the findings; default fuzz-findings")  # fmt: skip
    chosen = options.parse_args()
    seeds = list(corpus_seeds(chosen.only))
    if not seeds:
        options.error("there is nothing to mutate")
    until = time.monotonic() + 60 * chosen.minutes
    done = work(seeds, chosen.seed, 10**9, chosen.output, until=until)
    causes = {cause: str(path) for cause, path in done.written.items()}
    print(json.dumps({"counts": dict(sorted(done.counts.items())), "causes": causes}, indent=1))
    sys.exit(bool(done.written))


if __name__ == "__main__":
    main()
