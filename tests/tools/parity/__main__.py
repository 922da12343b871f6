"""Parity of RMSNorm: PyTorch, our operator in PyTorch, ONNX Runtime on every target, float64.

Modules: every variant x type x row length x scale of input. Classes: every RMSNorm of transformers.
Models: whole architectures. Prints a table; writes parity.json, parity.md and parity.png.

Exit code 1 when a claim fails: the cells are listed.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

# The matrix is of small arrays: threads cost more than they give. Nothing is downloaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from rmsnorm_export.system.packages import pip_install
from tests.tools.lib.command import RESULTS, parser, say
from tests.tools.lib.results import Start, write_results
from tests.tools.parity import claims, classes, models, modules, record
from tests.tools.parity.half_proof import Proof
from tests.tools.parity.measure import Cell
from tests.tools.parity.truth import EXTENDED
from tests.tools.parity.variants import DTYPES, SIZES, VARIANTS

LEVELS = ("module", "class", "model")
PACKAGES = ("rmsnorm-export", "torch", "onnxruntime", "onnx", "transformers", "numpy")
_QUICK_SIZES = (3, 199, 4104)
_QUICK_CLASSES = ("LlamaRMSNorm", "GemmaRMSNorm", "Qwen3NextRMSNormGated", "ImageGPTLayerNorm")


def module_cells(dtypes: list[str], *, quick: bool) -> list[Cell]:
    """The module level."""
    found: list[Cell] = []
    sizes = _QUICK_SIZES if quick else SIZES
    for number, variant in enumerate(VARIANTS, 1):
        start = time.perf_counter()
        for dtype in variant.dtypes:
            if dtype in dtypes:
                for n in sizes:
                    elements = 2**12 if quick else 2**14
                    found += modules.cells(variant, n, dtype, elements=elements)
        seconds = time.perf_counter() - start
        say(f"module {number}/{len(VARIANTS)} {variant.name}: {seconds:.1f} s")
    return found


def class_cells(dtypes: list[str], *, quick: bool) -> tuple[list[Cell], list[Proof]]:
    """The class level, with the proofs of the rounding order in half types."""
    from tests.tools.corpus.norm_classes import norm_classes

    norms = norm_classes(rmsnorm_only=True)
    if quick:
        norms = [norm for norm in norms if norm.key in _QUICK_CLASSES]
    found, proofs = [], []
    for number, norm in enumerate(norms, 1):
        start = time.perf_counter()
        for dtype in dtypes:
            if dtype == "float64":  # transformers' classes cast to float32 there
                continue
            cell, proof = classes.examine(norm, dtype)
            found.append(cell)
            if proof is not None:
                proofs.append(proof)
        seconds = time.perf_counter() - start
        say(f"class {number}/{len(norms)} {norm.key}: {seconds:.1f} s")
    return found, proofs


def model_cells(dtypes: list[str], *, quick: bool) -> list[Cell]:
    """The model level."""
    found = []
    names = list(models.names(quick=quick))
    for number, name in enumerate(names, 1):
        start = time.perf_counter()
        for dtype in dtypes:
            if dtype != "float64":
                export = name in models.EXPORTED
                found.append(models.examine(name, dtype, export=export))
        say(f"model {number}/{len(names)} {name}: {time.perf_counter() - start:.1f} s")
    return found


def _arguments() -> argparse.Namespace:
    options = parser("tests.tools.parity", __doc__)
    add = options.add_argument
    add("--quick", action="store_true", help="a part of everything, in a minute")
    add("--level", nargs="+", choices=LEVELS, default=list(LEVELS))
    add("--dtype", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    add("--out", type=Path, default=RESULTS, help="folder for the results")
    return options.parse_args()


def main() -> int:
    """Exit code 1 when a claim fails, 6 without what draws the picture."""
    arguments = _arguments()
    if find_spec("matplotlib") is None:
        say(
            "error: the picture needs matplotlib\nfound: no package matplotlib\n"
            f"fix: {pip_install('[report]')}"
        )
        return 6
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    begun, start = time.perf_counter(), Start()
    dtypes = [name for name in arguments.dtype if name != "float64" or EXTENDED]
    if dtypes != arguments.dtype:
        say("float64 is left out: this machine has no wider type to measure it with")
    cells: list[Cell] = []
    proofs: list[Proof] = []
    if "module" in arguments.level:
        cells += module_cells(dtypes, quick=arguments.quick)
    if "class" in arguments.level:
        found, proofs = class_cells(dtypes, quick=arguments.quick)
        cells += found
    if "model" in arguments.level:
        cells += model_cells(dtypes, quick=arguments.quick)
    judged = claims.judge(cells, proofs)
    options = {"quick": arguments.quick, "levels": arguments.level, "dtypes": dtypes}
    seconds = round(time.perf_counter() - begun)
    report = start.facts(*PACKAGES) | {"options": options, "seconds": seconds}
    print("\n".join(record.lines(report, cells, proofs, judged)))
    out: Path = arguments.out
    content = record.as_json(report, cells, proofs, judged)
    page = record.markdown(report, cells, proofs, judged)
    write_results(content, page, out / "parity.json", compact=True)
    if any(cell.level == "module" for cell in cells):
        from tests.tools.parity.plot import draw

        draw(cells, report, out / "parity.png")
    failed = [f"claim {claim.name}: {cell}" for claim in judged for cell in claim.failed]
    for text in failed:
        print(f"FAILED {text}")
    verdict = "every claim holds, exceptions named"
    if failed:
        verdict = f"{len(failed)} cells fail a claim"
    print(f"{verdict}; {len(cells)} cells, {seconds} s; files in {out}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
