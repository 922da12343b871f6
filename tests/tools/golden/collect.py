"""A pytest plugin that writes ``collected.tar.xz``: the small models that tests optimize.

    python -m pytest -n 0 -p tests.tools.golden.collect tests/recognize tests/rewrite tests/lower \
        tests/fuzz/test_fuzz_found.py tests/test_attack_targets.py

Run it again only to add models: those of tests that are gone are gone from the net, too.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

import rmsnorm_export as rx
from tests.tools.golden.models import COLLECTED, without_paths

MOST = 8192
KEPT_OPTIONS = re.compile("fold_(residual|quantize|rotary)")

_found: dict[tuple[bytes, str], str] = {}


def _note(source: Any, options: dict[str, Any]) -> None:
    if isinstance(source, ir.Model):
        source = ir.to_proto(source)
    elif isinstance(source, str | os.PathLike):
        path = Path(source)
        source = path.read_bytes() if path.is_file() and path.stat().st_size < MOST * 8 else b""
    try:
        proto = onnx.load_from_string(source) if isinstance(source, bytes) else source
        data = without_paths(proto if source is not proto else _copy(proto)).SerializeToString(
            deterministic=True
        )
    except Exception:
        return  # no model, which its test is about
    if not 0 < len(data) <= MOST or any(t.external_data for t in proto.graph.initializer):
        return
    kept = {k: v for k, v in options.items() if KEPT_OPTIONS.match(k) and v is not None}
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" ", 1)[0]
    _found.setdefault((data, json.dumps(kept, sort_keys=True)), test)


def _copy(proto: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return copy


def _noting(function: Any) -> Any:
    def call(source: Any, *args: Any, **options: Any) -> Any:
        if not {"runtime", "fusions"} & options.keys():
            _note(source, options)
        return function(source, *args, **options)

    return call


rx.optimize, rx.inspect = _noting(rx.optimize), _noting(rx.inspect)


def pytest_sessionfinish() -> None:
    names: dict[str, int] = {}
    with tarfile.open(COLLECTED, "w:xz", preset=9, format=tarfile.PAX_FORMAT) as archive:
        for (data, options), test in _found.items():
            name = re.sub(r"^tests/(?:\w+/)?test_(\w+)\.py::(?:test_)?", r"\1/", test)
            name = name.encode("ascii", "replace").decode()
            names[name] = names.get(name, 0) + 1
            member = tarfile.TarInfo(name if names[name] == 1 else f"{name} #{names[name]}")
            member.size = len(data)
            member.pax_headers = {"comment": options}
            archive.addfile(member, io.BytesIO(data))
