"""infra/kubernetes/chart: connections that the network policy allows."""

from __future__ import annotations

import pytest
from ruamel.yaml import YAML

from kubernetes_tools import FOLDER, TARGETS, chart, kustomize, labels, of_kind, yaml_of_the_readme
from network_policy import PLUGINS, Peer, allows


@pytest.fixture(params=TARGETS)
def manifests(request):
    return kustomize(FOLDER / request.param)


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
BROKER = Peer("10.0.12.3")


def reach(manifests, direction, peer, port, protocol="TCP"):
    """Returns which roles may connect, with which network plugins."""
    return {
        (deployment["metadata"]["name"].removeprefix("gristmill-"), plugin.name)
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
    assert not reach(chart("rabbitmq"), "Egress", Peer("10.1.0.3"), 5671)
    assert not reach(chart("sqs"), "Egress", BROKER, 5671)
    selector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "rabbitmq"}}}
    inside = chart("rabbitmq", {"networkPolicy": {"broker": [selector], "brokerPort": 5672}})
    pod_of_broker = Peer("10.0.12.3", {"app": "rabbitmq"}, {"kubernetes.io/metadata.name": "rabbitmq"})
    assert reach(inside, "Egress", pod_of_broker, 5672) == EVERY
    assert not reach(inside, "Egress", BROKER, 5672)


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
