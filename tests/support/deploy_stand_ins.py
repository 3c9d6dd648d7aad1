#!/usr/bin/python3 -IS
"""Stand-in for the tools of scripts/deploy, scripts/images and scripts/prove-on-aws; its name selects the tool.

It knows the few commands that the scripts use, rejects all others, and keeps their effects in the file `$STAND_INS`:
the account (repositories, images with immutable tags, everything else) and the images of the engine. With
`$INTERRUPT_AFTER_CHANGE` a command that changes something ends as by Ctrl-C, after its effect. A command that contains
`$FAILS` fails, and one that contains `$HOLD` waits for a signal. The stand-in for `sleep` does not wait.
"""

import fcntl
import json
import os
import re
import sys
import time

NAME, ARGUMENTS = os.path.basename(sys.argv[0]), sys.argv[1:]
if NAME == "sleep":
    sys.exit()
if NAME == "gristmill" and ARGUMENTS[0] == "target":
    os.execv(os.environ["EXECUTABLE"], ["gristmill", *ARGUMENTS])
if ARGUMENTS == ["--version"]:
    print("Docker version 20.10.24")
    sys.exit()
# Another stand-in writes to this pipe after its own changes.
PASSWORD = sys.stdin.read().strip() if ARGUMENTS[:1] == ["login"] else None
FILE = open(os.environ["STAND_INS"], "r+")  # noqa: SIM115 - held, with its lock, until the end
fcntl.flock(FILE, fcntl.LOCK_EX)
WORLD = json.load(FILE)
REPOSITORIES = WORLD["repositories"]
BEFORE = json.dumps({**WORLD, "commands": None})


def after(option):
    """Returns the value after an option."""
    return ARGUMENTS[ARGUMENTS.index(option) + 1]


def read(plan):
    with open(plan) as file:
        return json.load(file)


def write():
    FILE.seek(0)
    FILE.truncate()
    json.dump(WORLD, FILE)
    FILE.flush()


def refuse(message, status=1):
    print(message, file=sys.stderr)
    sys.exit(status)


def expect_no_input():
    if not os.path.samestat(os.fstat(0), os.stat(os.devnull)):
        refuse(f"{NAME} could ask a question")


def terraform():
    command, *options = ARGUMENTS[1:]
    root = ARGUMENTS[0].rpartition("/")[2]
    tag = next((option.partition("=")[2] for option in options if option.startswith("image_tag=")), None)
    account = WORLD["account"]
    if command in ("init", "plan", "apply"):
        expect_no_input()
        assert "-input=false" in options
    if command == "init":
        WORLD["initialized"] = True
    elif command == "plan":
        assert WORLD.get("initialized"), "Run terraform init."
        has_target = any(option.startswith("-target=") for option in options)
        wanted = {"repositories": True} if has_target else {"repositories": True, "deployed": tag}
        if root == "platform":
            wanted = {"repositories": True, "platform": True}
        plan = {"wanted": wanted, "tasks": tasks(tag)}
        with open(next(option for option in options if option.startswith("-out="))[5:], "w") as file:
            json.dump(plan, file)
        return 2 if {**account, **wanted} != account else 0
    elif command == "show":
        print(json.dumps(read(options[-1])["tasks"]))
    elif command == "apply":
        account.update(read(options[-1])["wanted"])
    elif command == "destroy":
        expect_no_input()
        assert "-auto-approve" in options
        if any(WORLD.get("roles", {}).values()):
            refuse("DeleteConflict: Cannot delete a policy attached to entities.")
        if root != "dev":
            read(next(option[10:] for option in options if option.startswith("-var-file=")))
        if root == "platform" and "deployed" in account:
            refuse("ClusterContainsServicesException: The Cluster cannot be deleted while Services are active.")
        account.pop("deployed", None)
        if root != "prod":
            WORLD["account"] = {"images": {}}
    elif command == "output":
        target = {**WORLD["target"], "name": "gristmill-dev" if root == "dev" else "gristmill-proof"}
        values = {"repositories": REPOSITORIES, "target": target, **OUTPUTS}
        outputs = {name: {"sensitive": False, "type": ["object", {}], "value": value} for name, value in values.items()}
        print(json.dumps(REPOSITORIES if options[-1] == "repositories" else outputs))
    else:
        refuse(f"terraform {command} is not known here")
    return 0


OUTPUTS = {
    "policy_arns": {role: f"arn:aws:iam::123456789012:policy/{role}" for role in ("operator", "enqueuer")},
    "resources": {
        "cluster": "gristmill-dev",
        "services": {"cpu": "gristmill-dev-cpu", "reducer": "gristmill-dev-reducer"},
        "bucket": "gristmill-dev-123456789012",
        "alarm_topic_arn": "arn:aws:sns:eu-central-1:123456789012:gristmill-dev-alarms",
    },
}


def tasks(tag):
    """Returns the part of a JSON plan with the tasks."""
    worker = f"{REPOSITORIES['gristmill-worker']}:{tag}{os.environ.get('TASKS_SUFFIX', '')}"
    images = [worker, f"{REPOSITORIES['gristmill']}:{tag}"]
    return {
        "resource_changes": [task(image, os.environ.get("TASKS_ARCHITECTURE", "X86_64")) for image in images]
        # Workers with an image of their own.
        + [task("registry/own:1", "ARM64")]
    }


def task(image, architecture):
    definition = {
        "container_definitions": json.dumps([{"image": image}]),
        "runtime_platform": [{"cpu_architecture": architecture}],
    }
    return {"type": "aws_ecs_task_definition", "change": {"after": definition}}


def docker():
    engine, registry = WORLD["engine"], WORLD["account"]["images"]
    match ARGUMENTS:
        case ["version", *_]:
            if os.environ.get("ENGINE") == "none":
                refuse("Cannot connect to the Docker daemon")
            print(os.environ.get("ENGINE", "linux/amd64"))
        case ["network", "inspect", *_]:
            pass
        case ["login", *_]:
            WORLD["password"] = PASSWORD
        case ["build", *_]:
            [revision] = [one[9:] for one in ARGUMENTS if one.startswith("REVISION=")]
            engine[after("--tag")] = {"platform": after("--platform"), "revision": revision}
        case ["image", "ls", *_, image]:
            print(f"{image} {engine[image]['platform']} 100MB")
        case ["image", "inspect", "--format", form, image]:
            print(engine[image]["revision" if "revision" in form else "platform"])
        case ["push", image]:
            assert WORLD.get("password") == "a-password", "no basic auth credentials"
            if image in registry:
                refuse(f"tag invalid: the image tag already exists and cannot be overwritten: {image}")
            registry[image] = engine[image]
        case ["pull", "--platform", _, image]:
            assert WORLD.get("password") == "a-password", "no basic auth credentials"
            engine[image] = registry[image]
            print(f"Status: Image is up to date for {image}")
        case _:
            refuse(f"docker {ARGUMENTS} is not known here")
    return 0


def aws():
    if ARGUMENTS == ["configure", "get", "region"]:
        return 1
    if ARGUMENTS[:2] == ["sts", "get-caller-identity"]:
        if os.environ.get("HAS_NO_CREDENTIALS"):
            refuse('Unable to locate credentials. You can configure credentials by running "aws configure".', 253)
        arn = f"arn:aws:iam::123456789012:{os.environ.get('CALLER', 'user/ada')}"
        print("123456789012" if after("--query") == "Account" else f"123456789012\t{arn}")
    elif ARGUMENTS[:2] == ["ecr", "get-login-password"]:
        print("a-password")
    elif ARGUMENTS[:2] == ["ecr", "batch-get-image"]:
        if os.environ.get("IS_FORBIDDEN"):
            refuse("An error occurred (AccessDeniedException) when calling the BatchGetImage operation", 254)
        assert WORLD["account"].get("repositories"), "RepositoryNotFoundException"
        tag = after("--image-ids").removeprefix("imageTag=")
        image = f"{WORLD['registry']}/{after('--repository-name')}:{tag}"
        print("sha256:0123" if image in WORLD["account"]["images"] else "None")
    else:
        proof()
    return 0


def proof():
    """The commands of scripts/prove-on-aws: an account whose workers run while there is work, and whose alarm rings."""
    roles, objects = WORLD.setdefault("roles", {}), WORLD.setdefault("objects", {})
    fleet = WORLD.setdefault("fleet", {"workers": 0, "stopped": 0, "rings": False})
    match ARGUMENTS[:2]:
        case ["resourcegroupstaggingapi", "get-resources"]:
            arns = ["arn:aws:ecs:eu-central-1:123456789012:cluster/gone"]
            if WORLD["account"].keys() > {"images"}:
                arns.append("arn:aws:s3:::gristmill-dev-123456789012")
            if "states" in WORLD:
                arns.append("arn:aws:kms:eu-central-1:123456789012:key/of-a-platform")
            print("\t".join(arns))
        case ["kms", "describe-key"]:
            print("Enabled" if "platform" in WORLD["account"] else "PendingDeletion")
        case ["ec2", "describe-vpcs"]:
            print(os.environ.get("NETWORK", "vpc-1"))
        case ["ec2", "describe-subnets"]:
            print("subnet-1\tsubnet-2")
        case ["s3", "mb"]:
            WORLD["states"] = ARGUMENTS[-1]
        case ["s3", "rb"]:
            assert WORLD["states"] == ARGUMENTS[-1] and WORLD["account"].keys() == {"images"}, "states of what is there"
            WORLD["states"] = None
        case ["iam", "get-role"]:
            if after("--role-name") not in roles:
                refuse("NoSuchEntity", 254)
            print(after("--role-name"))
        case ["iam", "create-role"]:
            json.loads(after("--assume-role-policy-document"))
            roles[after("--role-name")] = []
            print(f"arn:aws:iam::123456789012:role/{after('--role-name')}")
        case ["iam", "attach-role-policy"]:
            roles[after("--role-name")].append(after("--policy-arn"))
        case ["iam", "detach-role-policy"]:
            roles[after("--role-name")].remove(after("--policy-arn"))
        case ["iam", "delete-role"]:
            if roles.pop(after("--role-name")):
                refuse("DeleteConflict: Cannot delete entity, must detach all policies first.")
        case ["sts", "assume-role"]:
            role = after("--role-arn").rpartition("/")[2]
            assert roles[role], "a role without a policy"
            print(f"key\ta-password\t{role}" if "Credentials" in after("--query") else role)
        case ["s3", "cp"]:
            source, to = [argument for argument in ARGUMENTS[2:] if not argument.startswith("--")]
            if "--recursive" in ARGUMENTS:
                for name in sorted(os.listdir(source)):
                    with open(f"{source}/{name}") as file:
                        objects[f"{to}/{name}"] = file.read()
            else:
                with open(to, "w") as file:
                    file.write(objects[source])
        case ["ecs", "describe-services"]:
            print(f"{fleet['workers']}\t{fleet['workers']}")
            if WORLD.get("is_idle"):
                fleet["workers"] = max(0, fleet["workers"] - 1)
        case ["ecs", "list-tasks"]:
            running = [f"arn:task/{number}" for number in range(fleet["workers"])]
            print(fleet["stopped"] if "STOPPED" in ARGUMENTS else "\t".join(running))
        case ["ecs", "describe-tasks"]:
            print("FARGATE_SPOT")
        case ["ecs", "stop-task"]:
            fleet["stopped"] += 1
        case ["ecs", "update-service"]:
            assert "--force-new-deployment" in ARGUMENTS
        case ["sqs", "create-queue" | "get-queue-url"]:
            WORLD.setdefault("queues", []).append(after("--queue-name"))
            print(f"https://sqs/{after('--queue-name')}")
        case ["sqs", "get-queue-attributes"]:
            print("arn:aws:sqs:eu-central-1:123456789012:gristmill-proof-alarms")
        case ["sqs", "set-queue-attributes"]:
            json.loads(json.loads(after("--attributes"))["Policy"])
        case ["sns", "subscribe"]:
            fleet["rings"] = after("--notification-endpoint").endswith("gristmill-proof-alarms")
        case ["sqs", "send-message"]:
            fleet["letter"] = after("--queue-url").endswith(("gristmill-dev-control", "gristmill-proof-control"))
        case ["sqs", "receive-message"]:
            # The alarm needs a while.
            fleet["looks"] = fleet.get("looks", 0) + 1
            if fleet["looks"] > 3 and fleet["rings"] and fleet["letter"]:
                name = "gristmill-proof" if WORLD.get("states") else "gristmill-dev"
                print(f'{{"AlarmName": "{name}-dead-letters", "NewStateValue": "ALARM"}}')
        case ["sqs", "delete-queue"]:
            WORLD["queues"].remove(after("--queue-url").rpartition("/")[2])
        case _:
            refuse(f"aws {ARGUMENTS} is not known here")


def gristmill():
    """Answers as a fleet that works."""
    assert os.environ["AWS_SESSION_TOKEN"].endswith("enqueuer" if ARGUMENTS[0] == "enqueue" else "operator")
    if ARGUMENTS[0] == "enqueue":
        settings = " ".join(ARGUMENTS)
        (inputs,) = re.findall("path: '([^']*)'", settings)
        (output,) = re.findall("output=(s3://\\S+)", settings)
        rows = [
            f"{name.rpartition('/')[2]}: {len(text.split())} words\n"
            for name, text in WORLD["objects"].items()
            if name.startswith(f"{inputs}/")
        ]
        twice = os.environ.get("TWICE") and os.environ["TWICE"] in settings
        WORLD["objects"][f"{output}/parallel_run_step.txt"] = "".join(rows + rows[:1] if twice else rows)
        WORLD["fleet"]["workers"] = 2
        WORLD["fleet"]["stopped"] += "name=killed" in ARGUMENTS
    elif ARGUMENTS[0] == "dead-letters":
        WORLD["is_idle"] = True
    return 0


WORLD["commands"].append(" ".join([NAME, *ARGUMENTS]))
write()
if os.environ.get("HOLD") and os.environ["HOLD"] in " ".join(ARGUMENTS):
    time.sleep(60)
if os.environ.get("FAILS") and os.environ["FAILS"] in " ".join([NAME, *ARGUMENTS]):
    refuse("An error occurred (InternalError)")
status = {"terraform": terraform, "docker": docker, "aws": aws, "gristmill": gristmill}[NAME]()
write()
is_interrupted = "INTERRUPT_AFTER_CHANGE" in os.environ and json.dumps({**WORLD, "commands": None}) != BEFORE
sys.exit(130 if is_interrupted else status)
