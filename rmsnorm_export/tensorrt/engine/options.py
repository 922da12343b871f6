"""The options of a build: what each comes to on a backend, and which are mistakes."""

from __future__ import annotations

import dataclasses

from rmsnorm_export.errors import UsageError
from rmsnorm_export.tensorrt.engine.backends import BackendInfo
from rmsnorm_export.tensorrt.engine.result import PluginUse


@dataclasses.dataclass(frozen=True, slots=True)
class BuildOptions:
    """See ``build_engine``."""

    plugin: PluginUse = "auto"
    embed_plugin: bool = False
    version_compatible: bool = False
    hardware_compatible: bool = False
    tf32: bool = False
    memory_limit: int | None = None

    def check(self, info: BackendInfo) -> None:
        """Refuse what this backend cannot do.

        Raises:
            UsageError: naming the option and the reason.
        """
        if self.memory_limit is not None and self.memory_limit < 1:
            raise UsageError(
                "The memory limit is no number of bytes.",
                found=str(self.memory_limit),
                fix="give a positive number, e.g. 4GiB",
            )
        if self.version_compatible and not info.versions:
            raise UsageError(
                f"{info.label} builds no version-compatible engines.",
                found="--version-compatible; it has no lean runtime to put into the engine",
                fix="build again after an upgrade, or use --backend tensorrt",
            )
        if self.embed_plugin and not self.version_compatible:
            raise UsageError(
                "A plugin library is stored in version-compatible engines only.",
                found="--embed-plugin without --version-compatible",
                fix="give both, or load the library where the engine runs",
            )
        if self.embed_plugin and self.plugin == "never":
            raise UsageError(
                "There would be no plugin library to store.",
                found="--embed-plugin with --plugin never",
                fix="leave one of them away",
            )

    def request(self, info: BackendInfo) -> dict[str, object]:
        """What the worker is told."""
        return {
            "embed_plugin": self.embed_plugin and info.plugins,
            "version_compatible": self.version_compatible,
            "hardware_compatible": self.hardware_compatible and info.hardware,
            "tf32": self.tf32,
            "memory_limit": self.memory_limit,
        }

    def flags(self) -> dict[str, bool | int | str | None]:
        """For the record."""
        return {
            "version_compatible": self.version_compatible,
            "hardware_compatible": self.hardware_compatible,
            "tf32": self.tf32,
            "memory_limit": self.memory_limit,
            "strongly_typed": True,
            "profiling_verbosity": "detailed",
        }

    def notes(self, info: BackendInfo) -> list[str]:
        """What an option comes to on this backend, where that is not what its name says."""
        notes = []
        if self.hardware_compatible and not info.hardware:
            notes.append(
                f"{info.label} has no level of hardware compatibility: built without a GPU, its"
                " engines are for sm80 and later anyway"
            )
        if self.tf32 and info.name == "tensorrt-rtx":
            notes.append(f"{info.label} decides on TF32 by itself")
        return notes
