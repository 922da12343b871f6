"""Parity of RMSNorm: PyTorch, our operator in PyTorch, ONNX Runtime on every target, float64.

Modules: every variant x type x row length x scale of input. Classes: every RMSNorm of transformers.
Models: whole architectures. Prints a table; writes parity.json, parity.md and parity.png.

Exit code 1 when a claim fails: the cells are listed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The matrix is of small arrays: threads cost more than they give. Nothing is downloaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(ROOT))  # the catalogue of classes and architectures is that of the tests

if find_spec("matplotlib") is None:
    print(
        "error: the picture needs matplotlib\nfound: no package matplotlib\n"
        "fix: pip install 'rmsnorm-export[report]'",
        file=sys.stderr,
    )
    raise SystemExit(6)

import bench_process  # noqa: E402
import parity_claims  # noqa: E402
import parity_classes  # noqa: E402
import parity_models  # noqa: E402
import parity_modules  # noqa: E402
import parity_plot  # noqa: E402
import parity_report  # noqa: E402
import torch  # noqa: E402
from parity_measure import Cell  # noqa: E402
from parity_proof import Proof  # noqa: E402
from parity_truth import EXTENDED  # noqa: E402
from parity_variants import DTYPES, SIZES, VARIANTS  # noqa: E402

LEVELS = ("module", "class", "model")
PACKAGES = ["rmsnorm-export", "torch", "onnxruntime", "onnx", "transformers", "numpy"]
_QUICK_SIZES = (3, 199, 4104)
_QUICK_CLASSES = ("LlamaRMSNorm", "GemmaRMSNorm", "Qwen3NextRMSNormGated", "ImageGPTLayerNorm")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def modules(dtypes: list[str], *, quick: bool) -> list[Cell]:
    """The module level."""
    found: list[Cell] = []
    sizes = _QUICK_SIZES if quick else SIZES
    for number, variant in enumerate(VARIANTS, 1):
        start = time.perf_counter()
        for dtype in variant.dtypes:
            if dtype in dtypes:
                for n in sizes:
                    elements = 2**12 if quick else 2**14
                    found += parity_modules.cells(variant, n, dtype, elements=elements)
        seconds = time.perf_counter() - start
        _say(f"module {number}/{len(VARIANTS)} {variant.name}: {seconds:.1f} s")
    return found


def classes(dtypes: list[str], *, quick: bool) -> tuple[list[Cell], list[Proof]]:
    """The class level, with the proofs of the rounding order in half types."""
    from tests.corpus.norm_classes import norm_classes

    norms = norm_classes(rmsnorm_only=True)
    if quick:
        norms = [norm for norm in norms if norm.key in _QUICK_CLASSES]
    found, proofs = [], []
    for number, norm in enumerate(norms, 1):
        start = time.perf_counter()
        for dtype in dtypes:
            if dtype == "float64":  # transformers' classes cast to float32 there
                continue
            cell, proof = parity_classes.examine(norm, dtype)
            found.append(cell)
            if proof is not None:
                proofs.append(proof)
        seconds = time.perf_counter() - start
        _say(f"class {number}/{len(norms)} {norm.key}: {seconds:.1f} s")
    return found, proofs


def models(dtypes: list[str], *, quick: bool) -> list[Cell]:
    """The model level."""
    found = []
    names = list(parity_models.names(quick=quick))
    for number, name in enumerate(names, 1):
        start = time.perf_counter()
        for dtype in dtypes:
            if dtype != "float64":
                export = name in parity_models.EXPORTED
                found.append(parity_models.examine(name, dtype, export=export))
        _say(f"model {number}/{len(names)} {name}: {time.perf_counter() - start:.1f} s")
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a part of everything, in a minute")
    parser.add_argument("--level", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument(
        "--out", type=Path, default=ROOT / "scripts" / "results", help="folder for the results"
    )
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start, load = time.perf_counter(), os.getloadavg()[0]
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    dtypes = [name for name in arguments.dtype if name != "float64" or EXTENDED]
    if dtypes != arguments.dtype:
        _say("float64 is left out: this machine has no wider type to measure it with")
    cells: list[Cell] = []
    proofs: list[Proof] = []
    if "module" in arguments.level:
        cells += modules(dtypes, quick=arguments.quick)
    if "class" in arguments.level:
        found, proofs = classes(dtypes, quick=arguments.quick)
        cells += found
    if "model" in arguments.level:
        cells += models(dtypes, quick=arguments.quick)
    claims = parity_claims.judge(cells, proofs)
    report = {
        "schema_version": 1,
        "date": date,
        "machine": bench_process.machine(),
        "load_average": {"before": load, "after": os.getloadavg()[0]},
        "versions": bench_process.versions(PACKAGES),
        "options": {
            "quick": arguments.quick,
            "levels": arguments.level,
            "dtypes": dtypes,
        },
        "seconds": round(time.perf_counter() - start),
    }
    lines = parity_report.lines(report, cells, proofs, claims)
    print("\n".join(lines))
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    page = parity_report.markdown(report, cells, proofs, claims)
    (out / "parity.md").write_text(page, encoding="utf-8")
    content = parity_report.as_json(report, cells, proofs, claims)
    (out / "parity.json").write_text(
        json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8"
    )
    if any(cell.level == "module" for cell in cells):
        parity_plot.draw(cells, report, out / "parity.png")
    failed = [f"claim {claim.name}: {cell}" for claim in claims for cell in claim.failed]
    for text in failed:
        print(f"FAILED {text}")
    verdict = "every claim holds, exceptions named"
    if failed:
        verdict = f"{len(failed)} cells fail a claim"
    print(f"{verdict}; {len(cells)} cells, {report['seconds']} s; files in {out}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
