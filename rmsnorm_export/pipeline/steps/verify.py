"""verify: whole models against each other, and against what PyTorch computed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rmsnorm_export.errors import BackendMissingError, NotRunError, VerificationError
from rmsnorm_export.options import keywords
from rmsnorm_export.pipeline.place import read_record
from rmsnorm_export.pipeline.steps import build, export
from rmsnorm_export.pipeline.steps.base import Made, Step
from rmsnorm_export.pipeline.tables import StepName, Subject, Verify
from rmsnorm_export.system.packages import require_package
from rmsnorm_export.system.progress import Progress

if TYPE_CHECKING:
    from rmsnorm_export.compare.result import Verification

COMPARISONS = "comparisons"
"""Fact: one entry per comparison: its two sides, its file, whether it passed."""

_NO_GPU = "no GPU is visible"
_FIX = "see the files in verify; [verify] rtol, atol and max_ulp set the bounds"
_WORDS = {
    "agree": "=",
    "differ": "IS NOT",
    "not compared": "NOT COMPARED with",
    "not run": "COULD NOT BE RUN here against",
}


class VerifyStep(Step[Verify]):
    """Compares every pair, then the engine with the model that it was built from."""

    name = "verify"
    packages = (
        "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt_rtx", "numpy", "ml_dtypes",
    )  # fmt: skip

    @property
    def _engine(self) -> bool:
        return self.settings.build is not None and self.table.engine != "never"

    def subjects(self) -> tuple[Subject, ...]:
        """Whatever is compared."""
        sides = [side for pair in self.settings.pairs for side in pair if side != "pytorch"]
        sides += [self.settings.built] if self._engine else []
        return tuple(dict.fromkeys(cast("list[Subject]", sides)))

    def reads(self) -> dict[StepName, tuple[str, ...]]:
        """What PyTorch computed, and the engine."""
        found: dict[StepName, tuple[str, ...]] = {}
        if any("pytorch" in pair for pair in self.settings.pairs):
            found["export"] = (export.RUNS,)
        if self._engine:
            from rmsnorm_export.tensorrt.engine.backends import gpu_visible

            found["build"] = (build.ENGINE,) if gpu_visible() else ()
        return found

    def options(self) -> dict[str, Any]:
        """With the pairs that it comes to."""
        return {**super().options(), "pairs": self.settings.pairs}

    def surroundings(self) -> dict[str, str]:
        """The file with inputs, and whether there is a GPU to run an engine."""
        settings, path = self.settings, self.table.inputs_file
        paths = [] if path is None else [path]
        found = settings.files.plain(paths, settings.document.path.parent, "[verify]")
        if self._engine:
            from rmsnorm_export.tensorrt.engine.backends import gpus

            found["machine GPUs"] = "; ".join(gpus()) or "none"
        return found

    def check(self, force: bool) -> None:  # noqa: ARG002
        """ONNX Runtime; for ``engine = "require"`` a GPU."""
        require_package("onnxruntime", "[verify]", "[ort]")
        if self.table.engine == "require":
            from rmsnorm_export.tensorrt.engine.backends import gpu_visible

            if not gpu_visible():
                raise BackendMissingError(
                    "The engine cannot be compared here.",
                    found=_NO_GPU,
                    fix='run the pipeline where a GPU is, or give [verify] engine = "auto"',
                )

    def run(self, folder: Path, progress: Progress, force: bool) -> Made:  # noqa: ARG002
        from rmsnorm_export.tensorrt.engine.backends import gpu_visible

        pairs: list[tuple[str, str]] = list(self.settings.pairs)
        skipped = []
        if self._engine:
            if self.settings.of_graphs:
                skipped = ["engines of a folder are not run: only single engines are compared"]
            elif gpu_visible():
                pairs.append((self.settings.built, "engine"))
            else:
                skipped = [f"engine not compared: {_NO_GPU}"]
        entries, summary = [], []
        errors: list[VerificationError] = []
        for number, (a, b) in enumerate(pairs):
            progress(f"comparing {a} with {b}", number, len(pairs))
            try:
                outcome = self._against_pytorch(b) if a == "pytorch" else self._models(a, b)
            except VerificationError as error:  # what the other pairs came to is told all the same
                error.found = f"{a} and {b}: {error.found}"
                errors.append(error)
                summary.append(f"{a} CANNOT BE COMPARED with {b}")
                continue
            name = f"{a}-{b}.json"
            (folder / name).write_text(self.document(outcome, folder), encoding="utf-8")
            worst = max((output.metrics.max_abs for output in outcome.outputs), default=0.0)
            entries.append(
                {
                    "a": a,
                    "b": b,
                    "file": name,
                    "max_abs": worst,
                    "passed": outcome.passed,
                    "verdict": outcome.verdict,
                }
            )
            summary.append(f"{a} {_WORDS[outcome.verdict]} {b}")
            if (failed := outcome.error(fix=_FIX)) is not None:
                failed.found = f"{a} and {b}: {failed.found}"
                errors.append(failed)
        if skipped and self.table.options.require_verified:
            what = "The engine could not be run here, and was not compared."
            found, fix = _NO_GPU, "run the pipeline where a GPU is"
            if self.settings.of_graphs:
                found, fix = (
                    skipped[0],
                    "compare the engine of each graph with rmsnorm-export verify",
                )
            errors.append(NotRunError(what, found=found, fix=fix))
        failure = None
        if errors:
            # That models differ is more to know than that others could not be run.
            kind = type(min(errors, key=lambda one: one.exit_code))
            failure = kind(
                " ".join(dict.fromkeys(one.what for one in errors)),
                found="; ".join(one.found for one in errors),
                fix="; ".join(dict.fromkeys(one.fix for one in errors)),
            )
        return Made(
            summary="; ".join([*summary, *skipped]),
            facts={COMPARISONS: entries, "skipped": skipped},
            failure=failure,
        )

    def _models(self, a: str, b: str) -> Verification:
        """Two files, as ``rmsnorm-export verify`` compares them."""
        from rmsnorm_export.compare.verify import verify

        first, second = (
            self.settings.engine if side == "engine" else self.settings.onnx(cast("Subject", side))
            for side in (a, b)
        )
        return verify(first, second, **keywords(self.table.options))

    def _against_pytorch(self, side: str) -> Verification:
        """A file, graph optimization on, against what the module computed when it was exported.

        Raises:
            NotRunError: PyTorch could not run the module.
            VerificationError: ONNX Runtime rejects the file, or it has other outputs.
        """
        if self.settings.of_graphs:
            return self._written(side)
        from rmsnorm_export.compare.backend import Answer
        from rmsnorm_export.compare.verify import RecordedCall, compare_recorded
        from rmsnorm_export.runtime.inputs import read_arrays

        assert self.settings.export is not None
        home, options = self.settings.step_folder("export"), self.table.options
        record = read_record(home)
        facts = {} if record is None else record.facts
        if problem := facts.get(export.NOT_RUN):
            raise NotRunError(
                "PyTorch could not run the module here.",
                found=problem,
                fix="run the pipeline where it can, or leave pytorch out of [verify] pairs",
            )
        weights, notes = facts.get(export.RUN_IN, ("", ()))

        def call(name: str) -> RecordedCall:
            arrays = read_arrays(home / name)
            feeds = {key[3:]: value for key, value in arrays.items() if key.startswith("in:")}
            made = {key[4:]: value for key, value in arrays.items() if key.startswith("out:")}
            return RecordedCall(feeds, Answer(tuple(made), tuple(made.values())))

        return compare_recorded(
            self.settings.onnx(cast("Subject", side)),
            lambda _: [call(name) for name in facts.get(export.RUNS, ())],
            options,
            runtime="PyTorch",
            weights=weights,
            source=f"[export], seed {self.settings.export.seed}",
            notes=notes,
        )

    def _written(self, side: str) -> Verification:
        """The tokens that a folder of graphs writes against those of the module."""
        from rmsnorm_export.compare.generation import verify_made
        from rmsnorm_export.pipeline.pytorch import open_generative

        settings, options = self.settings, self.table.options
        assert settings.export is not None
        model, inputs, _, _ = open_generative(
            settings.source,
            settings.document.path.parent,
            options=settings.export.load,
            seed=settings.export.seed,
        )
        return verify_made(
            model,
            settings.onnx(cast("Subject", side)),
            inputs,
            static_cache=settings.export.static_cache,
            tokens=options.generate,
            rtol=options.rtol,
        )
