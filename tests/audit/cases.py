"""Norms that recognition does not follow: those that a proof takes, and those that are named."""

from __future__ import annotations

import numpy as np
import onnx

from tests.recognize import text_models as text

CONSTANTS = (
    "float two = {2}, float half = {0.5}, float eps = {0.00001}, int64[1] last = {-1}, "
    "int64[4] cut = {0, 0, 2, 4}, int64[3] joined = {0, 0, 8}, float[8] w = {1,2,3,4,5,6,7,8}, "
    "float[16] ones = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}"
)
SQUARE = "a = Abs(x)\n l = Log(a)\n d = Add(l, l)\n q = Exp(d)\n "
MEAN = "m = ReduceMean<axes = [-1]>(q)\n "
ROOT = "f = Pow(e, half)\n p = Sqrt(f)\n r = Mul(p, p)\n "
LAST = "y = Div(x, r)"
NORM = f"{SQUARE}{MEAN}e = Add(m, eps)\n {ROOT}{LAST}"
ROWS, IMAGE = "float[B,S,8]", "float[B,6,S,T]"
_HEAD = '\n<domain: "my", opset_import: ["" : 17]>\n'
_HALF = "half = Constant<value_float = 0.5>()\n "


def built(body: str, kind: str = ROWS, given: str = "", functions: str = "") -> onnx.ModelProto:
    """Return a model with a body that makes y of x."""
    return text.model(
        body, constants=CONSTANTS, inputs=f"{kind} x{given}", outputs=f"{kind} y",
        imports=', "my" : 1' if functions else "", functions=functions,
    )  # fmt: skip


def changed(*pairs: tuple[str, str]) -> str:
    """Return the norm with other texts in it."""
    body = NORM
    for old, new in pairs:
        assert old in body
        body = body.replace(old, new)
    return body


_BRANCH = (
    "yes = Constant<value_int = 1>()\n c = Cast<to = 9>(yes)\n y = If(c) <then_branch = t () => "
    f"({ROWS} b) {{{changed(('y =', 'b ='))}}}, else_branch = o () => ({ROWS} z) "
    "{ z = Identity(x) }>"
)
_IN_FUNCTION = f"{_HALF}{changed(('Add(m, eps)', 'Add(m, k)'))}"
_ATTRIBUTE = "k = Constant<value_float: float = @eps>()\n "
_PARTS = (
    f"{_HEAD}Mean (x) => (m) {{{SQUARE}{MEAN}}}{_HEAD}Root (e) => (r) {{{_HALF}{ROOT}}}"
)  # fmt: skip
_BESIDE = (
    "n = Neg(x)\n c = Concat<axis = -1>(x, n)\n l = LayerNormalization(c, ones)\n "
    "z, t = Split<axis = -1>(l)\n y = Mul(z, w)"
)


def _row_times_column(product: str, kind: str, row: str, column: str) -> onnx.ModelProto:
    """Return a norm of which a converter has named every size between the row and its mean."""
    body = (
        f"h = Reshape(x, row)\n v = Reshape(x, column)\n d = {product}\n "
        "lead = Shape<end = -1>(x)\n one = Constant<value_ints = [1]>()\n "
        "k = Concat<axis = 0>(lead, one)\n s = Reshape(d, k)\n "
        "n = Constant<value_float = 8.0>()\n m = Div(s, n)\n "
        f"e = Add(m, eps)\n {ROOT}{LAST}"
    )
    rank = row.count(",") + 1
    unknown = {2: "float[a,b] h, float[c,d] v", 3: "float[a,b,c] h, float[d,i,j] v"}[rank]
    sizes = f"int64[{rank}] row = {row}, int64[{rank}] column = {column}"
    constants = f"{CONSTANTS}, {unknown}, float[k,l,o] s, {sizes}"
    return text.model(body, constants=constants, inputs=f"{kind} x", outputs=f"{kind} y")


FUSED: dict[str, tuple[onnx.ModelProto, int, float, dict[str, int]]] = {
    "plain": (built(NORM), 8, 1e-5, {}),
    "float16": (
        built(changed(("e = Add(m, eps)", "k = CastLike(eps, x)\n e = Add(m, k)")),
              "float16[B,S,8]"), 8, float(np.float16(1e-5)), {"stash_type": 10},
    ),
    "a long row": (built(NORM, "float[1,512,4096]"), 4096, 1e-5, {}),
    "a large image": (
        built(changed(("[-1]", "[1]")), "float[1,320,64,64]"), 320, 1e-5,
        {"axis": -3, "last_axis": -3},
    ),
    "channels": (
        built(changed(("[-1]", "[1]")), IMAGE), 6, 1e-5, {"axis": -3, "last_axis": -3}
    ),
    "a computed size": (
        built(changed((MEAN, "t = ReduceSum(q, last)\n k = Shape<start = -1>(x)\n "
                             "c = Cast<to = 1>(k)\n m = Div(t, c)\n "))), 8, 1e-5, {},
    ),
    "a count that is the same for every row": (
        built("o = Sub(x, x)\n h = Exp(o)\n c = ReduceSum(h, last)\n q = Mul(x, x)\n "
              "s = ReduceSum(q, last)\n m = Div(s, c)\n e = Add(m, eps)\n r = Sqrt(e)\n "
              f"{LAST}"),
        8, 1e-5, {},
    ),
    "parts of computed sizes": (
        built("k = Shape<start = -1>(x)\n i = Constant<value_ints = [1]>()\n o = Add(k, i)\n "
              "j = Constant<value_ints = [2]>()\n d = Div(o, j)\n "
              "z = Constant<value_ints = [0]>()\n h = Slice(x, z, d, last)\n "
              "t = Slice(x, d, k, last)\n a = Mul(h, h)\n b = Mul(t, t)\n "
              "u = ReduceSum(a, last)\n v = ReduceSum(b, last)\n s = Add(u, v)\n "
              f"n = Constant<value_float = 8.0>()\n m = Div(s, n)\n e = Add(m, eps)\n {ROOT}{LAST}"
              ), 8, 1e-5, {},
    ),
    "an axis in a vector": (
        built(changed((MEAN, "t = CumSum(q, last)\n i = Constant<value_ints = [7]>()\n "
                             "g = Gather<axis = -1>(t, i)\n k = Constant<value_float = 8.0>()\n "
                             "m = Div(g, k)\n "))), 8, 1e-5, {},
    ),
    "two axes": (
        built(changed(("[-1]", "[2, 3]")), "float[B,6,3,4]"), 12, 1e-5, {"axis": -2}
    ),
    "epsilon behind": (
        built(changed(("Add(m, eps)", "Identity(m)"), (LAST, "s = Add(r, eps)\n y = Div(x, s)"))),
        8, 1e-5, {"epsilon_outside": 1},
    ),
    "floor": (built(changed(("Add(m", "Max(m"))), 8, 1e-5**0.5, {"epsilon_clamp": 1}),
    "a floor between the smallest rows": (
        built(changed(("e = Add(m, eps)", "k = Constant<value_float = 1.25e-6>()\n "
                                          "e = Max(m, k)"))),
        8, 1.25e-6**0.5, {"epsilon_clamp": 1},
    ),
    "a choice by a constant": (
        built(changed((MEAN, "a1 = ReduceMean<axes = [-1]>(q)\n b = Less(eps, half)\n "
                             "m = Where(b, a1, eps)\n "))), 8, 1e-5, {},
    ),
    "part of a row": (
        built(f"h, t = Split<axis = -1>(x)\n {changed(('Abs(x)', 'Abs(h)'))}"), 8, 1e-5,
        {"partial_size": 4},
    ),
    "groups": (
        built(f"g = Reshape(x, cut)\n {changed(('(x', '(g'), ('y =', 'n ='))}\n "
              "y = Reshape(n, joined)"), 4, 1e-5, {},
    ),
    "gain first": (built(changed((LAST, "v = Mul(x, w)\n y = Div(v, r)"))), 8, 1e-5, {}),
    "gain last": (built(f"{changed(('y =', 'v ='))}\n y = Mul(w, v)"), 8, 1e-5, {}),
    "gain of the caller": (
        built(changed((LAST, "i = Div(given, r)\n y = Mul(x, i)")), given=", float[8] given"),
        8, 1e-5, {},
    ),
    "branch": (built(_BRANCH), 8, 1e-5, {}),
    "row times column": (
        _row_times_column("MatMul(h, v)", ROWS, "{-1, 1, 8}", "{-1, 8, 1}"), 8, 1e-5, {},
    ),
    "one row times its column": (
        _row_times_column("Gemm<transA = 1>(v, v)", "float[1,1,8]", "{1, 8}", "{8, 1}"),
        8, 1e-5, {},
    ),
}  # fmt: skip
"""Norms with what is to be read of them: length of a row, epsilon, attributes."""

NAMED: dict[str, tuple[onnx.ModelProto, str]] = {
    "rows of any length": (built(NORM, "float[B,S,D]"), "rows over axes [-1] with epsilon 1e-05,"),
    "two axes of any length": (built(changed(("[-1]", "[2, 3]")), IMAGE), "over axes [-2, -1] "),
    "length": (
        built(changed((MEAN, ""), ("e = Add(m, eps)", "e = ReduceSum(q, last)"))),
        "an L2 norm of rows of 8 with epsilon 0,",
    ),
    "beside its negative": (built(_BESIDE), "rows of 8 with epsilon 1e-05, by nodes from 'n' "),
    "beside its negative, of a mean that is rounded": (
        built("n = Neg(x)\n c = Concat<axis = -1>(x, n)\n size = Constant<value_ints = [32]>()\n "
              "s = ConstantOfShape<value = float[1] {1.0}>(size)\n "
              "l = LayerNormalization(c, s)\n y, t = Split<axis = -1>(l)", "float[B,S,16]"),
        "rows of 16 with epsilon 1e-05, by nodes from 'n' ",
    ),
    "squares that are quantized and taken back": (
        built(changed((MEAN, "c = QuantizeLinear(q, half)\n v = DequantizeLinear(c, half)\n "
                             "m = ReduceMean<axes = [-1]>(v)\n "))),
        "rows of 8 with epsilon 1e-05,",
    ),
    "function": (
        built("y = my.Norm(x, eps)", functions=f"{_HEAD}Norm (x, k) => (y) {{{_IN_FUNCTION}}}"),
        "rows of 8 ",
    ),
    "function of an attribute": (
        built("y = my.Norm<eps = 0.001>(x)",
              functions=f"{_HEAD}Norm <eps>(x) => (y) {{{_ATTRIBUTE}{_IN_FUNCTION}}}"),
        "epsilon 0.001, by nodes from 'y' to 'y' ",
    ),
    "functions of parts": (
        built(f"m = my.Mean(x)\n e = Add(m, eps)\n r = my.Root(e)\n {LAST}", functions=_PARTS),
        "by nodes from 'm' to 'y' ",
    ),
}  # fmt: skip

_LATE = (
    "zero = Constant<value_ints = [0]>()\n many = Constant<value_ints = [100]>()\n "
    "end = Constant<value_ints = [99999]>()\n h = Slice(q, zero, many, zero)\n "
    "t = Slice(q, many, end, zero)\n u = Mul(t, two)\n c = Concat<axis = 0>(h, u)\n "
    "m = ReduceMean<axes = [-1]>(c)\n "
)
_COUNTED = (
    "s = Size(q)\n u = Cast<to = 1>(s)\n many = Constant<value_float = 9999.0>()\n "
    "g = Max(u, many)\n h = Div(g, many)\n c = Mul(q, h)\n m = ReduceMean<axes = [-1]>(c)\n "
)
_OF_TWO = (
    "i = Constant<value_ints = [0]>()\n j = Constant<value_ints = [1]>()\n "
    "u = Constant<value_float = 5000.0>()\n g = Gather<axis = -1>(a, i)\n "
    "h = Gather<axis = -1>(a, j)\n k = Mul(h, u)\n o = Sub(g, k)\n s = Relu(o)\n t = Add(q, s)\n "
    "m = ReduceMean<axes = [-1]>(t)\n "
)
_OVERFLOWS = (
    "b = Constant<value_float = 1e30>()\n c = Mul(q, b)\n o = Mul(c, b)\n "
    "s = ReduceMean<axes = [-1]>(o)\n t = Div(s, b)\n m = Div(t, b)\n "
)
TRAPS: dict[str, tuple[onnx.ModelProto, str]] = {
    "clamp": (
        built(changed((MEAN, "b = Constant<value_float = 1e30>()\n c = Min(q, b)\n "
                             "m = ReduceMean<axes = [-1]>(c)\n "))), "Min 'c' may do otherwise",
    ),
    "a choice by what the caller gives": (
        built(changed((MEAN, "a1 = ReduceMean<axes = [-1]>(q)\n b = Greater(given, eps)\n "
                             "m = Where(b, a1, eps)\n ")), given=", float[1] given"),
        "Where 'm' may do otherwise",
    ),
    "chosen elements": (
        built(changed((MEAN, "b = Equal(w, w)\n c = Compress<axis = -1>(q, b)\n "
                             "m = ReduceMean<axes = [-1]>(c)\n "))),
        "Compress 'c' may do otherwise",
    ),
    "late rows": (built(changed((MEAN, _LATE))), "Slice 'h' may do otherwise"),
    "many rows": (built(changed((MEAN, _COUNTED))), "Cast 'u' may do otherwise"),
    "two elements": (built(changed((MEAN, _OF_TWO))), "Relu 's' may do otherwise"),
    "a cast": (
        built(changed((MEAN, "c = Cast<to = 10>(q)\n b = Cast<to = 1>(c)\n "
                             "m = ReduceMean<axes = [-1]>(b)\n "))), "Cast 'c' may do otherwise",
    ),
    "zero elements": (
        built(changed(("Add(m, eps)", "Identity(m)"),
                      (LAST, "o = Div(x, x)\n v = Mul(x, o)\n y = Div(v, r)"))), "leave zeros",
    ),
    "digits": (built(changed((MEAN, _OVERFLOWS))), "none of ordinary rows"),
    "gain": (built(changed((LAST, "v = Mul(x, w)\n u = Mul(v, w)\n y = Div(u, r)"))), "its gain"),
}  # fmt: skip
"""Norms on the rows of any proof, that are not to be fused, and why."""
