#!/usr/bin/python3 -IS
"""Stand-in for the tools of scripts/release; its name selects the tool. `$STAND_INS` is a folder:

`commands` gets each command, `engine` has the images of the engine, `release` the state of the release. A command that
contains `$FAILS` fails. The secrets of cosign are not in any argument.
"""

import hashlib
import os
import sys

NAME, ARGUMENTS = os.path.basename(sys.argv[0]), sys.argv[1:]
FOLDER = os.environ["STAND_INS"]
COMMAND = " ".join([NAME, *ARGUMENTS])


def append(file, line):
    with open(f"{FOLDER}/{file}", "a") as opened:
        opened.write(line + "\n")


def lines(file):
    try:
        with open(f"{FOLDER}/{file}") as opened:
            return opened.read().splitlines()
    except FileNotFoundError:
        return []


def write(file, text):
    with open(file, "w") as opened:
        opened.write(text)


def expect(*images):
    missing = set(images) - set(lines("engine"))
    if missing:
        sys.exit(f"No such image: {missing}")


def docker():
    match ARGUMENTS:
        case ["--version"]:
            print("Docker version 20.10.24")
        case ["version", "--format", form]:
            print("linux/amd64" if "Os" in form else "amd64")
        case ["network", "inspect", *_]:
            pass
        case ["build", *_]:
            append("engine", ARGUMENTS[ARGUMENTS.index("--tag") + 1])
        case ["image", "inspect", *_]:
            print("linux/amd64")
        case ["image", "ls", *_, image]:
            print(image)
        case ["save", "--output", file, image]:
            expect(image)
            write(file, image)
        case ["load", "--quiet", "--input", file]:
            with open(file) as opened:
                append("engine", opened.read())
        case ["tag", image, other]:
            expect(image)
            append("engine", other)
        case ["push", "--quiet", image]:
            expect(image)
        case ["buildx", "imagetools", "create", "--tag", _, *parts]:
            expect(*parts)
        case ["buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", image]:
            print(f"sha256:{hashlib.sha256(image.encode()).hexdigest()}")
        case _:
            sys.exit(f"docker {ARGUMENTS} is not known here")


def helm():
    match ARGUMENTS:
        case ["package", _, "--version", version, "--app-version", _, "--destination", folder]:
            write(f"{folder}/gristmill-{version}.tgz", "chart")
        case ["push", _, address]:
            print(f"Pushed: {address}\nDigest: sha256:{'c' * 64}", file=sys.stderr)


def syft():
    write(ARGUMENTS[-1].partition("=")[2], "{}")


def cosign():
    # The real one reads the password of a key there.
    sys.stdin.read()


def gh():
    match ARGUMENTS:
        case ["repo", "view", *_]:
            print("https://github.example/our-team/gristmill")
        case ["release", "view", *_]:
            if not lines("release"):
                sys.exit("release not found")
            print(lines("release")[-1])
        case ["release", "create", *_]:
            append("notes", sys.stdin.read())
            append("release", "true")
        case ["release", "edit", *_]:
            append("release", "false")


if COMMAND != "docker --version":
    append("commands", COMMAND)
for secret in ("COSIGN_PRIVATE_KEY", "COSIGN_PASSWORD"):
    assert not os.environ.get(secret) or os.environ[secret] not in COMMAND
if os.environ.get("FAILS") and os.environ["FAILS"] in COMMAND:
    sys.exit(1)
{"docker": docker, "helm": helm, "syft": syft, "cosign": cosign, "gh": gh}.get(NAME, lambda: None)()
