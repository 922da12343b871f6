"""A step behind optimum's export to ONNX: the graphs of its folder, made one node a norm.

After ``optimum.exporters.onnx.main_export(name, "llama/")``, or ``optimum-cli export onnx``::

    from rmsnorm_export.integrations.optimum import fuse

    fuse("llama/", target="ort", prove=True)

``ORTModelForCausalLM.from_pretrained("llama/")`` loads the result. From the command line it is
``rmsnorm-export optimize llama/ -o fused/``.
"""

from __future__ import annotations

import os
from typing import Any, cast

from rmsnorm_export.errors import VerificationError
from rmsnorm_export.options import keywords, takes
from rmsnorm_export.rewrite.optimize import optimize
from rmsnorm_export.rewrite.options import OptimizeOptions
from rmsnorm_export.rewrite.result import GenerationExport


@takes(OptimizeOptions)
def fuse(folder: str | os.PathLike[str], options: OptimizeOptions) -> GenerationExport:
    """Make every RMSNorm of every graph in ``folder`` one node, in place, whole or not at all.

    Args:
        folder: that optimum has written: ONNX files and a config.json.

    Raises:
        VerificationError: a proof failed; the folder is as it was.
        UsageError, InputError, BackendMissingError: as `optimize`.
    """
    result: Any = optimize(folder, **keywords(options))
    for name, report in result.reports.items():
        if report.unproved:
            first = report.unproved[0]
            raise VerificationError(
                "A rewrite has no proof that holds; the folder was not changed.",
                found=f"{name}, {first.node}: {first.found}",
                fix="report it, please; without prove the other rewrites are made",
            )
    return cast("GenerationExport", result.save(folder, force=True))
