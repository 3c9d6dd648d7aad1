"""The contract between an agent and a worker process, except the frames."""

import signal

AGENT_FD = 3
"""Unix stream socket: frames to and from the agent. The process immediately moves it to a high number, so that user
code does not write to it by accident."""

STATUS_FD = 4
"""Memory file of ``STATUS_PAGE_BYTES``: the activity of the process, which maps it and closes the descriptor."""

FORK_DESCRIPTORS = (AGENT_FD, STATUS_FD, 1, 2)
"""The numbers of the descriptors that the agent sends for each process that a template forks, in this order."""

STACK_DUMP_SIGNAL = signal.SIGRTMAX - 1
"""Makes the process append the stacks of all its threads to ``sys/node/<node>/processNNN.stack.txt``, even while user
code holds the interpreter. While the status page still says "starting", the signal would end the process."""

EXIT_INTERNAL = 70
"""The runner itself failed; its traceback is on standard error."""

EXIT_INIT_FAILED = 72
"""The script could not be imported or ``init()`` failed; also: the interpreter cannot run the worker package."""

EXIT_AGENT_GONE = 82
"""The agent closed its end of the socket."""

EXIT_SOCKET_CLOSED = 83
"""User code closed or replaced the socket to the agent."""

TRACEBACK_BYTES_MAX = 16 * 1024
"""Longest traceback in an error report, which keeps the tail, because the last line names the error."""

MESSAGE_CHARACTERS_MAX = 2000
"""Longest one-line message in an error report."""

KEEP_SECONDS = 0.05
"""Seconds between two writes of the results of single items, which a process keeps for another try."""

CONCURRENCY = 8
"""Number of items that ``run_item()`` works on at a time, if the job does not set it."""

PRINTED_LINES_MAX = 10
"""Number of lines of the script's output in an error report."""

PRINTED_BYTES_MAX = 2 * 1024
"""Maximum size of these lines."""


PROCESS_VARIABLE = "GRISTMILL_PROCESS"
"""Environment variable with a value unique to this process. Children inherit it, so the agent finds those that leave
the process group when the process ends."""

ENTRY_SCRIPT_VARIABLE = "GRISTMILL_ENTRY_SCRIPT"
"""Environment variable, JSON: the data of ``EntryScript``. Set for the script and its children."""
