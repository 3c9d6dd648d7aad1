"""infra/kubernetes: valid by the published schemas, and right where schemas have nothing to say."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import urllib.parse

import pytest
from kustomize import containers, documents, identity, render
from ruamel.yaml import YAML

from components import ROOT
from harness import python_with

FOLDER = ROOT / "infra/kubernetes"
README = (FOLDER / "README.md").read_text()
OVERLAYS = ["sqs", "sqs-gpu", "rabbitmq"]
# What a pod still does when its grace is over: give back, and upload logs.
END_SECONDS = 30
USER = 10001


@pytest.fixture(params=OVERLAYS)
def manifests(request):
    return render(FOLDER / request.param)


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


# ---- schemas -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def problems():
    """Asks the published schemas, in an environment of their own."""
    python = python_with(ROOT / "tests/requirements-kubernetes.txt")

    def ask(manifests):
        command = [python, ROOT / "tests/kubernetes_schemas.py"]
        asked = subprocess.run(command, input=json.dumps(manifests), capture_output=True, text=True, timeout=100)
        assert asked.returncode == 0, asked.stderr
        return json.loads(asked.stdout)

    return ask


@pytest.mark.timeout(700)
def test_every_manifest_is_valid_and_a_wrong_one_is_refused(problems):
    rendered = [manifest for overlay in OVERLAYS for manifest in render(FOLDER / overlay)]
    worker, scaled = (
        named(render(FOLDER / "sqs"), kind, "gristmill-worker") for kind in ("Deployment", "ScaledObject")
    )
    authentication = named(render(FOLDER / "sqs"), "TriggerAuthentication", "gristmill-task-queue")
    wrong = [
        ("runAsRoot", changed(worker, "spec.template.spec.securityContext.runAsRoot", True)),
        ("terminationGracePeriodSeconds", changed(worker, "spec.template.spec.terminationGracePeriodSeconds", "long")),
        ("selector", changed(worker, "spec.selector", None)),
        ("has no Deployment", changed(worker, "apiVersion", "apps/v1beta1")),
        ("minReplicas", changed(scaled, "spec.minReplicas", 0)),
        ("maxReplicaCount", changed(scaled, "spec.maxReplicaCount", "many")),
        ("triggers", changed(scaled, "spec.triggers", None)),
        ("has no ScaledObject", changed(scaled, "apiVersion", "keda.sh/v2")),
        ("podIdentity", changed(authentication, "spec.podIdentity.owner", "pod")),
    ]
    found = problems(rendered + [manifest for _, manifest in wrong])
    named_problems = zip(map(identity, rendered), found, strict=False)
    assert [entry for entry in named_problems if entry[1]] == []
    for (expected, _), complaints in zip(wrong, found[len(rendered) :], strict=True):
        assert any(expected in complaint for complaint in complaints), (expected, complaints)


def changed(manifest, path, value):
    """A copy with another value at a path; without it for None."""
    manifest = copy.deepcopy(manifest)
    *parents, field = path.split(".")
    place = manifest
    for parent in parents:
        place = place[parent]
    if value is None:
        del place[field]
    else:
        place[field] = value
    return manifest


def kustomize_of_kubectl():
    """`kubectl kustomize`, where there is one that is not older than kustomize 4."""
    kubectl = shutil.which("kubectl")
    told = kubectl and subprocess.run([kubectl, "version", "--client", "--output=json"], capture_output=True, text=True)
    return [kubectl, "kustomize"] if told and "kustomizeVersion" in told.stdout else None


def test_kubectl_renders_the_same():
    if (kustomize := kustomize_of_kubectl()) is None:
        pytest.skip(
            "there is no kubectl with kustomize 4 or newer: tests/kustomize.py alone has rendered the manifests"
        )
    for overlay in OVERLAYS:
        built = subprocess.run([*kustomize, FOLDER / overlay], capture_output=True, text=True)
        assert built.returncode == 0 and not built.stderr, built.stderr
        expected = [manifest for manifest in YAML(typ="safe").load_all(built.stdout)]
        assert sorted(map(flat, render(FOLDER / overlay))) == sorted(map(flat, expected)), overlay


def flat(manifest):
    """As text, with lists that a patch merges by a key in the order of it: kustomize puts what is new first."""
    manifest = copy.deepcopy(manifest)
    if manifest["kind"] == "Deployment":
        for entries in [pod(manifest)["volumes"]] + [one["volumeMounts"] for one in containers(manifest)]:
            entries.sort(key=lambda entry: entry["name"])
    return json.dumps(manifest, sort_keys=True)


# ---- what belongs together ---------------------------------------------------------------------------------------


def test_every_selector_finds_what_it_is_for(manifests):
    worker, reducer = (named(manifests, "Deployment", f"gristmill-{role}") for role in ("worker", "reducer"))
    for deployment in (worker, reducer):
        assert selects(deployment["spec"]["selector"], deployment)
    assert not selects(worker["spec"]["selector"], reducer) and not selects(reducer["spec"]["selector"], worker)
    for spread in pod(worker)["topologySpreadConstraints"]:
        assert selects(spread["labelSelector"], worker) and not selects(spread["labelSelector"], reducer)
    [budget] = of_kind(manifests, "PodDisruptionBudget")
    assert selects(budget["spec"]["selector"], worker) and not selects(budget["spec"]["selector"], reducer)
    for policy in of_kind(manifests, "NetworkPolicy"):
        assert selects(policy["spec"]["podSelector"], worker) and selects(policy["spec"]["podSelector"], reducer)


def secrets_of_the_readme():
    """The Secrets that the README has the user create: names, keys and values."""
    pattern = r'printf %s "(\S+)" \|\s+kubectl create secret generic (\S+) --namespace \S+ --from-file=(\w+)=/dev/stdin'
    return {(name, key): value for value, name, key in re.findall(pattern, README)}


def test_everything_that_is_referred_to_exists(manifests):
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
    for authentication in of_kind(manifests, "TriggerAuthentication"):
        for source in authentication["spec"].get("configMapTargetRef", []):
            assert source["key"] in maps[source["name"]]
        for source in authentication["spec"].get("secretTargetRef", []):
            assert (source["name"], source["key"]) in secrets


def named_namespace(manifests):
    [namespace] = of_kind(manifests, "Namespace")
    return namespace["metadata"]["name"]


def test_roles_of_aws_are_told_apart(manifests):
    roles = [
        manifest["metadata"]["annotations"]["eks.amazonaws.com/role-arn"]
        for manifest in of_kind(manifests, "ServiceAccount")
    ]
    assert len(roles) == len(set(roles)) == 2
    assert f"system:serviceaccount:{named_namespace(render(FOLDER / 'sqs'))}:gristmill-worker" in README


def queue_prefix(manifests):
    """The prefix of the target's queues, and which kind they are of, as the roles are told."""
    address = (
        settings(manifests).get("GRISTMILL_QUEUE") or secrets_of_the_readme()["gristmill-broker", "GRISTMILL_QUEUE"]
    )
    url = urllib.parse.urlsplit(address)
    return url.scheme, url.netloc if url.scheme == "sqs" else urllib.parse.parse_qs(url.query)["prefix"][0]


def test_workers_are_scaled_by_the_task_queue_of_the_target(manifests):
    [scaled] = of_kind(manifests, "ScaledObject")
    worker = named(manifests, "Deployment", scaled["spec"]["scaleTargetRef"]["name"])
    assert containers(worker)[0]["args"][0] == "worker"
    assert "replicas" not in worker["spec"], "`kubectl apply` would set them back"
    assert scaled["spec"]["minReplicaCount"] == 0 < scaled["spec"]["maxReplicaCount"]
    [trigger] = scaled["spec"]["triggers"]
    authentication = named(manifests, "TriggerAuthentication", trigger["authenticationRef"]["name"])
    metadata, (scheme, prefix) = trigger["metadata"], queue_prefix(manifests)
    if scheme == "sqs":
        assert trigger["type"] == "aws-sqs-queue" and metadata["scaleOnInFlight"] == "true"
        url = urllib.parse.urlsplit(settings(manifests)[metadata["queueURLFromEnv"]])
        assert url.path.rpartition("/")[2] == f"{prefix}-tasks"
        assert url.hostname == f"sqs.{settings(manifests)['AWS_REGION']}.amazonaws.com"
        assert authentication["spec"]["podIdentity"] == {"provider": "aws"}
        given = [source["parameter"] for source in authentication["spec"]["configMapTargetRef"]]
        assert given == ["awsRegion"]
        backlog = metadata["queueLength"]
    else:
        assert scheme == "amqps" and trigger["type"] == "rabbitmq"
        assert metadata["queueName"] == f"{prefix}-tasks" and metadata["mode"] == "QueueLength"
        # AMQP does not tell what is unacknowledged.
        assert metadata["protocol"] == "http" and metadata["excludeUnacknowledged"] == "false"
        [source] = authentication["spec"]["secretTargetRef"]
        assert source["parameter"] == "host"
        assert secrets_of_the_readme()[source["name"], source["key"]].startswith("https://")
        assert source["name"] not in json.dumps(worker), "the roles do not see what only KEDA needs"
        backlog = metadata["value"]
    processes = int(containers(worker)[0]["resources"]["limits"]["cpu"])
    assert int(backlog) >= 2 * processes, "what workers hold would call for more workers"
    assert f"one worker for {backlog} of them" in README
    assert all(isinstance(value, str) for value in metadata.values())


def test_the_reducer_is_always_there(manifests):
    assert named(manifests, "Deployment", "gristmill-reducer")["spec"]["replicas"] == 1


def test_both_overlays_scale_alike():
    [sqs], [rabbitmq] = (of_kind(render(FOLDER / overlay), "ScaledObject") for overlay in ("sqs", "rabbitmq"))
    sqs["spec"].pop("triggers"), rabbitmq["spec"].pop("triggers")
    assert sqs == rabbitmq


# ---- what the roles do -------------------------------------------------------------------------------------------


def argument(container, name):
    return int(container["args"][container["args"].index(name) + 1])


def default_limit_seconds():
    """How long a mini-batch may take in a job that says nothing of it."""
    keys = (ROOT / "services/cli/JOB_FILE.md").read_text()
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


def test_the_executable_knows_every_argument(manifests, workplace):
    for deployment in of_kind(manifests, "Deployment"):
        for container in containers(deployment):
            assert workplace.command(*container["args"], "--help").exit_status == 0, container["args"]
            assert workplace.command(*container["args"], "--no-such", "--help").exit_status != 0


def test_every_setting_is_one_that_the_roles_read(manifests):
    known = set(re.findall(r"`(GRISTMILL_\w+)`", (ROOT / "services/cli/src/settings.rs").read_text()))
    given = set(settings(manifests)) | {key for name, key in secrets_of_the_readme() if name == "gristmill-broker"}
    # AWS's own, and the one that KEDA alone reads.
    assert given - {"AWS_REGION", "TASK_QUEUE_URL"} <= known
    assert {"GRISTMILL_QUEUE", "GRISTMILL_STORE", "GRISTMILL_LISTEN", "GRISTMILL_LOG_FORMAT"} <= given


def test_ports_are_those_the_roles_listen_on(manifests):
    port = int(settings(manifests)["GRISTMILL_LISTEN"].rpartition(":")[2])
    [let_in] = [
        policy["spec"]["ingress"] for policy in of_kind(manifests, "NetworkPolicy") if "ingress" in policy["spec"]
    ]
    assert [entry["port"] for rule in let_in for entry in rule["ports"]] == [port]
    for deployment in of_kind(manifests, "Deployment"):
        assert deployment["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(port)
        for container in containers(deployment):
            ports = {entry["name"]: entry["containerPort"] for entry in container["ports"]}
            for probe, path in [("startup", "/healthz"), ("liveness", "/healthz"), ("readiness", "/readyz")]:
                asked = container[f"{probe}Probe"]["httpGet"]
                assert (ports[asked["port"]], asked["path"]) == (port, path)


# ---- what is closed ----------------------------------------------------------------------------------------------


def openings(deployment):
    """What the deployment has that it should not have."""
    spec, found = pod(deployment), []
    context = spec.get("securityContext", {})
    if not (context.get("runAsNonRoot") and context.get("runAsUser") == context.get("runAsGroup") == USER):
        found.append("user")
    if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
        found.append("seccomp")
    if spec.get("automountServiceAccountToken") is not False:
        found.append("token")
    found += [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    if any(volume.keys() - {"name", "emptyDir"} or "sizeLimit" not in volume["emptyDir"] for volume in spec["volumes"]):
        found.append("volumes")
    for container in containers(deployment) + spec.get("initContainers", []):
        own = container.get("securityContext", {})
        if own.get("runAsUser", USER) != USER or own.get("runAsNonRoot") is False:
            found.append("user")
        if own.get("readOnlyRootFilesystem") is not True:
            found.append("root file system")
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            found.append("privileges")
        if own.get("capabilities") != {"drop": ["ALL"]}:
            found.append("capabilities")
        if not {"/tmp", "/var/cache/gristmill"} <= {mount["mountPath"] for mount in container["volumeMounts"]}:
            found.append("nowhere to write")
        if (
            not {"requests", "limits"} <= container["resources"].keys()
            or "memory" not in container["resources"]["limits"]
        ):
            found.append("resources")
    return found


def test_nothing_runs_as_root_or_with_rights_it_does_not_need(manifests):
    for deployment in of_kind(manifests, "Deployment"):
        assert openings(deployment) == []
        first = changed(deployment, "spec.template.spec.containers", [copy.deepcopy(containers(deployment)[0])])
        for path, value, opening in [
            ("spec.template.spec.securityContext.runAsUser", 0, "user"),
            ("spec.template.spec.securityContext.seccompProfile", None, "seccomp"),
            ("spec.template.spec.automountServiceAccountToken", True, "token"),
            ("spec.template.spec.hostNetwork", True, "hostNetwork"),
            ("spec.template.spec.volumes", [{"name": "tmp", "hostPath": {"path": "/tmp"}}], "volumes"),
        ]:
            assert openings(changed(deployment, path, value)) == [opening]
        for field, value, opening in [
            ("runAsUser", 0, "user"),
            ("readOnlyRootFilesystem", False, "root file system"),
            ("privileged", True, "privileges"),
            ("capabilities", {"add": ["SYS_ADMIN"]}, "capabilities"),
        ]:
            worse = copy.deepcopy(first)
            containers(worse)[0]["securityContext"][field] = value
            assert openings(worse) == [opening]
    [namespace] = of_kind(manifests, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_only_workers_of_the_gpu_overlay_have_gpus():
    for overlay in OVERLAYS:
        for deployment in of_kind(render(FOLDER / overlay), "Deployment"):
            has_gpu = [container["resources"]["limits"].get("nvidia.com/gpu") for container in containers(deployment)]
            wants = overlay == "sqs-gpu" and deployment["metadata"]["name"] == "gristmill-worker"
            assert has_gpu == (["1"] if wants else [None])
            tolerated = [toleration["key"] for toleration in pod(deployment).get("tolerations", [])]
            assert tolerated == (["nvidia.com/gpu"] if wants else [])


def test_what_is_to_be_filled_in_stands_where_the_readme_says():
    folders = [FOLDER / overlay for overlay in OVERLAYS]
    told = re.findall(r"^\| `([\w./-]+)` \|", README, re.MULTILINE)
    has_examples = {
        path.relative_to(FOLDER)
        for path in FOLDER.rglob("*.yaml")
        if re.search(r"123456789012|team-a", path.read_text())
    }
    assert has_examples
    for path in has_examples:
        assert path.parent.name in OVERLAYS and (path.name in told or str(path) in told), path
    assert all(documents(folder / "kustomization.yaml") for folder in folders)
    assert not any(re.search(r"123456789012|team-a", path.read_text()) for path in (FOLDER / "base").glob("*"))
