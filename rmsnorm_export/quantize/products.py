"""Products of a graph whose matrix is a weight, which become MatMulNBits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from rmsnorm_export.graph.names import Names
from rmsnorm_export.graph.opset import default_opset
from rmsnorm_export.graph.order import insert, nodes_of, replace
from rmsnorm_export.graph.tensors import release
from rmsnorm_export.op.dtypes import Array
from rmsnorm_export.quantize.blocks import BLOCK, Blocks, in_blocks
from rmsnorm_export.quantize.packed import pack_attentions
from rmsnorm_export.runtime.session import LEVEL

_CONTRIB = "com.microsoft"
_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_BY_INT8 = 4
"""The level of float32: activations are rounded to int8 in blocks. In float16 ONNX Runtime 1.31
computes wrong numbers by it where its optimizer is off."""
_MIDDLE = 8
"""The zero point of 4 bits where none is given."""
_AXES_INPUT = 13
"""First opset in which the axes of ReduceSum are an input."""
_PRODUCTS = ("MatMul", "Gemm", "FusedMatMul")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A node that multiplies what is computed by a weight.

    Attributes:
        node: MatMul, Gemm or FusedMatMul.
        weight: the initializer.
        turned: it is [columns of the output, rows], as PyTorch stores it.
    """

    node: ir.Node
    weight: ir.Value
    turned: bool

    @property
    def x(self) -> ir.Value:
        """Return what it multiplies now: other products become other nodes."""
        x = self.node.inputs[0]
        assert x is not None
        return x

    def matrix(self) -> Array:
        """Return the weight as PyTorch stores it, [columns of the output, rows]."""
        assert self.weight.const_value is not None
        array = self.weight.const_value.numpy()
        return array if self.turned else array.T


def products_of(model: ir.Model) -> list[Product]:
    """Return the products of a graph and its subgraphs whose matrix is a weight."""
    return [found for node in nodes_of(model) if (found := _product(node)) is not None]


def _product(node: ir.Node) -> Product | None:
    if not _multiplies(node) or node.inputs[0] is None:
        return None
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    turned = bool(given.pop("transB", 0))
    if any(given.pop(name, 1.0) != 1.0 for name in ("alpha", "beta")) or any(given.values()):
        return None
    weight = node.inputs[1]
    before = weight.producer() if weight is not None else None
    if before is not None and before.op_type == "Transpose":
        if before.attributes.get_ints("perm", (1, 0)) == (0, 1):
            return None
        weight, turned = before.inputs[0], not turned
    if weight is None or not _is_matrix(weight):
        return None
    return Product(node, weight, turned)


def _multiplies(node: ir.Node) -> bool:
    return node.op_type in _PRODUCTS and node.domain in ("", _CONTRIB)


def _is_matrix(value: ir.Value) -> bool:
    stored = value.const_value if value.is_initializer() and not value.is_graph_input() else None
    return stored is not None and value.dtype in _TYPES and len(stored.shape) == 2


def weights_of(model: ir.Model) -> dict[str, int]:
    """Return how many elements the weights of products have, by name, in the order of a graph."""
    values = [product.weight for product in products_of(model)]
    return {str(value.name): value.const_value.size for value in values if value.const_value}


def quantize_products(model: ir.Model, bits: Mapping[str, int], *, rounds: bool) -> tuple[int, int]:
    """Make products with a weight MatMulNBits, in place, and the embedding that shares it.

    A zero point says whole steps. What the weights of a block are off by beside (``offsets``) are
    weights as well, in blocks: of the sum of the activations of that block, which stands beside
    them. In float16 the sum may overflow.

    Args:
        model: of the products.
        bits: of the weights, by their names; others are left.
        rounds: activations are rounded to int8, where ONNX Runtime can.

    Returns:
        How many products that are, and how many are left.
    """
    writer, tables = _Writer(model, rounds=rounds), list(_embeddings(model))
    found = [product for product in products_of(model) if product.weight.name in bits]
    total = sum(map(_multiplies, nodes_of(model)))
    by_weight: dict[tuple[ir.Value, bool], list[Product]] = {}
    for product in found:
        by_weight.setdefault((product.weight, product.turned), []).append(product)
    for products in by_weight.values():
        matrix = products[0].matrix()
        tied = [node for node in tables if _is_same(node.inputs[0], matrix)]
        offsets = not tied and matrix.dtype == np.float32
        name = str(products[0].weight.name)
        blocks = in_blocks(matrix, bits[name], offsets=offsets)
        stored = writer.store(name, blocks)
        shape = matrix.shape
        del matrix  # so that nobody looks at the file any more
        release(products[0].weight.const_value)
        for product in products:
            writer.multiply(product, blocks, stored, shape)
        for node in tied:
            writer.look_up(node, blocks, stored)
            tables.remove(node)
    if default_opset(model) >= _AXES_INPUT:  # Split has its sizes elsewhere before
        pack_attentions(model)
    model.opset_imports.setdefault(_CONTRIB, 1)
    model.graph.opset_imports.setdefault(_CONTRIB, 1)
    passes.RemoveUnusedNodesPass()(model)
    return len(found), total - len(found)


def _embeddings(model: ir.Model) -> Iterator[ir.Node]:
    for node in nodes_of(model):
        by_rows = node.op_type == "Gather" and node.attributes.get_int("axis", 0) == 0
        if by_rows and (table := node.inputs[0]) is not None and _is_matrix(table):
            yield node


def _is_same(table: ir.Value | None, matrix: Array) -> bool:
    """Return whether a table holds a matrix, which can be shared as it is."""
    assert table is not None
    assert table.const_value is not None
    if matrix.shape[1] % (2 * BLOCK) or table.const_value.shape != matrix.shape:
        return False
    is_same = np.array_equal(table.const_value.numpy(), matrix)
    release(table.const_value)
    return is_same


class _Writer:
    """Writes the nodes, with what several of them read written once."""

    def __init__(self, model: ir.Model, *, rounds: bool) -> None:
        self._graph, self._names, self._rounds = model.graph, Names(model), rounds
        self._opset = default_opset(model)
        self._numbers: dict[tuple[int, ...], ir.Value] = {}
        self._wide: dict[tuple[ir.Graph, ir.Value], ir.Value] = {}

    def store(self, name: str, blocks: Blocks) -> list[ir.Value]:
        """Return the initializers of blocks: codes, scales, and zero points where there are."""
        codes, scales, zeros = blocks.codes, blocks.scales, blocks.zeros
        if blocks.offsets is not None:
            missing = -blocks.offsets.shape[1] % BLOCK
            more = in_blocks(np.pad(blocks.offsets, ((0, 0), (0, missing))), 4, offsets=False)
            codes = np.concatenate([codes, more.codes], axis=1)
            scales = np.concatenate([scales, more.scales], axis=1)
        kinds = {f"{name}_Q{blocks.bits}": codes, f"{name}_scales": scales}
        if zeros is not None:
            whole = scales.shape[1] + scales.shape[1] % 2 - zeros.shape[1]
            zeros = np.pad(zeros, ((0, 0), (0, whole)), constant_values=_MIDDLE)
            kinds[f"{name}_zero_points"] = zeros[:, ::2] | zeros[:, 1::2] << 4
        return [self._weight(key, np.ascontiguousarray(array)) for key, array in kinds.items()]

    def multiply(
        self, product: Product, blocks: Blocks, stored: list[ir.Value], shape: tuple[int, ...]
    ) -> None:
        """Put a product of blocks in the place of one."""
        node, x = product.node, product.x
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        columns, rows = shape
        if blocks.offsets is not None:
            x = self._with_sums(x, node, rows)
            rows += blocks.offsets.shape[1]
        sizes = {"K": rows, "N": columns, "bits": blocks.bits, "block_size": blocks.size}
        if self._rounds and blocks.scales.dtype == np.float32:
            sizes[LEVEL] = _BY_INT8
        nodes = [ir.node("MatMulNBits", [x, *stored], sizes, domain=_CONTRIB, name=node.name)]
        if bias is not None:
            nodes.append(ir.node("Add", [nodes[0].outputs[0], bias]))
        replace(node, nodes, nodes[-1].outputs)

    def look_up(self, node: ir.Node, blocks: Blocks, stored: list[ir.Value]) -> None:
        """Put a Gather of blocks in the place of an embedding."""
        codes, scales = stored  # a matrix that is looked up has no zero points
        flat = ir.node("Reshape", [codes, self._integers(blocks.codes.shape[0], -1)])
        how = {"gather_axis": 0, "quantize_axis": 1, "block_size": blocks.size, "bits": blocks.bits}
        inputs = [flat.outputs[0], node.inputs[1], scales]
        gather = ir.node("GatherBlockQuantized", inputs, how, domain=_CONTRIB)
        replace(node, [flat, gather], gather.outputs)

    def _with_sums(self, x: ir.Value, node: ir.Node, rows: int) -> ir.Value:
        """Return activations with the sum of each block beside them."""
        graph = node.graph
        assert graph is not None
        if (graph, x) not in self._wide:
            nodes, shape = self._shape_of_blocks(x, rows)
            apart = ir.node("Reshape", [x, shape])
            inputs, how = [apart.outputs[0]], dict[str, Any](keepdims=0)
            if self._opset < _AXES_INPUT:
                how["axes"] = [-1]
            else:
                inputs.append(self._integers(-1))
            sums = ir.node("ReduceSum", inputs, how)
            wide = ir.node("Concat", [x, sums.outputs[0]], {"axis": -1})
            insert(graph, x.producer(), *nodes, apart, sums, wide)
            self._wide[graph, x] = wide.outputs[0]
        return self._wide[graph, x]

    def _shape_of_blocks(self, x: ir.Value, rows: int) -> tuple[list[ir.Node], ir.Value]:
        """Return the shape of activations in blocks, and the nodes that compute it."""
        blocks = (rows // BLOCK, BLOCK)
        if x.shape is not None:
            return [], self._integers(*[0] * (len(x.shape) - 1), *blocks)
        shape = ir.node("Shape", [x])
        before = ir.node("Slice", [shape.outputs[0], self._integers(0), self._integers(-1)])
        whole = ir.node("Concat", [before.outputs[0], self._integers(*blocks)], {"axis": 0})
        return [shape, before, whole], whole.outputs[0]

    def _integers(self, *numbers: int) -> ir.Value:
        if numbers not in self._numbers:
            name = f"numbers_{len(self._numbers)}"
            self._numbers[numbers] = self._weight(name, np.array(numbers))
        return self._numbers[numbers]

    def _weight(self, name: str, array: Array) -> ir.Value:
        name = self._names(name)
        value = ir.Value(name=name, const_value=ir.tensor(array, name=name))
        value.shape, value.dtype = ir.Shape(array.shape), ir.DataType.from_numpy(array.dtype)
        self._graph.register_initializer(value)
        return value
