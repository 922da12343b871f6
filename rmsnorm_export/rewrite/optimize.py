"""The pipeline: load, recognise, lower, prove, replace, and the report of it all."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import get_args

import numpy as np
import onnx_ir as ir

from rmsnorm_export.errors import Error, InputError, UsageError
from rmsnorm_export.graph.load import LoadedModel, Source, load_model, no_gc
from rmsnorm_export.graph.opset import raise_opset
from rmsnorm_export.graph.order import all_graphs
from rmsnorm_export.graph.save import SaveResult, WeightsPolicy, save_model, to_bytes
from rmsnorm_export.lower.lower import lower_all
from rmsnorm_export.lower.lowered import Lowered
from rmsnorm_export.lower.targets import Target
from rmsnorm_export.op.dtypes import type_name
from rmsnorm_export.op.numerics import Numerics
from rmsnorm_export.op.spec import DOMAIN
from rmsnorm_export.proof.result import Proof
from rmsnorm_export.recognize.context import FLOATS, name_of
from rmsnorm_export.recognize.match import LOOK_ALIKES, Decline, Match
from rmsnorm_export.recognize.scan import Recognition, foreign_functions, recognize
from rmsnorm_export.recognize.types import Types
from rmsnorm_export.rewrite.apply import Names, apply, discard
from rmsnorm_export.rewrite.draw import Gallery
from rmsnorm_export.rewrite.result import Refusal, Report, Site
from rmsnorm_export.rewrite.unfold import remove_unused_own, unfold

Progress = Callable[[str, int, int], None]

_MAX_GAMMA = 1 << 24
"""Elements of a gain that a proof may read: 64 MiB in f32, far above any row length."""

_NATIVE_FORMS: dict[str, tuple[str, ...]] = {
    "portable": (f"{DOMAIN}.RMSNorm", f"{DOMAIN}.SkipRMSNorm", f"{DOMAIN}.GatedRMSNorm"),
    "onnx": ("RMSNormalization",),
    "ort": ("SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"),
}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Outcome of `optimize`.

    Attributes:
        model: the optimized model; external weights are referenced, not loaded.
        report: what was done and why.
    """

    model: ir.Model
    report: Report
    source: LoadedModel

    def save(
        self, path: str | os.PathLike[str], *, weights: WeightsPolicy = "auto", force: bool = False
    ) -> SaveResult:
        """Write the model atomically.

        Args:
            path: the .onnx file to make.
            weights: what happens to external weights: ``reference`` them where they are (same
                folder only), ``link`` or ``copy`` the files, or ``embed`` them; ``auto`` references
                in the same folder and links elsewhere.
            force: overwrite an existing file.

        Raises:
            UsageError: the file exists and ``force`` is not given, or the policy cannot be met.
            InputError: the place cannot be written.
        """
        with no_gc():
            return save_model(self.model, path, source=self.source, weights=weights, force=force)

    def to_bytes(self, *, weights: WeightsPolicy = "auto") -> bytes:
        """The model as a serialized ModelProto.

        Args:
            weights: ``embed`` or ``reference`` for a model with external weights.

        Raises:
            InputError: the model has external weights and ``weights`` does not say what to do.
        """
        with no_gc():
            return to_bytes(self.model, weights=weights)


def optimize(
    source: Source,
    *,
    target: Target = "portable",
    numerics: Numerics = "reordered",
    opset: int | None = None,
    fold_residual: bool = True,
    fold_gate: bool = True,
    prove: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
    drawings: bool = False,
) -> Result:
    """Make every RMSNorm of a model one node.

    Args:
        source: path of an .onnx file, its bytes, an ``onnx.ModelProto`` or an ``onnx_ir.Model``;
            never changed.
        target: ``portable`` (this package's operator with its function body in the file), ``onnx``
            (RMSNormalization, opset 23) or ``ort`` (ONNX Runtime's SimplifiedLayerNormalization).
        numerics: loosest class of rewrite allowed: ``exact`` (the rounding steps of the source),
            ``reordered`` (one rounding of a half type moved or dropped), ``upcast`` (a source that
            computes in a half type is computed in float32).
        opset: raise the default domain to this version; None: only if the target needs it.
        fold_residual: take the Add in front of a norm into the node where the target can.
        fold_gate: take a SiLU or sigmoid gate into the node where the target can.
        prove: run every site before and after in ONNX Runtime and in float64; a site whose proof
            fails keeps its original nodes and is reported as refused (``proof-failed``).
        seed: of the random inputs of the proofs.
        progress: called during long work with what is done (``proving``), the steps that are over
            and the steps in all.
        drawings: keep the old and new nodes of the sites for a report that draws them.

    Returns:
        The new model and the report.

    Raises:
        InputError: the model cannot be read, or not be raised to the opset.
        UsageError: an option has no such value.
        BackendMissingError: ``prove`` without ONNX Runtime.
    """
    _check_options(target, numerics)
    start = time.perf_counter()
    with no_gc():
        loaded = load_model(source)
        before = _count(loaded.model)
        model = unfold(loaded.model, target)
        loaded = dataclasses.replace(loaded, model=model)
        version = _opset(model)
        run = _Run(model, target, numerics, fold_residual, fold_gate)
        notes = list(loaded.notes)
        wanted = max(run.min_opset, opset or 0)
        if wanted > version:
            try:
                model = raise_opset(model, wanted)
            except InputError as error:
                if opset is not None:
                    raise
                run.give_up("opset", f"the target needs opset {wanted}", error)
            else:
                loaded = dataclasses.replace(loaded, model=model)
                notes.append(
                    f"raised from opset {version} to {wanted} by onnx.version_converter"
                    + (", functions inlined" if run.model.functions else "")
                )
                run = _Run(model, target, numerics, fold_residual, fold_gate)
        elif opset is not None and opset < version:
            raise UsageError(
                "The opset can be raised, not lowered.",
                found=f"the model has opset {version}, {opset} was asked for",
                fix="leave --opset out, or export again with a lower opset",
            )
        proofs = _prove(run, seed, progress) if prove else {}
        sites = [s for s in run.lowered if proofs.get(s) is None or proofs[s].passed]
        gallery = Gallery(run.types) if drawings else None
        fused, kept = run.sites(proofs, gallery), run.kept_sites(gallery)
        refused = run.refusals(proofs)
        for site in run.lowered:
            if site not in sites:
                discard(site)
        apply(model, sites, run.names)
        remove_unused_own(model)
        report = Report(
            source=loaded.description,
            target=target,
            numerics=numerics,
            fused=fused,
            kept=kept,
            refused=refused,
            opset_before=version,
            opset_after=_opset(model),
            nodes_before=before,
            nodes_after=_count(model),
            notes=tuple(notes),
            seconds=time.perf_counter() - start,
            functions=sum(1 for _ in _own_functions(model)),
            drawings=gallery.drawings if gallery else (),
        )
    return Result(model, report, loaded)


def inspect(
    source: Source,
    *,
    target: Target | None = None,
    numerics: Numerics = "reordered",
    drawings: bool = False,
) -> Report:
    """Say which RMSNorms a model has, and what `optimize` would do with each; changes nothing.

    Args:
        source: as for `optimize`.
        target: judge for this target; None: only what is there.
        numerics: loosest class of rewrite allowed.
    """
    _check_options(target or "portable", numerics)
    start = time.perf_counter()
    with no_gc():
        loaded = load_model(source)
        model = unfold(loaded.model, target or "portable")
        run = _Run(model, target or "portable", numerics, True, True, keep_all=target is None)
        version, count = _opset(model), _count(model)
        gallery = Gallery(run.types) if drawings else None
        return Report(
            source=loaded.description,
            target=target,
            numerics=numerics,
            fused=run.sites({}, gallery),
            kept=run.kept_sites(gallery),
            refused=run.refusals({}),
            opset_before=version,
            opset_after=max(version, run.min_opset) if target else version,
            nodes_before=count,
            nodes_after=count,
            notes=loaded.notes,
            seconds=time.perf_counter() - start,
            drawings=gallery.drawings if gallery else (),
        )


class _Run:
    """One model recognised and lowered for one target; nothing is applied yet."""

    def __init__(
        self,
        model: ir.Model,
        target: Target,
        numerics: Numerics,
        fold_residual: bool,
        fold_gate: bool,
        *,
        keep_all: bool = False,
    ) -> None:
        self.model = model
        self.names = Names(model)
        forms = _NATIVE_FORMS[target]
        if keep_all:
            forms = tuple(form for some in _NATIVE_FORMS.values() for form in some)
        found: Recognition = recognize(model, fold_residual=fold_residual, fold_gate=fold_gate)
        self.declines: list[Decline] = []
        # The target's own operators in a form that no other target could say: no refusal.
        self.own: list[Decline] = []
        for decline in found.declines:
            (self.own if decline.node.op_type in forms else self.declines).append(decline)
        self.kept: list[Match] = []
        todo: list[Match] = []
        for match in found.matches:
            native = _native_part(match, forms)
            if native is None:
                todo.append(match)
            else:
                self.kept.append(native)
        if todo and target == "portable" and self.kept:
            # Bodies are shared by name: norms that are already there are written anew with them.
            todo = [*self.kept, *todo]
            self.kept = []
        self.lowered: list[Lowered] = []
        self.rewritten: list[Lowered] = []
        self.types = found.types
        _type_operands(found.types, todo)
        outcomes = lower_all(
            todo,
            target=target,
            numerics=numerics,
            names=self.names,
            opset=_opset(model),
            types=found.types,
            fold_residual=fold_residual,
            taken=_names_in_use(model, [match.nodes[-1] for match in todo]),
        )
        for match, outcome in zip(todo, outcomes, strict=True):
            if isinstance(outcome, Lowered):
                site = dataclasses.replace(outcome, part=outcome.part or match)
                self.lowered.append(site)
                if match.native in forms:
                    self.rewritten.append(site)
            else:
                self.declines.append(outcome)

    def give_up(self, reason: str, message: str, error: Error) -> None:
        """Refuse every site: the model as a whole cannot be made ready for the target."""
        for site in self.lowered:
            node = _part(site).output.producer() or _part(site).nodes[-1]
            scope = _part(site).scope
            self.declines.append(Decline(node, reason, message, error.found, error.fix, scope))
            discard(site)
        self.lowered = []

    @property
    def min_opset(self) -> int:
        return max((site.min_opset for site in self.lowered), default=0)

    def sites(self, proofs: dict[Lowered, Proof], gallery: Gallery | None) -> tuple[Site, ...]:
        return tuple(
            _site(site, proofs.get(site), gallery)
            for site in self.lowered
            if (proofs.get(site) is None or proofs[site].passed) and site not in self.rewritten
        )

    def kept_sites(self, gallery: Gallery | None) -> tuple[Site, ...]:
        matched = [
            _described(m, m.nodes[-1].op_type, name_of(m.nodes[-1]), gallery)
            for m in (*self.kept, *(_part(site) for site in self.rewritten))
        ]
        return (*matched, *(_own_node(decline) for decline in self.own))

    def refusals(self, proofs: dict[Lowered, Proof]) -> tuple[Refusal, ...]:
        failed = [
            Refusal(
                node=_part(site).spelling
                if not _part(site).nodes
                else name_of(_part(site).nodes[-1]),
                op=_part(site).nodes[-1].op_type,
                reason="proof-failed",
                message="the new node did not reproduce the original nodes; they were kept",
                found=proof.reason,
                hint="please report this model; --numerics exact may avoid it",
                scope=_part(site).scope,
            )
            for site, proof in proofs.items()
            if not proof.passed
        ]
        return (*(_refusal(decline) for decline in self.declines), *failed)


def _type_operands(types: Types, matches: Sequence[Match]) -> None:
    """Write down what is known of the operands, for lowering asks the values themselves."""
    for match in matches:
        for value in (match.x, match.scale, match.gain, match.bias, match.gate, match.residual):
            if value is not None and value.dtype is None:
                dtype = types.dtype(value)
                value.type = None if dtype is None else ir.TensorType(dtype)


def _names_in_use(model: ir.Model, rewritten: Sequence[ir.Node]) -> set[str]:
    """Operator names of this package's domain that nodes or functions keep."""
    names = {name for _, name, _ in foreign_functions(model)}
    if DOMAIN in model.opset_imports:
        gone = set(rewritten)
        for graph in all_graphs(model):
            names.update(n.op_type for n in graph if n.domain == DOMAIN and n not in gone)
    return names


def _native_part(match: Match, forms: Sequence[str]) -> Match | None:
    part: Match | None = match
    while part is not None:
        if part.native in forms:
            return part
        part = part.inner
    return None


def _part(site: Lowered) -> Match:
    assert site.part is not None
    return site.part


def _site(site: Lowered, proof: Proof | None, gallery: Gallery | None) -> Site:
    norm = next(
        n for n in site.nodes if n.metadata_props.get("rmsnorm_export.replaces") is not None
    )
    described = _described(_part(site), norm.op_type, name_of(norm), gallery, site)
    return dataclasses.replace(
        described, numerics=site.numerics, notes=tuple(site.notes), proof=proof
    )


def _described(
    match: Match, op: str, name: str, gallery: Gallery | None, new: Lowered | None = None
) -> Site:
    return Site(
        name=name,
        op=op,
        nodes=tuple(name_of(node) for node in match.nodes),
        spelling=match.spelling,
        numerics="exact",
        dtype=type_name(match.dtype),
        n=match.n,
        epsilon=match.spec.epsilon,
        scope=match.scope,
        attributes=match.spec.non_default(),
        module=match.module,
        drawing=None if gallery is None else gallery.add(match, new, name),
    )


def _own_node(decline: Decline) -> Site:
    """An operator of the target that was not understood further."""
    node = decline.node
    x = node.inputs[0] if node.inputs else None
    return Site(
        name=name_of(node),
        op=node.op_type,
        nodes=(name_of(node),),
        spelling=node.op_type,
        numerics="exact",
        dtype=type_name(int(x.dtype)) if x is not None and x.dtype in FLOATS else "unknown",
        n=None,
        epsilon=_float(node, "epsilon"),
        scope=decline.scope,
        attributes={},
        notes=(decline.message,),
    )


def _float(node: ir.Node, name: str) -> float:
    attribute = node.attributes.get(name)
    return math.nan if attribute is None or attribute.is_ref() else attribute.as_float()


def _refusal(decline: Decline) -> Refusal:
    return Refusal(
        node=name_of(decline.node),
        op=decline.node.op_type,
        reason=decline.reason,
        message=decline.message,
        found=decline.found,
        hint=decline.hint,
        scope=decline.scope,
        kind="look-alike" if decline.reason in LOOK_ALIKES else "norm",
    )


def _prove(run: _Run, seed: int, progress: Progress | None) -> dict[Lowered, Proof]:
    from rmsnorm_export.proof.prove import prove_site

    functions = tuple(run.model.functions.values())
    proofs: dict[Lowered, Proof] = {}
    for done, site in enumerate(run.lowered):
        if progress is not None:
            progress("proving", done, len(run.lowered))
        proofs[site] = prove_site(
            _part(site),
            site,
            opset_imports=dict(run.model.opset_imports),
            functions=functions,
            numerics=site.numerics,
            gamma=_gamma(_part(site)),
            seed=seed,
        )
    if progress is not None:
        progress("proving", len(run.lowered), len(run.lowered))
    return proofs


def _gamma(match: Match) -> np.ndarray | None:
    """The real gain of a site: the only weight that is ever read, and only for a proof."""
    tensor = match.scale.const_value if match.scale is not None else None
    if tensor is None or tensor.size > _MAX_GAMMA:
        return None
    try:
        return np.asarray(tensor.numpy())
    except (OSError, ValueError):
        return None


def _check_options(target: str, numerics: str) -> None:
    for name, value, allowed in (
        ("target", target, get_args(Target)),
        ("numerics", numerics, get_args(Numerics)),
    ):
        if value not in allowed:
            raise UsageError(
                f"There is no {name} of this name.",
                found=repr(value),
                fix=f"use one of {', '.join(allowed)}",
            )


def _opset(model: ir.Model) -> int:
    return model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))


def _count(model: ir.Model) -> int:
    """Nodes, without the bodies of this package's own operators."""
    own = (g for f in _own_functions(model) for g in (f.graph, *f.subgraphs()))
    return sum(map(len, all_graphs(model))) - sum(map(len, own))


def _own_functions(model: ir.Model) -> Iterator[ir.Function]:
    return (function for function in model.functions.values() if function.domain == DOMAIN)
