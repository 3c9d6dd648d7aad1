"""Options in the arguments of a job that change how the process calls the script (``--amlbi_…``).

- ``--amlbi_async_mode True``: the process hands mini-batches to ``enqueue`` and collects their results
  (``enqueued.py``).
- ``--amlbi_file_format jsonl`` or ``--amlbi_mini_batch_rows N``: the rows of a table reach ``run`` as a list of
  dictionaries.
- ``--amlbi_pf_run_mode component``: of each JSON text that ``run`` returns, only its field ``output`` is written.

A script without them pays nothing.
"""

import json

from gristmill.context import MiniBatchFiles
from gristmill.results import RowsOfItems

ASYNC_MODE = "--amlbi_async_mode"


def value_of(arguments, name):
    """Returns the last value of an option, as ``--x v`` or ``--x=v``, or ``None``."""
    found = None
    for position, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option != name:
            continue
        if equals:
            found = value
        elif position + 1 < len(arguments) and not arguments[position + 1].startswith("--"):
            found = arguments[position + 1]
        else:
            found = "True"
    return found


def is_on(arguments, name):
    """Returns whether an option has a value that means true."""
    value = value_of(arguments, name)
    return value is not None and value.strip().lower() in ("true", "t", "yes", "y", "1", "on")


def adapt(run, arguments, tabular):
    """Returns ``run`` with the conversions that the options ask for."""
    rows = value_of(arguments, "--amlbi_file_format") or value_of(arguments, "--amlbi_mini_batch_rows")
    if tabular and rows is not None:
        run = _with_dictionaries(run)
    if value_of(arguments, "--amlbi_pf_run_mode") == "component":
        run = _with_outputs_alone(run)
    return run


def _with_dictionaries(run):
    def with_dictionaries(frame, *context):
        rows = MiniBatchFiles(dictionaries(frame))
        if context:
            context[0].dataset = rows
            rows.task_id = context[0].minibatch_index
        return run(rows, *context)

    return with_dictionaries


def dictionaries(frame):
    """Returns the rows of a DataFrame as dictionaries of Python's own values, with ``None`` for missing ones."""
    names = [str(name) for name in frame.columns]
    columns = []
    for position in range(len(names)):
        column = frame.iloc[:, position]
        missing = column.isna()
        values = column.astype(object).tolist()
        columns.append([None if none else value for value, none in zip(values, missing.tolist(), strict=True)])
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _with_outputs_alone(run):
    def with_outputs_alone(*arguments):
        result = run(*arguments)
        if type(result) is RowsOfItems:
            result[:] = map(_output_of, result)
            return result
        return [_output_of(element) for element in result] if isinstance(result, (list, tuple)) else result

    return with_outputs_alone


def _output_of(element):
    """Returns the field ``output`` of a JSON text as JSON, and everything else unchanged."""
    if not isinstance(element, (str, bytes)):
        return element
    try:
        value = json.loads(element)
    except ValueError:
        return element
    if not isinstance(value, dict) or "output" not in value:
        return element
    return json.dumps(value["output"], ensure_ascii=False)
