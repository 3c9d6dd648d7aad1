"""A lazy table: each method returns a table with one more step, and ``to_pandas_dataframe`` reads it."""

import os

from gristmill.azureml_core.unsupported import unsupported
from gristmill.mltable import definition, files

PATH_COLUMN = "Path"


def load(uri, storage_options=None, ml_client=None):
    """Returns the table that the file ``MLTable`` in a folder defines. Reads no data yet."""
    place = files.absolute(str(uri), os.getcwd())
    if "://" in place:
        raise definition.InvalidTable(
            f"{place} cannot be read from a script: make it an input of the job, whose local path the script gets"
        )
    folder = os.path.abspath(os.path.dirname(place) if os.path.basename(place) == files.DEFINITION else place)
    paths, steps = definition.read_definition(folder)
    return MLTable(paths, steps, folder)


def from_paths(paths):
    """Returns a table of files: dictionaries with ``file``, ``folder`` or ``pattern``."""
    return MLTable(definition.checked_paths(paths), [], os.getcwd())


def from_delimited_files(paths, **settings):
    """Returns a table of delimited files."""
    return from_paths(paths)._with("read_delimited", settings)


def from_json_lines_files(paths, **settings):
    """Returns a table of files with one JSON object in each line."""
    return from_paths(paths)._with("read_json_lines", settings)


def from_parquet_files(paths, include_path_column=False):
    """Returns a table of Parquet files."""
    return from_paths(paths)._with("read_parquet", {"include_path_column": include_path_column})


class MLTable:
    """A table in files."""

    def __init__(self, paths, steps, folder):
        self._paths = paths
        self._steps = steps
        self._folder = folder

    @property
    def paths(self):
        """The paths, as they were given."""
        return [dict(entry) for entry in self._paths]

    def _with(self, name, settings):
        steps = definition.checked_steps([{known: None} for known, _ in self._steps if known in definition.READERS])
        if steps and name in definition.READERS:
            raise definition.InvalidTable(f"this table already has a reader: {steps[0][0]}")
        return MLTable(self._paths, [*self._steps, definition.step(name, settings)], self._folder)

    def take(self, count=20):
        """Returns the first rows."""
        return self._with("take", count)

    def skip(self, count):
        """Returns the rows after the first ones."""
        return self._with("skip", count)

    def show(self, count=20):
        """Returns the first rows as a DataFrame."""
        return self.take(count).to_pandas_dataframe()

    def keep_columns(self, columns):
        """Returns these columns, in the order of the table."""
        return self._with("keep_columns", _listed(columns))

    def drop_columns(self, columns):
        """Returns the other columns."""
        return self._with("drop_columns", _listed(columns))

    def convert_column_types(self, column_types):
        """Returns the table with other types of columns, by name or names."""
        entries = [
            {"columns": list(names) if isinstance(names, tuple) else names, "column_type": kind}
            for names, kind in column_types.items()
        ]
        return self._with("convert_column_types", entries)

    def extract_columns_from_partition_format(self, partition_format):
        """Returns the table with columns from the paths of its files."""
        return self._with("extract_columns_from_partition_format", partition_format)

    def to_pandas_dataframe(self):
        """Reads the table."""
        import pandas

        from gristmill.mltable.conversion import converted
        from gristmill.mltable.readers import read

        found = files.files_of(self._paths, self._folder)
        frame, positions, reader = None, None, None
        for name, settings in self._steps:
            if name in definition.READERS:
                frame, positions = read(name, settings, found)
                reader = settings
                # As in Azure ML, `path_column` alone gives no column.
                if settings["include_path_column"]:
                    named = settings["path_column"] or PATH_COLUMN
                    if named in frame.columns:
                        raise definition.InvalidTable(
                            f"the files have a column {named}, and so has include_path_column: leave it out"
                        )
                    frame.insert(0, named, pandas.Series([found[place][0] for place in positions], dtype=object))
                continue
            if frame is None:
                raise definition.InvalidTable(
                    f"{name} comes before a reader: begin with {', '.join(definition.READERS)}"
                )
            if name in ("take", "skip"):
                rows = slice(None, settings) if name == "take" else slice(settings, None)
                frame, positions = frame.iloc[rows].reset_index(drop=True), positions[rows]
            elif name == "keep_columns":
                kept = [column for column in frame.columns if column in settings]
                if len(frame) and not kept:
                    raise definition.InvalidTable(definition.unknown_column(name, settings, frame.columns))
                definition.warn_of_unknown_column(name, settings, frame.columns)
                frame = frame[kept]
            elif name == "drop_columns":
                # Many definitions drop the column of paths without having it.
                definition.warn_of_unknown_column(name, [one for one in settings if one != PATH_COLUMN], frame.columns)
                frame = frame[[column for column in frame.columns if column not in settings]]
            elif name == "convert_column_types":
                for columns, kind, details in settings:
                    definition.warn_of_unknown_column(name, columns, frame.columns)
                    for column in columns:
                        if column in frame.columns:
                            frame = frame.assign(**{column: converted(frame[column], kind, details)})
            else:
                frame = _with_partitions(frame, settings, [address for address, _ in found], positions)
        if reader is None:
            return pandas.DataFrame({PATH_COLUMN: pandas.Series([address for address, _ in found], dtype=object)})
        if len(frame) and frame.columns.empty:
            raise definition.InvalidTable("drop_columns leaves the table no column: leave one out of its list")
        return frame

    def __getattr__(self, name):
        raise unsupported(f"MLTable.{name}", "mltable")

    def __repr__(self):
        steps = ", ".join(name for name, _ in self._steps)
        return f"MLTable(paths={self._paths}, transformations=[{steps}])"


def _with_partitions(frame, form, addresses, positions):
    import pandas

    values = [form.values(address) for address in addresses]
    frame = frame.copy()
    # Azure ML puts times after texts.
    for place, name in sorted(enumerate(form.names), key=lambda column: form.is_time(column[0])):
        column = [values[position][place] for position in positions]
        kind = "datetime64[ns]" if form.is_time(place) else object
        frame[name] = pandas.Series(column, dtype=kind, index=frame.index)
    return frame


def _listed(columns):
    return [columns] if isinstance(columns, str) else list(columns)
