"""infra/kubernetes/chart: values, their schema, and the examples."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from typing import Any

import pytest
from ruamel.yaml import YAML

from harness import ROOT, python_with
from kubernetes_tools import (
    EXAMPLES,
    FOLDER,
    README,
    broker,
    chart,
    documents,
    helm,
    helm_template,
    identity,
    of_kind,
    selects,
)

# Every value that the examples do not change, in as few renderings as possible, each with the example that it changes.
# Names that YAML would not read as text are valid names.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = YAML(typ="safe").load("""
everything set:
- sqs
- environment: {GRISTMILL_LEASE_SECONDS: "60"}
  environmentFrom: [{secretRef: {name: store-credentials}}]
  images: {tag: 1.2.3, pullPolicy: Always, pullSecrets: [{name: registry}]}
  serviceAccounts:
    worker: {name: "1e3"}
    reducer: {name: someone-else}
    portal: {name: someone, annotations: {example.com/role: portal}}
  workerDefaults:
    min: 2
    max: 1000000
    labels: {zone: a/b, disk: "1"}
    gpus: 2
    processes: 1000000
    graceSeconds: 3600000
    cacheSize: 40Gi
    cacheKept: 30GB
    tmpSize: 41Gi
    sharedMemorySize: 42Gi
    preferSpot: false
    maxUnavailable: 1
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
    <<: *pods
  portal:
    enabled: true
    secret: another-token
    readOnly: false
    hosts: [jobs.example, jobs.other.example]
    clients: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress}}}]
    ingress:
      enabled: true
      className: nginx
      annotations: {cert-manager.io/cluster-issuer: authority}
      tlsSecret: jobs-certificate
    cacheSize: 45Mi
    tmpSize: 46Mi
    <<: *pods
  scaling:
    pollingSeconds: 31
    cooldownSeconds: 301
    stabilizationSeconds: 302
  podMonitor: {enabled: true, labels: {release: prometheus}, intervalSeconds: 15}
  prometheusRule: {enabled: true, labels: {role: rules}}
  queue: {sqs: {kmsKey: alias/team-a, tags: {CostCenter: "7"}}}
  networkPolicy:
    metricsNamespace: "123"
    scalerNamespace: "456"
    nameServers: [{ipBlock: {cidr: 172.20.0.10/32}}]
    namePorts: [5353]
    privateRanges: [11.0.0.0/8, "2001:db8::/32"]
    privateEndpoints: [10.0.16.0/20]
    extraEgress: [{to: [{podSelector: {}}], ports: [{protocol: TCP, port: 3128}]}]
service accounts from elsewhere, users that a proxy knows:
- sqs
- serviceAccounts:
    worker: {create: false, name: own-worker}
    reducer: {create: false, name: own-reducer}
    portal: {create: false, name: own-portal}
  portal:
    enabled: true
    trustHeader: x-forwarded-user
    clients: [{ipBlock: {cidr: 10.1.0.0/24}}]
every pool its own:
- pools
- workers:
    on-demand:
      labels: {zone: b}
      requires: [any, "label capacity=on-demand"]
      min: 1
      max: 3
      processes: 7
      image: registry.example/mine@sha256:0000000000000000000000000000000000000000000000000000000000000000
      architectures: [arm64]
      graceSeconds: 90
      resources: {limits: {cpu: "8"}}
      cacheSize: 47Gi
      cacheKept: 31GB
      tmpSize: 48Gi
      sharedMemorySize: 49Gi
      maxUnavailable: 2
      runtimeClassName: writable-cgroups
      <<: *pods
    cpu: {min: 1, preferSpot: false}
    gpu: {gpus: 2, labels: {gpu_model: L4}}
RabbitMQ outside of the cluster, other architectures, own images:
- rabbitmq
- queue:
    rabbitmq:
      host: broker.example
      port: 5670
      leaseSeconds: 3600
      authority: ""
      secrets: {worker: "0x1", reducer: broker-reducer, portal: broker-portal}
      cluster: {name: ""}
  store: gs://other/prefix
  region: ""
  images: {architectures: [amd64, arm64]}
  workerDefaults: {image: registry.example/mine:1, architectures: [amd64]}
  reducer: {image: "registry.example:5000/reducer:1"}
  portal: {enabled: true, image: "registry.example:5000/portal:1"}
  networkPolicy: {broker: [{namespaceSelector: {matchLabels: {team: brokers}}}]}
no KEDA, no network policy:
- sqs
- workers: {cpu: {min: 1000000, max: 1000000}}
  scaling: {enabled: false}
  networkPolicy: {enabled: false}
""")


# ---- schemas -----------------------------------------------------------------------------------------------------


@pytest.mark.timeout(700)
def test_manifests_are_valid_and_wrong_ones_are_rejected():
    """Validates manifests against the published schemas, in a separate environment."""
    rendered = [manifest for example in EXAMPLES for manifest in chart(example)]
    rendered += [manifest for example, change in VARIANTS.values() for manifest in chart(example, change)]
    rendered += [*broker(), *documents((FOLDER / "namespace.yaml").read_text())]
    # Nothing below is in the schemas.
    wrong = {
        ("apps/v1", "Deployment"): ("template", "spec", "securityContext", "runAsRoot"),
        ("keda.sh/v1alpha1", "ScaledObject"): ("minReplicas",),
        ("monitoring.coreos.com/v1", "PodMonitor"): ("podMetricsEndpoints", 0, "every"),
        ("monitoring.coreos.com/v1", "PrometheusRule"): ("groups", 0, "rules", 0, "severity"),
        ("rabbitmq.com/v1beta1", "RabbitmqCluster"): ("rabbitmq", "config"),
        ("rabbitmq.com/v1beta1", "User"): ("password",),
        ("rabbitmq.com/v1beta1", "Permission"): ("permissions", "delete"),
        ("cert-manager.io/v1", "Certificate"): ("issuerRef", "namespace"),
        ("cert-manager.io/v1", "Issuer"): ("selfSigned", "name"),
        ("networking.k8s.io/v1", "Ingress"): ("host",),
    }
    spoilt = []
    for kind, path in wrong.items():
        found = next(manifest for manifest in rendered if identity(manifest)[:2] == kind)
        spoilt.append(copy.deepcopy(found))
        place = spoilt[-1]["spec"]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = "x"
    command = [python_with(ROOT / "tests/requirements-kubernetes.txt"), ROOT / "tests/support/kubernetes_schemas.py"]
    given = json.dumps([*rendered, *spoilt])
    asked = subprocess.run(command, input=given, capture_output=True, text=True, timeout=100)
    assert asked.returncode == 0, asked.stderr
    found = json.loads(asked.stdout)
    assert [entry for entry in zip(map(identity, rendered), found, strict=False) if entry[1]] == []
    for path, problems in zip(wrong.values(), found[len(rendered) :], strict=True):
        assert path[-1] in str(problems), "a validator that accepts everything"


# ---- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", EXAMPLES)
def test_helm_lint_finds_nothing(example):
    linted = helm("lint", "--strict", FOLDER / "chart", "--values", FOLDER / f"examples/{example}.yaml")
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
    examples = {example: YAML(typ="safe").load(FOLDER / f"examples/{example}.yaml") for example in EXAMPLES}
    # A variant or an example changes each value.
    changes = [(examples[example], change) for example, change in VARIANTS.values()]
    changes += [({}, example) for example in examples.values()]
    untried = [
        path
        for path in leaves(defaults)
        if "resources" not in path
        and not any(at(change, path) not in ({}, at(base, path), at(defaults, path)) for base, change in changes)
    ]
    assert untried == []
    # What a pool may change is what they share, and `requires`.
    of_pools = [
        pool for change in (*examples.values(), *(change for _, change in VARIANTS.values())) for pool in pools(change)
    ]
    assert {key for pool in of_pools for key in pool} == {*defaults["workerDefaults"], "requires"}
    for name, (example, variant) in VARIANTS.items():
        complete = helm_template(example, variant).stdout
        for path in leaves(variant):
            less = copy.deepcopy(variant)
            del at(less, path[:-1])[path[-1]]
            rendered = helm_template(example, less)
            assert rendered.stdout != complete, f"{name}: {'.'.join(path)} changes nothing"


def pools(values):
    return [pool for pool in values.get("workers", {}).values() if pool]


@pytest.mark.parametrize(
    ("example", "change", "message"),
    [
        ("sqs", {"workers": {"cpu": {"replica": 2}}}, "additional properties 'replica' not allowed"),
        ("sqs", {"workerDefaults": {"replica": 2}}, "additional properties 'replica' not allowed"),
        ("sqs", {"workerDefaults": {"max": None}}, "missing property 'max'"),
        ("sqs", {"reducer": None}, "missing property 'reducer'"),
        ("sqs", {"networkPolicy": {"privateRanges": None}}, "missing property 'privateRanges'"),
        ("sqs", {"images": {"tag": 20261122}}, "at '/images/tag': got number, want string"),
        ("sqs", {"workers": {"cpu": {"gpus": "one"}}}, "at '/workers/cpu/gpus': got string, want integer"),
        ("sqs", {"workers": {"CPU": {}}}, "invalid propertyName 'CPU'"),
        ("sqs", {"workers": {"cpu": {"labels": {"zone": "a b"}}}}, "at '/workers/cpu/labels/zone'"),
        (
            "sqs",
            {"workerDefaults": {"graceSeconds": 60}},
            "at '/workerDefaults/graceSeconds': minimum: got 60, want 61",
        ),
        ("sqs", {"environment": {"GRISTMILL_LEASE_SECONDS": 60}}, "got number, want string"),
        ("sqs", {"environment": {"GRISTMILL_LISTEN": "0.0.0.0:80"}}, "GRISTMILL_LISTEN"),
        ("sqs", {"environment": {"GRISTMILL_LABELS": "zone=a"}}, "GRISTMILL_LABELS"),
        ("sqs", {"images": {"prefix": "registry.example"}}, "at '/images/prefix'"),
        ("sqs", {"images": {"architectures": ["X86_64"]}}, "at '/images/architectures/0'"),
        ("sqs", {"images": {"architectures": []}}, "at '/images/architectures'"),
        ("sqs", {"store": "team-a-gristmill/team-a"}, "at '/store'"),
        ("sqs", {"networkPolicy": {"privateRanges": ["10.0.0.1"]}}, "at '/networkPolicy/privateRanges/0'"),
        ("sqs", {"networkPolicy": {"nameServers": []}}, "at '/networkPolicy/nameServers'"),
        ("sqs", {"queue": {"sqs": {"prefix": ""}}}, "No queues: set queue.sqs.prefix"),
        ("sqs", {"queue": {"rabbitmq": {"prefix": "a"}}}, "a target has one kind of queues"),
        ("sqs", {"queue": {"sqs": {"prefix": "x" * 41}}}, "at '/queue/sqs/prefix'"),
        ("sqs", {"queue": {"sqs": {"tags": {"CostCenter": 7}}}}, "at '/queue/sqs/tags/CostCenter'"),
        ("sqs", {"workers": {"cpu": {"requires": ['label zone="a"']}}}, "at '/workers/cpu/requires/0'"),
        ("sqs", {"workers": {"cpu": {"requires": ["any", "any"]}}}, "at '/workers/cpu/requires'"),
        ("sqs", {"workerDefaults": {"resources": {"limits": {"cpu": None}}}}, "How many processes does a worker run?"),
        ("sqs", {"reducer": {"replicas": 0}}, "at '/reducer/replicas': minimum: got 0, want 1"),
        ("sqs", {"store": ""}, "No store: set store to s3://BUCKET/PREFIX"),
        ("sqs", {"region": ""}, "No region"),
        ("sqs", {"workers": {"cpu": None}}, "at '/workers/cpu': got null, want object"),
        ("sqs", {"images": {"prefix": ""}}, "No image of the pool cpu: set images.prefix"),
        (
            "sqs",
            {"images": {"prefix": ""}, "workerDefaults": {"image": "a"}},
            "No image of the reducer: set images.prefix",
        ),
        ("sqs", {"workers": {"cpu": {"min": 3, "max": 2}}}, "workers.cpu.min is larger than its max"),
        ("sqs", {"scaling": {"enabled": False}}, "No need starts workers of the pool cpu"),
        ("sqs", {"workers": {"cpu": {"requires": []}}}, "No need starts workers of the pool cpu"),
        ("sqs", {"workers": {"spot": {}}}, "No need starts workers of the pool spot"),
        ("sqs", {"workers": {"cpu": {"requires": ["4 processors"]}}}, "Jobs without `requires` would start no worker"),
        ("sqs", {"workers": {"cpu": {"gpus": 10, "labels": {"zone": "a"}}}}, "The pool cpu meets 22 needs: list those"),
        (
            "sqs",
            {"workers": {name: {"requires": ["any"]} for name in ("cpu", "spot")}},
            "A need starts workers of one pool only: name `any` in `requires` of cpu or spot",
        ),
        *[
            ("sqs", {"workers": {"cpu": {"labels": {"zone": "a"}, "requires": ["any", need]}}}, f"meets `{part}`")
            for need, part in [
                ("1 GPU, label zone=a", "1 GPU"),
                ("5 processors", "5 processors"),
                ("label zone=b", "label zone=b"),
                ("label zone", "label zone"),
                ("8.5 GB of memory", "8.5 GB of memory"),
                ("9000 MB of memory, label zone=a", "9000 MB of memory"),
            ]
        ],
        ("portal", {"hosts": []}, "set portal.hosts to those of the Ingress"),
        ("portal", {"clients": []}, "set portal.clients to the pods of the ingress controller"),
        (
            "portal",
            {"ingress": {"enabled": False}, "clients": [], "trustHeader": "x-user"},
            "Every client that reaches",
        ),
        ("rabbitmq", {"queue": {"rabbitmq": {"cluster": {"name": ""}}}}, "No broker: set queue.rabbitmq.host"),
        ("rabbitmq", {"queue": {"rabbitmq": {"cluster": {"namespace": ""}}}}, "No namespace of the broker"),
        ("rabbitmq", {"queue": {"rabbitmq": {"host": "b", "cluster": {"name": ""}}}}, "set networkPolicy.broker"),
    ],
)
def test_invalid_values_are_rejected(example, change, message):
    if example == "portal":
        _, everything = VARIANTS["everything set"]
        given = everything["portal"]
        ingress = {**given["ingress"], **change.get("ingress", {})}
        example, change = "sqs", {"portal": {**given, **change, "ingress": ingress}}
    rendered = helm_template(example, change)
    assert rendered.returncode != 0 and message in rendered.stderr, rendered.stderr or rendered.stdout


@pytest.mark.parametrize(
    ("limit", "need", "is_met"),
    [
        ("8Gi", "8 GB of memory", True),
        ("8G", "8 GB of memory", False),
        ("8600M", "8 GB of memory", True),
        (8589934592, "8 GB of memory", True),
        (8589934591, "8 GB of memory", False),
        ("1.5Ti", "1536 GB of memory", True),
        ("600Ki", "700 KB of memory", False),
    ],
)
def test_memory_of_a_pool_meets_its_needs(limit, need, is_met):
    pool = {"resources": {"limits": {"memory": limit}, "requests": {"memory": limit}}, "requires": ["any", need]}
    assert (helm_template("sqs", {"workers": {"cpu": pool}}).returncode == 0) is is_met


def test_release_has_workers():
    values = YAML(typ="safe").load(FOLDER / "examples/sqs.yaml")
    del values["workers"]
    rendered = helm("template", "gristmill", FOLDER / "chart", "--values", "-", stdin=json.dumps(values))
    assert rendered.returncode != 0 and "No workers: set workers to at least one pool" in rendered.stderr


def test_names_are_short_enough_for_labels():
    for letters, fits in ((52, True), (53, False)):
        rendered = helm("template", "r" * letters, FOLDER / "chart", "--values", FOLDER / "examples/sqs.yaml")
        assert (rendered.returncode == 0) is fits, rendered.stderr
    assert "has more than 63 characters" in rendered.stderr


def test_releases_in_one_namespace_share_nothing():
    first, second = (
        documents(helm("template", name, FOLDER / "chart", "--values", FOLDER / "examples/pools.yaml").stdout)
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


def test_values_of_the_readme_are_valid():
    blocks = [YAML(typ="safe").load(block) for block in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)]
    assert len(blocks) >= 6
    for values in blocks:
        example = "rabbitmq" if "queue" in values else "sqs"
        values.setdefault("queue", {}).setdefault("rabbitmq", {})["cluster"] = {"name": ""}
        assert chart(example, values)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({}, "get scaledobjects"),
        ({"scaling": {"enabled": False}, "workers": {"cpu": {"min": 1}}}, "get deployments"),
        ({"portal": {"enabled": True}}, "port-forward deployment/gristmill-portal 7780:9464"),
        ({"portal": {"enabled": True, "hosts": ["jobs.example"]}}, "https://jobs.example/\n"),
    ],
)
def test_notes_name_what_was_installed(change, shown):
    values = ("--namespace", "gristmill", "--values", FOLDER / "examples/sqs.yaml", "--values", "-")
    installed = helm("install", "gristmill", FOLDER / "chart", "--dry-run=client", *values, stdin=json.dumps(change))
    assert installed.returncode == 0, installed.stderr
    notes = installed.stdout.partition("NOTES:")[2]
    assert shown in notes and ("scaledobjects" in notes) is ("scaling" not in change)


def test_chart_version_equals_image_version():
    version = re.search(r'(?m)^version = "(.*)"', (ROOT / "Cargo.toml").read_text())[1]
    about = YAML(typ="safe").load(FOLDER / "chart/Chart.yaml")
    assert (about["version"], about["appVersion"]) == (version, version)
