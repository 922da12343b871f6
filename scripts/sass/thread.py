"""One thread that runs the SASS of a kernel: its registers, and the operands of an instruction.

What is not known is None, and a branch on it is not taken: ``guessed`` counts those, and
``unknown`` the instructions without a meaning here. A count is worth something when both are 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from scripts.sass.clock import Clock
from scripts.sass.parse import Code, Instruction, Operand, words
from scripts.sass.words import M32, double_of, real_of, signed, word_of

PARAMETERS = 0x210
"""Where the parameters of a kernel begin in constant bank 0, on sm_90."""

EXIT = -1
_MOST_STEPS = 400_000

Memory = Callable[[int | None, int], tuple[list[int], int, str]]
"""(address, bytes) -> (words, latency in cycles, name of the tensor)."""

Meaning = Callable[["Thread", Instruction], "int | None"]
"""What an instruction does; it returns where to go on when it jumps."""


class Thread:
    """See the module.

    Args:
        code: of the kernel.
        constants: bank 0 by address, words.
        special: values of special registers, e.g. ``SR_TID.X``.
        memory: global memory.
        shared: the word that shared memory holds where this thread has not written.
    """

    def __init__(
        self,
        code: Code,
        meanings: Mapping[str, Meaning],
        *,
        constants: dict[int, int],
        special: dict[str, int],
        memory: Memory,
        shared: int = 0x42000000,
    ) -> None:
        self.code, self.meanings, self.memory = code, meanings, memory
        self.constants, self.special = constants, special
        self.state: dict[str, Any] = {}
        self.shared: dict[int | None, int | None] = {}
        self.shared_word = shared
        self.clock = Clock()
        self.steps = 0
        self.guessed = 0
        self.unknown: Counter[str] = Counter()

    def run(self) -> Thread:
        order = sorted(self.code)
        after = dict(zip(order, [*order[1:], EXIT], strict=True))
        at = order[0]
        while at != EXIT:
            self.steps += 1
            if self.steps > _MOST_STEPS:
                raise RuntimeError(f"The kernel did not end in {_MOST_STEPS} instructions.")
            instruction = self.code[at]
            goes = self.decided(instruction.guard) if instruction.guard else True
            self.clock.issue(instruction, goes)
            at = after[at]
            if goes:
                meaning = self.meanings.get(instruction.base)
                jump = meaning(self, instruction) if meaning else self._forget(instruction)
                at = at if jump is None else jump
        return self

    def decided(self, condition: Operand) -> bool:
        """The truth of a condition on which the way depends."""
        truth = self.truth(condition)
        self.guessed += truth is None
        return bool(truth)

    def _forget(self, instruction: Instruction) -> None:
        self.unknown[instruction.name] += 1
        for name in instruction.writes:
            self.state[name] = None

    # Operands

    def word(self, o: Operand) -> int | None:
        """As it stands, without its signs."""
        if o.kind == "register":
            return 0 if o.name.endswith("Z") else self.state.get(o.name, 0)
        if o.kind == "bits":
            return int(o.value) & M32
        if o.kind == "real":
            return word_of(o.value)
        if o.kind == "constant":
            at = self.address(o)
            return None if at is None or o.name != "c[0x0]" else self.constants.get(at, 0)
        return 0 if o.name == "SRZ" else None

    def integer(self, o: Operand) -> int | None:
        value = self.word(o)
        if value is None:
            return None
        if o.invert:
            value = ~value & M32
        if o.absolute:
            value = abs(signed(value)) & M32
        return -value & M32 if o.negate else value

    def real(self, o: Operand) -> float | None:
        return _with_signs(o, real_of(self.word(o)))

    def pair(self, o: Operand) -> int | None:
        """64 bits of two registers or constants."""
        low, high = self._two(o)
        return None if low is None or high is None else high << 32 | low

    def double(self, o: Operand) -> float | None:
        if o.kind == "real":
            return _with_signs(o, o.value)
        return _with_signs(o, double_of(*self._two(o)))

    def _two(self, o: Operand) -> tuple[int | None, int | None]:
        if o.kind == "register" and not o.name.endswith("Z"):
            low, high = words(o.name, 2)
            return self.state.get(low, 0), self.state.get(high, 0)
        if o.kind == "constant":
            at = self.address(o)
            return (None, None) if at is None else (self.word(o), self.constants.get(at + 4, 0))
        return self.word(o), 0

    def truth(self, o: Operand) -> bool | None:
        value = True if o.name.endswith("T") else self.state.get(o.name, False)
        return None if value is None else bool(value) != o.negate

    def address(self, o: Operand) -> int | None:
        """The sum of the parts; a register that stands beside a pair is one itself if uniform."""
        total = 0
        wide = any("64" in part.suffixes for part in o.parts)
        for part in o.parts:
            pair = "64" in part.suffixes or (wide and part.name.startswith("UR"))
            value = self.pair(part) if pair else self.integer(part._replace(negate=False))
            if value is None:
                return None
            scale = next((int(s[1:]) for s in part.suffixes if s in ("X4", "X8", "X16")), 1)
            total += -value if part.negate else value * scale
        return total if wide else total & M32

    # Results

    def put(self, o: Operand, *values: int | None) -> None:
        """Into a register, and those after it."""
        if o.name.endswith("Z"):
            return
        for name, value in zip(words(o.name, len(values)), values, strict=True):
            self.state[name] = value

    def decide(self, o: Operand, value: bool | None) -> None:
        if not o.name.endswith("T"):
            self.state[o.name] = value


def _with_signs(o: Operand, value: float | None) -> float | None:
    if value is None:
        return None
    value = abs(value) if o.absolute else value
    return -value if o.negate else value
