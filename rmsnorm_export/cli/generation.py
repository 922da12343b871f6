"""``export --task generation``: a decoder with its cache as a folder of ONNX files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from rmsnorm_export.cli import console
from rmsnorm_export.cli.failure import with_problem
from rmsnorm_export.cli.files import Files
from rmsnorm_export.cli.folder import finish_folder, first_problem
from rmsnorm_export.errors import UsageError
from rmsnorm_export.options import entries
from rmsnorm_export.rewrite.options import GenerationOptions, Requirement

_RTOL = "see the table for where; --rtol sets the bound"


def export_decoder(
    source: str, output: str, given: Mapping[str, Any], files: Files, *, verify: bool
) -> None:
    """Write the folder, compare it with PyTorch where that is asked for, and end the command.

    Args:
        source, output: SOURCE and -o of the command.
        given: its other options.
        files: of the report.
        verify: as the flag.
    """
    if output == console.STDIO:
        raise UsageError(
            "A decoder is a folder of files.",
            found="-o -",
            fix="give the name of a folder, e.g. -o decoder/",
        )
    if given["weights"] != "auto":
        raise UsageError(
            "The weights of a decoder stand beside its graphs.",
            found=f"--weights {given['weights']}",
            fix="leave --weights away",
        )
    if given["input_names"] or given["output_names"]:
        raise UsageError(
            "The graphs of a decoder have the names that its runner knows.",
            found="--input-name or --output-name",
            fix="leave them away, or use --names optimum",
        )
    files.check(source, output)
    with console.progress(files.state, "Starting", log=__name__) as tell:
        from rmsnorm_export.graph.bundle import check_folder
        from rmsnorm_export.rewrite.result import GenerationExport
        from rmsnorm_export.torch.generation.export import make_decoder
        from rmsnorm_export.torch.generation.source import load_generative

        folder = check_folder(output, force=files.force)
        tell("loading the model", 0, 1)
        names = ("arguments", "dtype", "shapes", "dims", "seed")
        model, inputs, notes = load_generative(source, **{name: given[name] for name in names})
        known = {entry.name for entry in entries(GenerationOptions)}
        options = {name: value for name, value in given.items() if name in known}
        options |= {"inputs": inputs, "progress": tell, "drawings": files.drawn}
        decoder = make_decoder(model, GenerationOptions(**options))
        requirement, parity = Requirement(require=given["require"]), None
        reports = {
            name: dataclasses.replace(report, notes=(*report.notes, *notes))
            for name, report in decoder.reports.items()
        }
        unmet, error = first_problem(reports, requirement)
        made = GenerationExport(folder, reports, (), decoder.log, decoder.seconds)
        if unmet is None:
            tell("writing", 0, 1)
            made = dataclasses.replace(decoder.save(folder, force=files.force), reports=reports)
        if unmet is None and verify:
            tell("comparing tokens with PyTorch", 0, 1)
            try:
                from rmsnorm_export.compare.generation import verify_made

                how = {"static_cache": given["static_cache"], "rtol": given["rtol"]}
                parity = verify_made(model, made.path, inputs, **how)
                error = error or parity.error(fix=_RTOL)
            except Exception as problem:  # the folder is written: its report is not lost
                error = with_problem(error, "--verify", problem)
    finish_folder(files, [source], made, error, parity)
