"""A clock, reasons to leave out, and results on disk."""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.gpu import kernels_page
from rmsnorm_export.system.machine import gpus
from rmsnorm_export.system.packages import versions_of
from tests.tools.lib.command import say
from tests.tools.lib.results import date, machine, write_results


class SkippedError(Exception):
    """A part, or a piece of one, that cannot be done here.

    Args:
        reason: why.
        fix: what would change that, with the command where there is one.
    """

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.reason, self.fix = reason, fix


class Clock:
    """How much time is left."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds, below 0 when it is over."""
        return self._end - time.monotonic()


class Results:
    """The outcome as JSON and Markdown, which are written anew whenever there is more.

    Args:
        folder: of ``gpu_kernels.json`` and what is beside it.
        facts: what is known before it starts.
    """

    def __init__(self, folder: Path, facts: dict[str, Any] | None = None) -> None:
        self.path = folder / "gpu_kernels.json"
        self.data: dict[str, Any] = {"schema_version": 1, "status": "running"}
        self.data |= {"detail": "", "skipped": [], "failures": [], "wrong": [], **(facts or {})}

    @classmethod
    def read(cls, folder: Path) -> Results:
        """Those on disk; empty ones where there are none that can be read."""
        results = cls(folder)
        with contextlib.suppress(OSError, ValueError):
            results.data |= json.loads(results.path.read_text(encoding="utf-8"))
        return results

    def save(self) -> None:
        """Write both files, whole or not at all."""
        write_results(self.data, kernels_page.markdown(self.data), self.path)

    def end(self, status: str, detail: str = "") -> None:
        """The last word: the status, and the picture where there is something to draw."""
        self.data |= {"status": status, "detail": detail}
        self.save()
        picture = self.path.with_suffix(".png")
        picture.unlink(missing_ok=True)  # one of an earlier run would not be of these numbers
        try:
            import matplotlib
        except ImportError:
            say("no picture: pip install matplotlib")
        else:
            matplotlib.use("Agg")
            kernels_page.picture(self.data, picture)

    def skip(self, what: str, reason: str, fix: str) -> None:
        """Something is left out."""
        self.data["skipped"].append({"what": what, "reason": reason, "fix": fix})
        say(f"not run: {what}: {reason}; {fix}")
        self.save()

    @contextlib.contextmanager
    def piece(self, what: str) -> Iterator[None]:
        """What goes wrong in the block is recorded, and the part goes on behind it."""
        try:
            yield
        except SkippedError as skipped:
            self.skip(what, skipped.reason, skipped.fix)
        except Exception as error:  # other people's libraries, each with errors of its own
            first = next(iter(str(error).strip().splitlines()), "")
            said = f"{type(error).__name__}: {first}"
            self.data["failures"].append({"what": what, "error": said})
            traceback.print_exc()
            say(f"FAILED: {what}")
            self.save()

    def summary(self) -> list[str]:
        """Return the lines that a person reads at the end."""
        data = self.data
        lines = [f"kernels: {data['status']}" + (f": {data['detail']}" if data["detail"] else "")]
        lines += [f"  {line}" for line in kernels_page.headlines(data)]
        lines += [f"  not run: {s['what']}: {s['reason']} ({s['fix']})" for s in data["skipped"]]
        lines += [f"  WRONG: {text}" for text in data["wrong"]]
        lines += [f"  FAILED: {one['what']}: {one['error']}" for one in data["failures"]]
        return [*lines, f"written: {self.path} and what is beside it"]


def facts() -> dict[str, Any]:
    """When, where and with what, for the head of the result."""
    devices, host = gpus(), machine()
    return {
        "date": date(),
        "device": ", ".join(dict.fromkeys(gpu.name for gpu in devices)) or "unknown",
        "driver": devices[0].driver if devices else "unknown",
        "host": f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB,"
        f" {host['system']}, Python {host['python']}",
        "load_before": os.getloadavg()[0],
        "versions": versions_of(("rmsnorm-export", "torch", "onnx", "onnx-ir")),
    }
