"""The module of each step; they are imported when they are asked for."""

from __future__ import annotations

import importlib
from typing import cast

from rmsnorm_export.pipeline.steps.base import Step
from rmsnorm_export.pipeline.tables import StepName


def step_module(step: StepName) -> Step:
    """The module of a step."""
    return cast("Step", importlib.import_module(f"rmsnorm_export.pipeline.steps.{step}"))
