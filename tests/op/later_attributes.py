"""What knows the attributes of today, once the operator has three more: in a process of its own.

    python -m tests.op.later_attributes

fails with the name of what takes one of them for what it knows. Only the specification has them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from rmsnorm_export.op import spec

LATER: dict[str, Any] = {"later_number": 3, "later_flag": True, "later_word": "sigmoid"}

spec.NormSpec = dataclasses.make_dataclass(  # type: ignore[misc]
    "NormSpec",
    [
        ("later_number", int, 2),
        ("later_flag", bool, False),
        ("later_word", spec.Activation, "silu"),
    ],
    bases=(spec.NormSpec,),
    frozen=True,
    kw_only=True,
    slots=True,
)

import onnx_ir as ir  # noqa: E402 (the specification is changed before anyone looks at it)
import pytest  # noqa: E402

from rmsnorm_export.errors import InputError  # noqa: E402
from rmsnorm_export.lower.lower import Lowered  # noqa: E402
from rmsnorm_export.lower.plugin import creator_names, plugin_refuses  # noqa: E402
from rmsnorm_export.op.body_key import assign_bodies, body_key  # noqa: E402
from rmsnorm_export.op.spec import FLOAT, NormSpec  # noqa: E402
from rmsnorm_export.proof.bounds import Bounds  # noqa: E402
from rmsnorm_export.recognize.refusal import Refusal  # noqa: E402
from rmsnorm_export.torch.operator.plan import schema  # noqa: E402
from tests.lower.source_graphs import Source, build  # noqa: E402
from toolbox import abi  # noqa: E402


def bodies(name: str, later: NormSpec) -> None:
    """One with a later attribute has its own body, and a name that no library of today has."""
    same: Any = {"dtype": FLOAT, "scale_dtype": FLOAT, "bias_dtype": None, "opset": 18}
    own, usual = (body_key(one, **same) for one in (later, NormSpec()))
    for keys in ([own], [own, usual], [usual, own, own]):
        named = dict(zip(keys, assign_bodies(keys), strict=True))
        assert named[own] == (f"RMSNorm_{name}", own), named
    assert not any(name in creator for creator in creator_names())


def targets(name: str, later: NormSpec) -> None:
    """An operator without the attribute is not taken for the norm; the body has it."""
    for residual in (False, True):
        built = build(Source(residual=residual))
        spec_of_sum = dataclasses.replace(later, kind=built.match.spec.kind)
        match = dataclasses.replace(built.match, spec=spec_of_sum, inner=None)
        for target in ("ort",) if residual else ("onnx", "ort"):
            refused = built.lower(target, "unclamped", match)
            assert isinstance(refused, Refusal), (target, refused)
            assert (refused.reason, name in refused.message) == ("attribute", True), refused
        lowered = built.lower("portable", "unclamped", match)
        assert isinstance(lowered, Lowered), lowered
        (node,) = (node for node in lowered.nodes if node.domain == spec.DOMAIN)
        assert "plugin_namespace" not in node.attributes
        assert any(f"does not know the attribute {name}" in note for note in lowered.notes)
        assert isinstance(node.attributes[name], ir.Attr)


def computing(name: str, later: NormSpec) -> None:
    """Kernels and bounds are for the attributes that they name."""
    for operator in ("RMSNorm", f"RMSNorm_{name}"):
        assert name in plugin_refuses(operator, later, dtype=FLOAT, n=64, weights=())
    with pytest.raises(ValueError, match=name):
        abi.Problem(n=64).set_norm(later)
    with pytest.raises(InputError, match=name):
        Bounds(later, FLOAT, 64, scaled=False, biased=False)


def main() -> None:
    """Check all of it for each attribute; at their defaults all is as it was."""
    assert not plugin_refuses("RMSNorm", NormSpec(), dtype=FLOAT, n=64, weights=())
    abi.Problem(n=64).set_norm(NormSpec())
    assert not {field for field, *_ in abi.Norm._fields_} & LATER.keys()
    for name, value in LATER.items():
        later = NormSpec(**{name: value})
        assert NormSpec.from_attributes("RMSNorm", later.attributes()) == later
        assert f" {name}=" in schema("RMSNorm")
        for check in (bodies, targets, computing):
            check(name, later)


if __name__ == "__main__":
    main()
