"""What went wrong in user code, for the person who has to mend it: a short report for the agent, the whole story in
``user/error/<node>/processNNN.txt``."""

import importlib
import os
import traceback
from datetime import datetime, timezone

from gristmill import contract

OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep


def valid_text(text):
    """The text without lone surrogates, which JSON cannot carry."""
    return text.encode("utf-8", "backslashreplace").decode()


def one_line(text):
    """The text in one line of bounded length."""
    line = " ".join(part.strip() for part in text.splitlines() if part.strip())
    if len(line) > contract.MESSAGE_CHARACTERS_MAX:
        line = line[: contract.MESSAGE_CHARACTERS_MAX - 1] + "…"
    return valid_text(line)


def is_own_frame(entry):
    filename = entry.tb_frame.f_code.co_filename
    return filename.startswith((OWN_FOLDER, "<frozen importlib")) or filename == importlib.__file__


def user_traceback(error):
    """The traceback of an exception, from the first frame of user code on."""
    entry = error.__traceback__
    while entry is not None and is_own_frame(entry):
        entry = entry.tb_next
    try:
        return valid_text("".join(traceback.format_exception(type(error), error, entry)))
    except Exception as second:
        return f"{type(error).__name__}: the traceback cannot be shown: {second!r}\n"


def describe(error):
    """What an exception says, in one line."""
    if isinstance(error, SystemExit):
        return one_line(f"the script called sys.exit({'' if error.code is None else repr(error.code)})")
    if isinstance(error, SyntaxError):
        place = os.path.basename(error.filename or "") or "the script"
        return one_line(f"{place}, line {error.lineno}: {error.msg}")
    try:
        text = str(error)
    except Exception:
        text = ""
    return one_line(text) or f"{type(error).__name__} without a message"


class ErrorLog:
    """Makes reports, and keeps the whole of each in the error file of the process."""

    def __init__(self, logs, node, process, bytes_max):
        self.relative_path = f"user/error/{node}/{process}.txt"
        self._path = os.path.join(logs, "user", "error", node, f"{process}.txt")
        self._bytes_max = bytes_max

    def report(self, occasion, category, message, full_traceback=""):
        """The report of one failure. ``occasion`` says during what it happened."""
        self._append(occasion, category, message, full_traceback)
        tail = full_traceback.encode()[-contract.TRACEBACK_BYTES_MAX :].decode(errors="ignore")
        return {"category": category, "message": message, "traceback": tail, "log": self.relative_path}

    def report_exception(self, occasion, error, hint=""):
        """The report of an exception that user code raised."""
        message = one_line(describe(error) + hint)
        return self.report(occasion, valid_text(type(error).__name__), message, user_traceback(error))

    def _append(self, occasion, category, message, full_traceback):
        time = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")
        entry = f"{time} {occasion}: {category}: {message}\n{full_traceback}\n".encode("utf-8", "backslashreplace")
        try:
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                if os.fstat(fd).st_size + len(entry) <= self._bytes_max:
                    os.write(fd, entry)
            finally:
                os.close(fd)
        except OSError:
            # The report itself reaches the agent all the same.
            pass
