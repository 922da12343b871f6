"""Shared libraries, read from their files: the linker ends the process on one that is cut short."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

from rmsnorm_export.system.reading import LARGEST_LIBRARY, read_file

_MACHINES = {3: "x86 (32-bit)", 40: "ARM (32-bit)", 62: "x86-64", 183: "aarch64", 243: "RISC-V"}

_SHARED = 3  # e_type ET_DYN
_SECTION_DYNAMIC, _SECTION_SYMBOLS = 6, 11  # sh_type SHT_DYNAMIC, SHT_DYNSYM
_NEEDED = 1  # d_tag DT_NEEDED

_HEADER = "HHIQQQIHHHHHH"
_SECTION = "IIQQQQIIQQ"
_SYMBOL = "IBBHQQ"
_DYNAMIC = "qQ"


class NotALibraryError(ValueError):
    """The file is no shared library; the message says what it is."""


@dataclasses.dataclass(frozen=True, slots=True)
class Elf:
    """What a shared library says of itself, read from the file without loading it.

    Source: the ELF-64 object file format, version 1.5; System V ABI, chapters 4 and 5.

    Attributes:
        machine: processor.
        exported: names of the functions and variables that it has for others.
        needed: libraries that it is linked against.
        registers: it mentions ``getPluginRegistry``, without which none can register a plugin.
    """

    machine: str = ""
    exported: frozenset[str] = frozenset()
    needed: tuple[str, ...] = ()
    registers: bool = False


def read_elf(path: Path) -> Elf:
    """The facts of the shared library ``path``.

    Raises:
        NotALibraryError: it is something else, or cut short.
        OSError: it cannot be read.
    """
    data = read_file(path, LARGEST_LIBRARY)
    if not data:
        raise NotALibraryError("the file is empty")
    if data[:4] != b"\x7fELF":
        raise NotALibraryError(f"the file begins with {data[:4]!r}, a shared library with ELF")
    if len(data) < 64:
        raise NotALibraryError("the file is cut short")
    order = ">" if data[5] == 2 else "<"
    kind, machine = struct.unpack_from(f"{order}HH", data, 16)
    name = _MACHINES.get(machine, f"machine {machine}")
    if kind != _SHARED:
        raise NotALibraryError("the file is an object file or a program, no shared library")
    if data[4] != 2:
        return Elf(name)  # 32-bit: of another machine
    try:
        return _elf_facts(data, order, name)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise NotALibraryError(f"the file is cut short or damaged ({error})") from error


def _elf_facts(data: bytes, order: str, machine: str) -> Elf:
    header = struct.unpack_from(order + _HEADER, data, 16)
    offset, size, count = header[5], header[10], header[11]
    sections = [struct.unpack_from(order + _SECTION, data, offset + i * size) for i in range(count)]
    exported: set[str] = set()
    needed: list[str] = []
    for section in sections:
        if section[1] not in (_SECTION_SYMBOLS, _SECTION_DYNAMIC):
            continue
        begin, length = section[4], section[5]
        strings = sections[section[6]]
        table = data[strings[4] : strings[4] + strings[5]]
        if begin + length > len(data) or len(table) < strings[5]:
            raise ValueError("a section ends behind the file")
        part = data[begin : begin + length]
        if section[1] == _SECTION_SYMBOLS:
            for name, _info, _other, where, _value, _size in struct.iter_unpack(
                order + _SYMBOL, part
            ):
                if where:
                    exported.add(_string(table, name))
        else:
            for tag, value in struct.iter_unpack(order + _DYNAMIC, part):
                if tag == _NEEDED:
                    needed.append(_string(table, value))
                elif tag == 0:
                    break
    return Elf(machine, frozenset(exported - {""}), tuple(needed), b"getPluginRegistry" in data)


def _string(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode("utf-8", "replace")
