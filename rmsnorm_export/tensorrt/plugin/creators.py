"""Plugin creators, in the two ways that ``probe`` uses them: through the Python bindings of a
TensorRT runtime, and through TensorRT's binary interface, without TensorRT.

A plugin library gives out pointers to C++ objects whose virtual functions stand in the order of
TensorRT's headers, which is the same for these classes in 10.8 to 11.1: ``getAPILanguage``,
``getInterfaceInfo``, two destructors (Itanium C++ ABI), then the functions of the class. Python's
bindings cannot serialise a plugin that is written in C++; this can. A library with another order
may end the process, so it runs in one of its own.

Source: NvInferRuntime.h, NvInferPluginBase.h and NvInferRuntimePlugin.h of TensorRT 10.8 to 11.1.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from rmsnorm_export.tensorrt.plugin.fields import CHAR, FLOAT32, INT32, Field

_INFO, _DELETE = 1, 3
_CREATE, _FIELD_NAMES, _NAME, _VERSION, _NAMESPACE = 4, 5, 6, 7, 8  # IPluginCreatorV3One
_CAPABILITY, _CLONE = 4, 5  # IPluginV3
_OUTPUTS, _TIMING_ID = 8, 12  # IPluginV3OneBuild: getNbOutputs, getTimingCacheID
_ATTACH, _SERIALIZE = 7, 8  # IPluginV3OneRuntime
_BUILD_CAPABILITY, _RUNTIME_CAPABILITY = 1, 2  # PluginCapabilityType
_BUILD_PHASE, _RUNTIME_PHASE = 0, 1  # TensorRTPhase

CREATOR_KIND = "PLUGIN CREATOR_V3ONE"
"""What getInterfaceInfo says of a creator; anything else is not called further."""


class _Info(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_char_p), ("major", ctypes.c_int32), ("minor", ctypes.c_int32))


class _PluginField(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("length", ctypes.c_int32),
    )


class _Collection(ctypes.Structure):
    _fields_ = (("count", ctypes.c_int32), ("fields", ctypes.POINTER(_PluginField)))


_POINTER, _INT, _TEXT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p
_COLLECTION = ctypes.POINTER(_Collection)


def _call(this: int, slot: int, result: Any, *arguments: tuple[Any, Any]) -> Any:
    """The virtual function in ``slot`` of the object at ``this``."""
    table = ctypes.cast(this, ctypes.POINTER(ctypes.POINTER(_POINTER)))[0]
    types = [kind for kind, _ in arguments]
    function = ctypes.CFUNCTYPE(result, _POINTER, *types)(table[slot])
    return function(this, *(value for _, value in arguments))


def _decoded(text: bytes | None) -> str:
    return (text or b"").decode("utf-8", "replace")


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
        made = []
        for given in fields:
            data = np.frombuffer(given.data, dtypes[given.type])
            made.append(trt.PluginField(given.name, data, trt.PluginFieldType(given.type)))
        collection = trt.PluginFieldCollection(made)
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
    """An ``IPluginCreatorV3One`` through the binary interface."""

    def __init__(self, this: int) -> None:
        self._this = this
        self.kind = _decoded(_call(this, _INFO, _Info).kind)
        if self.kind != CREATOR_KIND:
            return
        self.name = _decoded(_call(this, _NAME, _TEXT))
        self.version = _decoded(_call(this, _VERSION, _TEXT))
        self.namespace = _decoded(_call(this, _NAMESPACE, _TEXT))
        names = _read_fields(_call(this, _FIELD_NAMES, _COLLECTION), values=False)
        self.fields = tuple(field.name for field in names)

    def create(self, fields: Sequence[Field], phase: int = _BUILD_PHASE) -> Plugin | None:
        """The plugin with these fields; None when the creator refuses them."""
        # C++ may read the bytes as the field's type.
        keep = [ctypes.create_string_buffer(f.data, max(len(f.data), 8)) for f in fields]
        array = (_PluginField * len(fields))(
            *(
                _PluginField(field.name.encode(), ctypes.addressof(data), field.type, field.length)
                for field, data in zip(fields, keep, strict=True)
            )
        )
        collection = _Collection(len(fields), array)
        this = _call(
            self._this,
            _CREATE,
            _POINTER,
            (_TEXT, b"check"),
            (_POINTER, ctypes.addressof(collection)),
            (_INT, phase),
        )
        return None if not this else Plugin(this)

    def outputs(self, fields: list[Field]) -> int:
        """``getNbOutputs``, after a round trip through the engine's form, a clone and an attached
        copy."""
        plugin = self.create(fields)
        if plugin is None:
            raise FailedCheckError("the creator refused it")
        saved = plugin.serialized()
        if not saved:
            raise FailedCheckError("it serialises nothing")
        if not plugin.timing_cache_id():
            raise FailedCheckError("it has no timing cache id")
        copies = {
            "plugin of its own fields": self.create(saved, _RUNTIME_PHASE),
            "clone": plugin.clone(),
            "attached copy": plugin.attached(),
        }
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


class Plugin:
    """An ``IPluginV3``; ``delete`` it when done."""

    def __init__(self, this: int) -> None:
        self._this = this

    def _as(self, capability: int) -> int:
        this = _call(self._this, _CAPABILITY, _POINTER, (_INT, capability))
        if not this:
            raise ValueError(f"the plugin has no capability {capability}")
        return int(this)

    def outputs(self) -> int:
        """``getNbOutputs``."""
        return int(_call(self._as(_BUILD_CAPABILITY), _OUTPUTS, _INT))

    def timing_cache_id(self) -> str:
        """``getTimingCacheID``; "" turns the timing cache off."""
        return _decoded(_call(self._as(_BUILD_CAPABILITY), _TIMING_ID, _TEXT))

    def serialized(self) -> tuple[Field, ...]:
        """``getFieldsToSerialize``, copied."""
        fields = _call(self._as(_RUNTIME_CAPABILITY), _SERIALIZE, _COLLECTION)
        return _read_fields(fields, values=True)

    def clone(self) -> Plugin | None:
        """``clone``."""
        this = _call(self._this, _CLONE, _POINTER)
        return Plugin(this) if this else None

    def attached(self) -> Plugin | None:
        """``attachToContext``, without a context."""
        this = _call(self._as(_RUNTIME_CAPABILITY), _ATTACH, _POINTER, (_POINTER, None))
        return Plugin(this) if this else None

    def delete(self) -> None:
        """Call its deleting destructor."""
        _call(self._this, _DELETE, None)


def _read_fields(collection: Any, *, values: bool) -> tuple[Field, ...]:
    """The fields, copied; no bytes are read where only names are asked for."""
    if not collection:
        return ()
    copies = []
    for i in range(collection.contents.count):
        field = collection.contents.fields[i]
        size = Field.SIZES.get(field.type, 0) * field.length if values and field.data else 0
        data = ctypes.string_at(field.data, size) if size else b""
        copies.append(Field(_decoded(field.name), field.type, data))
    return tuple(copies)


Creator = BoundCreator | DirectCreator


def direct_creators(library: ctypes.CDLL) -> list[DirectCreator]:
    """The creators that a library of the style ``load_library`` hands out."""
    function = library.getCreators
    function.restype = ctypes.POINTER(_POINTER)
    function.argtypes = (ctypes.POINTER(_INT),)
    count = _INT(0)
    pointers = function(ctypes.byref(count))
    return [DirectCreator(int(pointers[i] or 0)) for i in range(count.value)]
