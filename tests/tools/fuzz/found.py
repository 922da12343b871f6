"""Which norms are found behind mutations that keep their value, by mutation; which loss is silent.

A norm may be lost behind a mutation for a reason that the report gives. Nothing may be lost without
one, and hardly anything at all.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Iterator, Sequence

import onnx

import rmsnorm_export as rx
from tests.tools.fuzz import mutants
from tests.tools.fuzz.change import MUTATIONS
from tests.tools.fuzz.mutants import Mutated, Seed, Step


@dataclasses.dataclass(slots=True)
class Share:
    """Of the mutants of one mutation: those whose norms are all found, and the reasons of others.

    Attributes:
        kept: mutants whose norms kept their value.
        found: those of which every norm is found.
        reasons: why not, with how often; "" for a loss without a reason.
        examples: one mutant for each reason, in words.
    """

    kept: int = 0
    found: int = 0
    reasons: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    examples: dict[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        missed = ", ".join(f"{reason or 'SILENT'} {n}" for reason, n in self.reasons.most_common())
        return f"{self.found} of {self.kept}" + (f" ({missed})" if missed else "")


def kept_mutants(
    seeds: Sequence[Seed], seed: int, count: int, most: int
) -> Iterator[tuple[Seed, Mutated]]:
    """Valid mutants whose norms keep their value; the first mutation goes through all in turn.

    Args:
        seeds: models with norms.
        seed: names the sequence.
        count: mutants to draw; those that do not keep the value are left out.
        most: mutations of each, at most.
    """
    names = sorted(MUTATIONS)
    for index in range(count):
        rng = random.Random(f"{seed}/{index}")
        chosen = [names[index % len(names)]]
        chosen += rng.choices(names, k=rng.randint(0, most - 1))
        steps = [Step(name, rng.randrange(2**32)) for name in chosen]
        base = rng.choice(seeds)
        mutated = mutants.apply(base, steps)
        if mutated.keeps and mutated.steps and mutated.steps[0] == steps[0] and _valid(mutated):
            yield base, mutated


def _valid(mutated: Mutated) -> bool:
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidGraph

    from tests.tools.fuzz.subject import load

    try:
        onnx.checker.check_model(mutated.model, full_check=True)
        load(mutated.model.SerializeToString())
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    except (Fail, InvalidArgument, InvalidGraph):
        return False
    except Exception as error:
        return type(error).__name__ == "NotImplemented"  # no kernel for some type
    return True


def shares(seeds: Sequence[Seed], seed: int, count: int, most: int = 1) -> dict[str, Share]:
    """By mutation: how many norms are found behind it, where they keep their value."""
    with_norms = [s for s in seeds if s.norms and _norms(s.model)[0] >= s.norms]
    out: dict[str, Share] = collections.defaultdict(Share)
    for base, mutated in kept_mutants(with_norms, seed, count, most):
        norms, reasons = _norms(mutated.model)
        for step in mutated.steps:
            share = out[step.mutation]
            share.kept += 1
            if norms >= base.norms:
                share.found += 1
                continue
            share.reasons[reasons] += 1
            share.examples.setdefault(reasons, f"{base.name}: {'; '.join(mutated.done)}")
    return dict(sorted(out.items()))


def _norms(model: onnx.ModelProto) -> tuple[int, str]:
    report = rx.optimize(model, numerics="upcast").report
    reasons = ", ".join(sorted({refusal.reason for refusal in report.refused}))
    return len(report.fused) + len(report.kept), reasons
