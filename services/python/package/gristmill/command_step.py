"""An entry script for a command: runs it in a shell, as the one mini-batch of a job.

The job fails if the command does, with the error that the command printed last. The command's prints go to the files of
its process, like those of a script. The command finds the interpreter of the job as ``python`` and ``python3``, and
Python in it finds the stand-ins that entry scripts find (``command_site``).
"""

import codecs
import collections
import os
import re
import stat
import subprocess
import sys
import tempfile
import threading

READ_BYTES = 64 * 1024
DRAIN_SECONDS = 10
"""Maximum time to read the rest of the output once the command has ended."""
TAIL_LINES = 50
"""Number of last lines of standard error that are searched for the error of the command."""
LINE_CHARACTERS_MAX = 4096
"""Maximum length of the kept end of a line that arrived in parts."""

__gristmill_activity__ = "the command"
_EXCEPTION = re.compile(r"((?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)): (.+)")


class CommandFailed(Exception):
    """The command did not end with status 0."""


def run(mini_batch):
    """Runs the command."""
    command = sys.argv[sys.argv.index("--command") + 1]
    with tempfile.TemporaryDirectory() as folder:
        running = subprocess.Popen(
            ["/bin/sh", "-c", command],
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        tail = collections.deque(maxlen=TAIL_LINES)
        copying = [
            threading.Thread(target=_copy, args=(running.stdout, sys.stdout), daemon=True),
            threading.Thread(target=_copy, args=(running.stderr, sys.stderr, tail), daemon=True),
        ]
        for thread in copying:
            thread.start()
        status = running.wait()
        for thread in copying:
            # A process that the command left behind may hold its end open.
            thread.join(timeout=DRAIN_SECONDS)
    if status:
        raise _failure(command, status, [line for line in "".join(tail).splitlines() if line.strip()])
    return ["done"]


def _copy(source, target, tail=None):
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    while data := source.read1(READ_BYTES):
        text = decoder.decode(data)
        target.write(text)
        target.flush()
        if tail is not None:
            _remember(tail, text)


def _remember(tail, text):
    """Adds text to the last lines, of which the last one may not have ended."""
    lines = text.splitlines(keepends=True)
    if lines and tail and tail[-1].splitlines() == [tail[-1]]:
        # A program may write a line in many parts.
        lines[0] = (tail.pop() + lines[0])[-LINE_CHARACTERS_MAX:]
    tail.extend(lines)


def _failure(command, status, lines):
    """Returns the exception that the command printed last, under its own name; without one, its last line."""
    cause = f"signal {-status}" if status < 0 else f"exit status {status}"
    ended = f"the command ended with {cause}: {command}"
    last = lines[-1].strip() if lines else ""
    found = _EXCEPTION.fullmatch(last)
    if found and any(line.startswith("Traceback (most recent call last)") for line in lines):
        return type(found[2], (CommandFailed,), {})(f"{found[3]}; {ended}")
    return CommandFailed(f"{last}; {ended}" if last else ended)


def _environment(folder):
    """Returns the variables of the command. Adds names of the interpreter that its folder lacks to ``folder``."""
    programs = os.path.dirname(sys.executable)
    for name in ("python", "python3"):
        if not os.path.exists(os.path.join(programs, name)):
            path = os.path.join(folder, name)
            with open(path, "w") as file:
                file.write(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
            os.chmod(path, stat.S_IRWXU)
    path = os.pathsep.join([programs, folder, os.environ.get("PATH", os.defpath)])
    site = os.path.join(os.path.dirname(os.path.abspath(__file__)), "command_site")
    modules = os.pathsep.join([site, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PATH": path, "PYTHONPATH": modules, "PYTHONUNBUFFERED": "1"}
