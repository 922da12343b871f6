"""What cuobjdump prints, read: the instructions of every kernel, and what it takes of an SM."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_LINE = re.compile(
    r"\s+/\*([0-9a-f]{4,6})\*/\s+(?:@(!?U?P[0-9T])\s+)?([A-Z][A-Za-z0-9_.]*)\s*(.*?)\s*;"
)
_FUNCTION = re.compile(r"Function : (\S+)")
_OPERAND = re.compile(
    r"(?P<sign>[-~!]*)\|?(?P<body>[^|]*?)\|?(?P<suffix>(?:\.[A-Z][A-Z0-9_]*|\.64)*)"
)
_PLAIN = re.compile(r"(?P<kind>U?R|U?P)(?:\d+|Z|T)")

WRITES_PREDICATES = frozenset(
    {*("ISETP", "FSETP", "DSETP", "PLOP3", "HSETP2", "FCHK", "IADD3", "IMAD", "LEA", "LOP3")}
    | {*("SHFL", "UISETP", "UPLOP3", "UIADD3", "ULEA", "ULOP3", "UIMAD")}
)
"""Operations that may write predicates before or after their register."""

ONLY_PREDICATES = frozenset(
    {"ISETP", "FSETP", "DSETP", "PLOP3", "HSETP2", "FCHK", "UISETP", "UPLOP3"}
)
STORES = frozenset({"STG", "STS", "ST", "STL", "RED"})
CONTROL = frozenset(
    {"BRA", "EXIT", "BSSY", "BSYNC", "CALL", "RET", "NOP", "WARPSYNC", "BAR", "DEPBAR", "MEMBAR"}
    | {"CCTL", "ERRBAR", "CGAERRBAR", "UCGABAR_ARV", "UCGABAR_WAIT", "ACQBULK", "PREEXIT", "YIELD"}
    | {"LDGDEPBAR", "NANOSLEEP"}
)
DOUBLES = frozenset({"DADD", "DMUL", "DFMA", "DSETP"})
"""f64 arithmetic: a register operand is a pair."""


class Operand(NamedTuple):
    """One operand; ``parts`` are the summands of an address or of an offset in a constant bank."""

    kind: str  # register, predicate, bits, real, constant, memory or other
    name: str = ""
    value: float = 0
    parts: tuple[Operand, ...] = ()
    negate: bool = False
    invert: bool = False
    absolute: bool = False
    suffixes: tuple[str, ...] = ()


@dataclass(slots=True)
class Instruction:
    """``@guard base.modifiers operands``, and the registers that it writes and reads."""

    base: str
    modifiers: tuple[str, ...]
    guard: Operand | None
    operands: list[Operand]
    writes: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writes, self.reads = _roles(self)

    @property
    def name(self) -> str:
        return ".".join((self.base, *self.modifiers))

    @property
    def size(self) -> int:
        """Bytes that a load or a store moves."""
        sizes = {"256": 32, "128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
        return next((sizes[m] for m in self.modifiers if m in sizes), 4)


Code = dict[int, Instruction]
"""Of a kernel, by address, in order."""


def kernels(lines: Iterable[str]) -> dict[str, Code]:
    """Mangled name -> code, from ``cuobjdump -sass``."""
    found: dict[str, Code] = {}
    code: Code = {}
    for line in lines:
        if function := _FUNCTION.search(line):
            code = found[function[1]] = {}
        elif match := _LINE.match(line):
            guard = operand(match[2]) if match[2] else None
            base, *modifiers = match[3].split(".")
            operands = [operand(text) for text in _split(match[4], ",")]
            code[int(match[1], 16)] = Instruction(base, tuple(modifiers), guard, operands)
    return found


class Usage(NamedTuple):
    """What a thread of a kernel takes, from ``cuobjdump -res-usage``."""

    registers: int
    stack: int  # bytes of local memory, spills among them


def usages(text: str) -> dict[str, Usage]:
    """Mangled name -> usage."""
    pattern = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+)")
    return {m[1]: Usage(int(m[2]), int(m[3])) for m in pattern.finditer(text)}


def _split(text: str, at: str) -> Iterator[str]:
    """The parts between separators that are in no brackets."""
    depth, now = 0, ""
    for letter in text:
        depth += (letter in "[{(") - (letter in "]})")
        if letter == at and depth == 0:
            yield now.strip()
            now = ""
        else:
            now += letter
    if now.strip():
        yield now.strip()


def operand(text: str) -> Operand:
    """An operand from its spelling."""
    text = text.replace(".reuse", "")
    match = _OPERAND.fullmatch(text)
    assert match is not None, text
    sign, body, suffix = match["sign"], match["body"], match["suffix"]
    how: dict[str, Any] = {
        "negate": "-" in sign or "!" in sign,
        "invert": "~" in sign,
        "absolute": "|" in text,
        "suffixes": tuple(suffix.split(".")[1:]),
    }
    if plain := _PLAIN.fullmatch(body):
        kind = "predicate" if plain["kind"].endswith("P") else "register"
        return Operand(kind, body, **how)
    if body.endswith("]"):
        kind = "constant" if body.startswith("c[") else "memory"
        inner = body[body.rindex("[") + 1 : -1].replace("-", "+-")
        parts = tuple(operand(part.strip()) for part in inner.split("+") if part.strip())
        return Operand(kind, body[: body.rindex("[")], parts=parts, **how)
    if body.startswith("0x"):
        return Operand("bits", value=int(body, 16), **how)
    try:
        number = float(text.lstrip("-+").lower().removeprefix("q"))
    except ValueError:
        return Operand("other", text)
    return Operand("real", value=-number if text.startswith("-") else number)


def registers(text: Operand, count: int = 1) -> list[str]:
    """Every register and predicate that is read for an operand, ``count`` words each."""
    if text.kind == "predicate":
        return [] if text.name.endswith("T") else [text.name]
    if text.kind == "register":
        if text.name.endswith("Z"):
            return []
        return words(text.name, 2 if "64" in text.suffixes else count)
    return [name for part in text.parts for name in registers(part)]


def words(name: str, count: int) -> list[str]:
    """The registers from ``name`` on."""
    file, number = name.rstrip("0123456789"), int(name.lstrip("UR"))
    return [f"{file}{number + i}" for i in range(count)]


def _roles(instruction: Instruction) -> tuple[list[str], list[str]]:
    base, modifiers, operands = instruction.base, instruction.modifiers, instruction.operands
    reads = registers(instruction.guard) if instruction.guard else []
    if base in STORES:
        count = max(1, instruction.size // 4)
        reads += [name for o in operands[:-1] for name in registers(o)]
        return [], reads + registers(operands[-1], count)
    if base in CONTROL or base == "LDGSTS":
        return [], reads + [name for o in operands for name in registers(o)]
    size = 2 if {"64", "WIDE"} & {*modifiers} or base in DOUBLES or base == "CS2R" else 1
    if base in ("LDG", "LD", "LDS", "LDC", "ULDC", "LDCU"):
        size = max(1, instruction.size // 4)
    if base == "CS2R" and "32" in modifiers:
        size = 1
    writes: list[str] = []
    taken = base in ONLY_PREDICATES
    at = 0
    while at < min(3, len(operands)):
        now = operands[at]
        if now.kind == "predicate" and (at == 0 or base in WRITES_PREDICATES):
            writes += registers(now)
        elif now.kind == "register" and not taken:
            writes += registers(now, size)
            taken = True
        else:
            break
        at += 1
        if taken and base not in WRITES_PREDICATES:
            break
    wide = base in DOUBLES
    for o in operands[at:]:
        reads += registers(o, 2 if wide else 1)
    if "WIDE" in modifiers and operands[-1].kind == "register":
        reads += registers(operands[-1], 2)
    return writes, reads
