"""TensorRT's plugin classes, called through their binary interface, without TensorRT.

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

from rmsnorm_export.tensorrt.plugin.fields import Field

_INFO, _DELETE = 1, 3
_CREATE, _FIELD_NAMES, _NAME, _VERSION, _NAMESPACE = 4, 5, 6, 7, 8  # IPluginCreatorV3One
_CAPABILITY, _CLONE = 4, 5  # IPluginV3
_OUTPUTS, _TIMING_ID = 8, 12  # IPluginV3OneBuild: getNbOutputs, getTimingCacheID
_ATTACH, _SERIALIZE = 7, 8  # IPluginV3OneRuntime
_BUILD_CAPABILITY, _RUNTIME_CAPABILITY = 1, 2  # PluginCapabilityType
BUILD, RUNTIME = 0, 1
"""TensorRTPhase."""

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


def _text(this: int, slot: int) -> str:
    return (_call(this, slot, _TEXT) or b"").decode("utf-8", "replace")


class Creator:
    """An ``IPluginCreatorV3One``."""

    def __init__(self, this: int) -> None:
        self._this = this
        self.kind = (_call(this, _INFO, _Info).kind or b"").decode("utf-8", "replace")
        if self.kind != CREATOR_KIND:
            return
        self.name = _text(this, _NAME)
        self.version = _text(this, _VERSION)
        self.namespace = _text(this, _NAMESPACE)
        self.fields = tuple(name for name, _, _ in _read(_call(this, _FIELD_NAMES, _COLLECTION)))

    def create(self, fields: Sequence[Field], phase: int) -> Plugin | None:
        """The plugin with these fields; None when the creator refuses them."""
        keep = [_buffer(field) for field in fields]
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


def _buffer(field: Field) -> ctypes.Array[ctypes.c_char]:
    """The field's bytes in memory that C++ may read as its type."""
    return ctypes.create_string_buffer(field.data, max(len(field.data), 8))


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
        return _text(self._as(_BUILD_CAPABILITY), _TIMING_ID)

    def serialized(self) -> tuple[Field, ...]:
        """``getFieldsToSerialize``, copied."""
        fields = _call(self._as(_RUNTIME_CAPABILITY), _SERIALIZE, _COLLECTION)
        return tuple(Field(name, kind, data) for name, kind, data in _read(fields, values=True))

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


def _read(collection: Any, *, values: bool = False) -> list[tuple[str, int, bytes]]:
    """Name, type and bytes of every field; no bytes are read where only names are asked for."""
    if not collection:
        return []
    found = []
    for i in range(collection.contents.count):
        field = collection.contents.fields[i]
        size = Field.SIZES.get(field.type, 0) * field.length if values and field.data else 0
        data = ctypes.string_at(field.data, size) if size else b""
        found.append(((field.name or b"").decode("utf-8", "replace"), field.type, data))
    return found


def creators(library: ctypes.CDLL) -> list[Creator]:
    """The creators that a library of the style ``load_library`` hands out."""
    function = library.getCreators
    function.restype = ctypes.POINTER(_POINTER)
    function.argtypes = (ctypes.POINTER(_INT),)
    count = _INT(0)
    pointers = function(ctypes.byref(count))
    return [Creator(int(pointers[i] or 0)) for i in range(count.value)]
