"""The strings of a serialized program, of which PyTorch makes code: which of them are harmless."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rmsnorm_export.op.spec import DOMAIN

PLAIN = re.compile(r"(?!(.*\.)?__\w*__(\.|$))[^\"'\\\x00-\x1f\x7f]*")
"""A path of names that cannot end the quotes around it in generated source, nor leave a module."""

_NAMESPACES = frozenset(
    {"aten", "prims", "onnx", "onnx_symbolic", "quantized_decomposed", "torchvision", DOMAIN}
)
_OPEN_FILES = frozenset({"from_file", "save", "load"})
_HIGHER_ORDER = re.compile(
    r"associative_scan|auto_functionalized(_v2)?|cond|flex_attention|hints_wrapper|invoke_subgraph"
    r"|map_impl|out_dtype|scan|strict_mode|wrap|wrap_activation_checkpoint|wrap_with_autocast"
    r"|wrap_with_set_grad_enabled|while_loop"
)
_ON_NUMBERS = re.compile(
    r"_operator\.(eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|pow|truediv|and_|or_|not_"
    r"|lshift|rshift|getitem)|math\.(trunc|ceil|floor|sqrt)|torch\._?sym_\w+"
)
_FUNCTIONS = re.compile(
    r"Abs|Add|And|BitwiseFn_bitwise_(and|or)|CeilDiv|CeilToInt|CleanDiv|Eq|Equality|FloatTrueDiv"
    r"|FloorDiv|FloorToInt|Ge|GreaterThan|Gt|Identity|IntTrueDiv|Integer|Le|LessThan|Lt|Max|Min|Mod"
    r"|IsNonOverlappingAndDenseIndicator|ModularIndexing|Mul|Ne|Not|Or|Piecewise|PythonMod|RShift"
    r"|Rational|RoundDecimal|RoundToInt|StrictGreaterThan|StrictLessThan|ToFloat|TruncToFloat"
    r"|TruncToInt|Unequality|Where|ceiling|floor"
)
_ATOM = re.compile(r"[a-z_]{1,8}[0-9]{1,9}|oo|int_oo|zoo|nan|true|false|E|pi")
_EXPONENT = re.compile(
    r"-?[0-9]{1,2}|Integer\(-?[0-9]{1,2}\)|Rational\(-?[0-9], [0-9]\)|Symbol\('\w+'[^()]*\)"
    r"|[a-z_]+[0-9]+"
)
_EXPRESSION = re.compile(r"[\w (),.='+\-*/%<>!]{1,8000}", re.ASCII)
_KEY = r"(\"[^\"'\\]*\"|-?[0-9]+|null|true|false)"
_CONTEXT = re.compile(rf"null|[0-9]+|\[({_KEY}(, ?{_KEY})*)?\]")
_FACTORIES = frozenset({"dict", "float", "int", "list", "set", "str", "tuple"})


def is_known_operator(name: str) -> bool:
    """An operator of tensors, one that calls graphs of the program, or arithmetic of numbers.

    PyTorch takes whatever a dotted name leads to from ``torch``.
    """
    parts = name.split(".")
    if parts[:2] != ["torch", "ops"]:
        return _ON_NUMBERS.fullmatch(name) is not None
    if parts[2:3] == ["higher_order"]:
        return len(parts) == 4 and _HIGHER_ORDER.fullmatch(parts[3]) is not None
    if len(parts) != 5 or parts[2] not in _NAMESPACES or parts[3] in _OPEN_FILES:
        return False
    found: Any = torch.ops
    for part in parts[2:]:
        found = getattr(found, part, None)
    # One that this PyTorch lacks is an error of its own.
    return found is None or isinstance(found, torch._ops.OpOverload)


def is_arithmetic(text: str) -> bool:
    """Symbols, numbers, arithmetic and the functions of sizes, as sympy's ``srepr`` writes them.

    PyTorch evaluates the text.
    """
    if not _EXPRESSION.fullmatch(text):
        return False
    try:
        return _computes(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False


def _computes(node: ast.expr, powers: bool = True) -> bool:
    """``powers``: one may stand here; of a power of a power the number grows without bound."""
    operands: list[ast.expr] = []
    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            return abs(number) < 2**64
        case ast.Name(id=name):
            return _ATOM.fullmatch(name) is not None
        case ast.Call(
            func=ast.Name(id="Symbol" | "Float"), args=[ast.Constant(value=str() as text)]
        ):
            return re.fullmatch(r"[\w.+\-]+", text) is not None and _are_flags(node.keywords)
        case (
            ast.Call(
                func=ast.Name(id="Pow" | "PowByNatural" | "FloatPow" | "LShift"),
                args=[base, exponent],
                keywords=[],
            )
            | ast.BinOp(left=base, op=ast.Pow(), right=exponent)
        ):
            small = _EXPONENT.fullmatch(ast.unparse(exponent)) is not None
            return powers and small and _computes(base, False)
        case ast.Call(func=ast.Name(id=name), args=operands, keywords=flags):
            if not (_FUNCTIONS.fullmatch(name) and _are_flags(flags)):
                return False
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=right):
            operands = [left, right]
        case ast.BinOp(left=left, op=ast.Div() | ast.FloorDiv() | ast.Mod(), right=right):
            operands = [left, right]
        case ast.UnaryOp(operand=operand):
            operands = [operand]
        case ast.BoolOp(values=operands) | ast.Tuple(elts=operands):
            pass
        case ast.Compare(left=left, comparators=others):
            operands = [left, *others]
        case _:
            return False
    return all(_computes(operand, powers) for operand in operands)


def _are_flags(keywords: list[ast.keyword]) -> bool:
    """``integer=True`` and ``precision=53``."""
    return all(flag.arg and isinstance(flag.value, ast.Constant) for flag in keywords)


def is_plain_container(text: str, *, of_inputs: bool) -> bool:
    """A tree of containers: their types import nothing, their keys can stand in generated source.

    PyTorch imports the modules that the settings of a container name.
    """
    _, root = json.loads(text)
    stack = [root]
    while stack:
        node = stack.pop()
        stack += node["children_spec"]
        kind, context = node["type"], node["context"]
        known = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(kind)
        if kind == "collections.defaultdict":
            module, name = context["default_factory_module"], context["default_factory_name"]
            if module != "builtins" or name not in _FACTORIES:
                return False
            context = json.dumps(context["dict_context"])
        elif kind == "collections.namedtuple":
            context = json.dumps([context])
        elif known and pytree.SUPPORTED_SERIALIZED_TYPES[known].from_dumpable_context is not None:
            return False
        if context is not None and not _CONTEXT.fullmatch(context):
            return False
    if of_inputs and len(root["children_spec"]) == 2:
        names = re.findall(r"\"([^\"]*)\"", root["children_spec"][1]["context"] or "")
        return all(name.isidentifier() for name in names)
    return True
