"""infra/kubernetes: consistency of the manifests, permissions of the roles, and placement of their pods."""

from __future__ import annotations

import json
import re
import urllib.parse

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
    chosen += [(policy["spec"]["podSelector"], [*deployments]) for policy in of_kind(manifests, "NetworkPolicy")]
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
    for authentication in of_kind(manifests, "TriggerAuthentication"):
        for source in authentication["spec"].get("secretTargetRef", []):
            assert (source["name"], source["key"]) in secrets


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


def test_workers_are_scaled_by_the_task_queue_of_the_target(manifests):
    [scaled] = of_kind(manifests, "ScaledObject")
    worker = named(manifests, "Deployment", scaled["spec"]["scaleTargetRef"]["name"])
    assert containers(worker)[0]["args"][0] == "worker"
    assert "replicas" not in worker["spec"], "`kubectl apply` would reset them"
    assert scaled["spec"]["minReplicaCount"] == 0 < scaled["spec"]["maxReplicaCount"]
    [trigger] = scaled["spec"]["triggers"]
    authentication = named(manifests, "TriggerAuthentication", trigger["authenticationRef"]["name"])
    metadata, (scheme, prefix) = trigger["metadata"], queue_prefix(manifests)
    if scheme == "sqs":
        assert trigger["type"] == "aws-sqs-queue" and metadata["scaleOnInFlight"] == "true"
        url = urllib.parse.urlsplit(metadata["queueURL"])
        assert url.path.rpartition("/")[2] == f"{prefix}-tasks"
        # KEDA 2.16 also reads the region from an authentication, later versions do not.
        assert url.hostname == f"sqs.{metadata['awsRegion']}.amazonaws.com"
        assert metadata["awsRegion"] == settings(manifests)["AWS_REGION"]
        assert authentication["spec"] == {"podIdentity": {"provider": "aws"}}
        backlog = metadata["queueLength"]
    else:
        assert scheme == "amqps" and trigger["type"] == "rabbitmq"
        assert metadata["mode"] == "QueueLength" and (metadata["useRegex"], metadata["operation"]) == ("true", "sum")
        lanes = [f"{prefix}-tasks", *(f"{prefix}-tasks-{number}" for number in range(2, 9))]
        # RabbitMQ finds the expression anywhere in a name, in any case.
        others = [
            f"{prefix}-results",
            f"{prefix}-dead-letters",
            f"{prefix}-tasks-9",
            f"{prefix}-tasks-22",
            f"x{lanes[0]}",
        ]
        assert [bool(re.search(metadata["queueName"], name, re.IGNORECASE)) for name in lanes] == [True] * 8
        assert not any(re.search(metadata["queueName"], name, re.IGNORECASE) for name in others)
        # AMQP does not count unacknowledged messages.
        assert metadata["protocol"] == "http" and metadata["excludeUnacknowledged"] == "false"
        assert "timeout" not in metadata, "versions of KEDA differ in its unit"
        [source] = authentication["spec"]["secretTargetRef"]
        assert source["parameter"] == "host"
        assert secrets_of_the_readme()[source["name"], source["key"]].startswith("https://")
        assert source["name"] not in json.dumps(worker), "the roles do not see what only KEDA needs"
        backlog = metadata["value"]
    processes = int(containers(worker)[0]["resources"]["limits"]["cpu"])
    assert int(backlog) >= 2 * processes, "what workers hold would call for more workers"
    assert f"one worker for {backlog} of them" in README
    assert all(isinstance(value, str) for value in metadata.values())


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
    [let_in] = [
        policy["spec"]["ingress"] for policy in of_kind(manifests, "NetworkPolicy") if "ingress" in policy["spec"]
    ]
    assert [entry["port"] for rule in let_in for entry in rule["ports"]] == [port]
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
    assert not [kind for kind in ("Service", "Ingress") if of_kind(manifests, kind)], "no pod reaches it"
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
