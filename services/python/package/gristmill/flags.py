"""Options in the arguments of a job that change how the process calls the script (``--amlbi_…``).

- ``--amlbi_async_mode True``: the process hands mini-batches to ``enqueue`` and collects their results
  (``enqueued.py``).
- ``--amlbi_file_format jsonl`` or ``--amlbi_mini_batch_rows N``: the rows of a table reach ``run`` as a list of
  dictionaries.
- ``--amlbi_pf_run_mode component``: of each JSON text that ``run`` returns, only its field ``output`` is written.

A script without them pays nothing.
"""

import json

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


def asks_for_dictionaries(arguments):
    """Returns whether the rows of a table reach ``run`` as dictionaries."""
    return any(value_of(arguments, name) is not None for name in ("--amlbi_file_format", "--amlbi_mini_batch_rows"))


def adapt(run, arguments):
    """Returns ``run`` with the conversions that the options ask for."""
    if value_of(arguments, "--amlbi_pf_run_mode") == "component":
        run = _with_outputs_alone(run)
    return run


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
