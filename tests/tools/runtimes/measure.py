"""Runs files in a runtime of the catalogue: a child for each, its answers as records."""

from __future__ import annotations

import dataclasses
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.system.process import end_group
from tests.tools.runtimes.catalogue import Installable

_HERE = pathlib.Path(__file__).parent
_SECONDS = 300
SAVED = ".optimized"
"""What ``child.py`` writes behind the name of a file for ONNX Runtime's optimized model."""
_GRAPHICS = {
    "wasm": ("--disable-gpu",),
    # A GPU in software: it has float32 alone.
    "webgpu": ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader",
               "--enable-features=Vulkan", "--use-vulkan=swiftshader"),
}  # fmt: skip
_PAGE = """<!doctype html><script type="module">
import * as ort from "/npm/node_modules/onnxruntime-web/dist/ort.PROVIDER.min.mjs";
import { runAll } from "/child.mjs";
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = "/npm/node_modules/onnxruntime-web/dist/";
const send = (path, body) => fetch(path, { method: "POST", body: JSON.stringify(body) });
const read = async (path) => (await fetch("/file" + path)).arrayBuffer();
const request = await (await fetch("/request")).json();
try { await runAll(ort, request, read, (answer) => send("/answer", answer)); }
finally { await send("/end", {}); }
</script>"""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a runtime did with one file.

    Attributes:
        error: what it said; "" when it ran.
        off: of every run the largest distance from the expected output.
        norms: norms that are one node, or one kernel, after its optimizations; None: not known.
    """

    error: str
    off: tuple[float, ...]
    norms: int | None = None


def run_files(
    runtime: Installable,
    files: Mapping[str, tuple[pathlib.Path, Array]],
    x: Array,
    *,
    sessions: int = 1,
    runs: int = 2,
) -> dict[str, Outcome]:
    """Run each file on ``x``, ``runs`` times in each of ``sessions`` sessions.

    Args:
        runtime: it must be installed.
        files: label -> file with the input ``input`` and the output ``output``, and what that is.
        x: float32.

    Returns:
        For each label; where the process died, its end is the error.
    """
    labels = {str(path): label for label, (path, _) in files.items()}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        request: dict[str, Any] = {"input": str(folder / "x"), "shape": list(x.shape), "runs": runs}
        request["models"] = []
        x.astype(np.float32).tofile(folder / "x")
        for number, (path, expected) in enumerate(files.values()):
            expected.astype(np.float32).tofile(folder / str(number))
            request["models"].append(
                {"model": str(path), "expected": str(folder / str(number)), "sessions": sessions}
            )
        answers: dict[str, Outcome] = {}
        while request["models"]:
            end = ""
            if runtime.kind in ("web", "webgpu"):
                lines = _in_browser(runtime, request)
            else:
                lines, end = _in_child(runtime, request)
            answers |= {
                answer["model"]: Outcome(
                    answer["error"],
                    tuple(answer["off"]),
                    answer.get("norms", _norms_left(pathlib.Path(answer["model"] + SAVED))),
                )
                for answer in lines
            }
            left = [m for m in request["models"] if m["model"] not in answers]
            if left:  # one that ends the process has no answer; the others get another process
                answers[left[0]["model"]] = Outcome(end or "no answer", ())
            request["models"] = left[1:]
    return {labels[path]: outcome for path, outcome in answers.items()}


def _norms_left(path: pathlib.Path) -> int | None:
    """Norm nodes in what ONNX Runtime saved after its optimizations."""
    if not path.exists():
        return None
    ends = ("SimplifiedLayerNormalization", "RMSNormalization")
    count = sum(node.op_type.endswith(ends) for node in onnx.load(path).graph.node)
    path.unlink()
    return count


def _in_child(runtime: Installable, request: Mapping[str, object]) -> tuple[list[Any], str]:
    command = [sys.executable, str(_HERE / "child.py"), runtime.kind]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if runtime.packages:
        environment["PYTHONPATH"] = str(runtime.folder)
    cwd = None
    if runtime.kind == "node":
        command, cwd = ["node", str(_HERE / "child.mjs")], runtime.folder
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            input=json.dumps(request) + "\n",
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [], f"no answer in {_SECONDS} s"
    said = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return answers, f"the process ended with {done.returncode}: {said[:300]}"


def _in_browser(runtime: Installable, request: Mapping[str, Any]) -> list[Any]:
    """A page that a headless browser opens, served from here; its answers come back by POST."""
    answers: list[Any] = []
    provider = "wasm" if runtime.kind == "web" else runtime.kind
    request = {**request, "options": {"executionProviders": [provider]}}
    over = threading.Event()
    named = {str(request["input"])}
    named |= {str(model[key]) for model in request["models"] for key in ("model", "expected")}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, body = "application/octet-stream", b""
            if self.path == "/":
                kind, body = "text/html", _PAGE.replace("PROVIDER", provider).encode()
            elif self.path == "/request":
                kind, body = "application/json", json.dumps(request).encode()
            elif self.path == "/child.mjs":
                kind, body = "text/javascript", (_HERE / "child.mjs").read_bytes()
            elif self.path.startswith("/npm/") and ".." not in self.path:
                path = runtime.folder / self.path.removeprefix("/npm/")
                kind = "application/wasm" if path.suffix == ".wasm" else "text/javascript"
                body = path.read_bytes() if path.is_file() else b""
            elif self.path.removeprefix("/file") in named:
                body = pathlib.Path(self.path.removeprefix("/file")).read_bytes()
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/answer":
                answers.append(content)
            self.send_response(204)
            self.end_headers()
            if self.path == "/end":
                over.set()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server,
        tempfile.TemporaryDirectory() as profile,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = ["chromium", "--headless", "--no-sandbox", *_GRAPHICS[provider]]
        command += [f"--user-data-dir={profile}", f"http://127.0.0.1:{server.server_port}/"]
        browser = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            over.wait(_SECONDS)
        finally:
            end_group(browser)
            server.shutdown()
    return answers
