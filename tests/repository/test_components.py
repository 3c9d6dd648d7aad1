"""The components for trials and tests: `localstack/` and the processes of `scripts/up`."""

import re
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

from ruamel.yaml import YAML

from components import Components
from harness import ROOT

FOLDER = ROOT / "localstack"
COMPOSE = FOLDER / "compose.yaml"


def compose_services() -> dict:
    return YAML(typ="safe").load(COMPOSE)["services"]


def test_compose_files_are_valid_and_combine():
    """Docker Compose merges both files."""
    files = [COMPOSE, ROOT / "infra/images/compose.yaml"]
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", *files]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    around, fleet = (YAML(typ="safe").load(file) for file in files)
    assert around["name"] == fleet["name"]
    assert not around["services"].keys() & fleet["services"].keys()
    for service in fleet["services"].values():
        assert service["depends_on"].keys() == around["services"].keys()
        host = urllib.parse.urlsplit(service["environment"]["AWS_ENDPOINT_URL"]).hostname
        assert host in around["services"]


def test_containers_are_pinned_local_and_checked():
    for name, service in compose_services().items():
        image, tag = service["image"].rsplit(":")
        assert tag[0].isdigit() and tag.count(".") == 2, f"{name}: {image} is not pinned"
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert service["healthcheck"]["test"], name
        for mount in service["volumes"]:
            assert (FOLDER / mount.split(":")[0]).is_file(), f"{name}: {mount}"


def test_targets_match_the_published_ports():
    named = set(re.findall(r"127\.0\.0\.1:\d+", (FOLDER / "gristmill.toml").read_text()))
    published = {port.rpartition(":")[0] for service in compose_services().values() for port in service["ports"]}
    assert named == published


def test_components_listen_only_on_loopback(components: Components):
    """A listener on every address shows as 00000000, or as 32 zeros, in the tables of the kernel."""
    ports = {f"{port:04X}" for port in components.ports()}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, port = local.split(":")
            if state == "0A" and port in ports:
                assert set(address) != {"0"}, f"port {int(port, 16)} is open to others"
                ports.discard(port)
    assert not ports, f"nothing listens on {[int(port, 16) for port in ports]}"
