"""Plugin creators, in the two ways that ``probe`` uses them: through the Python bindings of a
TensorRT runtime, and through the library's own self-test, without TensorRT.

The bindings cannot serialise a plugin that is written in C++; the self-test can, see
plugins/tensorrt/self_test.cpp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from rmsnorm_export.tensorrt.plugin.fields import CHAR, FLOAT32, INT32, Field

CREATOR_KIND = "PLUGIN CREATOR_V3ONE"
"""What getInterfaceInfo says of a creator; anything else is not called further."""


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

    def accepts(self, fields: Sequence[Field]) -> bool:
        """Whether it makes a plugin of these fields; an exception of the bindings refuses, too."""
        try:
            return self._create(fields) is not None
        except (RuntimeError, ValueError, TypeError):
            return False

    def _create(self, fields: Sequence[Field]) -> Any:
        import numpy as np

        trt = self._trt
        if self._creator is None:
            raise FailedCheckError(
                f"get_creator finds no {self.name} in namespace {self.namespace}"
            )
        dtypes = {FLOAT32: np.float32, INT32: np.int32, CHAR: np.int8}
        made = []
        for given in fields:
            data = np.frombuffer(given.data, dtypes[given.type])
            made.append(trt.PluginField(given.name, data, trt.PluginFieldType(given.type)))
        collection = trt.PluginFieldCollection(made)
        return self._creator.create_plugin("check", collection, trt.TensorRTPhase.BUILD)

    def outputs(self, fields: Sequence[Field]) -> int:
        """``num_outputs`` of the plugin with these fields; its names are compared on the way."""
        plugin = self._create(fields)
        if plugin is None:
            raise FailedCheckError("the creator refused it")
        capability = self._trt.PluginCapabilityType
        core = plugin.get_capability_interface(capability.CORE)
        names = (core.plugin_name, core.plugin_version, core.plugin_namespace)
        if names != (self.name, self.version, self.namespace):
            raise FailedCheckError(f"the plugin says that it is {names}")
        return int(plugin.get_capability_interface(capability.BUILD).num_outputs)


class _PluginField(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("length", ctypes.c_int32),
    )


class TestedCreator:
    """A creator, and the plugins it makes, through the self-test of its library."""

    def __init__(self, library: ctypes.CDLL, place: int, name: str, *more: str) -> None:
        self._library, self._place = library, place
        self.name, (self.version, self.namespace, *fields) = name, more
        self.fields = tuple(fields)

    def accepts(self, fields: Sequence[Field]) -> bool:
        """Whether it makes a plugin of these fields."""
        return self._tried(fields)[0] >= 0

    def outputs(self, fields: Sequence[Field]) -> int:
        """``getNbOutputs``, after a round trip through the engine's form, a clone and an attached
        copy."""
        outputs, problem = self._tried(fields)
        if outputs < 0 or problem:
            raise FailedCheckError(problem or "the creator refused it")
        return outputs

    def _tried(self, fields: Sequence[Field]) -> tuple[int, str]:
        # C++ may read the bytes as the field's type.
        keep = [ctypes.create_string_buffer(f.data, max(len(f.data), 8)) for f in fields]
        array = (_PluginField * len(fields))(
            *(
                _PluginField(field.name.encode(), ctypes.addressof(data), field.type, field.length)
                for field, data in zip(fields, keep, strict=True)
            )
        )
        problem = ctypes.c_char_p()
        outputs = self._library.rmsnormSelfTest(
            self._place, array, len(fields), ctypes.byref(problem)
        )
        return outputs, (problem.value or b"").decode("utf-8", "replace")


Creator = BoundCreator | TestedCreator


def has_self_test(library: ctypes.CDLL) -> bool:
    """Whether the library can be tried without TensorRT; one of another maker cannot."""
    return hasattr(library, "rmsnormSelfTest") and hasattr(library, "rmsnormSelfTestCreators")


def tested_creators(library: ctypes.CDLL) -> list[TestedCreator]:
    """The creators that a library with a self-test hands out.

    Raises:
        FailedCheckError: something else is among them.
    """
    function = library.rmsnormSelfTestCreators
    function.restype = ctypes.c_char_p
    rows = [line.split("\t") for line in function().decode("utf-8", "replace").splitlines()]
    if wrong := [kind for kind, *_ in rows if kind != CREATOR_KIND]:
        raise FailedCheckError(f"getCreators gives out {wrong}, expected {CREATOR_KIND}")
    return [TestedCreator(library, place, *row[1:]) for place, row in enumerate(rows)]
