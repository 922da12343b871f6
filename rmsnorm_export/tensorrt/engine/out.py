"""What the process of a backend tells its caller: one JSON object a line."""

from __future__ import annotations

import json
import threading
from typing import TextIO


class Out:
    """Writes events, from any thread."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def say(self, event: str, **values: object) -> None:
        """Write one event at once."""
        line = json.dumps({"event": event} | values)
        with self._lock:
            print(line, file=self._file, flush=True)
