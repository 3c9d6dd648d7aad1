"""A stand-in for ``mltable``, whose native part exists for few interpreters. An installed one takes precedence."""

from gristmill.mltable import (
    DataType,
    MLTable,
    MLTableFileEncoding,
    MLTableHeaders,
    from_delimited_files,
    from_json_lines_files,
    from_parquet_files,
    from_paths,
    load,
)

__all__ = [
    "DataType",
    "MLTable",
    "MLTableFileEncoding",
    "MLTableHeaders",
    "from_delimited_files",
    "from_json_lines_files",
    "from_parquet_files",
    "from_paths",
    "load",
]


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise NotImplementedError(f"mltable.{name} needs the real mltable: add it to the environment of the script")
