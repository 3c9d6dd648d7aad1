"""A template: an interpreter that imports large libraries once, and forks itself into worker processes.

Otherwise every process of a node would spend the time of these imports. Forked processes also share the memory of the
modules. The template runs no code of the script. It gives up if a forked process would differ from one that imports the
libraries itself, and the agent starts processes without it.
"""

import fcntl
import gc
import importlib
import importlib.util
import os
import sys

from gristmill import _native, contract
from gristmill.script import put_on_search_path

ALLOCATOR_VARIABLE = "JE_ARROW_MALLOC_CONF"
"""Settings of an allocator of pyarrow, which starts a thread by default."""


class Unusable(Exception):
    """A process that is forked now would differ from one that imports the libraries itself."""


def serve(channel, template, path_of):
    """Forks a process for each frame of the agent, and ends with the agent. Returns only in forked processes, each with
    its own descriptors and environment."""
    try:
        imported = _import_libraries(template["libraries"], path_of(template["snapshot"]), path_of(template["script"]))
    except BaseException as error:
        report = {"category": type(error).__name__, "message": " ".join(str(error).split())}
        channel.send_event({"frame": "init_failed", "error": report, "chance": "perhaps"})
        os._exit(contract.EXIT_INIT_FAILED)
    # The collector would write to the objects that the processes share, and so copy their memory.
    gc.collect()
    gc.freeze()
    channel.send_event({"frame": "template_ready", "libraries": imported})
    while True:
        fork = channel.receive()
        descriptors = [channel.next_descriptor() for _ in contract.FORK_DESCRIPTORS]
        pid = _fork()
        if pid is None:
            channel.abandon()
            _become(fork, descriptors, path_of)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send_event({"frame": "forked", "pid": pid})


def _import_libraries(names, snapshot, script):
    """Imports the libraries that are installed, and returns their names."""
    entries = sys.path[:]
    put_on_search_path(snapshot, script)
    has_settings = ALLOCATOR_VARIABLE in os.environ
    os.environ.setdefault(ALLOCATOR_VARIABLE, "background_thread:false")
    try:
        found = [name for name in names if importlib.util.find_spec(name)]
        printed = _printed_by(lambda: [importlib.import_module(name) for name in found])
        own = sorted(_modules_of({os.path.dirname(script), snapshot}))
    finally:
        sys.path[:] = entries
        if not has_settings:
            del os.environ[ALLOCATOR_VARIABLE]
    if not found:
        raise Unusable("none of them is installed")
    if printed:
        raise Unusable(f"their import prints: {printed}")
    if own:
        raise Unusable(f"they import {', '.join(own)} from the folder of the script")
    # Some libraries end their threads when the process forks.
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    if len(os.listdir("/proc/self/task")) > 1:
        raise Unusable("they start threads")
    return found


def _printed_by(call):
    """Returns the text that a call prints, including that of native code."""
    streams, kept = (1, 2), [os.dup(1), os.dup(2)]
    file = os.memfd_create("gristmill-template")
    try:
        for stream in streams:
            os.dup2(file, stream)
        call()
        sys.stdout.flush()
        sys.stderr.flush()
        return os.pread(file, contract.PRINTED_BYTES_MAX, 0).decode(errors="replace").strip()
    finally:
        os.close(file)
        for stream, original in zip(streams, kept, strict=True):
            os.dup2(original, stream)
            os.close(original)


def _modules_of(folders):
    """Returns the names of the imported modules that are directly in one of the folders."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        # pyarrow imports the cloudpickle that `api/function.py` puts next to a function.
        if file is None or "." in name or name == "cloudpickle":
            continue
        folder = os.path.dirname(os.path.abspath(file))
        if os.path.splitext(os.path.basename(file))[0] == "__init__":
            folder = os.path.dirname(folder)
        if folder in folders:
            yield name


def _fork():
    """Returns the id of a new process, and ``None`` in that process. The process leads its own session. Its parent has
    ended, so the agent has adopted it."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        if os.fork() != 0:
            os._exit(0)
        os.setsid()
        os.write(writer, str(os.getpid()).encode())
        os.close(reader)
        os.close(writer)
        return None
    os.close(writer)
    os.waitpid(between, 0)
    pid = int(os.read(reader, 32))
    os.close(reader)
    return pid


def _become(fork, descriptors, path_of):
    """Gives a forked process the descriptors, the environment and the working directory that a new process gets."""
    # A descriptor may have arrived under the number that another one gets.
    numbers = contract.FORK_DESCRIPTORS
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(numbers) + 1) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number, inheritable=number <= 2)
        os.close(descriptor)
    for name, value in fork["environment"]:
        if name == contract.PROCESS_VARIABLE:
            _native.rewrite_variable(name, value)
        os.environ[name] = value
    os.chdir(path_of(fork["scratch"]))
    if "numpy.random" in sys.modules:
        # All processes would draw the same numbers. Python seeds its own generator after a fork, and NumPy does not.
        sys.modules["numpy.random"].seed()
