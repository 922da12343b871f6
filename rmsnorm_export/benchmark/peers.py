"""Other people's optimizers, each as its documentation says to run it on an exported model.

``load`` imports the tool, in a process of its own; what it returns reads one file and writes
another.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable

PeerRun = Callable[[str, str], object]


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """An optimizer.

    Attributes:
        package: the distribution that holds it; also what pip installs.
        load: imports it and returns what to call with the paths of the model and of the output.
    """

    package: str
    load: Callable[[], PeerRun]


def _transformers() -> PeerRun:
    from onnxruntime.transformers import optimizer

    def run(model: str, output: str) -> None:
        # The type whose fusions cover RMSNorm; heads and width are found by the tool. Level 0:
        # ONNX Runtime's own optimization, which every session here does itself, is left to it.
        result = optimizer.optimize_model(
            model, model_type="gpt2", num_heads=0, hidden_size=0, opt_level=0
        )
        result.save_model_to_file(output)

    return run


def _onnxscript() -> PeerRun:
    import onnx_ir as ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    def run(model: str, output: str) -> None:
        optimized, _ = optimize_for_ort(ir.load(model))
        ir.save(optimized, output)

    return run


def _command(module: str) -> PeerRun:
    """A tool through the function behind its command line."""
    main = importlib.import_module(module).main

    def run(model: str, output: str) -> None:
        sys.argv = ["tool", model, output]
        try:
            main()
        except SystemExit as stop:
            if stop.code not in (None, 0):
                raise RuntimeError(f"exit code {stop.code}") from stop

    return run


PEERS = {
    "ort.transformers": Peer("onnxruntime", _transformers),
    "onnxscript": Peer("onnxscript", _onnxscript),
    "onnxsim": Peer("onnxsim", functools.partial(_command, "onnxsim.onnx_simplifier")),
    "onnxslim": Peer("onnxslim", functools.partial(_command, "onnxslim.cli")),
}
