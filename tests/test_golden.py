"""What ``optimize`` writes and reports is what was frozen; see ``tests.tools.golden``.

Every twelfth model here; ``python -m tests.tools.golden`` compares them all.
"""

from __future__ import annotations

import itertools

import pytest

from tests.tools.golden.frozen import FROZEN, Frozen
from tests.tools.golden.models import models

ONE_IN = 12


def test_bytes_and_reports() -> None:
    frozen = Frozen.read(FROZEN)
    if frozen.other_versions():
        pytest.skip(f"the bytes are those of other versions: {frozen.other_versions()}")
    sample = itertools.islice(models(), 0, None, ONE_IN)
    differences = [line for model in sample for line in frozen.differences(model)]
    assert not differences, "\n".join(differences)
