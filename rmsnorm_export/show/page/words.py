"""What the reader of a report may look up: the README's tables, in the page itself.

The tests hold these texts against the README.
"""

from __future__ import annotations

NUMERICS = {
    "exact": "Every rounding to a smaller type that the source has, in its place, and no other; "
    "only the order of sums and of products may differ.",
    "reordered": "One rounding to a half type is moved or dropped: at most 1 ulp of that type "
    "more, and no larger error against float64.",
    "upcast": "The source computes the row, or the residual sum, in a half type, the new node in "
    "f32: other numbers, with no larger error against float64.",
}

REASONS = {
    "all-axes": "the mean is over the whole tensor",
    "attribute-reference": "an attribute of the function that holds it is a parameter",
    "axes-dropped": "keepdims = 0 without Unsqueeze: the division pairs other axes",
    "axes-misplaced": "the reduced axes are not certainly put back where they were",
    "axes-not-constant": "the axes of the mean are computed",
    "axes-not-trailing": "the mean is not over the last axes",
    "bias": "the target's operator has no bias",
    "clamped": "Max or Clip instead of adding epsilon (F.normalize)",
    "count-not-constant": "the sum of squares is scaled by a computed number",
    "crosses-subgraph": "mean and division are in different graphs",
    "different-numerator": "what is divided is not what was squared",
    "divided-by-inverse": "x is divided by 1 / rms",
    "empty-row": "rows of no elements",
    "epsilon-after-inverse": "a number is added to 1 / rms",
    "epsilon-negative": "epsilon is below 0",
    "epsilon-not-constant": "epsilon is an input, overridable, or a vector",
    "epsilon-outside": "the target's operator has no epsilon behind the root",
    "epsilon-precision": "the target stores epsilon as f32, this f64 norm needs more",
    "epsilon-rank": "epsilon has more axes than x",
    "exponent-not-two": "the exponent is not the constant 2",
    "exponent-rank": "the exponent has more axes than x",
    "gain-not-a-value": "gain and offset are apart; the target wants their sum",
    "gain-shape": "the target wants a gain in the shape of the row",
    "gate": "the target's operator has no gate",
    "group": "the target's operator has no groups",
    "layer-norm": "the row is centred first: a LayerNorm",
    "lossy-cast": "the mean square is rounded to a smaller type and back",
    "multiplied-by-root": "x is multiplied with its rms",
    "no-normalised-row": "the root divides nothing",
    "not-the-mean": "the sum is divided by another count: an L2 norm, mostly",
    "numerics": "a looser class than --numerics allows would be needed",
    "opset": "the target needs a newer opset, and raising failed",
    "partial": "the target's operator has no partial rows",
    "power-of-mean-square": "another power than a root or an inverse",
    "proof-failed": "--prove found a difference; the old nodes were kept",
    "rank-unknown": "positive axes, and the rank of x is not known",
    "residual": "the target's operator has no residual sum",
    "residual-kept": "the Add in front cannot be taken into the node",
    "row-length-unknown": "a sum over a row of unknown length",
    "row-of-one": "ONNX Runtime's CUDA provider wants two elements and more",
    "row-size-unknown": "the target needs a gain of a size that the file does not say",
    "second-inverse": "the inverse is inverted again",
    "second-root": "a second root or inverse",
    "stash-type": "computed in a half type that is not that of x",
    "subtraction": "a difference of mean squares: a variance, mostly",
    "two-epsilons": "two epsilons are added",
    "type-unknown": "the element type of x is not in the file",
    "weighted-square": "the squares are multiplied with another tensor",
}
