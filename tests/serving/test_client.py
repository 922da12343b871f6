"""The client of a card asks the packaged model, behind a server that speaks KServe's protocol 2."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from rmsnorm_export.serving.package import package_model

from .models import decoder_model, needs_triton, norm_model

pytestmark = needs_triton
TYPES = {"FP32": np.float32, "INT64": np.int64, "INT32": np.int32, "FP16": np.float16}


class _Model(BaseHTTPRequestHandler):
    """One model: requests in JSON with binary tensors behind it, answers in JSON."""

    session: onnxruntime.InferenceSession
    name: str

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        size = int(self.headers.get("Inference-Header-Content-Length", len(body)))
        request, data, feeds = json.loads(body[:size]), body[size:], {}
        assert self.path == f"/v2/models/{self.name}/infer"
        for tensor in request["inputs"]:
            count = tensor["parameters"]["binary_data_size"]
            values = np.frombuffer(data[:count], TYPES[tensor["datatype"]])
            feeds[tensor["name"]], data = values.reshape(tensor["shape"]), data[count:]
        names = [value.name for value in self.session.get_outputs()]
        answers = zip(names, self.session.run(None, feeds), strict=True)
        outputs = [
            {"name": n, "datatype": "FP32", "shape": a.shape, "data": a.reshape(-1).tolist()}
            for n, a in answers
        ]
        answer = json.dumps({"model_name": self.name, "outputs": outputs}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def serve() -> Iterator[object]:
    servers = []

    def start(model: Path, name: str) -> int:
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        handler = type("Handler", (_Model,), {"session": session, "name": name})
        servers.append(HTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1].server_port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("proto", "shape"), [(norm_model, "(1, 40)"), (decoder_model, "(1, 1, 40)")]
)
def test_the_client_of_the_card_gets_an_answer(proto, shape, tmp_path: Path, serve) -> None:
    pytest.importorskip("geventhttpclient", reason="pip install 'tritonclient[http]'")
    onnx.save(proto(), tmp_path / "m.onnx")
    sizes = {"x": [(2, 40)]} if proto is norm_model else {"ids": [(2, 3)]}
    packaged = package_model(tmp_path / "m.onnx", tmp_path / "models", name="m", shapes=sizes)
    card = (packaged.path / "README.md").read_text()
    assert str(tmp_path) not in card
    (client,) = re.findall(r"^```python\n(.*?)^```$", card, re.M | re.S)
    port = serve(packaged.path / "1" / "model.onnx", "m")
    assert "localhost:8000" in client
    done = subprocess.run(
        [sys.executable, "-c", client.replace("localhost:8000", f"127.0.0.1:{port}")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(shape)


def test_the_card_has_the_line_that_starts_the_server(tmp_path: Path) -> None:
    onnx.save(norm_model(), tmp_path / "m.onnx")
    for kind, gpus in (("gpu", True), ("cpu", False)):
        packaged = package_model(
            tmp_path / "m.onnx", tmp_path / kind, name="m", shapes={"x": [(2, 40)]}, kind=kind
        )
        card = (packaged.path / "README.md").read_text()
        (line,) = re.findall(r"^docker run .*$", card, re.M)
        words = shlex.split(line)
        assert ("--gpus" in words) == gpus
        assert words[-2:] == ["tritonserver", "--model-repository=/models"]
        assert "$PWD:/models:ro" in words[words.index("-v") + 1]
