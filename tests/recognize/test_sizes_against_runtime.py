"""Whatever is claimed of a size is what ONNX Runtime computes, for random programs of sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recognize.size_programs import Program, program
from rmsnorm_export.recognize.consts import Constants
from rmsnorm_export.recognize.types import Types


def differences(sizes: Program) -> list[str]:
    """The claims that are not so; a symbol has to be one number throughout."""
    model = sizes.model()
    constants = Constants()
    types = Types(model, constants)
    constants.type_of = types.dtype
    wrong: list[str] = []
    numbers: dict[str, int] = {"B": sizes.shape[0], "S": sizes.shape[3]}

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
            listed = tuple(sizes.values[name[3:]].tolist())
            if dims is not None and min(listed, default=0) >= 0:
                compare(f"elements of {name[3:]}", dims, listed)
            continue
        array = sizes.values[name]
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
    sizes = program(seed)
    assert not differences(sizes), [node.op_type for node in sizes.nodes]


def test_enough_is_claimed() -> None:
    """A rule that says nothing is right, too: most shapes of such programs must be known."""
    told = []
    for seed in range(40):
        model = program(seed).model()
        types = Types(model, Constants())
        told += [types.shape(node.outputs[0]) is not None for node in model.graph]
    assert sum(told) > 0.8 * len(told)
