"""Steps in a fresh Python with a genuine TensorRT: ``registry_process.py <flavour> <step>...``.

A process of its own, because a registry is global to the process, and the ONNX parser of
TensorRT-RTX aborts after it has created a plugin. Steps, in order:

    load=<library>      IPluginRegistry.load_library
    dlopen=<library>    ctypes.CDLL
    import=<module>     another flavour of TensorRT
    create              every creator of the namespace makes a plugin, and refuses a bad one
    create_in=<module>  the same in the registry of another flavour
    parse=<model>       the ONNX parser, in a strongly typed network
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from typing import Any

from rmsnorm_export.op.spec import PLUGIN_NAMESPACE, PLUGIN_VERSION, NormSpec
from rmsnorm_export.tensorrt.plugin.probe import create_plugin


def say(*words: object) -> None:
    print(*words, flush=True)


def logger(trt: Any) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: object, message: str) -> None:
            say(severity, message)

    return Logger()


def create(trt: Any) -> None:
    registry = trt.get_plugin_registry()
    ours = [c for c in registry.all_creators if c.plugin_namespace == PLUGIN_NAMESPACE]
    say("creators", len(ours))
    for creator in ours:
        assert registry.get_creator(creator.name, PLUGIN_VERSION, PLUGIN_NAMESPACE) is not None
        assert registry.get_creator(creator.name, PLUGIN_VERSION, "") is None
        kind = creator.name.removeprefix("Quantized").split("_")[0]
        values = NormSpec(kind=kind).attributes()
        if creator.name.startswith("Quantized"):
            values["quantize"] = "int8_per_row"
        plugin = create_plugin(trt, creator, values)
        core = plugin.get_capability_interface(trt.PluginCapabilityType.CORE)
        assert core.plugin_name == creator.name
        assert create_plugin(trt, creator, values | {"epsilon": -1.0}) is None
        say("created", creator.name)


def parse(trt: Any, path: str, log: Any) -> None:
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    with open(path, "rb") as model:
        say("parsed", parser.parse(model.read()))
    say("layers", network.num_layers)


def main(flavour: str, *steps: str) -> None:
    trt = importlib.import_module(flavour)
    registry = trt.get_plugin_registry()
    log = logger(trt)
    # The logger that plugins are given is that of the first builder.
    keep = trt.Builder(log) if hasattr(trt, "Builder") else None
    libraries = []
    for step in steps:
        action, _, argument = step.partition("=")
        if action == "load":
            say("loaded", registry.load_library(argument) is not None)
        elif action == "dlopen":
            libraries.append(ctypes.CDLL(argument))
        elif action == "import":
            importlib.import_module(argument)
        elif action == "create":
            create(trt)
        elif action == "create_in":
            create(importlib.import_module(argument))
        else:
            parse(trt, argument, log)
    say("end", keep is not None)


if __name__ == "__main__":
    main(*sys.argv[1:])
