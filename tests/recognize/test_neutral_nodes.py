"""Nodes that keep the numbers and the shape of a value lose no norm, wherever they stand; their
look-alikes are not taken for them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rmsnorm_export.recognize.context import FLOATS, widens


@pytest.mark.parametrize("to", FLOATS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_a_type_is_wider_where_it_has_every_number_of_the_other(source, to) -> None:
    """Of half types every number is tried; of wider ones the ends, and the number above 1."""
    own = source.numpy()
    info = ml_dtypes.finfo(own)
    numbers = np.array([info.max, info.tiny, 1 + info.eps], own)
    if source.bitwidth == 16:
        numbers = np.arange(1 << 16, dtype=np.uint16).view(own)
    with np.errstate(all="ignore"):
        back = numbers.astype(to.numpy()).astype(own)
        is_kept = np.array_equal(back.astype(float), numbers.astype(float), equal_nan=True)
    assert widens(source, to) == is_kept
