"""Renders the kustomizations below infra/kubernetes without kubectl, which not every machine has.

It knows the few fields that they use, refuses any other, and does what `kubectl kustomize` does with these;
test_kubernetes.py compares the two where there is a kubectl.
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

Manifest = dict[str, Any]

FIELDS = {"apiVersion", "kind", "namespace", "resources", "components", "patches", "images"}
# Lists whose entries a patch merges by a key; any other list is replaced.
MERGE_KEYS = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}


@functools.cache
def _read(path: Path) -> list[Manifest]:
    return [document for document in YAML(typ="safe").load_all(path.read_text()) if document is not None]


def documents(path: Path) -> list[Manifest]:
    """What a file holds."""
    return copy.deepcopy(_read(path))


def render(folder: Path) -> list[Manifest]:
    """The manifests of a kustomization."""
    return _apply(folder, [])


def _apply(folder: Path, manifests: list[Manifest]) -> list[Manifest]:
    [kustomization] = documents(folder / "kustomization.yaml")
    unknown = kustomization.keys() - FIELDS
    assert not unknown, f"{folder}/kustomization.yaml: {sorted(unknown)} cannot be rendered here"
    for name in kustomization.get("resources", []):
        path = folder / name
        manifests = manifests + (render(path) if path.is_dir() else documents(path))
    for name in kustomization.get("components", []):
        manifests = _apply(folder / name, manifests)
    for patch in kustomization.get("patches", []):
        assert patch.keys() == {"path"}, f"{folder}/kustomization.yaml: {patch} cannot be rendered here"
        for change in documents(folder / patch["path"]):
            [index] = [index for index, manifest in enumerate(manifests) if identity(manifest) == identity(change)]
            manifests[index] = merged(manifests[index], change)
    for image in kustomization.get("images", []):
        _rename(manifests, image)
    if namespace := kustomization.get("namespace"):
        for manifest in manifests:
            field = "name" if manifest["kind"] == "Namespace" else "namespace"
            manifest["metadata"][field] = namespace
    return manifests


def identity(manifest: Manifest) -> tuple[str, str, str]:
    return manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]


def merged(base: Any, change: Any, field: str = "") -> Any:
    """A strategic merge patch."""
    if isinstance(base, dict) and isinstance(change, dict):
        result = dict(base)
        for name, value in change.items():
            result[name] = merged(base[name], value, name) if name in base else copy.deepcopy(value)
        return result
    if isinstance(base, list) and isinstance(change, list) and (key := MERGE_KEYS.get(field)):
        known = {entry[key]: entry for entry in base}
        changed = {entry[key]: merged(known.get(entry[key], {}), entry) for entry in change}
        return [changed.get(name, entry) for name, entry in known.items()] + [
            entry for name, entry in changed.items() if name not in known
        ]
    return copy.deepcopy(change)


def containers(manifest: Manifest) -> list[Manifest]:
    return manifest["spec"]["template"]["spec"]["containers"] if manifest["kind"] == "Deployment" else []


def _rename(manifests: list[Manifest], image: dict[str, str]) -> None:
    for container in [container for manifest in manifests for container in containers(manifest)]:
        # What stands behind the last colon is a tag, unless it is the port of a registry.
        name, _, tag = container["image"].rpartition(":")
        if not name or "/" in tag:
            name, tag = container["image"], ""
        if name == image["name"]:
            tag = image.get("newTag", tag)
            container["image"] = image.get("newName", name) + (f":{tag}" if tag else "")
