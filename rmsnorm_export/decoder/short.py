"""Prompts that are shorter than the window of a convolution.

transformers puts zeros in front of them in the state of the convolution. Whether there are too few
tokens is decided in Python: of a longer prompt a trace takes the last ones, and of a shorter one
the graph gives a narrower state, which no graph after it takes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rmsnorm_export.graph.names import Names
from rmsnorm_export.recognize.consts import Constants, standard


def fill_states(model: ir.Model) -> None:
    """Put zeros in front of what the states of a prompt are the end of, in place.

    Of a prompt that is long enough no number changes.
    """
    names, constants = Names(model), Constants()
    for state in model.graph.outputs:
        node, shape = state.producer(), state.shape
        if node is None or standard(node) != "Slice" or shape is None or len(node.inputs) < 4:
            continue
        source, first, _, axes = node.inputs[:4]
        start, axis = constants.ints(first) or (0,), constants.ints(axes) or ()
        is_end = start[0] < 0 and len(axis) == 1 and shape[axis[0]] == -start[0]
        if source is None or source.shape is None or not is_end:
            continue
        if isinstance(source.shape[axis[0]], int):
            continue
        before = np.zeros((2, len(shape)), np.int64)
        before[0, axis[0]] = -start[0]
        tape = ir.tape.Tape()
        zeros = tape.op("Constant", [], {"value": ir.tensor(before.reshape(-1))})
        padded = tape.op("Pad", [source, zeros])
        padded.type = source.type
        for added in tape.nodes:
            added.name = names(f"state/{added.op_type}")
            added.outputs[0].name = names(f"{added.name}_output")
        model.graph.insert_before(node, tape.nodes)
        node.replace_input_with(0, padded)
