"""Tables for functions that take Arrow, or what Arrow reads: mapped from the agent's memory file, not copied.

The agent overwrites a file once its mini-batch is answered. So before the answer, the process gives up the mapping;
what still refers to it, such as a table that the function keeps, gets pages of its own first.
"""

import mmap

PAGE = mmap.PAGESIZE


class MissingPyarrow(Exception):
    """The function takes Arrow tables, objects or Parquet files, and this interpreter cannot read them."""


class SharedTable:
    """The table of a mini-batch in a memory file."""

    def __init__(self, descriptor, length):
        # A private mapping: pages that are written are copied, all others are those of the file. The file only grows.
        self._memory = mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY)
        self._length = length

    def read(self):
        """Returns a ``pyarrow.Table`` whose columns lie in the mapping."""
        import pyarrow

        return pyarrow.ipc.open_stream(pyarrow.py_buffer(self._memory)).read_all()

    def release(self):
        """Makes the file free for its next table. Pages that something still refers to become private copies."""
        memory = self._memory
        try:
            memory.close()
        except BufferError:
            for offset in range(0, self._length, PAGE):
                memory[offset] = memory[offset]


def require_pyarrow(executable):
    """Fails if there is no pyarrow, before the first mini-batch spends a try."""
    import importlib.util

    if importlib.util.find_spec("pyarrow") is None:
        raise MissingPyarrow(
            f"the function takes Arrow tables, objects or Parquet files, and {executable} has no pyarrow: "
            f"run {executable} -m pip install pyarrow"
        )
