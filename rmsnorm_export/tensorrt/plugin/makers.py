"""Making plugins with a creator, in the two ways that ``probe`` has: the Python bindings of a
TensorRT runtime, and the binary interface.
"""

from __future__ import annotations

from typing import Any

from rmsnorm_export.tensorrt.plugin import interface
from rmsnorm_export.tensorrt.plugin.fields import CHAR, FLOAT32, INT32, Field


class FailedCheckError(Exception):
    """A check that did not go as it should; the message says why."""


class BoundCreator:
    """A creator, and the plugins it makes, through TensorRT's Python bindings."""

    def __init__(self, trt: Any, registry: Any, creator: Any) -> None:
        self._trt = trt
        self.name, self.version = creator.name, creator.plugin_version
        self.namespace = creator.plugin_namespace
        self.fields = tuple(given.name for given in creator.field_names)
        self._creator = registry.get_creator(self.name, self.version, self.namespace)

    def create(self, fields: list[Field]) -> Any:
        """The plugin, None when it is refused."""
        import numpy as np

        trt = self._trt
        if self._creator is None:
            raise FailedCheckError(
                f"get_creator finds no {self.name} in namespace {self.namespace}"
            )
        dtypes = {FLOAT32: np.float32, INT32: np.int32, CHAR: np.int8}
        collection = trt.PluginFieldCollection(
            [
                trt.PluginField(
                    given.name,
                    np.frombuffer(given.data, dtypes[given.type]),
                    trt.PluginFieldType(given.type),
                )
                for given in fields
            ]
        )
        return self._creator.create_plugin("check", collection, trt.TensorRTPhase.BUILD)

    def outputs(self, fields: list[Field]) -> int:
        """``num_outputs`` of the plugin with these fields; its names are compared on the way."""
        plugin = self.create(fields)
        if plugin is None:
            raise FailedCheckError("the creator refused it")
        capability = self._trt.PluginCapabilityType
        core = plugin.get_capability_interface(capability.CORE)
        names = (core.plugin_name, core.plugin_version, core.plugin_namespace)
        if names != (self.name, self.version, self.namespace):
            raise FailedCheckError(f"the plugin says that it is {names}")
        return int(plugin.get_capability_interface(capability.BUILD).num_outputs)


class DirectCreator:
    """The same through the binary interface, and what the bindings cannot do."""

    def __init__(self, creator: interface.Creator) -> None:
        self._creator = creator

    def create(self, fields: list[Field]) -> interface.Plugin | None:
        """The plugin, None when it is refused."""
        return self._creator.create(fields, interface.BUILD)

    def outputs(self, fields: list[Field]) -> int:
        """The same, after a round trip through the engine's form, a clone and an attached copy."""
        plugin = self.create(fields)
        if plugin is None:
            raise FailedCheckError("the creator refused it")
        saved = plugin.serialized()
        if not saved:
            raise FailedCheckError("it serialises nothing")
        if not plugin.timing_cache_id():
            raise FailedCheckError("it has no timing cache id")
        restored = self._creator.create(saved, interface.RUNTIME)
        copies = {"plugin of its own fields": restored}
        copies |= {"clone": plugin.clone(), "attached copy": plugin.attached()}
        outputs = plugin.outputs()
        plugin.delete()
        for name, copy in copies.items():  # the original is gone: nothing may point into it
            if copy is None:
                raise FailedCheckError(f"there is no {name}")
            if copy.serialized() != saved:
                raise FailedCheckError(f"the {name} serialises other fields than the original")
            copy.delete()
        given = {field.name: field.data for field in fields}
        for field in saved:
            if field.name in given and given[field.name] != field.data:
                raise FailedCheckError(
                    f"{field.name} was given as {given[field.name]!r}, kept {field.data!r}"
                )
        return outputs
