"""infra/kubernetes/chart: values, their schema, and the folders with rendered manifests."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
from typing import Any

import pytest
from ruamel.yaml import YAML

from harness import ROOT, python_with
from kubernetes_tools import (
    FOLDER,
    TARGETS,
    chart,
    documents,
    helm_template,
    identity,
    kustomize,
    named,
    of_kind,
    queue_prefix,
    run,
    selects,
    settings,
    tools,
    yaml_of_the_readme,
)

# Every value that the folders do not change, in as few renderings as possible, each with the folder whose values it
# changes. Names that YAML would not read as text are valid names.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = YAML(typ="safe").load("""
everything set:
- sqs
- environment: {GRISTMILL_LEASE_SECONDS: "60"}
  environmentFrom: [{secretRef: {name: store-credentials}}]
  images: {tag: 1.2.3, pullPolicy: Always, pullSecrets: [{name: registry}]}
  worker:
    graceSeconds: 3600000
    gpus: 2
    cacheSize: 40Gi
    cacheKept: 30GB
    tmpSize: 41Gi
    sharedMemorySize: 42Gi
    preferSpot: false
    serviceAccount: {name: "1e3"}
    runtimeClassName: "null"
    <<: &pods
      nodeSelector: {pool: batch}
      tolerations: [{key: batch, operator: Exists}]
      priorityClassName: "on"
      podAnnotations: {example.com/team: a}
      podLabels: {azure.workload.identity/use: "true"}
      volumes: [{name: extra, configMap: {name: certificates}}]
      volumeMounts: [{name: extra, mountPath: /etc/certificates}]
  reducer:
    replicas: 3
    cacheSize: 43Gi
    tmpSize: 44Gi
    serviceAccount: {name: someone-else}
    <<: *pods
  portal:
    enabled: true
    secret: another-token
    readOnly: false
    cacheSize: 45Mi
    tmpSize: 46Mi
    serviceAccount: {name: someone, annotations: {example.com/role: portal}}
    <<: *pods
  scaling:
    workersMin: 2
    workersMax: 1000000
    processesPerWorker: 1000000
    requires: [any, "label zone=a/b, 4 processors"]
    pollingSeconds: 31
    cooldownSeconds: 301
    stabilizationSeconds: 302
  disruptionBudget: {maxUnavailable: 1}
  networkPolicy:
    metricsNamespace: "123"
    scalerNamespace: "456"
    nameServers: [{ipBlock: {cidr: 172.20.0.10/32}}]
    namePorts: [5353]
    privateRanges: [11.0.0.0/8, "2001:db8::/32"]
    privateEndpoints: [10.0.16.0/20]
    extraEgress: [{to: [{podSelector: {}}], ports: [{protocol: TCP, port: 3128}]}]
service accounts from elsewhere:
- sqs
- worker: {serviceAccount: {create: false, name: own-worker}}
  reducer: {serviceAccount: {create: false, name: own-reducer}}
  portal: {enabled: true, serviceAccount: {create: false, name: own-portal}}
broker in the cluster, GPUs, own images:
- rabbitmq
- queue: {rabbitmq: {secret: "0x1"}}
  store: gs://other/prefix
  region: ""
  images: {architectures: [amd64, arm64]}
  worker:
    gpus: 1
    image: registry.example/mine@sha256:0000000000000000000000000000000000000000000000000000000000000000
  reducer: {image: "registry.example:5000/reducer:1"}
  portal: {enabled: true, image: "registry.example:5000/portal:1"}
  networkPolicy: {broker: [{namespaceSelector: {matchLabels: {team: brokers}}}], brokerPort: 5672}
no KEDA, no network policy:
- sqs
- scaling: {enabled: false, workers: 1000000}
  networkPolicy: {enabled: false}
""")


def flat(manifest):
    return json.dumps(manifest, sort_keys=True)


# ---- schemas -----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(700)
def test_manifests_are_valid_and_wrong_ones_are_rejected():
    """Validates manifests against the published schemas, in a separate environment."""
    rendered = [manifest for target in TARGETS for manifest in kustomize(FOLDER / target)]
    rendered += [manifest for target, change in VARIANTS.values() for manifest in chart(target, change)]
    worker, scaled = (named(chart("sqs"), kind, "gristmill-worker") for kind in ("Deployment", "ScaledObject"))
    worker["spec"]["template"]["spec"]["securityContext"]["runAsRoot"] = True
    scaled["spec"]["minReplicas"] = 0
    command = [python_with(ROOT / "tests/requirements-kubernetes.txt"), ROOT / "tests/support/kubernetes_schemas.py"]
    given = json.dumps([*rendered, worker, scaled])
    asked = subprocess.run(command, input=given, capture_output=True, text=True, timeout=100)
    assert asked.returncode == 0, asked.stderr
    *found, of_worker, of_scaled = json.loads(asked.stdout)
    assert [entry for entry in zip(map(identity, rendered), found, strict=True) if entry[1]] == []
    assert "runAsRoot" in str(of_worker) and "minReplicas" in str(of_scaled), "a validator that accepts everything"


# ---- chart and folders -------------------------------------------------------------------------------------------


def rendered_in(namespace, target):
    values = FOLDER / target / "values.yaml"
    rendered = run("helm", "template", "gristmill", FOLDER / "chart", "--namespace", namespace, "--values", values)
    assert rendered.returncode == 0, rendered.stderr
    return documents(rendered.stdout)


@pytest.mark.parametrize("target", TARGETS)
def test_folder_contains_the_rendered_chart(target):
    """If this fails after a change of chart or values, run infra/kubernetes/render."""
    applied = kustomize(FOLDER / target)
    [namespace] = of_kind(applied, "Namespace")
    rendered = rendered_in(namespace["metadata"]["name"], target)
    committed = documents((FOLDER / target / "manifests.yaml").read_text())
    assert sorted(map(flat, committed)) == sorted(map(flat, rendered))
    for manifest in rendered:
        manifest["metadata"]["namespace"] = namespace["metadata"]["name"]
    assert sorted(map(flat, [*rendered, namespace])) == sorted(map(flat, applied))


def test_render_writes_the_manifests_of_a_folder(tmp_path):
    """Renders a user's own values."""
    (tmp_path / "values.yaml").write_text((FOLDER / "sqs/values.yaml").read_text().replace("team-a", "team-b"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/helm").symlink_to(tools() / "helm")
    environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
    subprocess.run([FOLDER / "render", tmp_path], env=environment, check=True, capture_output=True)
    assert settings(documents((tmp_path / "manifests.yaml").read_text()))["GRISTMILL_QUEUE"] == "sqs://team-b"


@pytest.mark.parametrize("target", TARGETS)
def test_helm_lint_finds_nothing(target):
    linted = run("helm", "lint", "--strict", FOLDER / "chart", "--values", FOLDER / target / "values.yaml")
    assert linted.returncode == 0 and "WARNING" not in linted.stdout, linted.stdout


def leaves(values, path=()):
    """Yields the paths of the values; a map without fixed keys counts as one."""
    if isinstance(values, dict) and values:
        return [leaf for key, value in values.items() for leaf in leaves(value, (*path, key))]
    return [path]


def at(values, path):
    for key in path:
        values = values.get(key, {}) if isinstance(values, dict) else {}
    return values


def test_every_value_changes_the_rendered_manifests():
    defaults = YAML(typ="safe").load(FOLDER / "chart/values.yaml")
    examples = {target: YAML(typ="safe").load(FOLDER / target / "values.yaml") for target in TARGETS}
    # A variant or the example values of a folder change each value.
    changes = [(examples[target], change) for target, change in VARIANTS.values()]
    changes += [({}, example) for example in examples.values()]
    untried = [
        path
        for path in leaves(defaults)
        if "resources" not in path
        and not any(at(change, path) not in ({}, at(base, path), at(defaults, path)) for base, change in changes)
    ]
    assert untried == []
    for name, (target, variant) in VARIANTS.items():
        complete = flat({"all": chart(target, variant)})
        for path in leaves(variant):
            less = copy.deepcopy(variant)
            del at(less, path[:-1])[path[-1]]
            rendered = helm_template(FOLDER / target / "values.yaml", less)
            is_same = rendered.returncode == 0 and flat({"all": documents(rendered.stdout)}) == complete
            assert not is_same, f"{name}: {'.'.join(path)} changes nothing"


@pytest.mark.parametrize(
    ("target", "change", "message"),
    [
        ("sqs", {"worker": {"replica": 2}}, "additional properties 'replica' not allowed"),
        ("sqs", {"reducer": None}, "missing property 'reducer'"),
        ("sqs", {"networkPolicy": {"privateRanges": None}}, "missing property 'privateRanges'"),
        ("sqs", {"images": {"tag": 20261122}}, "at '/images/tag': got number, want string"),
        ("sqs", {"worker": {"gpus": "one"}}, "at '/worker/gpus': got string, want integer"),
        ("sqs", {"worker": {"graceSeconds": 60}}, "at '/worker/graceSeconds': minimum: got 60, want 61"),
        ("sqs", {"environment": {"GRISTMILL_LEASE_SECONDS": 60}}, "got number, want string"),
        ("sqs", {"environment": {"GRISTMILL_LISTEN": "0.0.0.0:80"}}, "GRISTMILL_LISTEN"),
        ("sqs", {"images": {"prefix": "registry.example"}}, "at '/images/prefix'"),
        ("sqs", {"images": {"architectures": ["X86_64"]}}, "at '/images/architectures/0'"),
        ("sqs", {"store": "team-a-gristmill/team-a"}, "at '/store'"),
        ("sqs", {"networkPolicy": {"privateRanges": ["10.0.0.1"]}}, "at '/networkPolicy/privateRanges/0'"),
        ("sqs", {"networkPolicy": {"nameServers": []}}, "at '/networkPolicy/nameServers'"),
        ("sqs", {"queue": {"sqs": {"prefix": ""}}}, "No queues: set queue.sqs.prefix"),
        ("sqs", {"queue": {"rabbitmq": {"enabled": True}}}, "a target has one kind of queues"),
        ("sqs", {"queue": {"sqs": {"prefix": "x" * 41}}}, "at '/queue/sqs/prefix'"),
        ("sqs", {"scaling": {"requires": ['label zone="a"']}}, "at '/scaling/requires/0'"),
        ("sqs", {"worker": {"resources": {"limits": {"cpu": None}}}}, "How many processes does a worker run?"),
        ("sqs", {"reducer": {"replicas": 0}}, "at '/reducer/replicas': minimum: got 0, want 1"),
        ("sqs", {"store": ""}, "No store: set store to s3://BUCKET/PREFIX"),
        ("sqs", {"region": ""}, "No region"),
        ("sqs", {"images": {"prefix": ""}}, "No image of the worker: set images.prefix"),
        ("rabbitmq", {"networkPolicy": {"broker": []}}, "set networkPolicy.broker"),
    ],
)
def test_invalid_values_are_rejected(target, change, message):
    rendered = helm_template(FOLDER / target / "values.yaml", change)
    assert rendered.returncode != 0 and message in rendered.stderr, rendered.stderr or rendered.stdout


def test_releases_in_one_namespace_share_nothing():
    first, second = (
        documents(run("helm", "template", name, FOLDER / "chart", "--values", FOLDER / "sqs/values.yaml").stdout)
        for name in ("first", "2e2")
    )
    assert not {identity(manifest) for manifest in first} & {identity(manifest) for manifest in second}
    # YAML could read this name as a number.
    assert {manifest["metadata"]["labels"]["app.kubernetes.io/instance"] for manifest in second} == {"2e2"}
    for manifest in first:
        spec = manifest.get("spec", {})
        if selector := spec.get("selector") or spec.get("podSelector"):
            selector = {"matchLabels": selector} if manifest["kind"] == "Service" else selector
            assert not any(selects(selector, deployment) for deployment in of_kind(second, "Deployment"))


def test_readme_kustomization_patches_every_example_value(tmp_path):
    block = yaml_of_the_readme("apiVersion: kustomize")
    for name in ("sqs", "namespace"):
        shutil.copytree(FOLDER / name, tmp_path / "infra/kubernetes" / name)
    (tmp_path / "kustomization.yaml").write_text(block)
    patched = kustomize(tmp_path)
    assert "123456789012" not in flat({"all": patched}) and "team-a" not in flat({"all": patched})
    assert queue_prefix(patched) == ("sqs", "team-b")


def test_chart_version_equals_image_version():
    version = re.search(r'(?m)^version = "(.*)"', (ROOT / "Cargo.toml").read_text())[1]
    about = YAML(typ="safe").load(FOLDER / "chart/Chart.yaml")
    assert (about["version"], about["appVersion"]) == (version, version)
