"""The main loop of a worker process: configure, import, ``init()``, ``run()`` per mini-batch, ``shutdown()``, exit.

The process answers each mini-batch with one event, which is in the kernel before the next mini-batch starts, so
finished work survives the end of the process. An exception of user code fails only that attempt. The process exits by
itself only if the script cannot start or the agent has ended; otherwise the agent decides when it ends.
"""

import atexit
import binascii
import gc
import importlib.util
import json
import os
import sys
import time
import traceback
from functools import partial

from gristmill import _native, contract
from gristmill.arrow_tables import MissingPyarrow, SharedTable, require_pyarrow
from gristmill.channel import AgentGone, Channel, SocketClosed, payload_fits
from gristmill.context import MiniBatchContext, MiniBatchFiles
from gristmill.errors import ErrorLog, add_note, chance_of_another_start, hint_on_start, one_line
from gristmill.handing_back import HandingBack
from gristmill.logs import UserStreams, configure_root_logging, register_stack_dump
from gristmill.profiling import make_profiler
from gristmill.results import ArrowRows, IllegalResult, RowsOfItems, ShortResult, accept, compare_lengths
from gristmill.rows import Tables, make_formatter
from gristmill.script import AsyncFunction, EntryFunctions, MissingRun, extend_search_path, import_script

AZURE_ML_MESSAGE = "The run() method in the entry script should return a list or a pandas DataFrame."

LOAD, RUN, REPORT, IDLE = _native.PHASE_LOAD, _native.PHASE_RUN, _native.PHASE_REPORT, _native.PHASE_IDLE


def main():
    """Serves the agent at ``AGENT_FD`` until it sends "finish"."""
    try:
        status, channel, configure = _connect()
        # Before any import that reads it.
        os.environ.setdefault("OMP_NUM_THREADS", str(configure["threads"]))
        if configure["frame"] == "template":
            from gristmill import template

            template.serve(channel, configure, path_of)
            status, channel, configure = _connect()
        if configure["frame"] != "configure":
            raise ValueError(f"the first frame is {configure['frame']!r}, not 'configure'")
        marker = os.environ.get(contract.PROCESS_VARIABLE)
        _native.watch(channel.fd, f"{contract.PROCESS_VARIABLE}={marker}" if marker else None)
        _native.keep_freed_memory()

        def leave_to_parent():
            channel.abandon()
            status.disable()

        os.register_at_fork(after_in_child=leave_to_parent)
        Process(channel, status, configure).serve()
    except AgentGone:
        os._exit(contract.EXIT_AGENT_GONE)
    except SocketClosed as error:
        os.write(2, f"gristmill: the script closed the connection to the engine ({error})\n".encode())
        os._exit(contract.EXIT_SOCKET_CLOSED)
    except Exception:
        # The script did not fail. The agent stores the output on this descriptor with its own logs.
        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
        os._exit(contract.EXIT_INTERNAL)


def _connect():
    """Returns the status page, the channel to the agent, and its first frame."""
    status = _native.StatusPage(contract.STATUS_FD)
    os.close(contract.STATUS_FD)
    channel = Channel(_native.move_out_of_reach(contract.AGENT_FD))
    return status, channel, channel.receive()


def path_of(path):
    """Returns a path from a frame: text, or the bytes of a name that is not text."""
    if isinstance(path, str):
        return path
    return os.fsdecode(binascii.a2b_base64(path["bytes"]))


def _takes(functions):
    """Returns the form in which the script gets the rows of a table, by its name in the protocol."""
    if functions.wants_arrow:
        return "arrow"
    if functions.wants_items:
        return "items"
    return "frame" if functions.wants_pandas is None else "declared"


class Process:
    """One configured worker process."""

    def __init__(self, channel, status, configure):
        self._limit = None
        if limits := configure.get("limits"):
            from gristmill.limits import Limit, SharedChannel

            channel = SharedChannel(channel)
            self._limit = Limit(channel.client, limits)
        self._channel = channel
        self._status = status
        self._node = configure["node"]
        self._name = configure["process"]
        self._script = path_of(configure["script"])
        self._snapshot = path_of(configure["snapshot"])
        self._module_name = configure["module"]
        self._argv = configure["argv"]
        self._strict = configure["strict_results"]
        self._concurrency = configure.get("concurrency")
        self._formatter = None
        if configure["rows_wanted"]:
            self._formatter = make_formatter(configure["output_format"], configure["to_csv_arguments"])
        self._checks = None
        if configure.get("row_schema") is not None:
            from gristmill.checked import RowChecks

            self._checks = RowChecks(configure["row_schema"], configure["output_format"])
        logs = path_of(configure["logs"])
        bytes_max = configure["log_bytes_max"]
        self._errors = ErrorLog(logs, self._node, self._name, bytes_max)
        self._streams = UserStreams(logs, self._node, self._name, bytes_max, status)
        self._tabular = configure["tabular"]
        self._items_per_mini_batch = configure["items_per_mini_batch"]
        self._stack_file = register_stack_dump(logs, self._node, self._name)
        self._profile_path = os.path.join(logs, "sys", "node", self._node, f"{self._name}.profile")
        self._shared = None
        self._handing_back = HandingBack(
            channel, path_of(configure["checkpoints"]), f"{self._node}-{self._name}", path_of
        )
        self._profiler = make_profiler(configure["profiling_module"])
        self._call = self._handing_back.call
        if self._limit is not None:
            self._call = self._limit.ending_with(self._call)
        if self._profiler is not None:
            self._call = partial(self._profiler.runcall, self._call)
        os.register_at_fork(before=self._streams.flush)
        # Runs after every handler of user code: the interpreter needs streams that it can flush.
        atexit.register(self._streams.restore)
        configure_root_logging(self._streams, configure["logging_level"])
        os.environ[contract.ENTRY_SCRIPT_VARIABLE] = self._entry_script_state(configure, logs)
        os.chdir(path_of(configure["scratch"]))

    def _entry_script_state(self, configure, logs):
        output = configure.get("output")
        return json.dumps(
            {
                "log_dir": os.path.join(logs, "user", "entry_script_log", self._node),
                "output_dir": path_of(output) if output is not None else self._snapshot,
                "agent_name": self._name,
                "working_dir": self._snapshot,
                "dir": os.path.dirname(self._script),
                "logging_level": configure["logging_level"],
                "log_bytes_max": configure["log_bytes_max"],
            }
        )

    def serve(self):
        """Runs until the process is to exit. The caller then leaves the exit to the interpreter."""
        # The garbage collector skips what was imported so far.
        gc.freeze()
        self._functions = self._start()
        self._status.set(0, IDLE)
        while True:
            frame = self._channel.receive()
            if frame["frame"] == "mini_batches":
                process_time = time.process_time()
                for mini_batch in frame["mini_batches"]:
                    process_time = self._work(mini_batch, process_time)
                self._status.set(0, IDLE)
            elif frame["frame"] == "finish":
                break
            else:
                raise ValueError(f"a frame {frame['frame']!r} was not expected")
        self._finish()

    def _start(self):
        self._status.set(0, _native.PHASE_IMPORT)
        started = time.perf_counter()
        sys.argv = [self._script, *self._argv]
        extend_search_path(self._snapshot, self._script)
        occasion = "import of the entry script"
        try:
            module = import_script(self._module_name, self._script)
            functions = EntryFunctions(module, self._script, self._argv, self._tabular, self._concurrency, self._limit)
            imported = time.perf_counter()
            occasion = "init()"
            if functions.coroutines is not None:
                functions.coroutines.on_rate_limit = self._rate_limited
            self._status.set(0, _native.PHASE_INIT)
            if functions.init is not None:
                functions.init()
            if self._tabular and functions.wants_arrow:
                require_pyarrow(sys.executable)
            elif self._tabular:
                require_pandas()
        except (AsyncFunction, MissingRun, MissingPandas, MissingPyarrow) as error:
            self._streams.flush()
            printed = self._streams.printed()
            report = self._errors.report(occasion, type(error).__name__, one_line(str(error)), printed=printed)
            self._give_up(report, "never")
        except BaseException as error:
            self._leave_if_forked(error)
            self._streams.flush()
            printed = self._streams.printed()
            report = self._errors.report_exception(occasion, error, hint_on_start(error, printed), printed)
            self._give_up(report, chance_of_another_start(error))
        self._streams.flush()
        self._channel.send_event(
            {
                "frame": "ready",
                "init_seconds": time.perf_counter() - started,
                "import_seconds": imported - started,
                "python_version": ".".join(map(str, sys.version_info[:3])),
                "takes": _takes(functions),
            }
        )
        return functions

    def _rate_limited(self, seconds):
        self._channel.send_event({"frame": "rate_limited", "sequence": self._streams.attempt, "seconds": seconds})

    def _give_up(self, error, chance):
        self._streams.flush()
        self._channel.send_event({"frame": "init_failed", "error": error, "chance": chance})
        # The script's threads must not keep the process alive.
        os._exit(contract.EXIT_INIT_FAILED)

    def _leave_if_forked(self, error):
        """Ends a forked child of user code whose exception left the script, just as a script ends."""
        if self._channel.abandoned:
            self._streams.flush()
            code = error.code if isinstance(error, SystemExit) else 1
            os._exit(code if isinstance(code, int) else 0 if code is None else 1)

    def _work(self, mini_batch, process_started):
        """Answers one mini-batch. Takes and returns the processor time of the process: reading it is a system call, and
        the end of one mini-batch is the start of the next."""
        sequence = mini_batch["sequence"]
        status = self._status
        self._streams.begin(sequence)
        load_started = status.begin(sequence, LOAD)
        if load_started is None:
            if mini_batch["payload"]["kind"] == "table":
                os.close(self._channel.next_descriptor())
            self._channel.send_event({"frame": "recalled", "sequence": sequence})
            return process_started
        try:
            argument, items = self._load(mini_batch)
        except Exception as error:
            self._release_table()
            load_seconds = status.set(sequence, REPORT) - load_started
            process_ended = time.process_time()
            self._fail_load(mini_batch, error, load_seconds, process_ended - process_started)
            return process_ended
        functions, handing_back = self._functions, self._handing_back
        only_kept = mini_batch.get("only_kept", False)
        if only_kept and handing_back.done is None:
            return self._nothing_kept(mini_batch, load_started, process_started)
        warnings, failed_items, pieces, vain = [], (), (), None
        started = status.set(sequence, RUN)
        load_seconds = started - load_started
        try:
            if functions.wants_context:
                context = MiniBatchContext(
                    mini_batch, argument, self._node, self._name, self._items_per_mini_batch, self._limit, handing_back
                )
                result = self._call(functions.run, mini_batch, warnings, argument, context)
            else:
                result = self._call(functions.run, mini_batch, warnings, argument)
            if handing_back.done is not None:
                result = handing_back.done.result(result)
                warnings += handing_back.done.warnings
            if type(result) is not list and type(result) is not MiniBatchFiles:
                result, warning = accept(result, mini_batch["mini_batch"])
                if warning is not None:
                    warnings.append(warning)
            run_seconds = status.set(sequence, REPORT) - started
            returned = len(result)
            failures, missing = (result.failures, result.missing) if type(result) is RowsOfItems else ((), ())
            if failures:
                is_last = mini_batch.get("names_failed_items", False)
                any_succeeded = len(failures) < result.items
                if not (is_last and any_succeeded):
                    from gristmill.coroutines import gave_up

                    vain = {"items_tried": is_last, "gave_up": not any_succeeded and gave_up(result, items)}
                    raise self._first_of(failures)
            if functions.function is not None and type(result) is not RowsOfItems:
                returned = items
            elif returned != items:
                returned = compare_lengths(mini_batch, result, items, self._strict and not only_kept)
            misfits = ()
            if self._checks is not None:
                result, misfits = self._checks.sift(result, items)
            if failures or misfits or missing:
                returned -= len(failures) + len(misfits)
                from gristmill.failed_items import in_pieces, named

                occasion = f"{functions.function or 'run_item()'} of {try_of(mini_batch)}, item "
                failures = [
                    (item, self._errors.report_exception(f"{occasion}{item}", error)) for item, error in failures
                ]
                failed_items = named(failures, misfits, missing, only_kept)
                payload, columns, pieces = in_pieces(result, failed_items, items, self._rows_of)
            else:
                payload, columns = self._rows_of(result)
            if self._formatter is not None and (warning := self._formatter.warning_about(result)) is not None:
                warnings.append(warning)
            if self._shared is not None:
                argument = context = result = None
                self._release_table()
        except BaseException as error:
            run_seconds = status.set(sequence, REPORT) - started
            self._leave_if_forked(error)
            about = self._suspect(error, argument) if vain is None else vain
            self._release_table()
            process_ended = time.process_time()
            self._fail(mini_batch, error, [load_seconds, run_seconds, process_ended - process_started], about)
            return process_ended
        self._streams.end(mini_batch["mini_batch"], mini_batch["try_number"])
        process_ended = time.process_time()
        if functions.notes:
            # Each process reports them once.
            warnings += functions.notes
            functions.notes = []
        # Formatting whole nanoseconds takes half the time of a fraction.
        load, run = int(load_seconds * 1e9), int(run_seconds * 1e9)
        used = int((process_ended - process_started) * 1e9)
        header = (
            f'{{"frame":"answered","sequence":{sequence},"returned":{returned},"load_seconds":{load}e-9,'
            f'"run_seconds":{run}e-9,"process_seconds":{used}e-9'
        )
        if columns is not None:
            header += f',"columns":{json.dumps(columns)}'
        if failed_items:
            header += f',"failed_items":{json.dumps(failed_items)},"pieces":{json.dumps(pieces)}'
        if handing_back.kept:
            header += f',"items_kept":{handing_back.kept}'
        if handing_back.done is not None and handing_back.done.has_files:
            header += ',"has_checkpoints":true'
        if warnings:
            warnings = map(self._reworded, warnings)
            header += f',"warnings":{json.dumps([{"message": one_line(text)} for text in warnings])}'
        self._channel.send(f"{header}}}".encode(), payload)
        return process_ended

    def _load(self, mini_batch):
        """Returns the argument of ``run`` and the number of its items."""
        payload = mini_batch["payload"]
        kind = payload["kind"]
        done = self._handing_back.earlier(mini_batch)
        if kind == "files":
            paths = MiniBatchFiles(payload["paths"])
            paths.task_id = mini_batch["mini_batch"]
            for position, path in enumerate(paths):
                if path.__class__ is not str:
                    paths[position] = path_of(path)
            stamps = payload.get("stamps")
            if "items" in mini_batch:
                first, end = mini_batch["items"]
                del paths[end:], paths[:first]
                stamps = stamps and stamps[first:end]
            if stamps is not None and (changed := _native.changed_file(paths, stamps)) is not None:
                from gristmill.inputs import InputChanged

                raise InputChanged(paths[changed])
            if done is not None:
                paths[:] = [done.paths[position] for position in done.left]
                return paths, done.items
            return paths, len(paths)
        if kind == "table":
            rows, count = None, payload["rows"]
            if done is not None:
                rows, count = done.left, done.items
            elif "items" in mini_batch:
                rows = slice(*mini_batch["items"])
                count = rows.stop - rows.start
            descriptor = self._channel.next_descriptor()
            try:
                return self._table(mini_batch, descriptor, rows), count
            finally:
                os.close(descriptor)
        if kind == "rank":
            return [], 1
        raise ValueError(f"a mini-batch of the kind {kind!r} is not known")

    def _table(self, mini_batch, descriptor, rows):
        """Returns a table, or some of its rows, in the form that the script takes."""
        payload, functions = mini_batch["payload"], self._functions
        if functions.wants_items:
            from gristmill.tables import read_items

            rows = range(payload["rows"]) if rows is None else rows
            positions = range(rows.start, rows.stop) if isinstance(rows, slice) else rows
            items = MiniBatchFiles(read_items(descriptor, payload["bytes"], positions))
            items.task_id = mini_batch["mini_batch"]
            return items
        if functions.wants_arrow or (functions.wants_pandas and payload.get("is_declared")):
            from gristmill.parquet_tables import arrow_table, pandas_frame

            require_pyarrow(sys.executable)
            self._shared = SharedTable(descriptor, payload["bytes"])
            table = self._shared.read()
            if functions.wants_arrow:
                return arrow_table(table, rows)
            frame, has_labels = pandas_frame(table, rows, functions.wants_pandas == "memory")
            if isinstance(self._formatter, Tables):
                self._formatter.keeps_index = has_labels
                is_counted = functions.wants_pandas == "memory" and not has_labels and self._checks is None
                self._formatter.counted = frame.index if is_counted else None
            return frame
        from gristmill.tables import frame_of

        frame = frame_of(mini_batch, descriptor)
        return frame if rows is None else frame.iloc[rows].reset_index(drop=True)

    def _release_table(self):
        """Releases the mapped table, before the answer lets the agent overwrite it."""
        if self._shared is not None:
            self._shared.release()
            self._shared = None

    def _nothing_kept(self, mini_batch, load_started, process_started):
        """Answers that the script has handed nothing back. The agent knows why the items have no result."""
        self._release_table()
        load_seconds = self._status.set(mini_batch["sequence"], REPORT) - load_started
        process_ended = time.process_time()
        report = {"category": "NothingKept", "message": ""}
        self._send_failed(mini_batch, "illegal_result", report, [load_seconds, 0.0, process_ended - process_started])
        return process_ended

    def _first_of(self, failures):
        _, error = failures[0]
        if len(failures) > 1:
            add_note(error, f"{len(failures) - 1} more items of the mini-batch failed")
        return error

    def _rows_of(self, result):
        formatter = self._formatter
        if formatter is None:
            return b"", None
        if type(result) is list or isinstance(result, list):
            payload, columns = formatter.of_list(result) if result else (b"", None)
        elif type(result) is ArrowRows:
            payload, columns = formatter.of_table(result.table)
        else:
            payload, columns = formatter.of_frame(result)
        if not payload_fits(len(payload)):
            raise IllegalResult(f"the result is {len(payload)} bytes of rows, which exceeds the maximum: return less")
        return payload, columns

    def _fail_load(self, mini_batch, error, load_seconds, process_seconds):
        occasion = f"loading {try_of(mini_batch)}"
        report = self._errors.report(occasion, type(error).__name__, one_line(str(error)))
        self._send_failed(mini_batch, "load_failed", report, [load_seconds, 0.0, process_seconds])

    def _suspect(self, error, argument):
        """Returns the part of the answer about the item that ``run`` was working on."""
        from gristmill.suspects import suspect_of

        position = suspect_of(error, argument)
        done = self._handing_back.done
        if done is not None:
            position = done.place_of(position)
        return {} if position is None else {"suspect": position}

    def _fail(self, mini_batch, error, seconds, about):
        functions = self._functions
        occasion = functions.activity or f"{functions.function or 'run()'} of {try_of(mini_batch)}"
        self._streams.flush()
        printed = self._streams.printed()
        if isinstance(error, (IllegalResult, ShortResult)):
            status = "illegal_result"
            message = self._reworded(str(error))
            report = self._errors.report(occasion, type(error).__name__, one_line(message), printed=printed)
        else:
            status = "run_raised"
            report = self._errors.report_exception(occasion, error, printed=printed)
        self._send_failed(mini_batch, status, report, seconds, about)

    def _reworded(self, text):
        """Returns a message about ``run()`` of a script as one about the function that the script runs."""
        called = self._functions.function
        if called is None:
            return text
        text = text.replace(
            AZURE_ML_MESSAGE, f"{called} should return a table, or a list of rows; for a single row, [row]."
        )
        return text.replace("run()", called)

    def _send_failed(self, mini_batch, status, report, seconds, about=None):
        load_seconds, run_seconds, process_seconds = seconds
        self._streams.end(mini_batch["mini_batch"], mini_batch["try_number"])
        self._channel.send_event(
            {
                "frame": "answered",
                "sequence": mini_batch["sequence"],
                "status": status,
                "error": report,
                "load_seconds": load_seconds,
                "run_seconds": run_seconds,
                "process_seconds": process_seconds,
                **({"has_checkpoints": True} if self._handing_back.has_kept() else {}),
                **(about or {}),
            }
        )

    def _finish(self):
        self._status.set(0, _native.PHASE_SHUTDOWN)
        if self._functions.shutdown is not None:
            try:
                self._functions.shutdown()
            except BaseException as error:
                self._leave_if_forked(error)
                report = self._errors.report_exception("shutdown()", error)
                self._channel.send_event({"frame": "shutdown_failed", "error": report})
        if self._profiler is not None:
            try:
                self._profiler.dump_stats(self._profile_path)
            except OSError as error:
                print(f"gristmill: the profile cannot be written: {error}", file=self._streams.stderr)
        self._streams.flush()
        # Only the exit of the interpreter remains, which threads of the script can delay.
        self._status.set(0, IDLE)


def try_of(mini_batch):
    """Returns the name of a try of a mini-batch, or of a range of its items, for messages."""
    words = f"mini-batch {mini_batch['mini_batch']}, try {mini_batch['try_number']}"
    if "items" in mini_batch:
        first, end = mini_batch["items"]
        words += f", items {first} to {end - 1}"
    return words


class MissingPandas(Exception):
    """The input is tabular, and this interpreter cannot create DataFrames."""


def require_pandas():
    """Fails if tables cannot become DataFrames, before the first mini-batch spends a try. The first mini-batch imports
    pandas: that takes long, and many processes of a small job never get one."""
    missing = [name for name in ("numpy", "pandas") if name not in sys.modules and not importlib.util.find_spec(name)]
    if missing:
        raise MissingPandas(
            f"the input is tabular, and {sys.executable} has no {' and no '.join(missing)}: "
            f"run {sys.executable} -m pip install pandas"
        )
