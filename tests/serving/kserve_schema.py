"""JSON schema of the parts of a KServe InferenceService that are written here.

Source: KServe's CustomResourceDefinition serving.kserve.io_inferenceservices.yaml (v1beta1) and
the validation in pkg/apis/serving/v1beta1 (component.go, inference_service_validation.go); the
quantities are those of Kubernetes' apimachinery. The CRD lets unknown fields pass in places; here
none does, so that a misspelt one is seen.
"""

from __future__ import annotations

from typing import Any

from rmsnorm_export.serving.kserve import QUANTITY, SERVICE_NAME, STORAGE_URI

_SHORT_NAME = {"type": "string", "pattern": SERVICE_NAME, "maxLength": 63}
_QUANTITIES = {
    "type": "object",
    "propertyNames": {"pattern": r"^([a-z0-9.-]+/)?[a-z][a-z0-9.-]*$"},
    "additionalProperties": {"type": "string", "pattern": QUANTITY},
}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required,
        "additionalProperties": False,
        "properties": properties,
    }


SCHEMA: dict[str, Any] = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "serving.kserve.io/v1beta1"},
    kind={"const": "InferenceService"},
    metadata=_object(["name"], name=_SHORT_NAME, namespace=_SHORT_NAME),
    spec=_object(
        ["predictor"],
        predictor=_object(
            ["model"],
            minReplicas={"type": "integer", "minimum": 0},
            maxReplicas={"type": "integer", "minimum": 1},
            model=_object(
                ["modelFormat", "protocolVersion", "storageUri"],
                modelFormat=_object(["name"], name={"const": "triton"}, version={"type": "string"}),
                protocolVersion={"enum": ["v2", "grpc-v2"]},
                runtime={"type": "string", "minLength": 1},
                storageUri={"type": "string", "pattern": STORAGE_URI},
                args={"type": "array", "items": {"type": "string"}},
                resources=_object([], requests=_QUANTITIES, limits=_QUANTITIES),
            ),
        ),
    ),
) | {"$schema": "https://json-schema.org/draft/2020-12/schema"}
