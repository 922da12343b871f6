"""The counter of scripts/sass: how it reads SASS, how it runs it, and the gate over the kernels."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from scripts.corpus import cache
from scripts.gpu import build
from scripts.sass import gate, tools
from scripts.sass.count import Counts
from scripts.sass.launches import Work
from scripts.sass.meanings import MEANINGS
from scripts.sass.parse import Usage, kernels, usages
from scripts.sass.thread import PARAMETERS, Thread
from tests.plugins import kernel_build

X = 1 << 40


def run(*lines: str, constants: dict[int, int] | None = None) -> Thread:
    """A thread of a kernel of these lines; at X lie ones of bf16."""
    text = ["\t\tFunction : kernel"]
    text += [f"        /*{16 * n:04x}*/    {line} ;   /* 0x0 */" for n, line in enumerate(lines)]

    def memory(at: int | None, _size: int) -> tuple[list[int], int, str]:
        return [0x3F803F80] * 4, 500, "x" if at is not None and at >= X else "scale"

    thread = Thread(
        kernels(text)["kernel"],
        MEANINGS,
        constants=constants or {},
        special={"SR_TID.X": 37},
        memory=memory,
    )
    return thread.run()


def test_instruction() -> None:
    line = "        /*00a0*/  @!UP1 LDG.E.128 R4, desc[UR6][R2.64+-0x10] ;"
    (instruction,) = kernels(["Function : k", line])["k"].values()
    assert (instruction.base, instruction.size) == ("LDG", 16)
    assert instruction.guard is not None
    assert (instruction.guard.name, instruction.guard.negate) == ("UP1", True)
    assert instruction.writes == ["R4", "R5", "R6", "R7"]
    assert {"R2", "R3", "UP1"} <= {*instruction.reads}


def test_usage() -> None:
    text = " Function k:\n  REG:46 STACK:16 SHARED:0 LOCAL:0 CONSTANT[0]:736 TEXTURE:0"
    assert usages(text.replace("k:\n ", "k: ")) == {"k": Usage(46, 16)}


def test_loop() -> None:
    """As many instructions as it executes: 2 before, 3 a round, EXIT."""
    thread = run(
        "MOV R0, RZ",
        "S2R R1, SR_TID.X",
        "VIADD R0, R0, 0x1",
        "ISETP.GE.AND P0, PT, R0, c[0x0][0x210], PT",
        "@!P0 BRA 0x20",
        "EXIT",
        constants={PARAMETERS: 7},
    )
    assert thread.steps == 2 + 3 * 7 + 1
    assert thread.state["R1"] == 37
    assert (thread.guessed, thread.unknown) == (0, {})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("IADD3 R3, R0, R1, RZ", 1),
        ("IADD3 R3, -R1, 0x1, RZ", 0xFFFFFFFF),
        ("IMAD R3, R1, R1, 0x5", 9),
        ("IMAD.HI.U32 R3, R0, 0x10, RZ", 15),
        ("LEA R3, R1, 0x4, 0x3", 20),
        ("LEA.HI R3, R0, RZ, RZ, 0x4", 15),
        ("SHF.R.U32.HI R3, RZ, 0x1f, R0", 1),
        ("SHF.R.S32.HI R3, RZ, 0x1f, R0", 0xFFFFFFFF),
        ("SHF.L.U32 R3, R2, 0x10, RZ", 0x3F800000),
        ("LOP3.LUT R3, R2, 0xffff0000, RZ, 0xc0, !PT", 0x3F800000),
        ("PRMT R3, R1, 0x5410, R2", 0x3F800002),
        ("SEL R3, R0, R1, !PT", 2),
        ("VIMNMX R3, R0, R1, PT", 0xFFFFFFFF),
        ("VIMNMX.U32 R3, R0, R1, PT", 2),
        ("FFMA R3, 0.5, 3, -1", 0x3F000000),
        ("FMUL R3, |R4|, -2", 0xC0000000),
        ("MUFU.RSQ R3, 4", 0x3F000000),
        ("F2FP.BF16.F32.PACK_AB R3, 1, -2", 0x3F80C000),
        ("F2IP.S8.F32.NTZ R3, 1, -2, RZ", 0x3838),
        ("HADD2.F32 R3, -RZ, R5.H1_H1", 0x40000000),
        ("HFMA2.MMA.BF16_V2 R3, R2, R2, R2", 0x40004000),
        ("HFMA2.MMA R3, -RZ, RZ, 1, 0", 0x3C000000),
        ("I2FP.F32.S32 R3, R0", 0xBF800000),
        ("F2I.NTZ R3, -2.5", 0xFFFFFFFE),
    ],
)
def test_meaning(line: str, expected: int) -> None:
    given = ("MOV R0, 0xffffffff", "MOV R1, 0x2", "MOV R2, 0x3f803f80", "MOV R4, -1")
    thread = run(*given, "MOV R5, 0x40003c00", line, "EXIT")
    assert not thread.unknown
    assert thread.state["R3"] == expected, hex(thread.state["R3"] or 0)


def test_carry_and_wide_sum() -> None:
    thread = run(
        "MOV R0, 0xfffffff0",
        "IADD3 R2, P0, R0, 0x20, RZ",
        "IADD3.X R3, RZ, RZ, RZ, P0, !PT",
        "IMAD.WIDE.U32 R4, R0, 0x10, R2",
        "EXIT",
    )
    assert (thread.state["R2"], thread.state["R3"]) == (0x10, 1)
    assert thread.state["R5"] << 32 | thread.state["R4"] == 0xFFFFFFF0 * 16 + (1 << 32 | 0x10)


def test_what_is_not_known_is_told() -> None:
    thread = run("FROB R1, R2", "ISETP.EQ.AND P0, PT, R1, RZ, PT", "@P0 BRA 0x0", "EXIT")
    assert thread.unknown == {"FROB": 1}
    assert thread.guessed == 1


_ADDRESS = ("MOV R0, RZ", "MOV R1, 0x100")


def test_loads_at_once() -> None:
    """Both are asked for before the first is used: one way to memory, 32 bytes under way."""
    loads = ("LDG.E.128 R4, [R0.64]", "LDG.E.128 R8, [R0.64+0x10]")
    thread = run(*_ADDRESS, *loads, "FADD R2, R4, R8", "FADD R2, R5, R9", "EXIT")
    assert thread.clock.trips == {"x": 1}
    assert thread.clock.in_flight["x"] == 32


def test_serialised_loads() -> None:
    lines = ("LDG.E.128 R4, [R0.64]", "FADD R2, R4, R4", "LDG.E.128 R4, [R0.64+0x10]")
    thread = run(*_ADDRESS, *lines, "FADD R2, R4, R2", "EXIT")
    assert thread.clock.trips == {"x": 2}
    assert thread.clock.in_flight["x"] == 16
    assert thread.clock.now > 1000


def test_asynchronous_copies() -> None:
    copies = ("LDGSTS.E.BYPASS.128 [R2], [R0.64]", "LDGSTS.E.BYPASS.128 [R2+0x10], [R0.64+0x10]")
    thread = run(*_ADDRESS, *copies, "LDGDEPBAR", "DEPBAR.LE SB0, 0x0", "LDS.128 R4, [R2]", "EXIT")
    assert thread.clock.trips == {"x": 1}
    assert thread.clock.in_flight["x"] == 32
    assert thread.clock.now > 500


def test_gate() -> None:
    """More instructions, fewer bytes in flight, a new work: each is a line with its numbers."""
    table = gate.read()
    works = {work.name: work for work in gate.WORKS}
    assert table.keys() == works.keys()
    name = "norm bfloat16 4096"
    known = table[name]
    assert gate.worse({works[name]: known}, table) == []
    for field, factor in (("instructions", 1.1), ("in_flight", 0.5), ("registers", 2)):
        changed = dataclasses.replace(known, **{field: getattr(known, field) * factor})
        lines = gate.worse({works[name]: changed}, table)
        assert len(lines) == (field != "registers"), lines
        assert all(field in line and name in line for line in lines)
    better = dataclasses.replace(known, instructions=known.instructions / 2)
    assert gate.worse({works[name]: better}, table) == []
    assert "not in" in gate.worse({Work("norm", "bfloat16", 123): known}, table)[0]


def test_the_tools_that_are_missing_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    with pytest.raises(tools.ToolMissingError, match="pip install nvidia-no-such-tool"):
        tools.tool("no-such-tool", "nvidia-no-such-tool")


def _missing() -> str | None:
    try:
        for name in ("nvcc", "cuobjdump", "nvdisasm"):
            tools.tool(name, f"nvidia-cuda-{name}")
    except tools.ToolMissingError as error:
        return str(error)
    return None


@pytest.fixture(scope="module")
def found() -> dict[Work, Counts]:
    """The counts of this tree; the build takes minutes and is kept."""
    if reason := _missing():
        pytest.skip(reason)
    nvcc = tools.tool("nvcc", "nvidia-cuda-nvcc")
    version = kernel_build.run([nvcc, "--version"])
    gpu = kernel_build.PLUGINS / "tests" / "gpu"
    key = kernel_build.source_hash(kernel_build.KERNELS, gpu, settings=(version,))

    def fill(folder: Path) -> None:
        units = [(unit, 90) for unit in kernel_build.UNITS]
        kernel_build.nvcc_objects(units, folder, build.COUNTED)
        tools.built(folder, build.COUNTED)

    return tools.counted(gate.WORKS, cache.entry("kernels", "sass", key, fill))


@pytest.mark.slow
def test_no_instance_is_worse_than_the_table(found: dict[Work, Counts]) -> None:
    assert gate.worse(found) == []


@pytest.mark.slow
def test_every_count_is_sure(found: dict[Work, Counts]) -> None:
    assert {work.name: c.unsure for work, c in found.items() if c.unsure} == {}
    assert {work.name: c.stack for work, c in found.items() if c.stack} == {}


WORK = Work("norm", "bfloat16", 4096)
_ONLY_IT = """
namespace rmsnorm_export {
NOT_OF_ORDER(__nv_bfloat16, kPlain, kWide, kNone)
NOT_OF_ORDER(__nv_bfloat16, kPlain, kWideOffset, kNone)
NOT_OF_ORDER(__nv_bfloat16, kGated, kNarrow, kNone)
ONLY_THE_NORM(__nv_bfloat16, kNarrow)
}
"""
_SUM = "float const sum = team.sum(squares(start, left_of(number)));"
_LOAD = "for (int j = 0; j < V; ++j) load(j, start, left_of(number));"
_PRODUCT = "return __fmul_rn(value, rstd); });\n    if constexpr (kHalf<T> && order"
MUTATIONS: dict[str, tuple[str, str, set[str]]] = {
    "nothing": (_SUM, _SUM, set()),
    "a barrier more": (_SUM, f"{_SUM} __syncthreads();", {"barriers"}),
    "loads one after the other": (
        _LOAD,
        _LOAD.replace("start,", "start + (j > 0 && x[j - 1].x == 0x7fc1U),"),
        {"x_trips", "in_flight", "instructions"},
    ),
    "an array that is indexed at run time": (
        _SUM,
        f"x[(whole + lane) % V].x ^= 1U; {_SUM}",
        {"stack", "instructions", "unsure"},
    ),
    # Its rare cases are a call, around which registers are spilled; thread.py does not follow them.
    "a division": (_PRODUCT, _PRODUCT.replace("mul", "div"), {"stack", "unsure", "in_flight"}),
    "a test of every element": (
        _PRODUCT,
        _PRODUCT.replace("return ", "return value > 3e38F ? value : "),
        {"instructions"},
    ),
}
"""What slows row_hot.cuh: what stands there, what instead, and the numbers that get worse."""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_gate_names_what_a_mutation_costs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := _missing():
        pytest.skip(reason)
    before, after, fields = MUTATIONS[name]
    folder, plugins = tmp_path / "build", tmp_path / "plugins"
    folder.mkdir()
    # The kernels of other types stay as they are.
    others = [(unit, 90) for unit in kernel_build.UNITS if "bf16" not in unit]
    kernel_build.nvcc_objects(others, folder, build.COUNTED)
    shutil.copytree(build.PLUGINS, plugins)
    front = plugins / build.COUNTED.relative_to(build.PLUGINS)
    front.write_text(front.read_text() + _ONLY_IT)
    kernel = plugins / "kernels" / "row_hot.cuh"
    assert kernel.read_text().count(before) == 1
    kernel.write_text(kernel.read_text().replace(before, after))
    monkeypatch.setattr(build, "PLUGINS", plugins)
    monkeypatch.setattr(build, "KERNELS", plugins / "kernels")
    tools.built(folder, front)
    lines = gate.worse(tools.counted([WORK], folder))
    assert {line.removeprefix(f"{WORK.name}: ").split()[0] for line in lines} == fields, lines
