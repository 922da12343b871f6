"""Settings of the whole test run.

Hypothesis profiles, chosen by ``HYPOTHESIS_PROFILE``; a property test leaves ``max_examples`` and
``deadline`` to them:

* ``ci`` (default): a few hundred examples, the same ones every time;
* ``thorough``: 10,000 fresh examples, for a run by hand before a release.

No deadline: an example may build an ONNX Runtime session while the other core is busy.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("ci", max_examples=300, derandomize=True, **_COMMON)
settings.register_profile("thorough", max_examples=10_000, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
