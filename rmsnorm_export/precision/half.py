"""A float32 model in half precision, or the stretch of a half model that overflows in float32."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from rmsnorm_export.errors import InputError
from rmsnorm_export.graph.functions import inline
from rmsnorm_export.graph.load import no_gc
from rmsnorm_export.graph.order import graphs_in, values_in
from rmsnorm_export.graph.tensors import tensor_slots
from rmsnorm_export.health.sites import PRODUCTS
from rmsnorm_export.op.dtypes import numpy_dtype
from rmsnorm_export.precision.convert import convert
from rmsnorm_export.precision.decide import MARGIN, Decision, Sizes, kept
from rmsnorm_export.precision.measure import compare, run_in_float32
from rmsnorm_export.precision.result import Half, Precision
from rmsnorm_export.precision.units import Unit, units_of
from rmsnorm_export.printable import first_line
from rmsnorm_export.proof.comparison import Prepare
from rmsnorm_export.recognize.functions import is_own
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.runtime.inputs import Sample
from rmsnorm_export.runtime.metrics import FINFO

TYPES: dict[Half, ir.DataType] = {"f16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}


@no_gc()
def to_half(
    model: ir.Model, dtype: Half, samples: Sequence[Sample], prepare: Prepare, *, io: bool = False
) -> tuple[ir.Model, Precision]:
    """Return the model in half precision, with float32 where measured magnitudes ask for it.

    Of a model that is in that type already the nodes that overflow become float32.

    Args:
        model: whose norms are one node; changed.
        dtype: of the result.
        samples: the inputs on which magnitudes and the difference are measured.
        prepare: makes random ones meaningful.
        io: inputs and outputs become half as well.

    Raises:
        InputError: it holds another half type; or holds this one, and nothing overflows; or an
            output that is to change does not fit the type.
        Error: it is not run.
    """
    model = _flat(model)
    half = TYPES[dtype]
    types = Types(model)
    values = [value for graph in graphs_in(model.graph) for value in values_in(graph)]
    source = _source({types.dtype(value) for value in values}, half)
    own, already = {value for value in values if types.dtype(value) == source}, source == half
    sizes, references = run_in_float32(model, own, samples, prepare)

    def decided(one: ir.DataType) -> list[Unit]:
        units = units_of(model, types, source, one, io=io or already)
        Decision(units, sizes, one, already=already)
        return units

    (other,) = set(TYPES.values()) - {half}
    against = () if already else kept(decided(other), sizes)
    units = decided(half)
    _check_units(units, sizes, half, already=already)
    products = [unit.kind is not None for unit in units if unit.op in PRODUCTS]
    wide, bytes_before, casts = kept(units, sizes), _stored_bytes(model), _count_casts(model)
    convert(model, units, source, half)
    compared, not_compared, problem = compare(model, half, references)
    return model, Precision(
        dtype=half.name.lower(),
        limit=float(FINFO[numpy_dtype(half)].max),
        margin=MARGIN,
        inputs=", ".join(dict.fromkeys(origin for _, origin in samples)),
        runs=len(references),
        kept=wide,
        nodes=sum(unit.node is not None for unit in units),
        products=len(products),
        products_kept=sum(products),
        casts=_count_casts(model) - casts,
        bytes_before=bytes_before,
        bytes_after=_stored_bytes(model),
        other="" if already else other.name.lower(),
        other_kept=len(against),
        compared=compared,
        not_compared=not_compared,
        problem=problem,
    )


def _flat(model: ir.Model) -> ir.Model:
    """Return the model, changed, without functions of others, its floats stored as initializers.

    Raises:
        InputError: the functions cannot be inlined.
    """
    others = {key for key, function in model.functions.items() if not is_own(function)}
    try:
        model = inline(model, others)
    except ValueError as error:
        what = "The functions of the model cannot be put in the place of their calls."
        raise InputError(what, found=first_line(error), fix="omit --dtype") from error
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    return model


def _source(held: set[ir.DataType | None], half: ir.DataType) -> ir.DataType:
    """Return the type to be changed: float32, or the half type of a model that has it already.

    Raises:
        InputError: it has the other half type, or nothing to convert.
    """
    halves = [one for one in TYPES.values() if one in held]
    if halves and halves != [half]:
        names = " and ".join(one.name.lower() for one in halves)
        what = f"The model holds {names} already, so it is not converted to {half.name.lower()}."
        fix = "give the float32 model that it was made of"
        raise InputError(what, found=f"values of {names}", fix=fix)
    if not halves and ir.DataType.FLOAT not in held:
        what, fix = "The model has nothing to convert.", "omit --dtype"
        raise InputError(what, found="no value is float32", fix=fix)
    return half if halves else ir.DataType.FLOAT


def _check_units(units: Sequence[Unit], sizes: Sizes, half: ir.DataType, *, already: bool) -> None:
    """Check that there is something to do, and that the interface can change where it is to.

    Raises:
        InputError: there is not, or it cannot.
    """
    name = half.name.lower()
    if already and not any(unit.kind == "range" for unit in units):
        what = f"The model is {name} already, and no value overflows."
        largest = max((size for size in sizes.values()), default=0.0)
        found = f"the largest magnitude on these inputs is {largest:.3g}"
        raise InputError(what, found=found, fix="omit --dtype; or give --inputs that overflow")
    for unit in units:
        if unit.is_end and unit.kind == "range":
            what = f"An input or output does not fit {name}, so it cannot have this type."
            raise InputError(what, found=unit.reason, fix="omit --half-io")


def _count_casts(model: ir.Model) -> int:
    return sum(node.op_type == "Cast" for node in model.graph.all_nodes())


def _stored_bytes(model: ir.Model) -> int:
    return sum(slot.nbytes for slot in tensor_slots(model))
