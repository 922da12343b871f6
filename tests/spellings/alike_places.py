"""Look-alikes by where they stand: shapes, subgraphs, functions, ready-made operators."""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, TensorProto, helper

from .alike import FLOAT, FLOAT16, Alike, look_alike, look_alikes
from .graph import FUNCTION_DOMAIN, Graph
from .steps import OTHER, op, replaced, shaped, then, total

INT64, BOOL = TensorProto.INT64, TensorProto.BOOL

# shapes


@look_alike()
def positive_axis_of_unknown_rank(a: Alike) -> str:
    """Axis 1 is the last one of a matrix; this is fed with rank 3."""
    x = a.unranked(shape=(2, 8, 8))
    y = a.chain(x, mean=lambda v: a.g.reduce("ReduceMean", v, [1], 1), weight="")
    return a.ranked(y, (2, 8, 8))


def _count(a: Alike) -> str:
    return a.g.cast(a.g.op("Gather", a.g.op("Shape", a.x), a.g.ints(-1)), FLOAT)


replaced(norms=1, no_rows={"row": shaped(0, 3, 8)})
replaced(
    most=1,
    # 1/n computed in the graph.
    count_from_the_shape={"other": _count, "mean": then(total, op("Div", OTHER))},
)
replaced(most=1, refusal=False, rows_without_elements={"row": shaped(2, 3, 0), "weight": ""})
replaced(
    refusal=False,
    # Divided by 8, with a row fed as 5: only the file's word counts.
    sum_over_unknown_length={
        "row": lambda a: a.input(shape=(2, 5), dims=(2, "n")),
        "mean": then(total, op("Div", 8.0)),
        "weight": "",
    },
)
look_alikes(
    most=1,
    refusal=False,
    # Weightless it is a norm whatever the rank; with a weight the output might grow.
    negative_axis_of_unknown_rank=lambda a: a.ranked(a.chain(a.unranked())),
    # No axis at all: x / |x|.
    scalar_input=lambda a: a.g.op("Div", x := a.input(shape=()), a.root(a.stabilise(a.square(x)))),
)


# subgraphs


def _branch(body: Graph, value: str, dims: tuple[int, ...] = (2, 3, 8)) -> Graph:
    body.output(value, FLOAT, dims)
    return body


def _if(a: Alike, then: Graph, otherwise: Graph) -> str:
    condition = a.input("condition", values=np.array(False), dtype=BOOL)
    return a.g.op("If", condition, then_branch=then.subgraph(), else_branch=otherwise.subgraph())


@look_alike(refusal=False)
def root_from_one_branch(a: Alike) -> str:
    """The root comes out of an If whose other branch, taken here, says 1."""
    x = a.input()
    inside = a.inside()
    root = inside.root(inside.stabilise(inside.mean(inside.square(x))))
    other = a.g.child()
    ones = other.const(np.ones((2, 3, 1), np.float32))
    then = _branch(inside.g, root, (2, 3, 1))
    chosen = _if(a, then, _branch(other, other.op("Identity", ones), (2, 3, 1)))
    return a.g.op("Mul", a.g.op("Div", x, chosen), a.weight())


@look_alike(most=1, refusal=False)
def branch_finishes_an_outer_root(a: Alike) -> str:
    """Square, mean and root outside, the division in a branch."""
    x = a.input()
    root = a.root(a.stabilise(a.mean(a.square(x))))
    then, other = a.g.child(), a.g.child()
    y = then.op("Div", x, root)
    z = other.op("Mul", x, root)
    return _if(a, _branch(then, y), _branch(other, z))


@look_alike(refusal=False)
def branches_share_a_mean(a: Alike) -> str:
    """Each branch takes its own root of one mean: with epsilon, and inverted."""
    x = a.input()
    mean = a.mean(a.square(x))
    then, other = a.inside(), a.inside()
    y = then.g.op("Div", x, then.g.op("Add", then.root(mean), x))
    z = other.g.op("Mul", x, other.root(other.stabilise(mean)))
    return _if(a, _branch(then.g, y), _branch(other.g, z))


def _loop(a: Alike, body: Graph, *carried: str) -> str:
    trips = a.g.const(np.array(3, np.int64), kind="node")
    going = a.g.const(np.array(True), kind="node")
    count = len(carried)
    states = a.g.ops("Loop", trips, going, *carried, count=count, body=body.subgraph())
    return a.ranked(states[0])


def _loop_body(a: Alike, **carried: tuple[int, ...]) -> Alike:
    inside = a.inside()
    inside.g.declare("iteration", INT64, ())
    inside.g.declare("going", BOOL, ())
    for name, dims in carried.items():
        inside.g.declare(name, FLOAT, dims)
    return inside


def _sums(inside: Alike, y: str, **carried: tuple[int, ...]) -> None:
    """The state sums ``y`` up; what is carried beside it grows by one."""
    inside.g.output(inside.g.op("Identity", "going"), BOOL, ())
    inside.g.output(inside.g.op("Add", "state", y), FLOAT, (2, 3, 8))
    for name, dims in carried.items():
        inside.g.output(inside.g.op("Add", name, inside.scalar(1.0)), FLOAT, dims)


@look_alike(refusal=False)
def root_of_the_previous_iteration(a: Alike) -> str:
    """Divided by the root of what x was one step before."""
    inside = _loop_body(a, state=(2, 3, 8), before=(2, 3, 1))
    y = inside.g.op("Div", "state", "before")
    root = inside.root(inside.stabilise(inside.mean(inside.square("state"))))
    inside.g.output(inside.g.op("Identity", "going"), BOOL, ())
    inside.g.output(inside.g.op("Add", y, inside.scalar(0.5)), FLOAT, (2, 3, 8))
    inside.g.output(root, FLOAT, (2, 3, 1))
    start = a.g.const(np.full((2, 3, 1), 3, np.float32))
    return _loop(a, inside.g, a.input(), start)


@look_alike(norms=1)
def loop_normalises_an_outer_value(a: Alike) -> str:
    """x is captured; the state only sums up."""
    x = a.input()
    inside = _loop_body(a, state=(2, 3, 8))
    y = inside.chain(x)
    _sums(inside, y)
    return _loop(a, inside.g, a.input("start"))


@look_alike(norms=1)
def loop_carries_the_weight(a: Alike) -> str:
    """A weight that changes from one iteration to the next."""
    x = a.input()
    inside = _loop_body(a, state=(2, 3, 8), gain=(8,))
    y = inside.chain(x, weight="gain")
    _sums(inside, y, gain=(8,))
    return _loop(a, inside.g, a.input("start"), a.weight())


@look_alike()
def loop_carries_the_epsilon(a: Alike) -> str:
    x = a.input()
    inside = _loop_body(a, state=(2, 3, 8), epsilon=())
    y = inside.chain(x, stabilise=lambda v: inside.g.op("Add", v, "epsilon"))
    _sums(inside, y, epsilon=())
    return _loop(a, inside.g, a.input("start"), a.scalar(1e-5))


# functions


def _plain_norm(body: Graph, x: str, axes: list[int]) -> str:
    """Without a constant that has a type, so that any float type can call it."""
    root = body.op("Sqrt", body.reduce("ReduceMean", body.op("Mul", x, x), axes, 1))
    return body.op("Div", x, root)


@look_alike(most=2, refusal=False)
def function_called_with_two_types(a: Alike) -> list[str]:
    """One body, float32 and float16: what is computed in half in one call is not in the other."""
    body = a.g.child(is_function=True)
    body.add_function("Norm", ["v"], [_plain_norm(body, "v", [-1])])
    calls = [a.input(), a.input(values=a.rng.uniform(0.5, 2, (2, 3, 8)), dtype=FLOAT16)]
    return [a.g.op("Norm", x, domain=FUNCTION_DOMAIN) for x in calls]


@look_alike(most=2, refusal=False)
def function_called_with_two_ranks(a: Alike) -> list[str]:
    """Axis 1 is the last one in the first call only."""
    body = a.g.child(is_function=True)
    body.add_function("Norm", ["v"], [_plain_norm(body, "v", [1])])
    calls = [a.input(shape=(3, 8)), a.input(shape=(2, 8, 8))]
    return [a.g.op("Norm", x, domain=FUNCTION_DOMAIN) for x in calls]


@look_alike(most=2, refusal=False)
def function_called_with_weight_and_gate(a: Alike) -> list[str]:
    """The second argument is a weight in one call and a modulation in the other."""
    body = a.inside(is_function=True)
    body.g.add_function("Norm", ["v", "w"], [body.chain("v", weight="w")])
    x = a.input()
    return [
        a.g.op("Norm", x, other, domain=FUNCTION_DOMAIN) for other in (a.weight(), a.input("scale"))
    ]


@look_alike(most=2, refusal=False)
def function_called_with_growing_weight(a: Alike) -> list[str]:
    """[3, 1] * [8] grows, [3, 8] * [8] does not."""
    body = a.inside(is_function=True)
    body.g.add_function("Norm", ["v", "w"], [body.chain("v", weight="w")])
    w = a.weight()
    return [
        a.g.op("Norm", a.input(shape=shape), w, domain=FUNCTION_DOMAIN)
        for shape in ((3, 8), (3, 1))
    ]


@look_alike(most=2, refusal=False)
def function_with_epsilon_attribute(a: Alike) -> list[str]:
    """Epsilon is an attribute of the call, another one in each."""
    body = a.inside(is_function=True)
    constant = helper.make_node("Constant", [], ["epsilon"])
    attribute = constant.attribute.add()
    attribute.name, attribute.ref_attr_name = "value_float", "epsilon"
    attribute.type = AttributeProto.FLOAT
    body.g.nodes.append(constant)
    y = body.chain("v", stabilise=lambda v: body.g.op("Add", v, "epsilon"))
    opsets = [helper.make_opsetid("", a.g.opset)]
    a.g.functions.append(
        helper.make_function(FUNCTION_DOMAIN, "Norm", ["v"], [y], body.g.nodes, opsets, ["epsilon"])
    )
    x = a.input()
    return [a.g.op("Norm", x, domain=FUNCTION_DOMAIN, epsilon=value) for value in (1e-5, 2.0)]


@look_alike(most=1, refusal=False)
def function_finishes_an_outer_root(a: Alike) -> str:
    """x and its root go in; who sees only the body sees two unrelated inputs."""
    body = a.g.child(is_function=True)
    body.add_function("Finish", ["v", "root"], [body.op("Div", "v", "root")])
    x = a.input()
    root = a.root(a.stabilise(a.mean(a.square(x))))
    return a.g.op("Finish", x, root, domain=FUNCTION_DOMAIN)


@look_alike(refusal=False)
def function_gets_two_tensors(a: Alike) -> str:
    """Square of the first argument below the second; both are other values in the call."""
    body = a.inside(is_function=True)
    y = body.chain("v", divide=lambda v: body.g.op("Div", "u", v))
    body.g.add_function("Norm", ["v", "u"], [y])
    return a.g.op("Norm", a.input(), a.input("other"), domain=FUNCTION_DOMAIN)


@look_alike(norms=1)
def function_has_the_name_of_the_operator(a: Alike) -> list[str]:
    """The model brings its own ``RMSNorm`` that is something else; a real norm is beside it."""
    body = a.g.child(is_function=True)
    body.add_function("RMSNorm", ["v", "w"], [body.op("Add", "v", "w")])
    x = a.input()
    w = a.weight()
    return [a.g.op("RMSNorm", x, w, domain=FUNCTION_DOMAIN), a.chain(x, weight=w)]


@look_alike(most=1, refusal=False)
def function_in_the_domain_of_the_operator(a: Alike) -> list[str]:
    """The same, in our own domain: a second function of that name would replace it."""
    nodes = [helper.make_node("Add", ["v", "w"], ["sum"])]
    opsets = [helper.make_opsetid("", a.g.opset)]
    a.g.functions.append(
        helper.make_function("rmsnorm_export", "RMSNorm", ["v", "w"], ["sum"], nodes, opsets)
    )
    x, w = a.input(), a.weight()
    return [a.g.op("RMSNorm", x, w, domain="rmsnorm_export"), a.chain(x, weight=w)]


# ready-made operators


@look_alike(refusal=False, opsets=(17, 20, 24))
def layer_normalization(a: Alike) -> str:
    return a.g.op("LayerNormalization", a.input(), a.weight(), a.weight(), epsilon=1e-5)


def _native(a: Alike, scale: str, **attributes: float | int) -> str:
    return a.g.op("RMSNormalization", a.input(), scale, **attributes)


look_alikes(
    norms=1,
    opsets=(23, 24),
    native_norm=lambda a: _native(a, a.weight()),
    native_norm_of_two_axes=lambda a: _native(a, a.weight((3, 8)), axis=1, epsilon=0.5),
)
look_alikes(
    most=1,
    refusal=False,
    opsets=(23, 24),
    # [8] for two normalised axes: allowed, since a scale may be broadcast.
    native_norm_with_narrow_scale=lambda a: _native(a, a.weight((1, 8)), axis=-2),
    native_norm_with_scalar_scale=lambda a: _native(a, a.weight((1,))),
)


@look_alike(norms=1, opsets=(23, 24))
def native_norm_behind_a_modulation(a: Alike) -> list[str]:
    y = _native(a, a.weight())
    return [a.g.op("Mul", y, a.input("gate")), y]


# constants in odd places


@look_alike(norms=1)
def weight_from_outer_scope_of_same_shape_as_row(a: Alike) -> str:
    """The gain is a constant of the outer graph, the norm in a branch."""
    x, w = a.input(), a.weight()
    inside = a.inside()
    y = inside.chain(x, weight=w)
    other = a.g.child()
    then = _branch(inside.g, y)
    return _if(a, _branch(other, other.op("Neg", x)), then)


@look_alike(refusal=False)
def constant_shadowed_by_a_state(a: Alike) -> str:
    """The exponent comes from the loop: 2 in the first iteration only."""
    x = a.input(values=np.abs(a.rng.standard_normal((2, 3, 8))) + 0.5)
    inside = _loop_body(a, state=(2, 3, 8), exponent=())
    y = inside.chain(x, square=lambda v: inside.g.op("Pow", v, "exponent"))
    _sums(inside, y, exponent=())
    return _loop(a, inside.g, a.input("start"), a.scalar(2.0))
