"""What the parts of tests/tools/gpu_check share: a clock, reasons to leave out, results on disk."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rmsnorm_export.benchmark.result import AGAIN, RAW
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
    """How much of its time a part has left."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds, below 0 when it is over."""
        return self._end - time.monotonic()


class Results:
    """What a part found, as JSON and Markdown that are written anew whenever there is more.

    Args:
        part: its name.
        folder: of ``gpu_PART.json`` and what is beside it.
        facts: what is known before it starts.
    """

    def __init__(self, part: str, folder: Path, facts: dict[str, Any] | None = None) -> None:
        self.path = folder / f"gpu_{part}.json"
        self.data: dict[str, Any] = {"schema_version": 1, "part": part, "status": "running"}
        self.data |= {"detail": "", "skipped": [], "failures": [], "wrong": [], **(facts or {})}

    @classmethod
    def read(cls, part: str, folder: Path) -> Results:
        """Those on disk; empty ones where there are none that can be read."""
        found = cls(part, folder)
        with contextlib.suppress(OSError, ValueError):
            found.data |= json.loads(found.path.read_text(encoding="utf-8"))
        return found

    def save(self) -> None:
        """Write both files, whole or not at all."""
        write_results(self.data, self._page().markdown(self.data), self.path)

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
            self._page().picture(self.data, picture)

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Rows of ``trial``; what is wrong in them is said at the top, too."""
        self.data["rows"] += rows
        for row in rows:
            if row["status"] != "ok" and row["variant"] not in (RAW, AGAIN):
                where = f"{row['kind']} {row['batch']} x {row['length']}, {row['variant']}"
                self.data["wrong"].append(f"{where}: {row['status']}, {row['detail']}")
        self.save()

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

    def headlines(self) -> list[str]:
        """What the part has to say in the end."""
        lines: list[str] = self._page().headlines(self.data)
        return lines

    def _page(self) -> Any:
        name = "kernels_page" if self.data["part"] == "kernels" else "models_page"
        return importlib.import_module(f"tests.tools.gpu.{name}")


def facts(device: str) -> dict[str, Any]:
    """When, where and with what, for the head of every result."""
    found = gpus() if device == "cuda" else ()
    host = machine()
    here = "no GPU" if device == "cpu" else "unknown"
    return {
        "date": date(),
        "device": ", ".join(dict.fromkeys(gpu.name for gpu in found)) or here,
        "driver": found[0].driver if found else here,
        "host": f"{host['cpu']}, {host['cores']} cores, {host['memory_gib']} GiB,"
        f" {host['system']}, Python {host['python']}",
        "load_before": os.getloadavg()[0],
        "versions": versions_of(("rmsnorm-export", "torch", "onnx", "onnx-ir")),
    }
