"""Reports of failures in user code: a short one for the agent, and the complete one in
``user/error/<node>/processNNN.txt``."""

import builtins
import importlib
import os
import sys
import traceback
from datetime import datetime, timezone

from gristmill import contract

USAGE_STATUS = 2
"""Exit status of ``argparse`` when it rejects the arguments."""

OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep


def valid_text(text):
    """Returns the text without lone surrogates, which JSON cannot represent."""
    return text.encode("utf-8", "backslashreplace").decode()


def one_line(text):
    """Returns the text as one line of bounded length."""
    line = " ".join(part.strip() for part in text.splitlines() if part.strip())
    if len(line) > contract.MESSAGE_CHARACTERS_MAX:
        line = line[: contract.MESSAGE_CHARACTERS_MAX - 1] + "…"
    return valid_text(line)


def is_own_frame(entry):
    filename = entry.tb_frame.f_code.co_filename
    return filename.startswith((OWN_FOLDER, "<frozen importlib")) or filename == importlib.__file__


_last_stack = ([], "")
"""The stack of the last exception, and its text. Successive runs of ranges fail at the same place, and looking up its
lines takes longer than a quick run."""

STACK_DECIDES = (AttributeError, ImportError, NameError, getattr(builtins, "BaseExceptionGroup", NameError))
"""Exceptions whose message may depend on the stack."""


def _format(error, entry):
    """Returns the lines of ``traceback.format_exception``."""
    global _last_stack
    has_more = error.__cause__ is not None or not (error.__context__ is None or error.__suppress_context__)
    if entry is None or has_more or isinstance(error, STACK_DECIDES):
        return traceback.format_exception(type(error), error, entry)
    last_places, text = _last_stack
    places, each = [], entry
    while each is not None:
        places.append((each.tb_frame.f_code, each.tb_lasti))
        each = each.tb_next
    if places != last_places:
        text = "".join(traceback.format_tb(entry))
        _last_stack = (places, text)
    return ["Traceback (most recent call last):\n", text, *traceback.format_exception_only(type(error), error)]


def user_traceback(error):
    """Returns the traceback of an exception, starting at the first frame of user code."""
    entry = error.__traceback__
    while entry is not None and is_own_frame(entry):
        entry = entry.tb_next
    try:
        return valid_text("".join(_format(error, entry)))
    except Exception as second:
        return f"{type(error).__name__}: the traceback cannot be shown: {second!r}\n"


def add_note(error, note):
    """Adds a line to the traceback of an exception. Python 3.10 has no notes."""
    if hasattr(error, "add_note"):
        error.add_note(note)


def describe(error):
    """Returns the message of an exception, in one line."""
    if isinstance(error, SystemExit):
        return one_line(f"the script called sys.exit({'' if error.code is None else repr(error.code)})")
    # The errors of XML parsers have this class, too, and no line of a script.
    if isinstance(error, SyntaxError) and error.lineno is not None:
        place = os.path.basename(error.filename or "") or "the script"
        return one_line(f"{place}, line {error.lineno}: {error.msg}")
    try:
        text = str(error)
    except Exception:
        text = ""
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str) and not os.path.isabs(error.filename):
        text += f" (in the working folder {os.getcwd()})"
    return one_line(text) or f"{type(error).__name__} without a message"


FILE_ERRORS = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)


def chance_of_another_start(error):
    """Returns whether ``init()`` may succeed in another process after this failure: ``never``, ``perhaps`` (one more
    start decides) or ``likely``."""
    if isinstance(error, SyntaxError) or (isinstance(error, SystemExit) and error.code == USAGE_STATUS):
        return "never"
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        # A network, a server or a full machine, even if a library wraps the error.
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and not isinstance(error, FILE_ERRORS)):
            return "likely"
        error = error.__cause__ or error.__context__
    return "perhaps"


def hint_on_start(error, printed):
    """Returns the remedy for common reasons why a script does not start."""
    if isinstance(error, ModuleNotFoundError):
        remedy = "install the package there, or name another interpreter or a requirements file with `environment`"
        return f" (interpreter: {sys.executable}; {remedy})"
    if isinstance(error, KeyError) and error.args == ("AZUREML_MODEL_DIR",):
        return " (the key `model` of the job file sets it)"
    if isinstance(error, SystemExit) and error.code == USAGE_STATUS:
        errors = [line.partition("error: ")[2] for line in printed.splitlines() if "error: " in line]
        if not errors:
            return ""
        hint = ""
        if errors[-1].startswith("unrecognized arguments"):
            hint = ". The engine passes arguments of its own: use parse_known_args()"
        return f": {errors[-1]}{hint}"
    return ""


class ErrorLog:
    """Creates reports, and writes the complete ones to the error file of the process."""

    def __init__(self, logs, node, process, bytes_max):
        self.relative_path = f"user/error/{node}/{process}.txt"
        self._path = os.path.join(logs, "user", "error", node, f"{process}.txt")
        self._bytes_max = bytes_max

    def report(self, occasion, category, message, full_traceback="", printed=""):
        """Returns the report of one failure. ``occasion`` names the activity, ``printed`` is the script's last
        output."""
        self._append(occasion, category, message, full_traceback, printed)
        tail = full_traceback.encode()[-contract.TRACEBACK_BYTES_MAX :].decode(errors="ignore")
        return {
            "category": category,
            "message": message,
            "traceback": tail,
            "log": self.relative_path,
            "printed": printed,
        }

    def report_exception(self, occasion, error, hint="", printed=""):
        """Returns the report of an exception in user code."""
        message = one_line(describe(error) + hint)
        return self.report(occasion, valid_text(type(error).__name__), message, user_traceback(error), printed)

    def _append(self, occasion, category, message, full_traceback, printed):
        time = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")
        entry = f"{time} {occasion}: {category}: {message}\n{full_traceback}"
        if printed:
            entry += "Printed last:\n" + "".join(f"  {line}\n" for line in printed.splitlines())
        entry = f"{entry}\n".encode("utf-8", "backslashreplace")
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                if os.fstat(fd).st_size + len(entry) <= self._bytes_max:
                    os.write(fd, entry)
            finally:
                os.close(fd)
        except OSError:
            # The report itself still reaches the agent.
            pass
