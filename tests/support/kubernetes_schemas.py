"""Validates Kubernetes manifests against published schemas, without a cluster.

Runs in the environment of requirements-kubernetes.txt: reads a list of manifests (JSON) from stdin, and prints for each
a list of what is wrong with it. Built-in kinds are validated by the strict schemas that `kubernetes-validate` carries,
for the oldest and the newest version of Kubernetes that the deployment is meant for. Custom resources are validated by
the schemas of their operators' releases, which custom_resources.json holds without descriptions and rarely used parts;
what such a schema does not name is refused, as the API server refuses it.
"""

import json
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate

VERSIONS = ["1.29", "1.37"]
CUSTOM_RESOURCES = json.loads(Path(__file__).with_name("custom_resources.json").read_text())


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


def problems_of_custom_resource(manifest, schema):
    errors = jsonschema.Draft202012Validator(closed(schema)).iter_errors(manifest)
    return [f"{error.json_path}: {error.message}" for error in errors]


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
    custom = CUSTOM_RESOURCES.get(f"{manifest['apiVersion']} {manifest['kind']}")
    return problems_of_custom_resource(manifest, custom["schema"]) if custom else problems_of_kubernetes(manifest)


json.dump([problems(manifest) for manifest in json.load(sys.stdin)], sys.stdout)
