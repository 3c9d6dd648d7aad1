"""An entry script for a command: runs it in a shell, as the one mini-batch of a job.

The job fails if the command does. The command finds the interpreter of the job as ``python`` and ``python3``.
"""

import os
import stat
import subprocess
import sys
import tempfile


def run(mini_batch):
    """Runs the command. Its output goes to the log of the process."""
    command = sys.argv[sys.argv.index("--command") + 1]
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(["/bin/sh", "-c", command], env=_environment(folder), stdin=subprocess.DEVNULL)
    status = ended.returncode
    if status:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        raise RuntimeError(f"the command ended with {how}: {command}")
    return ["done"]


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
    return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}
