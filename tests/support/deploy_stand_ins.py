#!/usr/bin/python3 -IS
"""Stand-in for terraform, docker and aws with scripts/deploy and scripts/images; its name selects the tool.

It knows the few commands that the scripts use, rejects all others, and keeps their effects in the file `$STAND_INS`:
the account (repositories, images with immutable tags, everything else) and the images of the engine. With
`$INTERRUPT_AFTER_CHANGE` a command that changes something ends as by Ctrl-C, after its effect.
"""

import fcntl
import json
import os
import sys

NAME, ARGUMENTS = os.path.basename(sys.argv[0]), sys.argv[1:]
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
        plan = {"wanted": wanted, "tasks": tasks(tag)}
        with open(next(option for option in options if option.startswith("-out="))[5:], "w") as file:
            json.dump(plan, file)
        return 2 if {**account, **wanted} != account else 0
    elif command == "show":
        print(json.dumps(read(options[-1])["tasks"]))
    elif command == "apply":
        account.update(read(options[-1])["wanted"])
    elif command == "output":
        values = {"repositories": REPOSITORIES, "target": WORLD["target"]}
        outputs = {name: {"sensitive": False, "type": ["object", {}], "value": value} for name, value in values.items()}
        print(json.dumps(REPOSITORIES if options[-1] == "repositories" else outputs))
    else:
        refuse(f"terraform {command} is not known here")
    return 0


def tasks(tag):
    """Returns the part of a JSON plan with the tasks."""
    worker = f"{REPOSITORIES['gristmill-worker']}:{tag}{os.environ.get('TASKS_SUFFIX', '')}"
    images = [worker, f"{REPOSITORIES['gristmill']}:{tag}"]
    return {
        "resource_changes": [
            {
                "container_definitions": json.dumps([{"image": image}]),
                "runtime_platform": [{"cpu_architecture": os.environ.get("TASKS_ARCHITECTURE", "X86_64")}],
            }
            for image in images
        ]
    }


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
        print("123456789012")
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
        refuse(f"aws {ARGUMENTS} is not known here")
    return 0


WORLD["commands"].append(" ".join([NAME, *ARGUMENTS]))
write()
status = {"terraform": terraform, "docker": docker, "aws": aws}[NAME]()
write()
is_interrupted = "INTERRUPT_AFTER_CHANGE" in os.environ and json.dumps({**WORLD, "commands": None}) != BEFORE
sys.exit(130 if is_interrupted else status)
