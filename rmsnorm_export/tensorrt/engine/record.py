"""The record of a build that went well, made of everything that is known about it."""

from __future__ import annotations

import dataclasses
import datetime
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from rmsnorm_export.printable import one_line
from rmsnorm_export.system.digest import sha256_of
from rmsnorm_export.system.packages import versions_of
from rmsnorm_export.system.process import Ended
from rmsnorm_export.tensorrt.engine.backends import BackendInfo, gpus
from rmsnorm_export.tensorrt.engine.layers import by_profile, layers_from_inspector, layers_from_log
from rmsnorm_export.tensorrt.engine.model import EngineModel
from rmsnorm_export.tensorrt.engine.options import BuildOptions
from rmsnorm_export.tensorrt.engine.plugins import PluginPlan
from rmsnorm_export.tensorrt.engine.result import (
    EngineLayer,
    EngineProfile,
    EngineRecord,
    LayersFrom,
    Message,
    MessageKind,
    PluginState,
    Stage,
)
from rmsnorm_export.tensorrt.engine.sites import find_norms

_RECORDED_PACKAGES = ("rmsnorm-export", "onnx", "onnx-ir")

_MESSAGE_KINDS: tuple[tuple[MessageKind, re.Pattern[str]], ...] = (
    ("half-norm", re.compile(r"layernorm (nodes|after self-attention).*(FP16|BF16)", re.I | re.S)),
    ("index-type", re.compile(r"has Int64 binding", re.I)),
    ("function-names", re.compile(r"A node named .* already exists", re.S)),
)
_MESSAGE_PLACE = re.compile(r"^[\w.]+\.[ch]pp:\d+: ")
"""Source file and line in front of a message."""

MESSAGE_LIMIT = 50
"""Different other messages that are kept."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Build:
    """A build that is over.

    Attributes:
        info, why: the backend, and why that one.
        model: what was built.
        profiles, plan, options: how.
        cache: the timing cache that was asked for.
        ended: what the process told.
        seconds: that it took.
    """

    info: BackendInfo
    why: str
    model: EngineModel
    profiles: tuple[EngineProfile, ...]
    plan: PluginPlan
    options: BuildOptions
    cache: Path | None
    ended: Ended
    seconds: float


def make_record(build: Build, name: str, engine: Path) -> EngineRecord:
    """The record of an engine.

    Args:
        build: how it was made.
        name: that it will have.
        engine: where it is now.
    """
    layers, layers_from = layers_of(build.ended)
    layers = by_profile(layers, len(build.profiles))
    version = build.ended.first("version") or {}
    options, library = build.options, build.plan.library
    return EngineRecord(
        engine=name,
        bytes=engine.stat().st_size,
        sha256=sha256_of(engine),
        model=build.model.identity,
        backend=build.info.name,
        version=str(version.get("version", "")),
        versions=versions_of(_RECORDED_PACKAGES)
        | {"python": platform.python_version()}
        | {"polygraphy": str(version.get("polygraphy", ""))},
        platform=f"{platform.system()} {platform.machine()}",
        gpus=gpus(),
        built=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        seconds=round(build.seconds, 3),
        profiles=build.profiles,
        flags=options.flags(),
        plugin=PluginState(
            options.plugin,
            "" if library is None else library.name,
            "" if library is None else sha256_of(library),
            options.embed_plugin and library is not None,
            build.plan.reason,
        ),
        norms=find_norms(build.model.sites, layers),
        layers=layers,
        layers_from=layers_from,
        messages=collect_messages(
            (event["stage"], event["text"])
            for event in build.ended.all("message")
            if event["severity"] == "warning"
        ),
        notes=tuple(_record_notes(build, layers_from)),
    )


def layers_of(ended: Ended) -> tuple[tuple[EngineLayer, ...], LayersFrom]:
    """The layers: the inspector's where it told more than names."""
    for event in ended.all("layers"):
        if event["source"] == "inspector":
            layers = layers_from_inspector(event["text"])
            if any(layer.nodes for layer in layers):
                return layers, "inspector"
        else:
            layers = layers_from_log(event["text"])
            if layers:
                return layers, "builder log"
    return (), "none"


def _record_notes(build: Build, layers_from: LayersFrom) -> list[str]:
    info, cache = build.info, build.cache
    notes = [f"backend {info.name}: {build.why}", *build.model.notes, *build.options.notes(info)]
    if cache is not None and not info.timing_cache:
        notes.append(f"{info.label} has no timing cache: {cache.name} was not touched")
    notes += [f"timing cache: {event['text']}" for event in build.ended.all("timing-cache")]
    if layers_from == "builder log":
        notes.append("the layers are those that the builder logged; no engine was loaded")
    return notes


def collect_messages(warnings: Iterable[tuple[Stage, str]]) -> tuple[Message, ...]:
    """Warnings of one kind once, with their number.

    Args:
        warnings: stage (``parse`` or ``build``) and text of each, in order.
    """
    groups: dict[tuple[str, str, str], Message] = {}
    for stage, text in warnings:
        text = one_line(_MESSAGE_PLACE.sub("", text.strip()), 600)
        kind = message_kind(text)
        key = (stage, kind, text if kind == "other" else "")
        known = groups.get(key)
        if known is None and len(groups) >= MESSAGE_LIMIT:
            continue
        first, count = (text, 0) if known is None else (known.text, known.count)
        groups[key] = Message(stage, kind, first, count + 1)
    return tuple(groups.values())


def message_kind(text: str) -> MessageKind:
    """What a warning is about."""
    return next((kind for kind, pattern in _MESSAGE_KINDS if pattern.search(text)), "other")
