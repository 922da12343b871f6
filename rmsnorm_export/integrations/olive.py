"""``RMSNormExport``: a pass of Olive (olive-ai) that makes every RMSNorm of a model one node.

Olive finds passes in its package configuration. This prints its own with the pass added::

    python -m rmsnorm_export.integrations.olive > package.json
    olive run --config workflow.json --package-config package.json

In a workflow the pass is ``{"type": "RMSNormExport", "target": "ort", "prove": true}``; its keys
are the keywords of ``rmsnorm_export.optimize``, and ``require`` as in ``rmsnorm-export optimize``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from olive.hardware.accelerator import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam

from rmsnorm_export.errors import Error, VerificationError
from rmsnorm_export.options import entries
from rmsnorm_export.rewrite.optimize import optimize
from rmsnorm_export.rewrite.options import OptimizeOptions, Requirement

_OPTIONS = [
    entry
    for record in (OptimizeOptions, Requirement)
    for entry in entries(record)
    if entry.facts.cli
]


class RMSNormExport(Pass):  # type: ignore[misc,unused-ignore]  # Olive has no types
    """Every RMSNorm as one node; a requirement or a proof that fails ends the run."""

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        del accelerator_spec
        return {
            entry.name: PassConfigParam(
                type_=entry.hint, default_value=entry.default, description=entry.facts.help
            )
            for entry in _OPTIONS
        }

    def _run_for_config(
        self, model: ONNXModelHandler, config: type[BasePassConfig], output_model_path: str
    ) -> ONNXModelHandler:
        """The handler of the new model, in ``output_model_path``.

        Raises:
            RequirementError: ``require`` is not met; nothing is written.
            VerificationError: a proof failed.
            UsageError, InputError: as `optimize`.
        """
        source = Path(model.model_path)
        path = Path(resolve_onnx_path(output_model_path, source.name))
        given: dict[str, Any] = {entry.name: getattr(config, entry.name) for entry in _OPTIONS}
        requirement = Requirement(require=given.pop("require"))
        result = optimize(source, **given)
        error: Error | None = requirement.unmet(result.report)
        if error is None and (unproved := result.report.unproved):
            error = VerificationError(
                "A rewrite has no proof that holds.",
                found=f"{unproved[0].node}: {unproved[0].found}",
                fix="report it, please; without prove the other rewrites are made",
            )
        if error is not None:
            raise error
        path.parent.mkdir(parents=True, exist_ok=True)
        # Olive caches folders and moves them: a file elsewhere would be lost.
        saved = result.save(path, weights="copy", force=True)
        if not saved.data_files:
            return ONNXModelHandler(model_path=str(path))
        return ONNXModelHandler(model_path=str(path.parent), onnx_file_name=path.name)


def package_config() -> dict[str, Any]:
    """Olive's own package configuration, and this pass in it."""
    default = Path(OlivePackageConfig.get_default_config_path()).read_text(encoding="utf-8")
    config: dict[str, Any] = json.loads(default)
    every = ["*"]
    config["passes"][RMSNormExport.__name__] = {
        "module_path": f"rmsnorm_export.integrations.olive.{RMSNormExport.__name__}",
        "supported_providers": every,
        "supported_accelerators": every,
        "supported_precisions": every,
    }
    return config


if __name__ == "__main__":
    json.dump(package_config(), sys.stdout, indent=1)
