"""Norms that recognition does not follow, each with words of what is to be said of it."""

from __future__ import annotations

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

CASES: dict[str, tuple[onnx.ModelProto, str]] = {
    "plain": (
        built(NORM), "an RMSNorm of rows of 8 with epsilon 1e-05, by nodes from 'a' to 'y' "
    ),
    "float16": (
        built(changed(("e = Add(m, eps)", "k = CastLike(eps, x)\n e = Add(m, k)")),
              "float16[B,S,8]"), "rows of 8 with epsilon 1e-05,",
    ),
    "rows of any length": (built(NORM, "float[B,S,D]"), "rows over axes [-1] with epsilon 1e-05,"),
    "a long row": (built(NORM, "float[1,512,4096]"), "rows of 4096 "),
    "a large image": (built(changed(("[-1]", "[1]")), "float[1,320,64,64]"), "rows of 320 "),
    "channels": (built(changed(("[-1]", "[1]")), IMAGE), "rows of 6 "),
    "two axes": (built(changed(("[-1]", "[2, 3]")), IMAGE), "rows over axes [-2, -1] "),
    "length": (
        built(changed((MEAN, ""), ("e = Add(m, eps)", "e = ReduceSum(q, last)"))),
        "an L2 norm of rows of 8 with epsilon 0,",
    ),
    "epsilon behind": (
        built(changed(("Add(m, eps)", "Identity(m)"), (LAST, "s = Add(r, eps)\n y = Div(x, s)"))),
        "epsilon 1e-05 behind the root,",
    ),
    "floor": (built(changed(("Add(m", "Max(m"))), "a root of 0.00316 at least,"),
    "part of a row": (
        built(f"h, t = Split<axis = -1>(x)\n {changed(('Abs(x)', 'Abs(h)'))}"), "rows of 4 "
    ),
    "groups": (
        built(f"g = Reshape(x, cut)\n {changed(('(x', '(g'), ('y =', 'n ='))}\n "
              "y = Reshape(n, joined)"), "rows of 4 ",
    ),
    "beside its negative": (built(_BESIDE), "rows of 8 with epsilon 1e-05, by nodes from 'n' "),
    "gain first": (built(changed((LAST, "v = Mul(x, w)\n y = Div(v, r)"))), "rows of 8 "),
    "gain of the caller": (
        built(changed((LAST, "i = Div(given, r)\n y = Mul(x, i)")), given=", float[8] given"),
        "rows of 8 ",
    ),
    "branch": (built(_BRANCH), "rows of 8 "),
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
