"""Steps in a fresh Python with a genuine TensorRT: ``registry_process <step>...``.

A process of its own, because a registry is global to the process, and the ONNX parser of
TensorRT-RTX aborts after it has created a plugin. Steps, in order:

    import=<module>     a flavour of TensorRT, that of the steps behind it
    load=<library>      IPluginRegistry.load_library
    dlopen=<library>    ctypes.CDLL
    create=<module>     every creator of our namespace in that flavour makes a plugin, and refuses
                        what is wrong
    parse=<model>       the ONNX parser, in a strongly typed network
    runtime             a TensorRT runtime, and at once the end: without a GPU its own crashes
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from rmsnorm_export.op.spec import PLUGIN_NAMESPACE
from tests.plugins.player import Node


def say(*words: object) -> None:
    print(*words, flush=True)


def create_plugin(trt: Any, creator: Any, values: Mapping[str, Any]) -> Any:
    """Make a plugin as the parser does: INT32 of an int, CHAR with the closing NUL of a string."""
    kinds, fields, arrays = trt.PluginFieldType, [], []  # a field does not keep its array alive
    for name, value in values.items():
        if isinstance(value, str):
            data, kind = np.frombuffer(value.encode() + b"\0", np.int8), kinds.CHAR
        elif isinstance(value, int):
            data, kind = np.array([value], np.int32), kinds.INT32
        else:
            data, kind = np.array([value], np.float32), kinds.FLOAT32
        arrays.append(data)
        fields.append(trt.PluginField(name, data, kind))
    try:
        return creator.create_plugin(
            "check", trt.PluginFieldCollection(fields), trt.TensorRTPhase.BUILD
        )
    except (RuntimeError, ValueError, TypeError):  # a refusal, in some versions of the bindings
        return None


def create(trt: Any) -> None:
    creators = trt.get_plugin_registry().all_creators
    ours = {c.name: c for c in creators if c.plugin_namespace == PLUGIN_NAMESPACE}
    assert len(ours) == sum(c.plugin_namespace == PLUGIN_NAMESPACE for c in creators)
    for name, creator in ours.items():
        values = Node(name).fields
        assert [field.name for field in creator.field_names] == [*values]
        for wrong in ({"epsilon": -1.0}, {"axis": 0}, {"epsilon": 1}, {"of_the_future": 0}):
            assert create_plugin(trt, creator, values | wrong) is None
        plugin = create_plugin(trt, creator, values)
        core = plugin.get_capability_interface(trt.PluginCapabilityType.CORE)
        assert (core.plugin_name, core.plugin_namespace) == (name, PLUGIN_NAMESPACE)
    say("creators", len(ours))


def parse(trt: Any, path: str, log: Any) -> None:
    strong = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = trt.Builder(log).create_network(strong)
    say("parsed", trt.OnnxParser(network, log).parse(pathlib.Path(path).read_bytes()))
    say("layers", network.num_layers)


def logger(trt: Any) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: object, message: str) -> None:
            say(severity, message)

    return Logger()


def main(*steps: str) -> None:
    kept: list[Any] = []
    trt = log = None
    for step in steps:
        action, _, argument = step.partition("=")
        if action == "import":
            trt = importlib.import_module(argument)
            log = logger(trt)
            # The logger that plugins are given is that of the first builder.
            kept += [log, *([trt.Builder(log)] if hasattr(trt, "Builder") else [])]
        elif action == "load":
            trt.get_plugin_registry().load_library(argument)  # none where its creators are there
        elif action == "dlopen":
            kept.append(ctypes.CDLL(argument))
        elif action == "create":
            create(importlib.import_module(argument))
        elif action == "parse":
            parse(trt, argument, log)
        elif action == "runtime":
            kept.append(trt.Runtime(log))
            create(trt)
            os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
