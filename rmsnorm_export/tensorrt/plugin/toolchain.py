"""Everything a build needs, found and complete, or one error that names all that is missing."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.tensorrt.plugin.headers import find_headers
from rmsnorm_export.tensorrt.plugin.result import Tool
from rmsnorm_export.tensorrt.plugin.tools import (
    find_cmake,
    find_host_compiler,
    find_ninja,
    find_nvcc,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Toolchain:
    """What a build uses; every tool in it is ok."""

    nvcc: Tool
    compiler: Tool
    cmake: Tool
    generator: Tool
    headers: Tool


def build_tools(
    cuda: str | os.PathLike[str] | None = None,
    tensorrt_include: str | os.PathLike[str] | None = None,
) -> tuple[Tool, ...]:
    """Every tool that a build needs, found or not, without an error for those that are not.

    Args:
        cuda, tensorrt_include: as for ``build``.
    """
    return (
        find_nvcc(cuda),
        find_host_compiler(),
        find_cmake(),
        find_ninja(),
        find_headers(tensorrt_include),
    )


def find_toolchain(
    cuda: str | os.PathLike[str] | None = None,
    tensorrt_include: str | os.PathLike[str] | None = None,
) -> Toolchain:
    """The tools of a build.

    Raises:
        BackendMissingError: some are missing, or found and of no use; it names each, with what
            brings it.
    """
    tools = build_tools(cuda, tensorrt_include)
    bad = [tool for tool in tools if tool.status != "ok"]
    if bad:
        raise BackendMissingError(
            f"The plugin cannot be built without {_listed([tool.name for tool in bad])}.",
            found="; ".join(f"{tool.name}: {_state(tool)}" for tool in bad),
            fix="; ".join(dict.fromkeys(f"{tool.name}: {tool.install}" for tool in bad)),
        )
    return Toolchain(*tools)


def _state(tool: Tool) -> str:
    if tool.status == "missing":
        return tool.detail
    return " ".join(filter(None, (tool.path, tool.version))) + f": {tool.detail}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
