"""Evaluates NetworkPolicies: whether they let a pod open a connection.

The semantics are those of https://kubernetes.io/docs/concepts/services-networking/network-policies/: a pod that no
policy of a direction selects may do everything; otherwise one rule of one policy must allow it. Network plugins differ
in one respect: whether an `ipBlock` matches the addresses of pods (those of AWS and Calico do, Cilium does not).
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Any

from kubernetes_tools import chooses

Labels = dict[str, str]


@dataclass(frozen=True)
class Peer:
    """The other end: an address, and the labels of pod and namespace if it is a pod."""

    address: str
    pod: Labels | None = None
    namespace: Labels = field(default_factory=dict)


@dataclass(frozen=True)
class Plugin:
    """A network plugin's interpretation of points that the specification leaves open."""

    name: str
    blocks_match_pods: bool


PLUGINS = [Plugin("Calico", True), Plugin("Cilium", False)]


def allows(
    policies: list[dict[str, Any]], plugin: Plugin, direction: str, pod: Labels, peer: Peer, port: int, protocol: str
) -> bool:
    """Returns whether the policies allow a connection. `direction` is Ingress or Egress, seen from the pod."""
    selecting = [
        policy["spec"]
        for policy in policies
        if chooses(policy["spec"]["podSelector"], pod) and direction in _types(policy["spec"])
    ]
    rules = [rule for spec in selecting for rule in spec.get(direction.lower(), [])]
    peers = "from" if direction == "Ingress" else "to"
    return not selecting or any(
        (not rule.get(peers) or any(_matches(entry, peer, plugin) for entry in rule[peers]))
        and (not rule.get("ports") or any(_is_port(entry, port, protocol) for entry in rule["ports"]))
        for rule in rules
    )


def _types(spec: dict[str, Any]) -> list[str]:
    return spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]


def _matches(entry: dict[str, Any], peer: Peer, plugin: Plugin) -> bool:
    if block := entry.get("ipBlock"):
        address = ipaddress.ip_address(peer.address)
        is_inside = address in ipaddress.ip_network(block["cidr"])
        is_excepted = any(address in ipaddress.ip_network(cidr) for cidr in block.get("except", []))
        return is_inside and not is_excepted and (peer.pod is None or plugin.blocks_match_pods)
    # A pod selector without a namespace means the policy's own namespace, of which no test has pods.
    assert "namespaceSelector" in entry, f"{entry} cannot be evaluated here"
    return (
        peer.pod is not None
        and chooses(entry["namespaceSelector"], peer.namespace)
        and chooses(entry.get("podSelector", {}), peer.pod)
    )


def _is_port(entry: dict[str, Any], port: int, protocol: str) -> bool:
    assert isinstance(entry["port"], int), f"{entry} cannot be evaluated here"
    return entry.get("protocol", "TCP") == protocol and entry["port"] <= port <= entry.get("endPort", entry["port"])
