"""Variants of the modules in infra/, all in one plan, and changes to them in another, since each plan takes seconds."""

from __future__ import annotations

import json
from typing import Any

from terraform_files import call
from terraform_plan import REGION, SUBNETS, Terraform

KEY = f"arn:aws:kms:{REGION}:123456789012:key/one"
TAGS = {"CostCenter": "7"}
BOUNDARY = "arn:aws:iam::123456789012:policy/boundary"
REGISTRY = f"123456789012.dkr.ecr.{REGION}.amazonaws.com/fleet"
IMAGES = {"worker": f"{REGISTRY}/gristmill-worker:1", "reducer": f"{REGISTRY}/gristmill:1"}
PLATFORM = {
    "cluster": {"arn": f"arn:aws:ecs:{REGION}:123456789012:cluster/fleet", "name": "fleet"},
    "repositories": {name: f"{REGISTRY}/{name}" for name in ("gristmill", "gristmill-worker")},
    "vpc_id": "vpc-0123456789abcdef0",
    "subnet_ids": SUBNETS,
    "kms_key_arn": KEY,
    "public_egress": True,
    "endpoints": None,
    "has_container_insights": True,
    "gpu_groups": {
        "a10": {
            "capacity_provider": "fleet-gpu-a10",
            "autoscaling_group": "fleet-gpu-a10",
            "memory_mib": 14745,
            "cpu_units": 4096,
        }
    },
}
H200 = {
    "capacity_provider": "fleet-gpu-h200",
    "autoscaling_group": "fleet-gpu-h200",
    "memory_mib": 230400,
    "cpu_units": 24576,
}
TWO_GROUPS = {**PLATFORM, "gpu_groups": {**PLATFORM["gpu_groups"], "h200": H200}}
PLACE = {
    "vpc_id": "vpc-of-the-account",
    "subnet_ids": SUBNETS,
    "permissions_boundary_arn": BOUNDARY,
    "kms_key_arn": KEY,
}
OFFLINE = {"endpoints": {"route_table_ids": ["rtb-1"], "account_ids": ["210987654321"]}, "public_egress": False}
PRIVATE = {
    **PLATFORM,
    "public_egress": False,
    "endpoints": {"security_group_id": "sg-endpoints", "s3_prefix_list_id": "pl-s3"},
}
EGRESS = {
    "proxy": {"port": 3128, "cidr_block": "10.0.0.5/32"},
    "database": {"port": 5432, "security_group_id": "sg-database"},
    "files": {"port": 2049, "prefix_list_id": "pl-files"},
}
REPLICA = {"bucket_arn": "arn:aws:s3:::copies", "account_id": "210987654321", "kms_key_arn": f"{KEY}-of-copies"}
RETENTION = {"version_days": 30, "cold_days": 10, "output_days": 400, "replica": REPLICA}
GPUS = {"a10": {"instance_types": ["g5.xlarge", "g5.12xlarge", "g4dn.xlarge"]}}
PASSWORD = "the-first-p@ssword"
RABBITMQ = {
    "broker": "rabbitmq",
    "rabbitmq": {"client_security_group_ids": {"pipeline": "sg-pipeline"}, "client_cidr_blocks": ["10.1.0.0/16"]},
}
OLD_BROKER = {"is_cluster": False, "engine_version": "3.13", "instance_type": "mq.t3.micro"}
TOKEN = f"arn:aws:secretsmanager:{REGION}:123456789012:secret:portal-token-AbCdEf"
SECRET = f"arn:aws:secretsmanager:{REGION}:123456789012:secret:database-AbCdEf"
KEY_OF_SECRETS = f"{KEY}-of-secrets"
INDEX = "https://packages.example/simple"
PORTAL = {"token_secret_arn": TOKEN, "client_security_group_ids": {"bastion": "sg-bastion"}}
BALANCED = {
    "trust_header": "X-Amzn-Oidc-Identity",
    "client_security_group_ids": {"balancer": "sg-balancer"},
    "target_group_arn": f"arn:aws:elasticloadbalancing:{REGION}:123456789012:targetgroup/portal/0123456789abcdef",
    "hosts": ["jobs.example"],
}
ACCESS = {
    "inputs": ["data/in"],
    "outputs": ["other/out/"],
    "input_kms_key_arns": [f"{KEY}-in"],
    "output_kms_key_arns": [f"{KEY}-out"],
}
LARGE = {
    "workers": {
        "cpu": {
            "max": 1000,
            "processes": 3,
            "secrets": {name: f"{SECRET}:{name}::" for name in ("PASSWORD", "USER_NAME")},
        }
    },
    "portal": PORTAL,
    "environment": {"PIP_INDEX_URL": INDEX},
    "secret_kms_key_arns": [KEY_OF_SECRETS],
}
# CPU and GPU, small and large, spot and on demand, labelled, and of another architecture.
POOLS = {
    "small": {"cpu": 2048, "memory": 8192, "on_demand_floor": 0, "on_demand_percent": 0},
    "large": {"cpu": 16384, "memory": 65536, "labels": {"size": "large", "zone": "a"}, "on_demand_percent": 100},
    "gpu": {"gpus": 1, "gpu_group": "a10", "max": 8},
    "gpus": {
        "gpus": 2,
        "gpu_group": "h200",
        "labels": {"gpu_model": "H200"},
        "requires": ["2 GPUs", "1 GPU, label gpu_model=H200"],
    },
    "arm": {"architecture": "ARM64", "labels": {"arch": "arm64"}, "image": "registry/arm:1", "min": 1},
}
Call = tuple[str, dict[str, Any]]  # Module, arguments.


def platform(name: str, **settings: Any) -> Call:
    return "platform", {"platform": {"name": name, **PLACE, **settings}}


def target(name: str, of: dict[str, Any] = PLATFORM, tag: str = "1", password: str = PASSWORD, **settings: Any) -> Call:
    given = {"name": name, "bucket": "store", "permissions_boundary_arn": BOUNDARY, **settings}
    return "target", {"platform": of, "image_tag": tag, "broker_password": password, "target": given}


EVERYTHING: dict[str, Call] = {
    "shared": platform("shared", gpu_groups=GPUS),
    "offline": platform("offline", **OFFLINE),
    "offline_gpus": platform("offline-gpus", **OFFLINE, gpu_groups=GPUS),
    "sqs": target("sqs", **ACCESS),
    # Terraform plans the target before AWS has created this secret and this group.
    "moved": target(
        "moved",
        workers={"cpu": {"secrets": {"LATER": "${module.rabbitmq.broker.administrator}"}}},
        portal={**BALANCED, "client_security_group_ids": {"later": "${module.sqs.resources.security_group_ids.tasks}"}},
    ),
    "large": target("large", **LARGE),
    "gpus": target("gpus", workers={"gpu": {"gpus": 1}}),
    "pools": target("pools", of=TWO_GROUPS, workers=POOLS),
    "private": target("private", of=PRIVATE, egress=EGRESS, retention=RETENTION),
    "own": target(
        "own", workers={}, has_own_key=True, public_egress=False, egress={"all": {**EGRESS["proxy"], "port": 443}}
    ),
    "rabbitmq": target("rabbitmq", **RABBITMQ),
    "single": target(
        "single", **{**RABBITMQ, "rabbitmq": OLD_BROKER}, portal=BALANCED, secret_kms_key_arns=[KEY_OF_SECRETS]
    ),
    "batch": (
        "batch",
        {
            "batch": {
                "queue": "sqs://sqs",
                "store": "s3://store/sqs",
                "images": IMAGES,
                "policy_arns": {role: f"arn:aws:iam::123456789012:policy/sqs-{role}" for role in ("worker", "reducer")},
                "subnet_ids": SUBNETS,
                "security_group_ids": ["sg-machines"],
                "permissions_boundary_arn": BOUNDARY,
            }
        },
    ),
}
CHANGED: dict[str, Call] = {
    **EVERYTHING,
    "sqs": target(
        "sqs",
        **ACCESS,
        workers={
            "cpu": {
                "on_demand_floor": 5,
                "on_demand_percent": 10,
                "max": 7,
                "processes": 10,
                "labels": {"zone": "a", "disk": "ssd"},
                "requires": ["any", "label zone=a"],
                "lease_seconds": 60,
            }
        },
        reducer={"count": 3, "cpu": 2048, "memory": 8192, "disk_gib": 100},
        alarm_thresholds={
            "placement_failures": 9,
            "missing_percent": 50,
            "no_worker_minutes": 60,
            "no_progress_minutes": 90,
        },
    ),
    "moved": target("moved", workers={"cpu": {"gpus": 1}}),
    "gpus": target("gpus", workers={"gpu": {"gpus": 2, "image": "registry/own:2"}}),
    "large": target("large", **{**LARGE, "portal": {**PORTAL, "read_only": False, "image": "registry/portal:2"}}),
    "rabbitmq": target("rabbitmq", **RABBITMQ, password="another-p@ssword"),
}


def root_of(modules: dict[str, Call]) -> str:
    """Returns a root that calls all of them, and has all their outputs."""
    tags = json.dumps(TAGS)
    text = f'provider "aws" {{\n  region = "{REGION}"\n\n  default_tags {{\n    tags = {tags}\n  }}\n}}\n'
    for name, (module, arguments) in modules.items():
        called = call(module, **arguments).replace(f'module "{module}"', f'module "{name}"', 1)
        text += called.replace('"./modules', '"../../modules')
        text += f'output "{name}" {{\n  value = module.{name}\n}}\n'
    return text


class Plans:
    """Plans of creation, of no change, and of changes."""

    def __init__(self, terraform: Terraform) -> None:
        root = "environments/everything"
        (terraform.infra / root).mkdir()
        main = terraform.infra / root / "main.tf"
        main.write_text(terraform.in_network(root_of(EVERYTHING)))
        terraform.init(terraform.infra / root)
        state = terraform.plan(root, {}).settled()
        self.made = terraform.plan(root, {}, state)
        main.write_text(terraform.in_network(root_of(CHANGED)))
        self.changed = terraform.plan(root, {}, state)
