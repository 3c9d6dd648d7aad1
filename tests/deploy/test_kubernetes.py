"""infra/kubernetes: consistency of the manifests, permissions of the roles, and placement of their pods."""

from __future__ import annotations

import re
import urllib.request

import pytest
from ruamel.yaml import YAML

from harness import ROOT
from kubernetes_tools import (
    FOLDER,
    README,
    TARGETS,
    chart,
    containers,
    kustomize,
    named,
    of_kind,
    pod,
    queue_prefix,
    secrets_of_the_readme,
    selects,
    settings,
    yaml_of_the_readme,
)

# Time for a pod's work after its grace period: return mini-batches, and upload logs.
END_SECONDS = 30
USER = 10001


@pytest.fixture(params=[*TARGETS, "portal"])
def manifests(request):
    """What `kubectl apply -k` applies, and once the portal besides."""
    if request.param in TARGETS:
        return kustomize(FOLDER / request.param)
    manifests = kustomize(FOLDER / "sqs")
    enabled = chart("sqs", {"portal": {"enabled": True}})
    portal = [manifest for manifest in enabled if manifest["metadata"]["name"] == "gristmill-portal"]
    for manifest in portal:
        manifest["metadata"]["namespace"] = named_namespace(manifests)
    return [*manifests, *portal]


# ---- consistency -------------------------------------------------------------------------------------------------


def test_every_selector_matches_its_pods(manifests):
    deployments = {manifest["metadata"]["name"]: manifest for manifest in of_kind(manifests, "Deployment")}
    assert deployments["gristmill-reducer"]["spec"]["replicas"] == 1, "a reducer always runs"
    chosen = [(deployment["spec"]["selector"], [name]) for name, deployment in deployments.items()]
    spreads = pod(deployments["gristmill-worker"])["topologySpreadConstraints"]
    chosen += [(spread["labelSelector"], ["gristmill-worker"]) for spread in spreads]
    [budget] = of_kind(manifests, "PodDisruptionBudget")
    chosen += [(budget["spec"]["selector"], ["gristmill-worker"])]
    policies = {manifest["metadata"]["name"]: manifest["spec"] for manifest in of_kind(manifests, "NetworkPolicy")}
    assert policies.keys() == {"gristmill", "gristmill-keda"}
    chosen += [(policies["gristmill"]["podSelector"], [*deployments])]
    chosen += [(policies["gristmill-keda"]["podSelector"], ["gristmill-reducer"])]
    [service] = of_kind(manifests, "Service")
    chosen += [({"matchLabels": service["spec"]["selector"]}, ["gristmill-reducer"])]
    for selector, names in chosen:
        assert [name for name, deployment in deployments.items() if selects(selector, deployment)] == names


def test_every_reference_exists(manifests):
    accounts = {manifest["metadata"]["name"] for manifest in of_kind(manifests, "ServiceAccount")}
    maps = {manifest["metadata"]["name"]: manifest["data"] for manifest in of_kind(manifests, "ConfigMap")}
    secrets = secrets_of_the_readme()
    assert not of_kind(manifests, "Secret"), "a secret is never a file of this repository"
    assert {manifest["metadata"].get("namespace") for manifest in manifests if manifest["kind"] != "Namespace"} == {
        named_namespace(manifests)
    }
    for deployment in of_kind(manifests, "Deployment"):
        assert pod(deployment)["serviceAccountName"] in accounts
        for container in containers(deployment):
            volumes = {volume["name"] for volume in pod(deployment)["volumes"]}
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
            for source in container["envFrom"]:
                if "configMapRef" in source:
                    assert source["configMapRef"]["name"] in maps
                else:
                    assert source["secretRef"]["name"] in {name for name, _ in secrets}
            for variable in container.get("env", []):
                reference = variable["valueFrom"]["secretKeyRef"]
                assert (reference["name"], reference["key"]) in secrets
    assert not of_kind(manifests, "TriggerAuthentication"), "reducers tell everybody in their network the need"


def named_namespace(manifests):
    [namespace] = of_kind(manifests, "Namespace")
    return namespace["metadata"]["name"]


def roles_of_aws(manifests):
    accounts = [one["metadata"] for one in of_kind(manifests, "ServiceAccount") if "annotations" in one["metadata"]]
    return {one["name"]: one["annotations"]["eks.amazonaws.com/role-arn"] for one in accounts}


def test_each_service_account_has_the_iam_role_of_its_queues(manifests):
    _, prefix = queue_prefix(manifests)
    assert {account: arn.rpartition(":")[2] for account, arn in roles_of_aws(manifests).items()} == {
        f"gristmill-{role}": f"role/{prefix}-{role}" for role in ("worker", "reducer")
    }


def test_targets_share_no_role_queue_or_store():
    plain, gpu = kustomize(FOLDER / "sqs"), kustomize(FOLDER / "sqs-gpu")
    assert not set(roles_of_aws(plain).values()) & set(roles_of_aws(gpu).values())
    for name in ("GRISTMILL_QUEUE", "GRISTMILL_STORE"):
        assert settings(plain)[name] != settings(gpu)[name]
    for manifests in (plain, gpu):
        assert f"system:serviceaccount:{named_namespace(manifests)}:gristmill-worker" in README


def test_workers_are_scaled_by_the_need_that_reducers_tell(manifests):
    [scaled] = of_kind(manifests, "ScaledObject")
    worker = named(manifests, "Deployment", scaled["spec"]["scaleTargetRef"]["name"])
    [container] = containers(worker)
    assert container["args"][0] == "worker"
    assert "replicas" not in worker["spec"], "`kubectl apply` would reset them"
    assert scaled["spec"]["minReplicaCount"] == 0 < scaled["spec"]["maxReplicaCount"]
    [service] = of_kind(manifests, "Service")
    address = f"{service['metadata']['name']}.{named_namespace(manifests)}.svc:{service['spec']['ports'][0]['port']}"
    gpus = int(container["resources"]["limits"].get("nvidia.com/gpu", 0))
    kinds = ["any", "1 GPU"] if gpus else ["any"]
    processes = gpus or int(container["resources"]["limits"]["cpu"])
    for trigger, kind in zip(scaled["spec"]["triggers"], kinds, strict=True):
        assert trigger == {
            "type": "metrics-api",
            "metadata": {
                "url": f"http://{address}/metrics",
                "format": "prometheus",
                "valueLocation": f'gristmill_processes_wanted{{requires="{kind}"}}',
                "targetValue": str(processes),
            },
        }
    # The port of the service is that of the reducers, by its name.
    reducer = containers(named(manifests, "Deployment", "gristmill-reducer"))[0]
    [port] = service["spec"]["ports"]
    assert port["targetPort"] in {found["name"] for found in reducer["ports"]}


@pytest.mark.parametrize(
    ("change", "processes"),
    [
        ({"worker": {"resources": {"limits": {"cpu": "7500m"}}}}, "7"),
        ({"worker": {"resources": {"limits": {"cpu": "2.5"}}}}, "2"),
        ({"worker": {"resources": {"limits": {"cpu": 16}}}}, "16"),
        ({"worker": {"resources": {"limits": {"cpu": "500m"}}}}, "1"),
        ({"worker": {"gpus": 8}}, "8"),
        ({"worker": {"gpus": 8}, "scaling": {"processesPerWorker": 100}}, "100"),
    ],
)
def test_worker_has_a_process_for_each_processor_or_gpu(change, processes):
    [scaled] = of_kind(chart("sqs", change), "ScaledObject")
    assert {trigger["metadata"]["targetValue"] for trigger in scaled["spec"]["triggers"]} == {processes}


# The types that KEDA knows, whose parser is that of Prometheus' older text format. It refuses a text with others.
TYPES_OF_KEDA = {"counter", "gauge", "histogram", "summary", "untyped", "gaugehistogram"}


def test_keda_can_read_the_need_from_a_reducer(workplace):
    """It sends no `Accept`, reads all lines, and takes the value of the series with exactly these labels."""
    addresses = {"GRISTMILL_QUEUE": "sqlite:queues", "GRISTMILL_STORE": f"file://{workplace.folder}/store"}
    reducer = workplace.start("reducer", "--listen", "127.0.0.1:0", **addresses)
    lines = iter(reducer.process.stdout.readline, b"")
    url = next(line for line in lines if b"http://" in line).decode().split()[-1]
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    assert text.endswith("\n"), "KEDA 2.16 does not read a last line without an end"
    types = set(re.findall(r"^# TYPE \S+ (\S+)$", text, re.MULTILINE))
    assert types <= TYPES_OF_KEDA, f"KEDA refuses the text because of {types - TYPES_OF_KEDA}"
    series = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    for change in ({}, {"worker": {"gpus": 1}}):
        [scaled] = of_kind(chart("sqs", change), "ScaledObject")
        for trigger in scaled["spec"]["triggers"]:
            # KEDA keeps the number of workers while it finds no value.
            assert series.get(trigger["metadata"]["valueLocation"]) == "0"


# ---- the roles ---------------------------------------------------------------------------------------------------


def argument(container, name):
    return int(container["args"][container["args"].index(name) + 1])


def default_limit_seconds():
    """Returns the default limit of a mini-batch."""
    keys = (ROOT / "services/job_file/JOB_FILE.md").read_text()
    names = ("run_invocation_timeout", "--task_overhead_timeout")
    return sum(int(re.search(rf"^\| `{name}` \|[^|]+\| (\d+) \|", keys, re.MULTILINE)[1]) for name in names)


def test_grace_periods_fit_the_drain(manifests):
    worker = named(manifests, "Deployment", "gristmill-worker")
    [container] = containers(worker)
    grace, all_of_it = argument(container, "--grace"), pod(worker)["terminationGracePeriodSeconds"]
    assert 90 == default_limit_seconds() <= grace < all_of_it - END_SECONDS
    assert container["livenessProbe"]["terminationGracePeriodSeconds"] < grace
    [told] = [line for line in README.splitlines() if "unless a job says more" in line]
    assert told.split()[-2:] == [str(grace), str(all_of_it)]


def test_executable_accepts_every_argument(manifests, workplace):
    for deployment in of_kind(manifests, "Deployment"):
        for container in containers(deployment):
            assert workplace.command(*container["args"], "--help").exit_status == 0, container["args"]
            assert workplace.command(*container["args"], "--no-such", "--help").exit_status != 0


def test_roles_read_every_setting(manifests):
    known = set(re.findall(r'"(GRISTMILL_\w+)"', (ROOT / "services/cli/src/settings.rs").read_text()))
    given = set(settings(manifests)) | {key for name, key in secrets_of_the_readme() if name == "gristmill-broker"}
    assert given - {"AWS_REGION"} <= known
    assert {"GRISTMILL_QUEUE", "GRISTMILL_STORE", "GRISTMILL_LISTEN", "GRISTMILL_LOG_FORMAT"} <= given


def test_ports_match_the_roles(manifests):
    port = int(settings(manifests)["GRISTMILL_LISTEN"].rpartition(":")[2])
    let_in = [rule for policy in of_kind(manifests, "NetworkPolicy") for rule in policy["spec"]["ingress"]]
    assert {entry["port"] for rule in let_in for entry in rule["ports"]} == {port}
    [service] = of_kind(manifests, "Service")
    assert [entry["port"] for entry in service["spec"]["ports"]] == [port]
    for deployment in of_kind(manifests, "Deployment"):
        annotations = deployment["spec"]["template"]["metadata"]["annotations"]
        if deployment["metadata"]["name"] != "gristmill-portal":
            assert annotations["prometheus.io/port"] == str(port)
        for container in containers(deployment):
            ports = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
            for probe, path in [("startup", "/healthz"), ("liveness", "/healthz"), ("readiness", "/readyz")]:
                asked = container[f"{probe}Probe"]["httpGet"]
                assert (ports[asked["port"]], asked["path"]) == (port, path)


# ---- isolation ---------------------------------------------------------------------------------------------------


def test_pods_run_without_root_or_extra_permissions(manifests):
    for deployment in of_kind(manifests, "Deployment"):
        spec = pod(deployment)
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert spec["automountServiceAccountToken"] is False
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"}
        assert all(
            volume.keys() == {"name", "emptyDir"} and volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"]
        )
        for container in containers(deployment):
            assert container["securityContext"] == {
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"/tmp", "/var/cache/gristmill"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
            assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]
    [namespace] = of_kind(manifests, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize(
    ("beginning", "added"),
    [
        ("worker:\n", {"runtimeClassName": "writable-cgroups"}),
        ("worker: # GKE", {"nodeSelector": {"node.gke.io/enable-writable-cgroups": "true"}}),
        ("worker: # CRI-O", {}),
    ],
)
def test_worker_may_write_to_its_control_group_without_further_permissions(beginning, added):
    """With the values of the README, `max_memory` works; the runtime does the rest."""
    plain = named(chart("sqs"), "Deployment", "gristmill-worker")
    values = YAML(typ="safe").load(yaml_of_the_readme(beginning))
    worker = named(chart("sqs", values), "Deployment", "gristmill-worker")
    annotations = [deployment["spec"]["template"]["metadata"]["annotations"] for deployment in (plain, worker)]
    assert annotations[1].items() - annotations[0].items() == values["worker"].get("podAnnotations", {}).items()
    [container], [container_before] = containers(worker), containers(plain)
    if "GKE" in beginning:
        assert f"node.gke.io/enable-writable-cgroups.{container['name']}" in annotations[1]
        sizes = [container["resources"].pop(kind) for kind in ("requests", "limits")]
        assert len({(size["cpu"], size["memory"]) for size in sizes}) == 1, "GKE demands it"
        del container_before["resources"]
    assert container.pop("resources", {}) == container_before.pop("resources", {})
    assert pod(worker) == {**pod(plain), **added}


def test_only_gpu_target_workers_have_gpus():
    for target in TARGETS:
        for deployment in of_kind(kustomize(FOLDER / target), "Deployment"):
            wants = target == "sqs-gpu" and deployment["metadata"]["name"] == "gristmill-worker"
            for container in containers(deployment):
                for kind in ("requests", "limits"):
                    assert container["resources"][kind].get("nvidia.com/gpu") == ("1" if wants else None)
                assert container["image"].endswith("-cuda") == wants
            tolerated = [toleration["key"] for toleration in pod(deployment).get("tolerations", [])]
            assert tolerated == (["nvidia.com/gpu"] if wants else [])


# ---- the portal --------------------------------------------------------------------------------------------------


def test_portal_needs_its_token_and_changes_nothing(workplace):
    roles = {manifest["metadata"]["name"] for manifest in of_kind(chart("sqs"), "Deployment")}
    assert roles == {"gristmill-worker", "gristmill-reducer"}, "no portal unless `portal.enabled` is set"
    manifests = chart("sqs", {"portal": {"enabled": True}})
    [container] = containers(named(manifests, "Deployment", "gristmill-portal"))
    assert "--read-only" in container["args"] and "--no-open" in container["args"]
    assert f"0.0.0.0:{container['ports'][0]['containerPort']}" in container["args"]
    # Another address than its own needs a token, so a pod without the Secret does not serve.
    refused = workplace.command(*container["args"])
    assert refused.exit_status == 2 and "GRISTMILL_PORTAL_TOKEN" in refused.stderr, refused
    assert [variable["name"] for variable in container["env"]] == ["GRISTMILL_PORTAL_TOKEN"]
    deployment = named(manifests, "Deployment", "gristmill-portal")
    services = [{"matchLabels": service["spec"]["selector"]} for service in of_kind(manifests, "Service")]
    assert not of_kind(manifests, "Ingress") and not [one for one in services if selects(one, deployment)], "no way in"
    changing = chart("sqs", {"portal": {"enabled": True, "readOnly": False}})
    assert "--read-only" not in containers(named(changing, "Deployment", "gristmill-portal"))[0]["args"]


# ---- placement ---------------------------------------------------------------------------------------------------


def test_gpu_worker_fits_into_the_memory_of_the_smallest_machines_with_a_gpu():
    """g4dn.xlarge, g5.xlarge and g6.xlarge have 16 GiB, of which the kernel takes about 3 %, and EKS 255 MiB, 11 MiB
    for each of 58 pods, and 100 MiB as its threshold for eviction."""
    [container] = containers(named(chart("sqs-gpu"), "Deployment", "gristmill-worker"))
    wanted = container["resources"]["requests"]["memory"]
    assert wanted == container["resources"]["limits"]["memory"] and wanted.endswith("Gi")
    assert int(wanted[:-2]) * 1024 <= 16 * 1024 * 0.97 - (255 + 11 * 58) - 100


def test_pods_run_only_on_the_architectures_of_their_images(manifests):
    both = chart("sqs", {"images": {"architectures": ["amd64", "arm64"]}})
    for rendered, architectures in ((manifests, ["amd64"]), (both, ["amd64", "arm64"])):
        for deployment in of_kind(rendered, "Deployment"):
            required = pod(deployment)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            expected = {"key": "kubernetes.io/arch", "operator": "In", "values": architectures}
            assert required["nodeSelectorTerms"] == [{"matchExpressions": [expected]}]
