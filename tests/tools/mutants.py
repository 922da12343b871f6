"""Small faults of bounds, tolerances, guards and refusals, each with the test that notices it.

A row is what a careless maintainer could write: in a file of the package one text becomes another.
It is written into a copy of the package, never into the working tree, and there the named test of
the default run has to fail.

``python -m tests.tools.mutants [WORDS]`` runs all, or those whose row has these words, and prints
one line for each: the seconds that it lived, or that it survived.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "rmsnorm_export"
TIMEOUT = 600

# An editable installation would import the working tree, wherever Python runs.
_PYTEST = """\
import os, sys
for finder in [one for one in sys.meta_path if "_editable" in getattr(one, "__module__", "")]:
    sys.meta_path.remove(finder)
import rmsnorm_export
assert os.path.abspath(rmsnorm_export.__file__).startswith(os.getcwd() + os.sep)
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


class Mutant(NamedTuple):
    """One fault.

    Attributes:
        file: below the package.
        old: what stands there exactly once.
        new: what stands there instead.
        test: that fails then, below ``tests/``.
    """

    file: str
    old: str
    new: str
    test: str

    @property
    def name(self) -> str:
        """The file, and what stands in it."""
        words = self.new.split() or ["without", *self.old.split()]
        return f"{self.file}: {' '.join(words)}"

    def problem(self, package: Path) -> str:
        """Return a sentence if the row does not fit the files any more, or ""."""
        count = (package / self.file).read_text(encoding="utf-8").count(self.old)
        if count != 1:
            return f"{self.file} has {self.old!r} {count} times, and not once: mend the row."
        file, _, test = self.test.partition("::")
        source = (ROOT / "tests" / file).read_text(encoding="utf-8")
        if not re.search(rf"^def {re.escape(test.partition('[')[0])}\(", source, re.MULTILINE):
            return f"There is no test {self.test}, which is to notice {self.name!r}: name another."
        return ""


_FACTORS = "recognize/test_factors.py::"
_BOUNDS = "proof/test_bounds.py::"
_FORMS = "lower/test_forms.py::"
_SESSIONS = "lower/test_default_sessions.py::"
_LIMITS = "lower/test_plugin_limits.py::"
_REASONS = "test_spellings.py::test_look_alike_is_refused_for_its_own_reason"
_ALGEBRA = "test_algebra.py::test_what_looks_like_it_is_left_alone"
_TRAPS = "audit/test_audit.py::test_what_no_proof_shows_is_not_fused"
_ALIKE = "audit/test_audit.py::test_what_looks_like_one_is_not_named"
_HALF = "precision/test_precision.py::"
_HALF_IO = "precision/test_interface.py::"
_HOSTILE = "cli/test_cli_hostile.py::test_hostile_file"
_LOWERED = "graph/test_lowered_opset.py::test_what_prevents_it_is_named"
_RAISED = "rewrite/test_converted.py::test_a_raised_model_computes_what_it_did_or_is_not_raised"

MUTANTS = (
    # recognize/: tolerances, floors, ranks, axes, epsilons, weights of a sum
    Mutant("recognize/complete.py", "UNIT_TOLERANCE = 2.0**-51", "UNIT_TOLERANCE = 2.0**-41",
           _FACTORS + "test_the_number_itself_is_folded_and_its_neighbours_are_not"),
    Mutant("recognize/consts.py", "math.ldexp(0.5, ulp)", "math.ldexp(1.0, ulp)",
           _FACTORS + "test_half_an_ulp_of_a_constant"),
    Mutant("recognize/consts.py", "return None if value.is_graph_input() else value.const_value",
           "return value.const_value", "graph/test_constant_initializers.py::"
           "test_what_a_caller_may_replace_is_no_constant"),
    Mutant("recognize/consts.py", "math.sqrt(info.smallest_normal) <= square", "0 < square",
           _FACTORS + "test_a_factor_with_which_ordinary_rows_are_no_numbers_is_left_alone"),
    Mutant("recognize/clamp.py", "not fact.inverse and min(fact.a, fact.c) > 0",
           "not fact.inverse", _FACTORS + "test_what_is_negative_has_no_floor"),
    Mutant("recognize/clamp.py", "fact.epsilons and not fact.floor and not kept",
           "fact.epsilons > 1 and not fact.floor and not kept", _ALGEBRA + "[a larger maximum]"),
    Mutant("recognize/clamp.py", "most >= largest and some",
           "most > 0 and some", _ALGEBRA + "[clipped at a number]"),
    Mutant("recognize/clamp.py", "finfo(dtype.numpy()).eps) / 2", "finfo(dtype.numpy()).eps) * 2",
           _FACTORS + "test_a_floor_just_above_epsilon_is_another"),
    Mutant("recognize/clamp.py", 'dtype == ir.DataType.FLOAT16 and ends["max"] < math.inf',
           'dtype == ir.DataType.BFLOAT16 and ends["max"] < math.inf',
           _FACTORS + "test_a_clip_at_the_largest_float16_clips_ordinary_squares"),
    Mutant("recognize/radial.py", "radial.kept and _names_row(ctx, node, radial, row):",
           "radial.kept:",
           "recognize/test_computed_shapes.py::test_an_axis_that_is_not_the_row_is_no_row"),
    Mutant("recognize/sums.py", "negative != list(range(-len(negative), 0)) or not 0 <", "not 0 <",
           _REASONS),
    Mutant("recognize/sums.py", "if rank != 1:", "if rank is None:",
           "recognize/test_bounded_work.py::test_a_scalar_has_no_rows"),
    Mutant("recognize/sums.py", "if size == 0:", "if size is None:", _REASONS),
    Mutant("recognize/addition.py", "if number < 0:", "if number < -1:", _REASONS),
    Mutant("recognize/addition.py", "if radial.epsilons:", "if radial.epsilons > 1:", _REASONS),
    Mutant("recognize/addition.py", "not ctx.fits(array.ndim, radial)", "array.ndim > 4", _REASONS),
    Mutant("recognize/context.py", "rank <= (whole if radial.kept else whole + radial.axis)",
           "rank <= whole",
           _FACTORS + "test_an_epsilon_of_the_rank_of_x_raises_that_of_a_mean_without_its_axis"),
    Mutant("recognize/context.py", "source.bitwidth < to.bitwidth",
           "source.bitwidth <= to.bitwidth", "recognize/test_neutral_nodes.py::"
           "test_a_type_is_wider_where_it_has_every_number_of_the_other"),
    Mutant("recognize/radial.py", "if number == 2.0:\n        if rank",
           "if number and abs(number - 2.0) < 1e-3:\n        if rank", _REASONS),
    Mutant("recognize/finish.py", "return None not in left", "return True",
           "rewrite/test_residuals.py::test_sizes_without_a_name_are_not_known_to_be_the_same"),
    Mutant("decoder/generation.py", "if room < (tokens or 1):", "if room + 1 < (tokens or 1):",
           "decoder/test_generation.py::test_more_tokens_than_there_are_places_are_refused"),
    Mutant("decoder/text.py", "if not new <= most * old:", "if False:",
           "decoder/test_quantized_text.py::test_perplexity_is_that_of_the_logits"),
    Mutant("precision/decide.py", "elif 0 < size < self._least:", "elif 0 < size < 0:",
           _HALF + "test_an_epsilon_that_float16_loses_stays_float32"),
    Mutant("precision/decide.py", "if reader.op in (*_ROOTS,", "if reader.op in (",
           _HALF + "test_an_epsilon_that_float16_loses_stays_float32"),
    Mutant("precision/decide.py", "bound * size > self._largest", "size > self._largest",
           _HALF_IO + "test_squares_inside_an_operator_count"),
    Mutant("precision/decide.py", "if bound > self._largest:", "if bound > 1e9:",
           _HALF + "test_a_stream_is_float32_from_the_first_sum_that_overflows"),
    Mutant("precision/decide.py", "if is_index or unit.op in", "if unit.op in",
           _HALF + "test_angles_and_indices_are_computed_in_float32[Cast]"),
    Mutant("precision/decide.py", "if clean or unit.op in PRODUCTS", "if unit.op in PRODUCTS",
           _HALF_IO + "test_the_stretch_of_a_float16_model_that_overflows_becomes_float32"),
    Mutant("precision/decide.py", "(sizes < self._largest)).any()", "(sizes < 0)).any()",
           _HALF_IO + "test_an_embedding_that_a_converter_clipped_is_no_mask"),
    Mutant("precision/convert.py", "all(port.is_mask for port in ports)", "False",
           _HALF_IO + "test_a_mask_of_an_attention_ends_where_the_type_does"),
    Mutant("precision/units.py", "if index < states:", "if index < states - 1:",
           _HALF + "test_bodies_are_converted_and_kept_as_the_graph_is"),
    Mutant("quantize/blocks.py", "_ON_GRID = 1 / 64", "_ON_GRID = 0.6",
           "quantize/test_blocks.py::test_weights_of_no_grid_are_rounded"),
    Mutant("quantize/quantize.py", "found.loss.problem and found.rounds",
           "found.loss.problem and not found.rounds",
           "quantize/test_quantize.py::test_one_large_activation_takes_no_steps_of_the_others"),
    Mutant("quantize/left.py", "reverse=True", "reverse=False",
           "quantize/test_quantize.py::test_single_weights_that_lose_much_are_found_among_many"),
    # health/: what is no number of float16, and what helps
    Mutant("health/analysis.py", "_MOST_OFF = 0.1", "_MOST_OFF = 10.0",
           "health/test_runs.py::test_a_cure_that_does_not_help_is_not_named"),
    Mutant("health/overflows.py", "not value.is_graph_output()", "value.is_graph_output()",
           "health/test_runs.py::test_a_mask_that_stays_one_is_not_counted"),
    Mutant("health/half.py", "if key[0] == DOMAIN}", "if key[0] != DOMAIN}",
           "health/test_runs.py::"
           "test_operators_of_ours_stay_in_float32_when_a_model_is_converted[float]"),
    Mutant("rewrite/options.py", "exact or self.prove or not self.epsilon", "exact",
           "rewrite/test_single_sites.py::test_an_epsilon_is_given_to_none_that_has_one"),
    # proof/: bounds, what is no number, what is compared, work
    Mutant("proof/bounds.py", "return max(1, 2 * steps) +", "return 3 + max(1, 2 * steps) +",
           _BOUNDS + "test_a_proof_ends_at_its_bounds"),
    Mutant("proof/bounds.py", "error = 4.5 + self.scaled", "error = 5.5 + self.scaled",
           _BOUNDS + "test_the_length_of_a_row_does_not_widen_its_bound"),
    Mutant("proof/bounds.py", "_SIGMOID = 64.0", "_SIGMOID = 128.0",
           _BOUNDS + "test_the_roundings_in_the_stash_type"),
    Mutant("proof/judge.py", "MATHEMATICS = 1e-10", "MATHEMATICS = 1e-7",
           _BOUNDS + "test_mathematics_end_at_what_rounded_constants_explain"),
    Mutant("proof/judge.py", "_FLIPS, _STRAY = 0.02, 3", "_FLIPS, _STRAY = 0.1, 3",
           _BOUNDS + "test_an_exact_proof_ends_at_its_count_of_flips"),
    Mutant("proof/judge.py", "        off |= nonfinite_differ(output, expected)\n", "",
           _BOUNDS + "test_no_number_is_as_good_as_that_of_the_formula"),
    Mutant("proof/judge.py", 'if case == "overflow" and self._beyond_judgement(label):',
           "if self._beyond_judgement(label):", "proof/test_prove_wrong.py::test_wrong_nodes"),
    Mutant("proof/composite.py", "most = 1 if match.edges and quantized.scales is None else 0",
           "most = 1 if quantized.scales is None else 0",
           _BOUNDS + "test_codes_are_the_same_or_one_step_apart_where_the_class_says_so"),
    Mutant("proof/feeds.py", "if not 0 < n <= _MAX_ROW:", "if not 0 < n:",
           "proof/test_prove.py::test_absurdly_long_rows_are_not_tried"),
    Mutant("proof/feeds.py", "(4 * math.sqrt(n) * max(factor, 1.0))", "(4 * math.sqrt(n))",
           _FACTORS + "test_a_factor_that_is_kept_is_proved"),
    Mutant("proof/prove.py", "feeds, optimize=True)", "feeds)",
           "proof/test_prove_wrong.py::test_a_node_that_the_runtime_removes"),
    Mutant("proof/prove.py", "self.pair.match.gain or not proof.passed", "proof.passed",
           "proof/test_prove_wrong.py::"
           "test_sites_of_one_form_share_drawn_scales_and_have_their_own"),
    Mutant("proof/site.py", "if elements > self.elements:", "if elements > FREE_ELEMENTS:",
           "proof/test_provable.py::test_the_proofs_of_a_model_end_with_its_elements"),
    Mutant("proof/judge.py", "else max(error_before, floor)):", "else error_before + floor):",
           _BOUNDS + "test_a_proof_ends_at_its_bounds"),
    Mutant("proof/comparison.py", "return Reference(feeds, outputs, defined, problem)",
           "return Reference(feeds, outputs, defined)",
           "proof/test_comparison.py::test_no_numbers_are_not_compared"),
    Mutant("proof/cut.py", "if tensor is None or value.is_graph_input():", "if tensor is None:",
           "proof/test_cut.py::test_an_input_that_is_not_given"),
    # op/ and lower/: what ONNX Runtime's optimizer leaves, types, rows of one, ranks, classes, what
    # the plugin takes
    Mutant("op/dtypes.py", "return number != neutral and", "return number == neutral and",
           _SESSIONS + "test_rows_of_zeros_have_length_zero"),
    Mutant("op/body.py", "self.key.single or not self.key.has_scale", "self.key.single",
           _SESSIONS + "test_a_norm_times_any_tensor"),
    Mutant("op/body.py", "or self.key.single or", "or", _SESSIONS + "test_norms_without_a_scale"
           "_beside_one_that_has_it"),
    Mutant("lower/forms.py", "spec.stash_type in HALF_TYPES and spec.stash_type != match.dtype",
           "spec.stash_type == FLOAT16 and match.dtype in HALF_TYPES",
           _FORMS + "test_refusals"),
    Mutant("lower/forms.py", "spec.stash_type == DOUBLE and float(np.float32(spec.epsilon))",
           "spec.stash_type == DOUBLE and float(np.float64(spec.epsilon))",
           _FORMS + "test_refusals"),
    Mutant("lower/builder.py", "source is not None and not widens(types.dtype(source), own)",
           "source is None",
           _FORMS + "test_a_weight_that_the_source_rounds_is_used_as_it_is_rounded"),
    Mutant("lower/ort_target.py", "part.n < least_row", "part.n < least_row - 1",
           _FORMS + "test_ort_refuses_rows_of_one_and_bf16_below_opset_13"),
    Mutant("lower/ort_target.py", 'return "upcast" if runtime is None or runtime.cuda is None',
           'return "reordered" if runtime is None or runtime.cuda is None',
           _FORMS + "test_a_residual_in_half_is_folded_at_class_upcast_only"),
    Mutant("lower/ort_target.py", "elif len(x) not in rows[0].ranks:", "elif len(x) < 2:",
           _FORMS + "test_ort_keeps_a_residual"),
    Mutant("lower/plugin.py", "length > most", "length > most + 1", _LIMITS + "test_limits"),
    Mutant("lower/plugin.py", "> limit(\"kMaxRuns\")", "> limit(\"kMaxRuns\") + 1",
           _LIMITS + "test_tables_of_a_rotary_embedding"),
    Mutant("lower/plugin.py", "spec.stash_type not in (op.FLOAT, dtype)",
           "spec.stash_type not in (op.FLOAT, op.FLOAT16, dtype)", _LIMITS + "test_limits"),
    # graph/: external data, versions, nesting, contracts
    Mutant("graph/external.py", "if state.st_nlink > 1:", "if state.st_nlink > 2:",
           _HOSTILE + "[hard_linked_data]"),
    Mutant("graph/external.py", "or ntpath.isabs(location) or ntpath.splitdrive(location)[0]:",
           "or False:", _HOSTILE + "[windows_location]"),
    Mutant("graph/external.py", "if stored != needed:", "if stored == 0:",
           _HOSTILE + "[short_data]"),
    Mutant("graph/wellformed.py", "MAX_NESTING = 31", "MAX_NESTING = 32",
           "graph/test_hostile.py::test_a_nest_of_31_levels_is_read_and_one_of_32_is_not"),
    Mutant("graph/wellformed.py", "if not 1 <= version < 2**31:", "if not 0 <= version < 2**31:",
           _HOSTILE + "[opset_zero]"),
    Mutant("graph/wellformed.py", "if len({domain for domain, _ in opsets}) < len(opsets):",
           "if len({domain for domain, _ in opsets}) > len(opsets):",
           "graph/test_load.py::test_an_operator_set_may_be_imported_twice"),
    Mutant("graph/opset.py", "if name not in schema.attributes:",
           "if name not in schema.attributes and node.domain:", _LOWERED),
    Mutant("graph/opset.py", "if value.name not in own and any(", "if not value.name and any(",
           _RAISED),
    Mutant("graph/contract.py", "return alike and one.tobytes() == other.tobytes()", "return alike",
           "rewrite/test_contract.py::"
           "test_a_weight_that_a_pass_stores_anew_by_its_name_is_the_output_that_it_was"),
    # rewrite/ and system/: what a raised file computes, whose libraries are loaded
    Mutant("rewrite/converted.py", "any(a <= first and last <= b for", "any(a <= first for",
           _RAISED),
    Mutant("rewrite/converted.py", "[*subgraphs(node)] if node.attributes.data else []", "[]",
           _RAISED),
    Mutant("rewrite/converted.py", "tuple(contents), operands", "operands",
           "rewrite/test_converted.py::test_of_nodes_that_are_alike_one_is_run"),
    Mutant("rewrite/runs.py", "if self.half_sum and (lacks", "if False and (lacks",
           "runtime/test_consumers.py::"
           "test_the_sum_of_a_float16_norm_is_for_versions_that_keep_its_scale"),
    Mutant("rewrite/transposed.py", "if _moves_batch(order) and not equal and", "if not equal and",
           "rewrite/test_transposed.py::test_casts_stand_where_they_are_needed_alone"),
    Mutant("system/libraries.py", "if layout[0] + layout[1] * layout[2] > size:",
           "if layout[0] > size:", "system/test_libraries.py::test_a_library_is_whole"),
    Mutant("system/libraries.py", "(*reversed(own.parents), own, *reversed(place.parents), place)",
           "(*reversed(place.parents), place)",
           "system/test_libraries.py::test_a_link_is_followed_and_both_ends_are_checked"),
    # audit/: what is a norm by behaviour, and how much is computed
    Mutant("audit/behaviour.py", "_TOLERANCE = 1e-5", "_TOLERANCE = 1e-2",
           _ALGEBRA + "[a larger maximum]"),
    Mutant("audit/behaviour.py", " & (np.signbit(one) == np.signbit(other))", "",
           "audit/test_audit.py::test_one_step_makes_it_none"),
    Mutant("audit/behaviour.py", "] = 0\n    return x", "] = 1\n    return x",
           "audit/test_audit.py::test_one_step_makes_it_none"),
    Mutant("audit/behaviour.py", "highest * base", "1.0 * base",
           _FACTORS + "test_a_clip_at_the_largest_float16_clips_ordinary_squares"),
    Mutant("audit/operators.py", "isinstance(size, int) and size != 1", "size != 1",
           "audit/test_audit.py::test_a_norm_is_fused_with_the_numbers_of_the_file"),
    Mutant("audit/audit.py", " and not self._is_variance(x, norm[0])", "", _ALIKE),
    Mutant("audit/audit.py", " if r.reason in _SETTLED)", " if False)",
           "audit/test_audit.py::test_where_all_norms_are_recognised_nothing_is_evaluated"),
    Mutant("audit/analytic.py", "self._through(op, node, inputs)\n",
           "self._through(op, node, inputs) or _Sign()\n", f"{_TRAPS}[clamp]"),
    Mutant("audit/analytic.py", "(op not in _PLACED or self._is_fixed(node))", "True",
           f"{_TRAPS}[late rows]"),
    Mutant("audit/analytic.py", "if floats or not (same or op in _SIZED):", "if False:",
           f"{_TRAPS}[many rows]"),
    Mutant("audit/analytic.py", "if op in _KINKED and not first.of:", "if False:",
           f"{_TRAPS}[two elements]"),
    Mutant("audit/fusing.py", "if not norm.keeps_zeros:", "if False:", f"{_TRAPS}[zero elements]"),
    Mutant("audit/fusing.py", "if not self._is_right(region, layout):", "if False:",
           f"{_TRAPS}[digits]"),
    Mutant("audit/audit.py", "if self._work < 0:", "if self._work is None:",
           "audit/test_audit.py::test_what_is_beyond_the_bound_is_not_evaluated"),
    Mutant("audit/operators.py", "return SOME if few else ENDS", "return SOME",
           "audit/test_audit.py::test_a_dense_product_is_no_sum"),
)  # fmt: skip


def copy_of_package(folder: Path) -> Path:
    """Return the root of a checkout whose package is a copy, and whose rest is the working tree."""
    for entry in ROOT.iterdir():
        if entry.name == PACKAGE:
            shutil.copytree(entry, folder / PACKAGE)
        elif not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    return folder / PACKAGE


def failure(package: Path, *tests: str) -> str:
    """Return the last lines of the tests that fail with this package; "" if they all pass.

    Raises:
        RuntimeError: they do not run at all, as with a package that cannot be imported.
    """
    names = (f"tests/{test}" for test in dict.fromkeys(tests))
    done = subprocess.run(
        [sys.executable, "-B", "-c", _PYTEST, "-qx", "-p", "no:cacheprovider", *names],
        cwd=package.parent, capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1):
        raise RuntimeError(f"The tests do not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout[-2000:] if done.returncode else ""


def killed(package: Path, mutant: Mutant) -> bool:
    """Return whether the test of a mutant fails with it; the package is then what it was."""
    if problem := mutant.problem(package):
        raise ValueError(problem)
    file = package / mutant.file
    source = file.read_text(encoding="utf-8")
    file.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        return bool(failure(package, mutant.test))
    finally:
        file.write_text(source, encoding="utf-8")


def main(words: str) -> int:
    """Run the list, and return how many survive."""
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        package = copy_of_package(Path(folder))
        chosen = [mutant for mutant in MUTANTS if words in " ".join(mutant)]
        print(failure(package, *(mutant.test for mutant in chosen)), end="")
        for mutant in chosen:
            begin = time.monotonic()
            is_killed = killed(package, mutant)
            survivors += not is_killed
            outcome = f"{time.monotonic() - begin:.1f} s" if is_killed else "SURVIVED"
            print(f"{outcome:>9}  {mutant.name}  |  {mutant.test}", flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(min(1, main(" ".join(sys.argv[1:]))))
