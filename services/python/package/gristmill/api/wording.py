"""Messages of the engine in the words of a call from Python.

The engine speaks of job files (``columns: {zip: string}``), of ``run()``, and of the file in which it got a table in
memory.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

NAME = r"(?P<name>\"[^\"]*\"|'[^']*'|[^:{}]+)"
"""The name of a column as a key, perhaps in quotes."""
OF_DATES = re.compile(rf"`columns` makes it timestamp(_day_first)?: (?P<else>[^;]*?)set columns: \{{{NAME}: string\}}")
"""The remedy for values that do not fit a column of dates."""
TYPE_OF_COLUMN = re.compile(rf"columns: \{{{NAME}: (?P<type>\w+)\}}")
"""The type of a column, as a job file sets it."""
KEYS = (
    *("delimiter", "encoding", "error_threshold", "header", "infer_column_types", "isolate", "isolate_items_max"),
    *("lost_delivery_max", "mini_batch_size", "names", "on_type_mismatch", "output_format", "process_count_per_node"),
    *("run_invocation_timeout", "run_max_try", "skip_rows", "support_multi_line", "take"),
)
SETTING = re.compile(
    rf'(?:(?<=set )|(?<=`)|(?<=or )|(?<=to )|(?<=, ))(?P<key>{"|".join(KEYS)}): (?P<value>"[^"]*"|[\w-]+(\.\d+)?)'
)
"""A key of a job file and a simple value, in a remedy."""
NAMES = {"delimiter": "sep", "skip_rows": "skiprows", "take": "nrows", "columns": "usecols, dtype or parse_dates"}
"""Keys that have other names in the functions of this package."""
WHOLE = {("header", "no_header"): 'header=None, names=["a", "b"]', ("infer_column_types", "false"): "dtype=str"}
DATES = {"timestamp": "parse_dates=[{}]", "timestamp_day_first": "parse_dates=[{}], dayfirst=True"}
PARTITIONS = re.compile(r'set `partition_format: ("[^"]*")`')
"""The remedy for columns in names of folders: a keyword of the read functions, not of ``run``."""
KEY_OF_INPUT = re.compile(r"inputs\[\d+\]\.(?P<key>\w+)")
NEW_OUTPUT = re.compile(r'(, )?output is "[^"]*/functions/outputs/[^"]*" and was "[^"]*"')
"""The default output of a function has the name of the function and of its inputs."""
NEW_FUNCTION = re.compile(r'source_directory is "(?P<now>[^"]*/functions/[^"]*)" and was "(?P<was>[^"]*)"')
OTHER_ENTRY = re.compile(r"entry\.py has changed, | and entry\.py has changed|, entry\.py has changed")
"""The entry script of a function follows from the form of its argument, which differs, too."""
OTHER_LAMBDA = re.compile(r"job \S+ has completed, and this is a new job, because ")
"""The name of a lambda does not say that it has anything to do with an earlier one."""
RETRY = re.compile(r"`gristmill retry (?P<job>[^` ]+)`")
STORED = re.compile(
    r"/\S*/functions/inputs/[0-9a-f]+(-\d+\.parquet|\.jsonl)(, row (?P<row>\d+), counted from 0|, line (?P<line>\d+))?"
)
"""The file of inputs in memory, and a place in it."""


class Wording:
    """Rewords messages of the engine for a call of one function.

    :param called: the name of the function in messages: ``score()``.
    """

    def __init__(self, called: str) -> None:
        self._called = called

    def __call__(self, text: str) -> str:
        """Returns the text in the words of the call; empty if it means nothing there."""
        if self._called == "<lambda>()" and OTHER_LAMBDA.match(text):
            return ""
        text = re.sub(r"(?<![\w.])run\(\)", lambda _: self._called, text)
        text = KEY_OF_INPUT.sub(lambda match: NAMES.get(match["key"], match["key"]), text)
        text = OF_DATES.sub(_out_of_dates, text).replace("`columns` makes it", "`dtype` makes it")
        text = TYPE_OF_COLUMN.sub(_type_of_column, text)
        text = SETTING.sub(_setting, text)
        text = OTHER_ENTRY.sub("", NEW_FUNCTION.sub(_change, text))
        text = NEW_OUTPUT.sub("", text).replace("because , ", "because ")
        text = PARTITIONS.sub(r"use gristmill.read_csv(…, partition_format=\1), or another read function,", text)
        text = text.replace("the value of inputs has changed", "the inputs have changed")
        text = RETRY.sub(lambda match: f'`gristmill.attach("{match["job"]}").retry()`', text)
        return STORED.sub(_place, text)


def _change(match: re.Match[str]) -> str:
    """Returns what has changed: the function, or files and variables that it names."""
    try:
        now, was = (json.loads(Path(match[name], "function.json").read_text()) for name in ("now", "was"))
        differ = [name for name in now["reads"] | was["reads"] if now["reads"].get(name) != was["reads"].get(name)]
        if now["code"] != was["code"]:
            return "the function has changed"
    except (OSError, ValueError, KeyError):
        return "the function has changed"
    if len(differ) > 1:
        return f"{differ[0]} and {len(differ) - 1} more that the function names have changed"
    return f"{''.join(differ)}, which the function names, has changed"


def _place(match: re.Match[str]) -> str:
    """Returns a place as the caller counts it: rows of a table, items of a list."""
    if match["row"]:
        return f"row {match['row']} of inputs"
    return f"item {int(match['line']) - 1} of inputs" if match["line"] else "inputs"


def _quoted(name: str) -> str:
    """Returns the name of a column in double quotes."""
    return f'"{name.strip(chr(34) + chr(39))}"'


def _out_of_dates(match: re.Match[str]) -> str:
    return f"`parse_dates` makes it a time: {match['else']}leave {_quoted(match['name'])} out of parse_dates"


def _type_of_column(match: re.Match[str]) -> str:
    name = _quoted(match["name"])
    if match["type"] in DATES:
        return DATES[match["type"]].format(name)
    return f'dtype={{{name}: "{match["type"]}"}}'


def _setting(match: re.Match[str]) -> str:
    key, value = match["key"], match["value"]
    if (key, value) in WHOLE:
        return WHOLE[key, value]
    if value in ("true", "false"):
        value = value.capitalize()
    elif not value.startswith('"') and not re.fullmatch(r"-?\d+(\.\d+)?", value):
        value = f'"{value}"'
    return f"{NAMES.get(key, key)}={value}"
