"""Answer every attack for every target, within limits; run as a process of its own.

    python -m recognize.bounded_child STEP OFFSET

takes every STEP-th attack, and prints a line for each that takes too long or too much memory.
"""

from __future__ import annotations

import resource
import sys
import time

import rmsnorm_export as rx
from recognize.attacks import attacks

SECONDS = 5
MEGABYTES = 300  # beside the 150 that the libraries take
ADDRESSES = 3 << 30


def memory() -> int:
    """The most that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    step, offset = (int(argument) for argument in sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    for number, (name, data) in enumerate(attacks()):
        if number % step != offset:
            continue
        assert len(data) < 10_000, name
        for target in ("portable", "onnx", "ort"):
            start, before = time.process_time(), memory()
            try:
                rx.inspect(data, target=target)  # type: ignore[arg-type]
                rx.optimize(data, target=target, prove=True)  # type: ignore[arg-type]
            except rx.InputError:
                pass
            except BaseException as error:
                print(f"{name}, {target}: {type(error).__name__}: {str(error)[:200]}")
            seconds = time.process_time() - start
            if seconds > SECONDS or memory() > before + MEGABYTES:
                print(f"{name}, {target}: {seconds:.1f} s, {memory() - before} MB more")


if __name__ == "__main__":
    main()
