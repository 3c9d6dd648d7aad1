"""infra/kubernetes/chart: connections that the network policy allows."""

from __future__ import annotations

import copy

import pytest
from ruamel.yaml import YAML

from kubernetes_tools import EXAMPLES, broker, chart, labels, named, of_kind, yaml_of_the_readme
from network_policy import PLUGINS, Peer, allows


@pytest.fixture(params=EXAMPLES)
def manifests(request):
    return chart(request.param)


SYSTEM = {"kubernetes.io/metadata.name": "kube-system"}
MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
KEDA = {"kubernetes.io/metadata.name": "keda"}
OTHERS = {"kubernetes.io/metadata.name": "shop"}
NAME_SERVER = Peer("10.0.40.4", {"k8s-app": "kube-dns"}, SYSTEM)
S3 = Peer("52.216.1.1")
S3_OVER_IPV6 = Peer("2600:1fa0:8000::1")
S3_BEHIND_NAT64 = Peer("64:ff9b::34d8:101")
METADATA = [Peer("169.254.169.254"), Peer("fd00:ec2::254"), Peer("64:ff9b::a9fe:a9fe")]
POD_IDENTITY_AGENT = Peer("169.254.170.23")
ENDPOINT = Peer("10.0.16.9")
API_SERVERS = [Peer("172.20.0.1"), Peer("10.96.0.1"), Peer("10.0.33.7"), Peer("192.168.49.2")]
MACHINES = [Peer("10.0.1.5"), Peer("100.64.3.4"), Peer("64:ff9b::a00:105")]
PODS = [
    Peer(address, {"app": "shop"}, OTHERS)
    for address in ("10.0.3.7", "172.17.0.3", "192.168.7.8", "100.64.9.9", "198.19.0.4", "240.10.0.3", "fd12::7")
]
BROKER = Peer("10.0.12.3", {"app.kubernetes.io/name": "broker"}, {"kubernetes.io/metadata.name": "rabbitmq"})
AMAZON_MQ = Peer("10.1.12.3")


def reach(manifests, direction, peer, port, protocol="TCP"):
    """Returns which roles may connect, with which network plugins."""
    return {
        (labels(deployment)["app.kubernetes.io/component"], plugin.name)
        for deployment in of_kind(manifests, "Deployment")
        for plugin in PLUGINS
        if allows(of_kind(manifests, "NetworkPolicy"), plugin, direction, labels(deployment), peer, port, protocol)
    }


EVERY = {(role, plugin.name) for role in ("worker", "reducer") for plugin in PLUGINS}


def forbidden_that_is_reachable(manifests):
    attempts = [(peer, port) for peer in METADATA for port in (80, 443)]
    attempts += [(POD_IDENTITY_AGENT, 80), (S3, 80), (S3, 25), (S3, 5671), (ENDPOINT, 443)]
    attempts += [(peer, port) for peer in API_SERVERS for port in (443, 6443)]
    attempts += [(peer, port) for peer in MACHINES for port in (22, 443, 10250)]
    attempts += [(peer, port) for peer in PODS for port in (80, 443, 5432, 9464)]
    # Name servers elsewhere could carry data out.
    attempts += [(Peer("8.8.8.8"), 53), (PODS[0], 53), (NAME_SERVER, 443), (BROKER, 443), (BROKER, 15671)]
    found = [(peer, port) for peer, port in attempts if reach(manifests, "Egress", peer, port)]
    found += [(peer, 53) for peer in (Peer("8.8.8.8"), *METADATA) if reach(manifests, "Egress", peer, 53, "UDP")]
    return found


def test_pods_reach_only_name_servers_and_public_https(manifests):
    for protocol in ("UDP", "TCP"):
        for server in (NAME_SERVER, Peer("169.254.20.10")):
            assert reach(manifests, "Egress", server, 53, protocol) == EVERY
    for peer in (S3, S3_OVER_IPV6, S3_BEHIND_NAT64):
        assert reach(manifests, "Egress", peer, 443) == EVERY
    assert forbidden_that_is_reachable(manifests) == []


def test_only_prometheus_reaches_pods_and_keda_reducers(manifests):
    prometheus = Peer("10.0.50.5", {"app": "prometheus"}, MONITORING)
    assert reach(manifests, "Ingress", prometheus, 9464) == EVERY
    keda = Peer("10.0.51.6", {"app": "keda-operator"}, KEDA)
    assert reach(manifests, "Ingress", keda, 9464) == {(role, plugin) for role, plugin in EVERY if role == "reducer"}
    for peer in (prometheus, keda):
        assert not reach(manifests, "Ingress", peer, 22)
    for peer in (*PODS, *MACHINES, S3):
        assert not reach(manifests, "Ingress", peer, 9464)


def test_only_rabbitmq_targets_reach_the_broker():
    assert reach(chart("rabbitmq"), "Egress", BROKER, 5671) == EVERY
    assert not reach(chart("rabbitmq"), "Egress", PODS[0], 5671)
    assert not reach(chart("sqs"), "Egress", BROKER, 5671)
    outside = {
        "queue": {"rabbitmq": {"host": "b-1.mq.example", "port": 5670, "cluster": {"name": ""}}},
        "networkPolicy": {"broker": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]},
    }
    manifests = chart("rabbitmq", outside)
    assert reach(manifests, "Egress", AMAZON_MQ, 5670) == EVERY
    assert not reach(manifests, "Egress", AMAZON_MQ, 5671) and not reach(manifests, "Egress", BROKER, 5670)


def test_broker_in_the_cluster_admits_only_targets_and_operators():
    policy = copy.deepcopy(named(broker(), "NetworkPolicy", "broker"))
    [nodes, *policy["spec"]["ingress"]] = policy["spec"]["ingress"]
    assert nodes == {"from": [{"podSelector": policy["spec"]["podSelector"]}]}
    pod = BROKER.pod
    role = Peer(
        "10.0.3.9", labels(of_kind(chart("rabbitmq"), "Deployment")[0]), {"kubernetes.io/metadata.name": "gristmill"}
    )
    operator = Peer("10.0.3.8", {}, {"kubernetes.io/metadata.name": "rabbitmq-system"})
    ports = {
        (peer.address, port)
        for peer in (role, operator, PODS[0], MACHINES[0])
        for port in (4369, 5671, 5672, 15671, 15672, 25672)
        for plugin in PLUGINS
        if allows([policy], plugin, "Ingress", pod, peer, port, "TCP")
    }
    assert ports == {(role.address, 5671), (operator.address, 15671)}


INGRESS_CONTROLLER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}


def test_only_its_clients_reach_the_portal():
    controller = Peer("10.0.52.6", {"app": "nginx"}, {"kubernetes.io/metadata.name": "ingress"})
    others = [Peer("10.0.50.5", {}, MONITORING), Peer("10.0.51.6", {}, KEDA), *PODS, *MACHINES, S3]
    for clients, expected in (([], set()), ([INGRESS_CONTROLLER], {("portal", plugin.name) for plugin in PLUGINS})):
        manifests = chart("sqs", {"portal": {"enabled": True, "clients": clients}})
        assert reach(manifests, "Ingress", controller, 9464) == expected
        assert not any(role == "portal" for peer in others for role, _ in reach(manifests, "Ingress", peer, 9464))
        assert reach(manifests, "Egress", S3, 443) >= {("portal", plugin.name) for plugin in PLUGINS}


def test_readme_values_open_only_endpoints_and_pod_identity():
    manifests = chart("sqs", YAML(typ="safe").load(yaml_of_the_readme("networkPolicy:")))
    assert reach(manifests, "Egress", ENDPOINT, 443) == EVERY
    assert reach(manifests, "Egress", POD_IDENTITY_AGENT, 80) == EVERY
    found = {(peer.address, port) for peer, port in forbidden_that_is_reachable(manifests)}
    assert found == {(ENDPOINT.address, 443), (POD_IDENTITY_AGENT.address, 80)}


@pytest.mark.parametrize(
    ("change", "reachable"),
    [
        ({"privateRanges": ["fc00::/7"]}, {"10.0.3.7", "172.20.0.1", "169.254.169.254"}),
        ({"nameServers": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}, {"8.8.8.8"}),
        ({"extraEgress": [{"to": [{"namespaceSelector": {}}]}]}, {"10.0.3.7"}),
        ({"extraEgress": [{"ports": [{"protocol": "TCP", "port": 1, "endPort": 65535}]}]}, {"10.0.1.5", "52.216.1.1"}),
        ({"enabled": False}, {"169.254.169.254", "10.0.1.5", "fd12::7"}),
    ],
)
def test_evaluator_detects_permissive_policies(change, reachable):
    found = {peer.address for peer, _ in forbidden_that_is_reachable(chart("sqs", {"networkPolicy": change}))}
    assert reachable <= found
