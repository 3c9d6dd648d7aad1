"""Tables for functions that take Arrow, or what Arrow reads: mapped from the agent's memory file, not copied.

The agent overwrites a file once the process has answered its mini-batch. So the process gives up the mapping before it
answers. Objects that still refer to the mapping, such as a table that the function keeps, get private pages first.
"""

import mmap

PAGE = mmap.PAGESIZE
OWN = b"gristmill."
"""Beginning of the keys of metadata that the agent writes (``protocol/src/fields.rs``)."""
LINES = b"gristmill.lines"
FITS = b"gristmill.fits"


class MissingPyarrow(Exception):
    """The function takes Arrow tables, objects or Parquet files, and this interpreter cannot read them."""


class SharedTable:
    """The table of a mini-batch in a memory file."""

    def __init__(self, descriptor, length):
        # A private mapping: pages that are written are copied, all others are those of the file. The file only grows.
        self._memory = mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY)
        self._length = length

    def read(self):
        """Returns a ``pyarrow.Table`` whose columns lie in the mapping. Leaves out columns and metadata that the agent
        adds for other readers."""
        import pyarrow

        table = pyarrow.ipc.open_stream(pyarrow.py_buffer(self._memory)).read_all()
        metadata = [field.metadata or {} for field in table.schema]
        for place, known in enumerate(metadata):
            if FITS in known:
                table = table.filter(table.column(place))
        hidden = [place for place, known in enumerate(metadata) if LINES in known or FITS in known]
        for place in reversed(hidden):
            table = table.remove_column(place)
        if any(key.startswith(OWN) for field in table.schema for key in field.metadata or ()):
            schema = pyarrow.schema([_without_own(field) for field in table.schema], table.schema.metadata)
            table = pyarrow.Table.from_arrays(table.columns, schema=schema)
        return table

    def release(self):
        """Frees the file for its next table. Pages that are still referenced become private copies."""
        memory = self._memory
        try:
            memory.close()
        except BufferError:
            for offset in range(0, self._length, PAGE):
                memory[offset] = memory[offset]


def _without_own(field):
    metadata = field.metadata or {}
    return field.with_metadata({key: value for key, value in metadata.items() if not key.startswith(OWN)} or None)


def require_pyarrow(executable):
    """Fails if there is no pyarrow, before the first mini-batch spends a try."""
    import importlib.util

    if importlib.util.find_spec("pyarrow") is None:
        raise MissingPyarrow(
            f"the function takes Arrow tables, objects or Parquet files, and {executable} has no pyarrow: "
            f"run {executable} -m pip install pyarrow"
        )
