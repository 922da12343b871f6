"""Whatever is claimed of a size is what ONNX Runtime computes, for random programs of sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recognize.size_programs import Program, program
from rmsnorm_export.recognize.consts import Constants
from rmsnorm_export.recognize.types import Types


def differences(made: Program) -> list[str]:
    """The claims that are not so; a symbol has to be one number throughout."""
    model = made.model()
    constants = Constants()
    types = Types(model, constants)
    constants.type_of = types.dtype
    wrong: list[str] = []
    numbers: dict[str, int] = {"B": made.shape[0], "S": made.shape[3]}

    def compare(name: str, claimed: tuple[int | str | None, ...], actual: tuple[int, ...]) -> None:
        same = len(claimed) == len(actual) and all(
            a == (c if isinstance(c, int) else numbers.setdefault(c, a))
            for c, a in zip(claimed, actual, strict=True)
            if c is not None
        )
        if not same:
            wrong.append(f"{name}: {claimed} claimed, {actual} computed")

    for node in model.graph:
        value = node.outputs[0]
        name = value.name or ""
        dims = types.shape(value)
        if name.startswith("of_"):
            array = made.values[name[3:]]
            sizes = tuple(array.tolist())
            if dims is not None and min(sizes, default=0) >= 0:
                compare(f"elements of {name[3:]}", dims, sizes)
            continue
        array = made.values[name]
        if dims is not None:
            compare(f"{name} = {node.op_type}", dims, array.shape)
        dtype = types.dtype(value)
        if dtype is not None and dtype.numpy() != array.dtype:
            wrong.append(f"{name}: {dtype} claimed, {array.dtype} computed")
        for what, held in (("integers", types.integers(value)), ("ints", constants.ints(value))):
            if held is not None and list(held) != array.reshape(-1).astype(object).tolist():
                wrong.append(f"{what} of {name} = {node.op_type}: {held} claimed, {array} computed")
    return wrong


@given(seed=st.integers(0, 2**32))
def test_what_is_claimed_is_what_is_computed(seed: int) -> None:
    made = program(seed)
    assert not differences(made), [node.op_type for node in made.nodes]


def test_enough_is_claimed() -> None:
    """A rule that says nothing is right, too: most shapes of such programs must be known."""
    told = total = 0
    for seed in range(40):
        made = program(seed)
        model = made.model()
        types = Types(model, Constants())
        for value in (node.outputs[0] for node in model.graph):
            total += 1
            told += types.shape(value) is not None
    assert told > 0.8 * total
