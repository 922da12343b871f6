"""Steps in a fresh Python with a genuine TensorRT: ``registry_process.py <flavour> <step>...``.

A process of its own, because a registry is global to the process, and the ONNX parser of
TensorRT-RTX aborts after it has created a plugin. Steps, in order:

    load=<library>      IPluginRegistry.load_library
    dlopen=<library>    ctypes.CDLL
    create=<module>     every creator of our namespace in that flavour makes a plugin, and refuses
                        a bad one
    import=<module>     another flavour of TensorRT
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


def create(trt: Any) -> None:
    registry = trt.get_plugin_registry()
    ours = [c for c in registry.all_creators if c.plugin_namespace == PLUGIN_NAMESPACE]
    say("creators", len(ours))
    for creator in ours:
        assert registry.get_creator(creator.name, PLUGIN_VERSION, PLUGIN_NAMESPACE) is not None
        assert registry.get_creator(creator.name, PLUGIN_VERSION, "") is None
        values = NormSpec(kind=creator.name.removeprefix("Quantized").split("_")[0]).attributes()
        if creator.name.startswith("Quantized"):
            values["quantize"] = "int8_per_row"
        plugin = create_plugin(trt, creator, values)
        core = plugin.get_capability_interface(trt.PluginCapabilityType.CORE)
        assert (core.plugin_name, core.plugin_namespace) == (creator.name, PLUGIN_NAMESPACE)
        assert create_plugin(trt, creator, values | {"epsilon": -1.0}) is None
        say("created", creator.name)


def parse(trt: Any, path: str, log: Any) -> None:
    network = trt.Builder(log).create_network(
        1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    )
    with open(path, "rb") as model:
        say("parsed", trt.OnnxParser(network, log).parse(model.read()))
    say("layers", network.num_layers)


def main(flavour: str, *steps: str) -> None:
    trt = importlib.import_module(flavour)

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: object, message: str) -> None:
            say(severity, message)

    log, libraries = Logger(), []
    # The logger that plugins are given is that of the first builder.
    keep = trt.Builder(log) if hasattr(trt, "Builder") else None
    for step in steps:
        action, _, argument = step.partition("=")
        if action == "load":
            say("loaded", trt.get_plugin_registry().load_library(argument) is not None)
        elif action == "dlopen":
            libraries.append(ctypes.CDLL(argument))
        elif action == "parse":
            parse(trt, argument, log)
        else:
            module = importlib.import_module(argument)
            if action == "create":
                create(module)
    say("end", keep is not None)


if __name__ == "__main__":
    main(*sys.argv[1:])
