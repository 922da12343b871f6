"""Where the external data of a saved model goes: in place, copied or embedded."""

from __future__ import annotations

import dataclasses
import filecmp
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import onnx_ir as ir

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.graph.encode import Swap
from rmsnorm_export.graph.external import locate, moved
from rmsnorm_export.graph.policy import WeightsPolicy
from rmsnorm_export.graph.tensors import LARGE_BYTES, MAX_PROTO_BYTES, TensorSlot
from rmsnorm_export.printable import quoted, short
from rmsnorm_export.system.files import Transaction, copy_contents, sync

UsedPolicy = Literal["none", "reference", "copy", "embed"]

MAX_EMBEDDED_BYTES = MAX_PROTO_BYTES - (1 << 26)
"""Most tensor bytes stored inside a model; 64 MiB are for the graph itself."""


@dataclasses.dataclass(slots=True)
class Placement:
    """The places of weights; decided once per data file.

    No file that exists is written: a location whose name is taken by other data gets a new name.

    Attributes:
        target: absolute path of the output.
        policy: see ``WeightsPolicy``.
        files: owner of the temporary files.
        locations: settled ones, by folder and location of the source.
        used: the policy in effect; ``none`` without external data.
        swaps: slots and the tensors that stand in for theirs in the saved file.
        pending: finished temporary files and the names that they are to get.
        notes: for the report.
    """

    target: Path
    policy: WeightsPolicy
    files: Transaction
    locations: dict[tuple[str, str], str]
    used: UsedPolicy = "none"
    swaps: list[Swap] = dataclasses.field(default_factory=list)
    pending: list[tuple[Path, Path]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def place(self, slots: Sequence[TensorSlot]) -> None:
        """Put weights where the model needs them, under temporary names.

        Raises:
            UsageError: ``reference`` from another folder, or the output would replace the weights.
            InputError: data that is not there, or too much to embed.
            OSError: writing failed.
        """
        if self.policy == "embed" and _bytes_of(slots) > MAX_EMBEDDED_BYTES:
            raise InputError(
                "The weights do not fit into one model file.",
                found=f"{_bytes_of(slots)} bytes; a protobuf file ends at 2 GiB",
                fix="use --weights copy, or write beside the source and use --weights reference",
            )
        for slot in slots:
            if isinstance(slot.tensor, ir.ExternalTensor):
                self._place(slot, slot.tensor)
        stored = [slot for slot in slots if slot.in_memory]
        if self.policy != "embed" and _bytes_of(stored) > MAX_EMBEDDED_BYTES:
            self._spill([s for s in stored if s.initializer and s.tensor.nbytes >= LARGE_BYTES])

    def _place(self, slot: TensorSlot, tensor: ir.ExternalTensor) -> None:
        if self.used == "none":
            self.used = "embed" if self.policy == "embed" else "reference"
        folder, location = os.path.realpath(self.target.parent), os.fspath(tensor.location)
        # Without a folder (a model from memory) the data can only be beside the output.
        base = os.fspath(tensor.base_dir) or folder
        if (base, location) not in self.locations:
            path, size = locate(slot.name, location, base)
            if path == os.path.realpath(self.target):
                raise UsageError(
                    "The output would replace the weights of the model.",
                    found=f"{short(str(self.target), 200)} holds tensor {quoted(slot.name)}",
                    fix="choose another output name",
                )
            beside = self.policy == "embed" or os.path.realpath(base) == folder
            self.locations[base, location] = (
                location if beside else self._copy(path, location, size)
            )
        place = self.locations[base, location]
        if self.policy == "embed":
            own = moved(tensor, location, base)
            (tensor_in_memory,) = ir.external_data.convert_tensors_from_external([own])
            self.swaps.append((slot, tensor_in_memory))
        elif place != location:
            self.swaps.append((slot, moved(tensor, place, folder)))

    def _copy(self, source: str, location: str, size: int) -> str:
        """Copy a data file beside the output, unless it is there; return its location."""
        folder = os.path.realpath(self.target.parent)
        if self.policy == "reference":
            raise UsageError(
                "Weights can be referenced in place only from the folder that they are in.",
                found=f"{short(source, 200)}, and the output in {short(folder, 200)}",
                fix="write the output into the folder of the source, or use --weights copy",
            )
        first = Path(folder, os.path.normpath(location))
        inside = os.path.join(os.path.realpath(first.parent), "").startswith(f"{folder}{os.sep}")
        others = _names(folder, self.target.stem, f".{first.name}")
        for place in itertools.chain([first] if inside else [], others):
            name = os.path.relpath(place, folder)
            if self._is_free(place):
                break
            if place.is_file() and not place.is_symlink() and filecmp.cmp(source, place, False):
                self.notes.append(f"weights {quoted(name)} were already beside the output")
                return name
        temp, descriptor = self.files.temp(place)
        with os.fdopen(descriptor, "wb"):
            copy_contents(source, descriptor)
        self.pending.append((temp, place))
        self.used = "copy"
        self.notes.append(
            f"weights {quoted(location)} ({size} bytes) were copied to {quoted(name)}"
        )
        return name

    def _is_free(self, place: Path) -> bool:
        taken = {name for _, name in self.pending} | {Path(place.parent, self.target.name)}
        return not os.path.lexists(place) and place not in taken

    def _spill(self, slots: Sequence[TensorSlot]) -> None:
        """Move initializers to a data file, as the model would pass the 2 GiB of protobuf."""
        folder = self.target.parent
        place = next(filter(self._is_free, _names(folder, self.target.name, ".data")))
        temp, descriptor = self.files.temp(place)
        os.close(descriptor)
        tensors = [slot.tensor for slot in slots]
        stored = ir.external_data.convert_tensors_to_external(tensors, folder, temp.name)
        sync(temp)
        self.pending.append((temp, place))
        for slot, tensor in zip(slots, stored, strict=True):
            self.swaps.append((slot, moved(tensor, place.name, str(folder))))
        self.notes.append(f"weights over 2 GiB were moved to {quoted(place.name)}")


def _names(folder: str | Path, stem: str, end: str) -> Iterator[Path]:
    """Yield paths for a new file: ``stem.end``, ``stem-2.end`` and so on."""
    yield Path(folder, f"{stem}{end}")
    yield from (Path(folder, f"{stem}-{number}{end}") for number in itertools.count(2))


def _bytes_of(slots: Sequence[TensorSlot]) -> int:
    return sum(slot.tensor.nbytes for slot in slots)
