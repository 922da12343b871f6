"""Build and list the corpus: norm classes and whole architectures, exported and cached."""

from __future__ import annotations

import argparse
import collections
import sys
import time

from tests.tools.corpus import cache, jobs


def _classes(only: str, processes: int) -> None:
    from tests.tools.corpus import exporters, norm_classes

    found = [n for n in norm_classes.norm_classes() if only in n.key]
    first = sorted(found, key=lambda n: (not n.is_rmsnorm, not n.primary))
    todo = [(jobs.export_norm, n.key, *pair) for n in first for pair in exporters.combinations(n)]
    jobs.run(todo, processes)
    print(f"{'norm':36} {'classes':>7} {'exports':>8}  what it computes")
    total = made = 0
    for norm in found:
        exports = [exporters.export_norm(norm, *pair) for pair in exporters.combinations(norm)]
        done = sum(e.path is not None for e in exports)
        print(f"{norm.key:36} {len(norm.members):7} {done:4}/{len(exports)}  {norm.reason}")
        failures: dict[str, list[str]] = collections.defaultdict(list)
        for export in exports:
            if export.reason:
                failures[export.reason].append(f"{export.dtype} {export.exporter}")
        for reason, which in failures.items():
            print(f"{'':54}not made: {', '.join(which)}: {reason}")
        if norm.is_rmsnorm:
            total, made = total + len(exports), made + done
    primary = [n for n in found if n.primary]
    norms = [n for n in primary if n.is_rmsnorm]
    print(
        f"{sum(len(n.members) for n in primary)} classes, {len(primary)} bodies; RMSNorm: "
        f"{sum(len(n.members) for n in norms)} classes, {len(norms)} bodies, "
        f"{sum(n.is_rmsnorm for n in found)} with the other ways to use them; "
        f"{made} of {total} exports of them made"
    )


def _architectures(only: str, processes: int) -> None:
    from tests.tools.corpus import architectures

    found = [a for a in architectures.architectures() if only in a.name]
    jobs.run(
        [(jobs.export_architecture, a.name, d) for a in found for d in architectures.TYPES],
        processes,
    )
    print(f"{'architecture':16} {'type':8} {'norms':>5}  {'exporter':14} {'symbolic':9} norm calls")
    total = 0
    for arch in found:
        for dtype in architectures.TYPES:
            export = architectures.export_architecture(arch, dtype)
            calls = ", ".join(f"{n} {name}" for name, n in export.calls.items())
            axes = ",".join(map(str, export.dynamic)) or "none"
            exporter = export.exporter or "not made"
            total += export.expected_norms
            print(
                f"{arch.name:16} {dtype:8} {export.expected_norms:5}  "
                f"{exporter:14} {axes:9} {calls}"
            )
            if export.reason:
                print(f"{'':16} {export.reason}")
    print(f"{len(found)} architectures, {total} norms in both types together")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.corpus", description=__doc__)
    parser.add_argument("--classes", action="store_true", help="only the norm classes")
    parser.add_argument("--architectures", action="store_true", help="only the architectures")
    parser.add_argument("--only", default="", metavar="NAME", help="a piece of the name")
    parser.add_argument("--processes", type=int, default=2, help="default: 2")
    options = parser.parse_args()
    both = options.classes == options.architectures
    print(f"cache: {cache.root()}", file=sys.stderr)
    started = time.perf_counter()
    if options.classes or both:
        _classes(options.only, options.processes)
    if options.architectures or both:
        _architectures(options.only, options.processes)
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
