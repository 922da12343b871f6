"""The options of a build: what each comes to on a backend, and which are mistakes."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Literal

from msgspec import Meta

from rmsnorm_export.errors import BackendMissingError, UsageError
from rmsnorm_export.options import FilePath, Options, option, progress_option
from rmsnorm_export.printable import quoted
from rmsnorm_export.runtime.sizes import RANGES, Dims, Shapes, dims_option, shapes_option
from rmsnorm_export.system.progress import ProgressChoice
from rmsnorm_export.tensorrt.engine.backends import BackendInfo, gpu_visible
from rmsnorm_export.tensorrt.engine.result import PluginUse

_BYTES = re.compile(r"(\d{1,15})\s*(KiB|MiB|GiB|B)?", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def byte_count(value: int | str) -> int:
    """Read a number of bytes, e.g. ``4GiB``.

    Raises:
        UsageError: it is none, or 0.
    """
    text = str(value)
    parts = _BYTES.fullmatch(text.strip())
    if parts is None or int(parts[1]) == 0:
        raise UsageError(
            "The memory limit is no number of bytes.",
            found=quoted(text),
            fix="give a positive number, e.g. 4GiB or 512MiB",
        )
    return int(parts[1]) * _UNITS[(parts[2] or "").lower()]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions(Options):
    """The options of ``build_engine``, of the command ``build`` and of the table [build]."""

    backend: Literal["auto", "tensorrt", "tensorrt-rtx"] = option(
        "auto",
        help="auto: TensorRT where it and a GPU are, else TensorRT-RTX, which needs no GPU.",
    )
    shapes: Shapes | None = shapes_option(
        RANGES,
        metavar='"NAME=MIN,OPT,MAX;..."',
        help="Smallest, usual and largest shape of every input with dynamic sizes, e.g. "
        '"ids=1x1,4x128,8x2048"; one shape fixes it. Repeat for several profiles.',
    )
    dims: Dims | None = dims_option(RANGES)
    plugin: PluginUse = option(
        "auto",
        help="auto: use the plugin if the backend is TensorRT, a library is built and the model "
        "has nodes for it; require: exit code 6 if there is none; never. TensorRT-RTX has no "
        "plugin layers.",
    )
    embed_plugin: bool = option(
        False, cli=False, help="Store the plugin library in the engine; with --version-compatible."
    )
    timing_cache: FilePath | None = option(
        None,
        metavar="FILE",
        help="Measured kernel times, read and extended. TensorRT-RTX has none.",
    )
    version_compatible: bool = option(False, help="Run in later versions of TensorRT, too.")
    hardware_compatible: bool = option(
        False,
        help="Run on every GPU from Ampere on, at some cost in speed. TensorRT-RTX always builds "
        "so on a machine without a GPU.",
    )
    tf32: bool = option(False, help="Let TensorRT round f32 operands of products to 10 bits.")
    memory_limit: int | None = option(
        None,
        written=int | str,
        read=byte_count,
        metavar="SIZE",
        help="Most workspace memory of the engine, in bytes or e.g. 4GiB.",
    )
    optimization_level: Annotated[int, Meta(ge=0, le=5)] | None = option(
        None,
        help="How much time TensorRT takes to find fast kernels: 0 the least, 5 the most.",
        shown="that of the backend, 3",
    )
    refit: bool = option(False, cli=False, help="Let the weights of the engine be replaced later.")
    strip_weights: bool = option(
        False,
        cli=False,
        help="Leave the weights that can be refitted out of the file; whoever loads the engine "
        "refits it with those of the model. With --refit they may be others.",
    )
    profiling_verbosity: Literal["detailed", "names", "none"] = option(
        "detailed",
        cli=False,
        help="What the engine says of its layers to profilers and to the inspector; with less than "
        "detailed the record may not know what became of the norms.",
    )
    force: bool = option(False, toml=False, help="Replace an existing engine and its record.")
    progress: ProgressChoice = progress_option()

    def agree(self) -> None:
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
                fix="omit one of them",
            )

    def check(self, info: BackendInfo) -> None:
        """Refuse what this backend cannot do.

        Raises:
            UsageError: naming the option and the reason.
            BackendMissingError: it could with a GPU.
        """
        # Seen on TensorRT-RTX 1.7.1: its compiler asks CUDA for a device then, and fails.
        for flag, given in ("--refit", self.refit), ("--strip-weights", self.strip_weights):
            if given and not info.needs_gpu and not gpu_visible():
                raise BackendMissingError(
                    f"{info.label} builds engines that can be refitted with a GPU only.",
                    found=f"{flag}, and no GPU is visible",
                    fix=f"build where a GPU is, or omit {flag}",
                )
        if self.version_compatible and not info.versions:
            raise UsageError(
                f"{info.label} builds no version-compatible engines.",
                found="--version-compatible; it has no lean runtime to put into the engine",
                fix="build again after an upgrade, or use --backend tensorrt",
            )

    def request(self, info: BackendInfo) -> dict[str, object]:
        """What the worker is told."""
        return {
            **self.flags(),
            "embed_plugin": self.embed_plugin and info.plugins,
            "hardware_compatible": self.hardware_compatible and info.hardware,
        }

    def flags(self) -> dict[str, bool | int | str | None]:
        """For the record."""
        return {
            "version_compatible": self.version_compatible,
            "hardware_compatible": self.hardware_compatible,
            "tf32": self.tf32,
            "memory_limit": self.memory_limit,
            "strongly_typed": True,
            "profiling_verbosity": self.profiling_verbosity,
            "optimization_level": self.optimization_level,
            "refit": self.refit,
            "strip_weights": self.strip_weights,
        }

    def notes(self, info: BackendInfo) -> list[str]:
        """What an option comes to on this backend, where that is not what its name says."""
        notes = []
        if self.hardware_compatible and not info.hardware:
            notes.append(
                f"{info.label} has no level of hardware compatibility: built without a GPU, its"
                " engines are for sm80 and later anyway"
            )
        if self.strip_weights:
            notes.append("its weights are not in it: refit it with those of the model to run it")
        if self.optimization_level is not None and info.name == "tensorrt-rtx":
            notes.append(f"{info.label} 1.7 was seen to build the same engine at every level")
        if self.tf32 and info.name == "tensorrt-rtx":
            notes.append(f"{info.label} decides on TF32 by itself")
        return notes
