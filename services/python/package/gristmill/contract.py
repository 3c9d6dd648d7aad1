"""What an agent and a worker process agree on besides the frames."""

import signal

AGENT_FD = 3
"""Unix stream socket: frames to and from the agent."""

STATUS_FD = 4
"""Memory file of ``STATUS_PAGE_BYTES``: what the process is doing."""

STACK_DUMP_SIGNAL = signal.SIGRTMAX - 1
"""Makes the process append the stacks of all its threads to ``sys/node/<node>/processNNN.stack.txt``, even while user
code holds the interpreter. Not before the status page says more than "starting": the signal would end the process."""

EXIT_INTERNAL = 70
"""The runner itself failed; its traceback is on standard error."""

EXIT_INIT_FAILED = 72
"""The script could not be imported or ``init()`` failed; also: the interpreter cannot run the worker package."""

EXIT_AGENT_GONE = 82
"""The agent closed its end of the socket."""

TRACEBACK_BYTES_MAX = 16 * 1024
"""Longest traceback in an error report; the tail is kept, for the last line says what happened."""

MESSAGE_CHARACTERS_MAX = 2000
"""Longest one-line message in an error report."""

WARNINGS_MAX = 10
"""Warnings carried by one answer."""

ENTRY_SCRIPT_VARIABLE = "GRISTMILL_ENTRY_SCRIPT"
"""Environment variable, JSON: what ``EntryScript`` tells the script. Set for the script and the children it starts."""
