"""infra/kubernetes: consistency of the manifests, permissions of the roles, and placement of their pods."""

from __future__ import annotations

import re
import runpy
import urllib.error
import urllib.parse
import urllib.request

import pytest
from ruamel.yaml import YAML

from alarms import RULES
from harness import ROOT, wait_until
from kubernetes_tools import (
    EXAMPLES,
    FOLDER,
    README,
    broker,
    chart,
    containers,
    helm,
    labels,
    named,
    of_kind,
    pod,
    selects,
    settings,
    yaml_of_the_readme,
)
from scrape import Role

# Time for a pod's work after its grace period: return mini-batches, and upload logs.
END_SECONDS = 30
USER = 10001
PORTAL = {"portal": {"enabled": True}}


@pytest.fixture(params=[*EXAMPLES, "portal"])
def manifests(request):
    """The examples, and once the portal besides."""
    return chart("rabbitmq", PORTAL) if request.param == "portal" else chart(request.param)


def of_workers(manifests):
    return [found for found in of_kind(manifests, "Deployment") if role_of(found) == "worker"]


def role_of(deployment):
    return labels(deployment)["app.kubernetes.io/component"]


# ---- consistency -------------------------------------------------------------------------------------------------


def test_every_selector_matches_its_pods(manifests):
    deployments = {manifest["metadata"]["name"]: manifest for manifest in of_kind(manifests, "Deployment")}
    workers = [found["metadata"]["name"] for found in of_workers(manifests)]
    chosen = [(deployment["spec"]["selector"], [name]) for name, deployment in deployments.items()]
    for name, deployment in deployments.items():
        spreads = pod(deployment).get("topologySpreadConstraints", [])
        assert {spread["topologyKey"] for spread in spreads} == (
            set() if name == "gristmill-portal" else {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
        )
        chosen += [(spread["labelSelector"], [name]) for spread in spreads]
    budgets = {found["metadata"]["name"]: found["spec"] for found in of_kind(manifests, "PodDisruptionBudget")}
    assert budgets.keys() == {"gristmill-reducer", *workers}
    chosen += [(budget["selector"], [name]) for name, budget in budgets.items()]
    policies = {manifest["metadata"]["name"]: manifest["spec"] for manifest in of_kind(manifests, "NetworkPolicy")}
    chosen += [(policies.pop("gristmill")["podSelector"], [*deployments])]
    chosen += [(policies.pop("gristmill-metrics")["podSelector"], ["gristmill-reducer", *workers])]
    chosen += [(policies.pop("gristmill-keda")["podSelector"], ["gristmill-reducer"])]
    assert policies == {}
    for service in of_kind(manifests, "Service"):
        chosen += [({"matchLabels": service["spec"]["selector"]}, [service["metadata"]["name"]])]
    for selector, names in chosen:
        assert {name for name, deployment in deployments.items() if selects(selector, deployment)} == {*names}


def test_reducers_outlive_a_machine(manifests):
    reducer = named(manifests, "Deployment", "gristmill-reducer")
    budget = named(manifests, "PodDisruptionBudget", "gristmill-reducer")["spec"]
    assert reducer["spec"]["replicas"] == 2 and budget["maxUnavailable"] == 1
    assert reducer["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def secrets_of_the_readme():
    """Returns names and keys of the Secrets that the README tells users to create."""
    text = README.replace("\\\n", "")
    found = re.findall(r"kubectl create secret generic (\S+)[^\n]* --from-file=(\w+)=/dev/stdin", text)
    return {*found}


def test_every_reference_exists(manifests):
    accounts = {manifest["metadata"]["name"] for manifest in of_kind(manifests, "ServiceAccount")}
    maps = {manifest["metadata"]["name"]: manifest["data"] for manifest in of_kind(manifests, "ConfigMap")}
    secrets = secrets_of_the_readme()
    # The topology operator names them.
    users = {f"{user['metadata']['name']}-user-credentials" for user in of_kind(manifests, "User")}
    secrets |= {(user, key) for user in users for key in ("username", "password")}
    assert not of_kind(manifests, "Secret"), "a secret is never a file of this repository"
    for deployment in of_kind(manifests, "Deployment"):
        assert pod(deployment)["serviceAccountName"] in accounts
        for container in containers(deployment):
            volumes = {volume["name"]: volume for volume in pod(deployment)["volumes"]}
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
            for source in container["envFrom"]:
                assert source["configMapRef"]["name"] in maps
            for variable in container.get("env", []):
                if "valueFrom" in variable:
                    reference = variable["valueFrom"]["secretKeyRef"]
                    assert (reference["name"], reference["key"]) in secrets
    assert not of_kind(manifests, "TriggerAuthentication"), "reducers tell everybody in their network the need"


def test_each_service_account_has_the_iam_role_of_its_queues(manifests):
    accounts = [one["metadata"] for one in of_kind(manifests, "ServiceAccount") if "annotations" in one["metadata"]]
    arns = {one["name"]: one["annotations"]["eks.amazonaws.com/role-arn"] for one in accounts}
    assert {account: arn.rpartition(":")[2] for account, arn in arns.items()} == {
        f"gristmill-{role}": f"role/team-a-{role}" for role in ("worker", "reducer")
    }
    for account in arns:
        assert f"system:serviceaccount:gristmill:{account}" in README or account == "gristmill-reducer"


# ---- RabbitMQ ----------------------------------------------------------------------------------------------------


def test_roles_reach_the_broker_with_their_own_users():
    manifests = chart("rabbitmq", PORTAL)
    assert "GRISTMILL_QUEUE" not in settings(manifests)
    [cluster] = of_kind(broker(), "RabbitmqCluster")
    place = f"{cluster['metadata']['name']}.{cluster['metadata']['namespace']}.svc"
    for deployment in of_kind(manifests, "Deployment"):
        [container] = containers(deployment)
        given = {variable["name"]: variable for variable in container["env"]}
        assert list(given)[:3] == ["BROKER_USERNAME", "BROKER_PASSWORD", "GRISTMILL_QUEUE"], (
            "Kubernetes needs this order"
        )
        user = f"gristmill-{role_of(deployment)}-user-credentials"
        assert {given[name]["valueFrom"]["secretKeyRef"]["name"] for name in list(given)[:2]} == {user}
        url = urllib.parse.urlsplit(given["GRISTMILL_QUEUE"]["value"])
        assert url.netloc == f"$(BROKER_USERNAME):$(BROKER_PASSWORD)@{place}:5671"
        assert (url.scheme, url.path) == ("amqps", "/%2f")
        parameters = dict(urllib.parse.parse_qsl(url.query))
        [mount] = [mount for mount in container["volumeMounts"] if mount["name"] == "authority"]
        [volume] = [volume for volume in pod(deployment)["volumes"] if volume["name"] == "authority"]
        assert parameters.pop("cacertfile") == f"{mount['mountPath']}/ca.crt" and mount["readOnly"]
        name = volume["configMap"]["name"]
        assert f"create configmap {name} --from-file=ca.crt=/dev/stdin" in README
        # The broker holds deliveries for as long as the roles expect.
        assert parameters.pop("prefix") == "team-a"
        timeout = f"consumer_timeout = {int(parameters.pop('lease_seconds')) * 1000}\n"
        assert not parameters and timeout in cluster["spec"]["rabbitmq"]["additionalConfig"]


def test_reducers_create_queues_with_the_key_and_tags_of_the_target():
    key, tags = "arn:aws:kms:eu-central-1:123456789012:key/one", {"Cost Center": "a&b=c", "Team": "ä"}
    queue = {"sqs": {"kmsKey": key, "tags": tags}}
    address = urllib.parse.urlsplit(settings(chart("sqs", {"queue": queue}))["GRISTMILL_QUEUE"])
    plain = urllib.parse.urlsplit(settings(chart("sqs"))["GRISTMILL_QUEUE"])
    assert (address.scheme, address.netloc) == (plain.scheme, plain.netloc) and not plain.query
    expected = {"kms_key": key, **{f"tag.{name}": value for name, value in tags.items()}}
    assert dict(urllib.parse.parse_qsl(address.query)) == expected


def test_users_of_the_broker_have_the_rights_of_their_roles():
    """Those that tests/deploy/test_broker_users.py tries."""
    script = runpy.run_path(str(ROOT / "scripts/broker-users"))
    manifests = chart("rabbitmq", PORTAL)
    for role, takes in script["TAKES"].items():
        user = named(manifests, "User", f"gristmill-{role}")["spec"]
        assert user.get("tags", []) == ([script["TAGS"][role]] if role in script["TAGS"] else [])
        permission = named(manifests, "Permission", f"gristmill-{role}")["spec"]
        assert permission["userReference"] == {"name": f"gristmill-{role}"} and permission["vhost"] == "/"
        assert permission["permissions"] == {
            "configure": script["pattern"]("team-a", [*script["OF_TARGET"], *script["KEEPS"].get(role, [])]),
            "write": r"^amq\.default$",
            "read": script["pattern"]("team-a", takes),
        }
        for spec in (user, permission):
            assert spec["rabbitmqClusterReference"] == {"name": "broker", "namespace": "rabbitmq"}
    assert len(of_kind(manifests, "User")) == len(script["TAKES"])
    assert not named_or_none(chart("rabbitmq"), "User", "gristmill-portal"), "a user for no role"


def named_or_none(manifests, kind, name):
    return next((found for found in of_kind(manifests, kind) if found["metadata"]["name"] == name), None)


def test_broker_in_the_cluster_is_safe_and_outlives_a_machine():
    [cluster] = of_kind(broker(), "RabbitmqCluster")
    spec, metadata = cluster["spec"], cluster["metadata"]
    assert spec["replicas"] == 3 and spec["tls"]["disableNonTLSListeners"]
    assert metadata["annotations"]["rabbitmq.com/topology-allowed-namespaces"] == "gristmill"
    # What the operator calls the pods.
    pods = {"app.kubernetes.io/name": metadata["name"]}
    [apart] = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [budget] = of_kind(broker(), "PodDisruptionBudget")
    for selector in (apart["labelSelector"], budget["spec"]["selector"]):
        assert selector == {"matchLabels": pods}
    assert budget["spec"]["maxUnavailable"] == 1
    certificates = {found["spec"]["secretName"]: found["spec"] for found in of_kind(broker(), "Certificate")}
    certificate = certificates[spec["tls"]["secretName"]]
    assert f"{metadata['name']}.{metadata['namespace']}.svc" in certificate["dnsNames"]
    issuer = named(broker(), "Issuer", certificate["issuerRef"]["name"])["spec"]
    assert certificates[issuer["ca"]["secretName"]]["isCA"]


# ---- scaling -----------------------------------------------------------------------------------------------------


def scaling_of(manifests):
    """Returns the need, the processes of a worker, and the limits of each pool that KEDA scales."""
    pools = {}
    for scaled in of_kind(manifests, "ScaledObject"):
        spec = scaled["spec"]
        deployment = named(manifests, "Deployment", spec["scaleTargetRef"]["name"])
        assert "replicas" not in deployment["spec"], "`helm upgrade` would reset them"
        # A need without a series counts as 0, and the needs add up.
        names = [trigger["name"] for trigger in spec["triggers"]]
        modifiers = spec["advanced"]["scalingModifiers"]
        assert modifiers["formula"] == " + ".join(f"({name} ?? 0)" for name in names)
        assert len({*names}) == len(names) and spec["fallback"]["behavior"] == "scalingModifiers"
        for trigger in spec["triggers"]:
            assert trigger["type"] == "metrics-api" and trigger["metadata"]["format"] == "prometheus"
            assert trigger["metadata"]["url"] == "http://gristmill-reducer.gristmill.svc:9464/metrics"
        needs = [trigger["metadata"]["valueLocation"] for trigger in spec["triggers"]]
        needs = [re.fullmatch(r'gristmill_processes_wanted\{requires="(.*)"\}', need)[1] for need in needs]
        limits = (spec["minReplicaCount"], spec["maxReplicaCount"])
        pools[labels(deployment)["gristmill/pool"]] = needs, int(modifiers["target"]), limits
    return pools


def test_pools_are_scaled_by_the_needs_that_their_workers_meet():
    assert scaling_of(chart("sqs")) == {"cpu": (["any"], 4, (0, 50))}
    assert scaling_of(chart("pools")) == {
        "cpu": (["any"], 4, (0, 50)),
        "on-demand": (["label capacity=on-demand"], 4, (0, 10)),
        "large": (["label size=large", "60 GB of memory", "60 GB of memory, label size=large"], 16, (0, 4)),
        "gpu": (["1 GPU"], 1, (0, 8)),
    }


def first_poll(scaled, series):
    """Returns what KEDA 2.20 makes of the first answer of a reducer: processes wanted, or None, which starts nothing.

    A trigger without a series has failed once. Beyond the threshold its value is nil in the formula; until then the
    whole ScaledObject is in error, and inactive (its pkg/fallback/fallback.go and pkg/scaling/scale_handler.go).
    """
    spec = scaled["spec"]
    values = {trigger["name"]: series.get(trigger["metadata"]["valueLocation"]) for trigger in spec["triggers"]}
    if None in values.values() and spec["fallback"]["failureThreshold"] >= 1:
        return None
    formula = spec["advanced"]["scalingModifiers"]["formula"]
    terms = [re.fullmatch(r"\((\w+) \?\? (\d+)\)", term) for term in formula.split(" + ")]
    return sum(int(term[2]) if values[term[1]] is None else values[term[1]] for term in terms)


def test_first_job_starts_workers_though_other_needs_have_no_series():
    manifests = chart("sqs", {"workers": {"cpu": {"gpus": 2}, "zone": {"labels": {"zone": "b"}}}})
    any_node, gpu = (f'gristmill_processes_wanted{{requires="{need}"}}' for need in ("any", "1 GPU"))
    for series, expected in (
        ({any_node: 0}, {"cpu": 0, "zone": 0}),
        ({any_node: 5}, {"cpu": 0, "zone": 5}),
        ({any_node: 0, gpu: 3}, {"cpu": 3, "zone": 0}),
    ):
        for pool, processes in expected.items():
            scaled = named(manifests, "ScaledObject", f"gristmill-worker-{pool}")
            assert first_poll(scaled, series) == processes, (pool, series)


@pytest.mark.parametrize(
    ("pools", "needs"),
    [
        ({"cpu": {"gpus": 2}}, {"cpu": ["any", "1 GPU", "2 GPUs"]}),
        ({"cpu": {"labels": {"zone": "b"}}}, {"cpu": ["any", "label zone=b"]}),
        (
            {"gpu": {"gpus": 2, "labels": {"zone": "b", "disk": "ssd"}}},
            {
                "cpu": ["any"],
                "gpu": [
                    *["label disk=ssd", "label zone=b", "label disk=ssd, label zone=b"],
                    *["1 GPU", "1 GPU, label disk=ssd", "1 GPU, label zone=b", "1 GPU, label disk=ssd, label zone=b"],
                    *[
                        "2 GPUs",
                        "2 GPUs, label disk=ssd",
                        "2 GPUs, label zone=b",
                        "2 GPUs, label disk=ssd, label zone=b",
                    ],
                ],
            },
        ),
        # The plainest pool has the need: fewest GPUs, labels, processors, memory; else the one that names it.
        ({"l4": {"gpus": 1}, "a100": {"gpus": 2}}, {"cpu": ["any"], "l4": ["1 GPU"], "a100": ["2 GPUs"]}),
        (
            {"zone": {"labels": {"zone": "b"}}, "l4": {"gpus": 1, "labels": {"zone": "b"}}},
            {"cpu": ["any"], "zone": ["label zone=b"], "l4": ["1 GPU", "1 GPU, label zone=b"]},
        ),
        ({"cpu": {"min": 1}, "small": {"resources": {"limits": {"cpu": "2500m"}}}}, {"small": ["any"]}),
        ({"cpu": {"min": 1}, "small": {"resources": {"limits": {"memory": "7Gi"}}}}, {"small": ["any"]}),
        ({"a": {"min": 1}, "cpu": {"min": 1}}, {"a": ["any"]}),
        ({"cpu": {"min": 1}, "big": {"requires": ["any", "4 processors"]}}, {"big": ["any", "4 processors"]}),
        ({"reserved": {"requires": [], "min": 3}}, {"cpu": ["any"]}),
    ],
)
def test_needs_of_a_pool_follow_from_its_gpus_and_labels(pools, needs):
    manifests = chart("sqs", {"workers": pools})
    assert {pool: found for pool, (found, _, _) in scaling_of(manifests).items()} == needs
    for deployment in of_workers(manifests):
        pool = labels(deployment)["gristmill/pool"]
        assert deployment["spec"].get("replicas") == (None if pool in needs else pools[pool]["min"])


@pytest.mark.parametrize(
    ("pool", "processes"),
    [
        ({"resources": {"limits": {"cpu": "7500m"}}}, 7),
        ({"resources": {"limits": {"cpu": "2.5"}}}, 2),
        ({"resources": {"limits": {"cpu": 16}}}, 16),
        ({"resources": {"limits": {"cpu": "500m"}}}, 1),
        ({"gpus": 8}, 8),
        ({"gpus": 8, "processes": 100}, 100),
    ],
)
def test_worker_has_a_process_for_each_processor_or_gpu(pool, processes):
    [(_, target, _)] = scaling_of(chart("sqs", {"workers": {"cpu": pool}})).values()
    assert target == processes


COPIES = """
    def run(files):
        return [file.rpartition("/")[2] for file in files]
"""


def test_jobs_start_the_pool_that_can_run_them(workplace, sqlite):
    """The needs of pools are in the words of reducers, and workers with the arguments of a pool meet them."""
    labelled = {"zone": "b", "disk": "ssd"}
    manifests = chart("sqs", {"workers": {"gpu": {"gpus": 2, "labels": labelled}, "other": {"labels": {"zone": "c"}}}})
    of_pools = {pool: needs for pool, (needs, _, _) in scaling_of(manifests).items()}
    workplace.data(3)
    reducer = Role(sqlite, "reducer")
    required = [
        None,
        {"labels": labelled},
        {"gpus": 2, "labels": labelled},
        {"gpus": 3},
        {"labels": {"zone": "nowhere"}},
    ]
    jobs = [
        sqlite.enqueue(
            workplace.job_of_its_own(f"job-{number}", 3, COPIES, requires=one) if one else workplace.job(COPIES)
        )
        for number, one in enumerate(required)
    ]

    def needs():
        wanted = [entry for entry in reducer.scrape().series["gristmill_processes_wanted"] if entry[1] > 0]
        return {pairs["requires"] for pairs, _ in wanted} if len(wanted) == len(jobs) else None

    found = wait_until(needs, "the needs of all jobs")
    started = {pool: found & {*needs} for pool, needs in of_pools.items()}
    assert started.pop("cpu") == {"any"} and not started.pop("other") and len(started.pop("gpu")) == 2
    # Nothing scales for those that no pool meets.
    assert len(found - {need for needs in of_pools.values() for need in needs}) == 2
    [container] = containers(named(manifests, "Deployment", "gristmill-worker-gpu"))
    sqlite.worker(*container["args"][1:], AZ_BATCHAI_GPU_COUNT_FOUND="2")
    for job in jobs[1:3]:
        assert sqlite.wait_for_end(job)["mini_batches"]["succeeded"] == 3


# The types that KEDA knows, whose parser is that of Prometheus' older text format. It refuses a text with others.
TYPES_OF_KEDA = {"counter", "gauge", "histogram", "summary", "untyped", "gaugehistogram"}


def test_keda_can_read_the_need_from_a_reducer(sqlite):
    """It sends no `Accept`, reads all lines, and takes the value of the series with exactly these labels."""
    with urllib.request.urlopen(f"{Role(sqlite, 'reducer').url}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    assert text.endswith("\n"), "KEDA 2.16 does not read a last line without an end"
    types = set(re.findall(r"^# TYPE \S+ (\S+)$", text, re.MULTILINE))
    assert types <= TYPES_OF_KEDA, f"KEDA refuses the text because of {types - TYPES_OF_KEDA}"
    series = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    for example in ("sqs", "pools"):
        for pool in ("cpu", "gpu") if example == "pools" else ("cpu",):
            [trigger] = named(chart(example), "ScaledObject", f"gristmill-worker-{pool}")["spec"]["triggers"]
            assert series.get(trigger["metadata"]["valueLocation"]) == "0"


# ---- the roles ---------------------------------------------------------------------------------------------------


def argument(container, name):
    [given] = [text for text in container["args"] if text.startswith(f"{name}=")]
    return int(given.partition("=")[2])


def default_limit_seconds():
    """Returns the default limit of a mini-batch."""
    keys = (ROOT / "services/job_file/REFERENCE.md").read_text()
    names = ("run_invocation_timeout", "--task_overhead_timeout")
    return sum(int(re.search(rf"^\| `{name}` \|[^|]+\| (\d+) \|", keys, re.MULTILINE)[1]) for name in names)


def test_grace_periods_fit_the_drain(manifests):
    for worker in of_workers(manifests):
        [container] = containers(worker)
        grace, all_of_it = argument(container, "--grace"), pod(worker)["terminationGracePeriodSeconds"]
        assert 90 == default_limit_seconds() <= grace < all_of_it - END_SECONDS
        assert container["livenessProbe"]["terminationGracePeriodSeconds"] < grace
        [told] = [line for line in README.splitlines() if "unless a job says more" in line]
        assert told.split()[-2:] == [str(grace), str(all_of_it)]


def test_executable_accepts_every_argument(workplace):
    every = [*chart("rabbitmq", PORTAL), *(manifest for example in EXAMPLES for manifest in chart(example))]
    given = {tuple(one["args"]) for found in of_kind(every, "Deployment") for one in containers(found)}
    for command in given:
        assert workplace.command(*command, "--help").exit_status == 0, command
        assert workplace.command(*command, "--no-such", "--help").exit_status != 0


def test_roles_read_every_setting(manifests):
    known = set(re.findall(r'"(GRISTMILL_\w+)"', (ROOT / "services/cli/src/settings.rs").read_text()))
    for deployment in of_kind(manifests, "Deployment"):
        own = {variable["name"] for container in containers(deployment) for variable in container.get("env", [])}
        given = set(settings(manifests)) | own
        assert given - {"AWS_REGION", "BROKER_USERNAME", "BROKER_PASSWORD"} <= known
        assert {"GRISTMILL_QUEUE", "GRISTMILL_STORE", "GRISTMILL_LISTEN", "GRISTMILL_LOG_FORMAT"} <= given


def test_ports_match_the_roles(manifests):
    port = int(settings(manifests)["GRISTMILL_LISTEN"].rpartition(":")[2])
    let_in = [rule for policy in of_kind(manifests, "NetworkPolicy") for rule in policy["spec"].get("ingress", [])]
    assert {entry["port"] for rule in let_in for entry in rule["ports"]} == {port}
    for service in of_kind(manifests, "Service"):
        assert service["spec"]["ports"] == [{"name": "http", "port": port, "targetPort": "http"}]
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
        for volume in spec["volumes"]:
            assert volume.keys() == {"name", "configMap"} or volume["emptyDir"]["sizeLimit"]
        for container in containers(deployment):
            assert container["securityContext"] == {
                "readOnlyRootFilesystem": True,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"/tmp", "/var/cache/gristmill"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
            assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]
    namespace = YAML(typ="safe").load(FOLDER / "namespace.yaml")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize(
    ("beginning", "added"),
    [
        ("workerDefaults:\n", {"runtimeClassName": "writable-cgroups"}),
        ("workerDefaults: # GKE", {"nodeSelector": {"node.gke.io/enable-writable-cgroups": "true"}}),
        ("workerDefaults: # CRI-O", {}),
    ],
)
def test_worker_may_write_to_its_control_group_without_further_permissions(beginning, added):
    """With the values of the README, `max_memory` works; the runtime does the rest."""
    [plain] = of_workers(chart("sqs"))
    values = YAML(typ="safe").load(yaml_of_the_readme(beginning))
    [worker] = of_workers(chart("sqs", values))
    annotations = [deployment["spec"]["template"]["metadata"]["annotations"] for deployment in (plain, worker)]
    changed = values["workerDefaults"].get("podAnnotations", {})
    assert annotations[1].items() - annotations[0].items() == changed.items()
    [container], [container_before] = containers(worker), containers(plain)
    if "GKE" in beginning:
        assert f"node.gke.io/enable-writable-cgroups.{container['name']}" in annotations[1]
        sizes = [container["resources"].pop(kind) for kind in ("requests", "limits")]
        assert len({(size["cpu"], size["memory"]) for size in sizes}) == 1, "GKE demands it"
        del container_before["resources"]
    assert container.pop("resources", {}) == container_before.pop("resources", {})
    assert pod(worker) == {**pod(plain), **added}


def test_only_workers_of_pools_with_gpus_have_gpus(manifests):
    for deployment in of_kind(manifests, "Deployment"):
        wants = deployment["metadata"]["name"] == "gristmill-worker-gpu"
        for container in containers(deployment):
            for kind in ("requests", "limits"):
                assert container["resources"][kind].get("nvidia.com/gpu") == ("1" if wants else None)
            assert container["image"].endswith("-cuda") == wants
        tolerated = [toleration["key"] for toleration in pod(deployment).get("tolerations", [])]
        assert tolerated == (["nvidia.com/gpu"] if wants else [])


# ---- the portal --------------------------------------------------------------------------------------------------


def portal_of(change, example="sqs"):
    manifests = chart(example, {"portal": {"enabled": True, **change}})
    [container] = containers(named(manifests, "Deployment", "gristmill-portal"))
    return manifests, container


def test_portal_needs_its_token_and_changes_nothing(workplace):
    roles = {role_of(manifest) for manifest in of_kind(chart("sqs"), "Deployment")}
    assert roles == {"worker", "reducer"}, "no portal unless `portal.enabled` is set"
    manifests, container = portal_of({})
    assert {"--read-only", "--no-open"} <= {*container["args"]}
    assert f"--listen=0.0.0.0:{container['ports'][0]['containerPort']}" in container["args"]
    # Another address than its own needs a token, so a pod without the Secret does not serve.
    refused = workplace.command(*container["args"])
    assert refused.exit_status == 2 and "GRISTMILL_PORTAL_TOKEN" in refused.stderr, refused
    assert [variable["name"] for variable in container["env"]] == ["GRISTMILL_PORTAL_TOKEN"]
    assert not of_kind(manifests, "Ingress")
    assert "--read-only" not in portal_of({"readOnly": False})[1]["args"]


CLIENTS = {"clients": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}]}


def test_browsers_reach_the_portal_by_the_names_of_its_ingress():
    ingress = {
        "enabled": True,
        "className": "nginx",
        "tlsSecret": "jobs-certificate",
        "annotations": {"example.com/a": "b"},
    }
    hosts = ["jobs.example", "jobs.other.example"]
    manifests, container = portal_of({**CLIENTS, "hosts": hosts, "ingress": ingress})
    [found] = of_kind(manifests, "Ingress")
    assert found["metadata"]["annotations"] == ingress["annotations"]
    spec = found["spec"]
    assert spec["ingressClassName"] == "nginx" and spec["tls"] == [{"secretName": "jobs-certificate", "hosts": hosts}]
    assert [rule["host"] for rule in spec["rules"]] == hosts
    assert {f"--host={host}" for host in hosts} <= {*container["args"]}
    for rule in spec["rules"]:
        [path] = rule["http"]["paths"]
        service = path["backend"]["service"]
        assert (path["path"], path["pathType"], service) == (
            "/",
            "Prefix",
            {"name": "gristmill-portal", "port": {"name": "http"}},
        )
    assert named(manifests, "Service", "gristmill-portal")
    without = portal_of({**CLIENTS, "hosts": hosts, "ingress": {"enabled": True}})[0]
    assert not of_kind(without, "Ingress")[0]["spec"].keys() & {"tls", "ingressClassName"}


def test_portal_trusts_the_header_of_a_proxy(workplace):
    _, container = portal_of({**CLIENTS, "trustHeader": "x-forwarded-user"})
    assert "--trust-header=x-forwarded-user" in container["args"] and "env" not in container
    served = [text for text in container["args"] if not text.startswith("--listen")]
    portal = workplace.start(*served, "--listen", "127.0.0.1:0")
    url = next(line for line in iter(portal.process.stdout.readline, b"") if b"http://" in line).decode().split()[-1]
    for headers, expected in (({}, 401), ({"x-forwarded-user": "ana"}, 200)):
        request = urllib.request.Request(url, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status = answer.status
        except urllib.error.HTTPError as error:
            status = error.code
        assert status == expected, headers


def test_prometheus_operator_scrapes_workers_and_reducers():
    assert not of_kind(chart("pools"), "PodMonitor")
    change = {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}, **PORTAL}
    manifests = chart("pools", change)
    [monitor] = of_kind(manifests, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    for deployment in of_kind(manifests, "Deployment"):
        is_scraped = role_of(deployment) != "portal"
        assert selects(monitor["spec"]["selector"], deployment) == is_scraped
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in {port["name"] for port in containers(deployment)[0]["ports"]}
        annotations = deployment["spec"]["template"]["metadata"]["annotations"]
        assert "prometheus.io/scrape" not in annotations, "it would be scraped twice"


def test_prometheus_operator_gets_the_rules_of_the_one_file(tmp_path):
    """The file of the chart is a link; a package has its contents."""
    assert not of_kind(chart("sqs"), "PrometheusRule")
    packaged = helm("package", FOLDER / "chart", "--destination", tmp_path)
    assert packaged.returncode == 0, packaged.stderr
    [package] = tmp_path.glob("*.tgz")
    change = {"prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}}}
    for place in (FOLDER / "chart", package):
        [rule] = of_kind(chart("sqs", change, place), "PrometheusRule")
        assert rule["spec"] == YAML(typ="safe").load(RULES) and rule["metadata"]["labels"]["release"] == "prometheus"


# ---- placement ---------------------------------------------------------------------------------------------------


def test_gpu_worker_fits_into_the_memory_of_the_smallest_machines_with_a_gpu():
    """g4dn.xlarge, g5.xlarge and g6.xlarge have 16 GiB, of which the kernel takes about 3 %, and EKS 255 MiB, 11 MiB
    for each of 58 pods, and 100 MiB as its threshold for eviction."""
    [container] = containers(named(chart("pools"), "Deployment", "gristmill-worker-gpu"))
    wanted = container["resources"]["requests"]["memory"]
    assert wanted == container["resources"]["limits"]["memory"] and wanted.endswith("Gi")
    assert int(wanted[:-2]) * 1024 <= 16 * 1024 * 0.97 - (255 + 11 * 58) - 100


def test_pods_run_only_on_the_architectures_of_their_images():
    change = {"images": {"architectures": ["amd64", "arm64"]}, "workers": {"gpu": {"architectures": ["amd64"]}}}
    for changed, of_gpu, others in (({}, ["amd64"], ["amd64"]), (change, ["amd64"], ["amd64", "arm64"])):
        for deployment in of_kind(chart("pools", changed), "Deployment"):
            required = pod(deployment)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            architectures = of_gpu if deployment["metadata"]["name"] == "gristmill-worker-gpu" else others
            expected = {"key": "kubernetes.io/arch", "operator": "In", "values": architectures}
            assert required["nodeSelectorTerms"] == [{"matchExpressions": [expected]}]


def test_pools_prefer_spot_machines_or_exclude_them():
    spot = {
        "karpenter.sh/capacity-type": ["spot"],
        "eks.amazonaws.com/capacityType": ["SPOT"],
        "cloud.google.com/gke-spot": ["true"],
        "kubernetes.azure.com/scalesetpriority": ["spot"],
    }
    for deployment in of_workers(chart("pools")):
        preferred = pod(deployment)["affinity"]["nodeAffinity"].get(
            "preferredDuringSchedulingIgnoredDuringExecution", []
        )
        found = [expression for entry in preferred for expression in entry["preference"]["matchExpressions"]]
        is_on_demand = labels(deployment)["gristmill/pool"] == "on-demand"
        assert {one["key"]: one["values"] for one in found} == ({} if is_on_demand else spot)
        selected = {"karpenter.sh/capacity-type": "on-demand"} if is_on_demand else None
        assert pod(deployment).get("nodeSelector") == selected
