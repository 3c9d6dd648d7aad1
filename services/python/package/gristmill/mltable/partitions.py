"""Columns from paths: ``{Store}/{Brand}/{file_name}.{extension}``, ``{day:yyyy/MM/dd}``."""

import datetime
import re
import urllib.parse

_TIME = {"yyyy": r"\d{4}", "MM": r"\d{2}", "dd": r"\d{2}", "HH": r"\d{2}", "mm": r"\d{2}", "ss": r"\d{2}"}
_ORDER = tuple(_TIME)
_ELIDED = ("**/", "…/", ".../", "./", "/")
MISSING = "__HIVE_DEFAULT_PARTITION__"
"""The text that Hive and Spark write in a path for a missing value."""


class InvalidFormat(ValueError):
    """The format is not valid, or a path does not have it."""


class PartitionFormat:
    """A format, which covers whole names: from the start of a file or folder name to the end of the path."""

    def __init__(self, text):
        self.text = text
        self.names = []
        self._times = {}
        self._escaped = set()
        rest = text
        for elided in _ELIDED:
            rest = rest.removeprefix(elided)
        pattern = ""
        for literal, star, column in re.findall(r"([^{}*]+)|(\*)|\{([^{}]*)\}", rest):
            if column and pattern.endswith("="):
                self._escaped.add(len(self.names))
            pattern += re.escape(literal) if literal else r"[^/]*" if star else self._column(column)
        if not self.names or rest.count("{") != len(self.names) or rest.count("}") != len(self.names):
            raise InvalidFormat(f"{text!r} is not a partition format: write columns as {{name}} or {{name:yyyy/MM/dd}}")
        self._pattern = re.compile(rf"(?:.*/)?{pattern}", re.DOTALL)

    def _column(self, column):
        name, _, form = column.partition(":")
        if not name or name in self.names:
            raise InvalidFormat(f"{self.text!r} names the column {name!r} twice" if name else f"{self.text!r}: no name")
        position = len(self.names)
        self.names.append(name)
        if not form:
            return rf"(?P<c{position}>[^/]*)"
        parts = re.findall(r"yyyy|MM|dd|HH|mm|ss", form)
        if not parts:
            raise InvalidFormat(f"{form!r} in {self.text!r} is not a time: its parts are {', '.join(_TIME)}")
        self._times[position] = parts
        pattern = re.escape(form)
        for part in parts:
            pattern = pattern.replace(part, f"(?P<c{position}_{part}>{_TIME[part]})", 1)
        return pattern

    def is_time(self, position):
        """Returns whether a column is a time."""
        return position in self._times

    def values(self, path):
        """Returns the value of each column in a path."""
        match = self._pattern.fullmatch(path.replace("\\", "/"))
        if match is None:
            raise InvalidFormat(f"the path {path} does not have the partition format {self.text!r}")
        return [
            self._time(match, position) if position in self._times else self._text(match, position)
            for position in range(len(self.names))
        ]

    def _text(self, match, position):
        """Returns a text. That of a folder ``k=v`` is percent-decoded, and may be missing."""
        text, end = match[f"c{position}"], match.end(f"c{position}")
        if text == MISSING:
            return None
        if position not in self._escaped or match.string[end : end + 1] != "/":
            return text
        try:
            return urllib.parse.unquote(text, errors="strict")
        except UnicodeDecodeError:
            return text

    def _time(self, match, position):
        found = {part: int(match[f"c{position}_{part}"]) for part in self._times[position]}
        defaults = {"yyyy": 1, "MM": 1, "dd": 1, "HH": 0, "mm": 0, "ss": 0}
        return datetime.datetime(*({**defaults, **found}[part] for part in _ORDER))
