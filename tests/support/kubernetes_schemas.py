"""Validates Kubernetes manifests against published schemas, without a cluster.

Runs in the environment of requirements-kubernetes.txt: reads a list of manifests (JSON) from stdin, and prints for each
a list of what is wrong with it. Built-in kinds are validated by the strict schemas that `kubernetes-validate` carries,
for the oldest and the newest version of Kubernetes that the deployment is meant for. Those of KEDA are validated by the
schemas of the models that `cloudcoil` makes from its resource definitions; what such a schema does not name is refused,
as the API server refuses it.
"""

import json
import sys

import jsonschema
import kubernetes_validate
from cloudcoil.models.keda import v1alpha1 as keda
from jsonschema.exceptions import best_match

VERSIONS = ["1.29", "1.37"]


def closed(schema):
    """Returns the schema with additional properties forbidden in every object that names its properties."""
    if isinstance(schema, list):
        return [closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(value) for key, value in schema.items()}
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        schema.setdefault("additionalProperties", False)
    return schema


def problems_of_keda(manifest):
    model = getattr(keda, manifest["kind"], None)
    if manifest["apiVersion"] != "keda.sh/v1alpha1" or model is None:
        return [f"KEDA has no {manifest['kind']} of {manifest['apiVersion']}"]
    schema = closed(model.model_json_schema(by_alias=True))
    errors = jsonschema.Draft202012Validator(schema).iter_errors(manifest)
    return [f"{error.json_path}: {best_match([error]).message}" for error in errors]


def problems_of_kubernetes(manifest):
    problems = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(map(str, error.path))
            problems.append(f"Kubernetes {version}: {path}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError:
            problems.append(f"Kubernetes {version} has no {manifest['kind']} of {manifest['apiVersion']}")
    return problems


def problems(manifest):
    is_keda = manifest["apiVersion"].partition("/")[0].endswith("keda.sh")
    return problems_of_keda(manifest) if is_keda else problems_of_kubernetes(manifest)


json.dump([problems(manifest) for manifest in json.load(sys.stdin)], sys.stdout)
