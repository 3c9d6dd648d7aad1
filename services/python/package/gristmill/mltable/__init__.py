"""The part of the package ``mltable`` that scripts use, in pure Python, for environments without that package: tables
that a file ``MLTable`` describes, read into pandas.

- ``definition.py``: the steps, checked before anything is read.
- ``files.py``: the files of the paths.
- ``readers.py``: the text of files as columns of text; ``inference.py``: their types.
- ``partitions.py``: columns from paths.
- ``table.py``: the lazy table.
"""

from gristmill.mltable.definition import (
    DataType,
    InvalidTable,
    MLTableFileEncoding,
    MLTableHeaders,
)
from gristmill.mltable.table import (
    MLTable,
    from_delimited_files,
    from_json_lines_files,
    from_parquet_files,
    from_paths,
    load,
)

__all__ = [
    "DataType",
    "InvalidTable",
    "MLTable",
    "MLTableFileEncoding",
    "MLTableHeaders",
    "from_delimited_files",
    "from_json_lines_files",
    "from_parquet_files",
    "from_paths",
    "load",
]
