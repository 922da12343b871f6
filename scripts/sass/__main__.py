"""What the compiled kernels execute, without a GPU: counts from their machine code (sm_90).

    python -m scripts.sass                     a table of the hot instances
    python -m scripts.sass --check             those that are worse than scripts/sass/table.json
    python -m scripts.sass --write             the table anew

Needs nvcc, and cuobjdump with nvdisasm (on PATH, or in CUDA_HOME/bin; pip has them as
nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm). The kernels are compiled and linked with a runtime
that launches nothing and keeps the launch; a thread of the kernel is then run, instruction by
instruction (thread.py). Instructions, bytes in flight, waits and barriers are exact; the share of
the copy rate comes from a model (model.py).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from scripts.gpu import build
from scripts.lib.tables import markdown_table
from scripts.sass import gate
from scripts.sass.count import Counts
from scripts.sass.launches import OPS, SIZES, Work
from scripts.sass.tools import ToolMissingError, built, counted

_HEADINGS = ("work", "kernel", "threads:", "cluster:", "registers:", "stack:", "blocks/SM:")
_HEADINGS += ("instr/element:", "KB in flight:", "trips x:", "trips weights:", "barriers:")
_HEADINGS += ("cluster barriers:", "share of copy:", "unsure:")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.sass",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ops", nargs="+", choices=OPS, help="default: those of the table")
    parser.add_argument("--types", nargs="+", choices=SIZES, default=["bfloat16"])
    parser.add_argument("--lengths", nargs="+", type=int, default=gate.LENGTHS)
    parser.add_argument("--low-latency", action="store_true", help="the tactic for few rows")
    parser.add_argument(
        "--folder",
        type=Path,
        help="where objects are kept; those that lie there are not compiled again",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare with the table; 1 if worse")
    what.add_argument("--write", action="store_true", help="write the table")
    options = parser.parse_args()
    works = list(gate.WORKS)
    if options.ops:
        works = [
            Work(op, dtype, n, options.low_latency)
            for op in options.ops
            for dtype in options.types
            for n in options.lengths
        ]
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folder = options.folder or Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            built(folder, None if options.ops else build.COUNTED)
            found = counted(works, folder)
    except ToolMissingError as error:
        print(error, file=sys.stderr)
        return 2
    if options.write:
        gate.write(found)
        return 0
    if options.check:
        worse = gate.worse(found)
        print("\n".join(worse) or f"{len(found)} instances, none worse than the table")
        return bool(worse)
    print("\n".join(markdown_table(_HEADINGS, [_row(w, c) for w, c in found.items()])))
    return 0


def _row(work: Work, c: Counts) -> list[str]:
    numbers = [c.threads, c.cluster, c.registers, c.stack, c.blocks, f"{c.instructions:.1f}"]
    numbers += [f"{c.in_flight:.0f}", c.x_trips, c.weight_trips, c.barriers, c.cluster_barriers]
    return [work.name, c.kernel, *map(str, numbers), f"{c.share:.0%}", str(c.unsure)]


if __name__ == "__main__":
    raise SystemExit(main())
