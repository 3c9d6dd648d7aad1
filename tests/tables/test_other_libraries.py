"""Tables written by pandas, Polars and pyarrow reach `run` with the values and the order that these libraries read.

Each example is one job over several tables, each an input of its own: written by one library in one of the `FORMS`,
with some encoding and types, to a folder or a bucket, cut into mini-batches of some size. What `run` got is put
together again and compared with what the library itself reads. Where the two differ on purpose, `DIFFERENCES` says how.
The examples use every form, and every type in each format.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import io
import json
import math
import pickle
from collections import Counter
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

DIFFERENCES = {
    # difference: why the comparison allows it
    "0 and 1 are truth values": "a column of nothing else is bool, as it was in the original; True equals 1",
    "dates in text": "become timestamps, where pandas reads text; compared as timestamps",
    "missing integers": "make the column float64, as in pandas; compared as numbers",
    "integers beyond 64 bits": "make the column float64; compared as numbers",
    "decimals in text": "are float64",
    "time zones": "instants in text are converted to UTC; compared as instants",
    "empty text": "is missing in delimited text, unless `empty_as_string` is set",
    "time units": "timestamps are nanoseconds where they fit; compared as instants",
    "lists": "of Parquet are arrays, of JSON lists; compared by their elements",
    "categories": "are read as their values",
}

SCRIPT = """
import os, pickle
def run(frame, context):
    with open(os.path.join(os.environ["FRAMES"], f"{context.minibatch_index}.pickle"), "wb") as file:
        pickle.dump(frame, file)
    return [None] * len(frame)
"""

TEXTS = st.text(
    st.sampled_from(list("abé ü€😀,;\t'\"\\|{}[]#0\n")),
    max_size=12,
).map(lambda text: "t" + text)
"""None of them looks like a number, and every reader treats white space as blank."""
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INSTANTS = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)).map(
    lambda instant: instant.replace(microsecond=instant.microsecond // 1000 * 1000)
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | FLOATS | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=3),
    max_leaves=6,
)
CHATS = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": TEXTS}), max_size=3)
"""A list of messages: objects with the same keys."""
DATES = st.dates(datetime.date(1900, 1, 1), datetime.date(2200, 1, 1))
FLAT = {
    "int64": INTEGERS,
    "float64": FLOATS,
    "bool": st.booleans(),
    "string": TEXTS,
    "timestamp": INSTANTS,
    "int8": st.integers(-128, 127),
    "uint64": st.integers(0, 2**64 - 1) | st.integers(0, 5),
    "float32": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "date": DATES,
    "zoned": INSTANTS.map(lambda instant: instant.replace(tzinfo=datetime.UTC)),
    "decimal": st.decimals(-99999999, 99999999, places=2),
    "category": st.sampled_from(["ta", "tbé", "t c"]),
}
ARROW_TYPES = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "timestamp": pa.timestamp("ms"),
    "int8": pa.int8(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "date": pa.date32(),
    "zoned": pa.timestamp("ms", "UTC"),
    "decimal": pa.decimal128(10, 2),
    "category": pa.dictionary(pa.int32(), pa.string()),
    "binary": pa.binary(),
    "chats": pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])),
    "numbers": pa.list_(pa.float64()),
    "map": pa.map_(pa.string(), pa.int64()),
}
OUR_TYPES = {
    **{kind: kind for kind in ("int64", "float64", "bool", "string", "timestamp")},
    "int8": "int64",
    "uint64": "float64",
    "float32": "float64",
    "date": "timestamp",
    "zoned": "timestamp",
    "decimal": "float64",
    "category": "string",
}
"""The names of `columns` in the job file."""
WHOLE = ("int64", "int8", "uint64")
NUMBERS = (*WHOLE, "float64", "float32", "decimal")


class Form(NamedTuple):
    """How a library writes a table."""

    format: str
    writer: str
    compression: str
    quoting: str = ""


QUOTINGS = {
    "pandas": ["minimal", "all", "nonnumeric"],
    "polars": ["necessary", "always", "non_numeric"],
    "pyarrow": ["needed", "all_valid"],
}
FORMS = [
    Form(format, writer, compression, quoting)
    for format, writer, compression in product(["csv", "tsv"], QUOTINGS, ["none", "gz", "zst"])
    for quoting in QUOTINGS[writer]
]
FORMS += [Form(*form) for form in product(["jsonl"], ["pandas", "polars", "json"], ["none", "gz", "zst"])]
FORMS += [
    Form(*form)
    for form in product(["parquet"], ["pandas", "polars", "pyarrow"], ["none", "snappy", "gzip", "zstd", "lz4"])
]
SIZES = ["1 rows", "7 rows", "60", "1MB"]
EXAMPLES = 3
"""Jobs with each size. Hypothesis makes the first one as small as possible, so the others use every form."""
TABLES = 12


def forms_of(size: str, example: int) -> list[Form]:
    """Returns the forms of the tables of a job."""
    number = SIZES.index(size) * (EXAMPLES - 1) + max(example - 1, 0)
    first = number * len(FORMS) // (len(SIZES) * (EXAMPLES - 1))
    return [FORMS[(first + table) % len(FORMS)] for table in range(TABLES)]


@dataclass
class Case:
    """One table and its format. Its first column contains its name, which identifies its mini-batches."""

    name: str
    types: dict[str, str]
    columns: dict[str, list[Any]]
    form: Form
    typed: bool
    choices: dict[str, Any]

    @property
    def arrow(self) -> pa.Table:
        arrays = {name: pa.array(self.columns[name], ARROW_TYPES[kind]) for name, kind in self.types.items()}
        return pa.table(arrays)

    @property
    def has_line_breaks(self) -> bool:
        texts = (value for name, kind in self.types.items() if kind == "string" for value in self.columns[name])
        return any("\n" in text for text in texts if text)

    @property
    def is_wide(self) -> bool:
        """Each character has two bytes."""
        return self.form.writer == "pandas" and self.form.format in ("csv", "tsv") and self.choices["wide"]


def kinds_of(form: Form) -> dict[str, st.SearchStrategy[Any]]:
    """Returns the types that a library can write in a form."""
    kinds: dict[str, st.SearchStrategy[Any]] = dict(FLAT)
    if form.format == "jsonl":
        kinds |= {"chats": CHATS}
        if form.writer == "json":
            kinds |= {"json": JSON_VALUES}
    if form.format == "parquet":
        kinds |= {"binary": st.binary(max_size=9), "chats": CHATS, "numbers": st.lists(FLOATS, max_size=3)}
        if form.writer == "pyarrow":
            pairs = st.dictionaries(TEXTS, st.integers(0, 9), max_size=3)
            kinds |= {"map": pairs.map(lambda entries: list(entries.items()))}
    return kinds


def types_of_forms() -> dict[Form, list[str]]:
    """Returns two types for each form: those that its format has the fewest of so far."""
    count: Counter[tuple[str, str]] = Counter()
    chosen = {}
    for form in FORMS:
        chosen[form] = sorted(kinds_of(form), key=lambda kind, form=form: (count[form.format, kind], kind))[:2]
        count.update((form.format, kind) for kind in chosen[form])
    return chosen


TYPES = types_of_forms()


def test_every_form_and_type_is_used():
    used = {form for size in SIZES for example in range(1, EXAMPLES) for form in forms_of(size, example)}
    assert used == set(FORMS)
    can_be_written = {(form.format, kind) for form in FORMS for kind in kinds_of(form)}
    assert {(form.format, kind) for form in FORMS for kind in TYPES[form]} == can_be_written


@st.composite
def cases(draw: st.DrawFn, position: int, form: Form) -> Case:
    kinds = kinds_of(form)
    rows = draw(st.integers(1, 30))
    chosen = TYPES[form] + draw(st.lists(st.sampled_from(sorted(kinds)), max_size=2))
    types = {f"t{position}": "int64"} | {f"{kind}_{index}": kind for index, kind in enumerate(chosen)}
    nothing = st.none() if draw(st.booleans()) else st.nothing()
    columns: dict[str, list[Any]] = {f"t{position}": list(range(10, 10 + rows))}
    for name, kind in list(types.items())[1:]:
        columns[name] = draw(st.lists(kinds[kind] | nothing, min_size=rows, max_size=rows))
    return Case(
        name=f"t{position}",
        types=types,
        columns=columns,
        form=form,
        typed=form.format in ("csv", "tsv") and draw(st.booleans()),
        choices={
            "crlf": draw(st.booleans()),
            "mark": draw(st.booleans()),
            "group": draw(st.integers(1, 40)),
            "dictionary": draw(st.booleans()),
            "page": draw(st.sampled_from(["1.0", "2.0"])),
            "wide": draw(st.booleans()),
            "stored": draw(st.booleans()),
        },
    )


def written(case: Case, folder: Path) -> Path:
    """Writes the table with its library."""
    suffix = "" if case.form.format == "parquet" or case.form.compression == "none" else f".{case.form.compression}"
    path = folder / f"{case.name}.{case.form.format}{suffix}"
    if case.form.format == "parquet":
        write_parquet(case, path)
        return path
    text = delimited(case) if case.form.format != "jsonl" else json_lines(case)
    match case.form.compression:
        case "gz":
            text = gzip.compress(text)
        case "zst":
            text = pa.compress(text, codec="zstd", asbytes=True)
    path.write_bytes(text)
    return path


def write_parquet(case: Case, path: Path) -> None:
    table, choices = case.arrow, case.choices
    match case.form.writer:
        case "pandas":
            codec = None if case.form.compression == "none" else case.form.compression
            table.to_pandas().to_parquet(path, compression=codec, row_group_size=choices["group"])
        case "polars":
            codec = {"none": "uncompressed"}.get(case.form.compression, case.form.compression)
            pl.from_arrow(table).write_parquet(path, compression=codec, row_group_size=choices["group"])
        case "pyarrow":
            pq.write_table(
                table,
                path,
                compression=case.form.compression,
                row_group_size=choices["group"],
                use_dictionary=choices["dictionary"],
                data_page_version=choices["page"],
            )


def delimited(case: Case) -> bytes:
    separator = "\t" if case.form.format == "tsv" else ","
    choices, into = case.choices, io.BytesIO()
    line_end = "\r\n" if choices["crlf"] else "\n"
    match case.form.writer:
        case "pandas":
            quoting = getattr(csv, f"QUOTE_{case.form.quoting.upper()}")
            frame = case.arrow.to_pandas(types_mapper=pd.ArrowDtype)
            text = frame.to_csv(index=False, sep=separator, quoting=quoting, lineterminator=line_end)
            encoding = "utf-16-le" if case.is_wide else "utf-8-sig" if choices["mark"] else "utf-8"
            into.write(text.encode(encoding))
        case "polars":
            pl.from_arrow(case.arrow).write_csv(
                into,
                separator=separator,
                quote_style=case.form.quoting,
                line_terminator=line_end,
                include_bom=choices["mark"],
            )
        case "pyarrow":
            options = pa_csv.WriteOptions(delimiter=separator, quoting_style=case.form.quoting)
            pa_csv.write_csv(case.arrow, into, options)
    return into.getvalue()


def json_lines(case: Case) -> bytes:
    match case.form.writer:
        case "pandas":
            frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in case.columns.items()})
            return frame.to_json(orient="records", lines=True, date_format="iso", double_precision=15).encode()
        case "polars":
            into = io.BytesIO()
            pl.from_arrow(case.arrow).write_ndjson(into)
            return into.getvalue()
    names = list(case.columns)
    lines = (dict(zip(names, row, strict=True)) for row in zip(*case.columns.values(), strict=True))
    return "".join(json.dumps(line, default=str) + "\n" for line in lines).encode()


def read_back(case: Case, path: Path) -> dict[str, list[Any]]:
    """Returns the table as the library reads it, or for JSON lines as Python reads each line."""
    if case.form.format == "parquet":
        match case.form.writer:
            case "pandas":
                return lists(pd.read_parquet(path))
            case "polars":
                return pl.read_parquet(path).to_dict(as_series=False)
        return lists(pq.read_table(path).to_pandas())
    text = path.read_bytes()
    text = {"none": bytes, "gz": gzip.decompress}.get(case.form.compression, unpacked)(text)
    if case.is_wide:
        text = text.decode("utf-16-le").encode()
    if case.form.format == "jsonl":
        rows = [json.loads(line) for line in text.decode().splitlines()]
        return {name: [row.get(name) for row in rows] for name in case.columns}
    separator = "\t" if case.form.format == "tsv" else ","
    match case.form.writer:
        case "pandas":
            kinds = {"int64": "Int64", "int8": "Int64", "uint64": "UInt64", "float64": "float64", "float32": "float64"}
            types = {name: kinds.get(kind, str) for name, kind in case.types.items()}
            frame = pd.read_csv(
                io.BytesIO(text),
                sep=separator,
                dtype=types,
                keep_default_na=False,
                na_values=[""],
                float_precision="round_trip",
            )
            return lists(frame)
        case "polars":
            kinds = {"int64": pl.Int64, "int8": pl.Int64, "uint64": pl.UInt64}
            kinds |= {"float64": pl.Float64, "float32": pl.Float64}
            types = {name: kinds.get(kind, pl.String) for name, kind in case.types.items()}
            return pl.read_csv(io.BytesIO(text), separator=separator, schema=types).to_dict(as_series=False)
    kinds = {"int64": "int64", "int8": "int64", "uint64": "uint64", "float64": "float64", "float32": "float64"}
    types = {name: kinds.get(kind, "string") for name, kind in case.types.items()}
    table = pa_csv.read_csv(
        io.BytesIO(text),
        parse_options=pa_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )
    return table.to_pydict()


def unpacked(text: bytes) -> bytes:
    return pa.CompressedInputStream(pa.BufferReader(text), "zstd").read()


def lists(frame: pd.DataFrame) -> dict[str, list[Any]]:
    return {name: list(frame[name]) for name in frame.columns}


def is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value))


def same(ours: Any, theirs: Any, kind: str) -> bool:
    """Returns whether two values are equal, except for `DIFFERENCES`."""
    if is_missing(ours) or is_missing(theirs):
        return is_missing(ours) and (is_missing(theirs) or theirs == "")
    if kind in NUMBERS and isinstance(ours, bool | np.bool_):
        return ours == float(theirs)
    if kind in WHOLE and isinstance(ours, float | np.floating):
        return ours == float(theirs)
    if kind == "decimal" and not isinstance(ours, decimal.Decimal):
        return float(ours) == float(theirs)
    if isinstance(ours, pd.Timestamp):
        return instant(ours) == instant(theirs)
    if kind == "bool":
        return bool(ours) == (theirs if isinstance(theirs, bool | np.bool_) else str(theirs).lower() == "true")
    if kind == "map":
        return dict(ours) == dict(theirs)
    if isinstance(ours, list | tuple | np.ndarray):
        return len(ours) == len(theirs) and all(same(*pair, "") for pair in zip(ours, theirs, strict=True))
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key], "") for key in ours)
    return (type(ours) is type(theirs) and ours == theirs) or (is_number(ours) and is_number(theirs) and ours == theirs)


def instant(value: Any) -> pd.Timestamp:
    """Returns an instant in UTC, without the zone."""
    found = pd.Timestamp(value)
    return found if found.tzinfo is None else found.tz_convert("UTC").tz_localize(None)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool | np.bool_)


def frames_of(workplace, bucket, cases: list[Case], size: str) -> dict[str, pd.DataFrame]:
    """Runs one job over all tables, and joins the mini-batches of each."""
    for folder in ("tables", "frames"):
        (workplace.folder / folder).mkdir(exist_ok=True)
        for file in (workplace.folder / folder).iterdir():
            file.unlink()
    inputs = []
    for case in cases:
        path = written(case, workplace.folder / "tables")
        table = {"name": case.name, "type": "tabular", "path": str(path)}
        if case.choices["stored"]:
            bucket.put(path.name, path.read_bytes())
            table["path"] = bucket.url(path.name)
        if case.is_wide:
            table["encoding"] = "utf-16le"
        if case.form.format in ("csv", "tsv"):
            table["support_multi_line"] = case.has_line_breaks
        if case.typed:
            table["columns"] = {name: OUR_TYPES[kind] for name, kind in case.types.items()}
        inputs.append(table)
    job = workplace.job(SCRIPT, inputs=inputs, mini_batch_size=size, output_action="summary_only", output=None)
    job.run(FRAMES=str(workplace.folder / "frames"))
    parts: dict[str, list[pd.DataFrame]] = {case.name: [] for case in cases}
    for file in sorted((workplace.folder / "frames").iterdir(), key=lambda file: int(file.stem)):
        frame = pickle.loads(file.read_bytes())
        parts[frame.columns[0]].append(frame)
    return {name: pd.concat([part.astype(object) for part in frames]) for name, frames in parts.items()}


@pytest.mark.parametrize("size", SIZES)
def test_tables_of_other_libraries_are_read_unchanged(workplace, bucket, size):
    examples = 0

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        nonlocal examples
        forms = forms_of(size, examples)
        tables = data.draw(st.tuples(*(cases(position, form) for position, form in enumerate(forms))))
        examples += 1
        compare(workplace, bucket, list(tables), size)

    check()
    assert examples == EXAMPLES


def compare(workplace, bucket, tables: list[Case], size: str) -> None:
    frames = frames_of(workplace, bucket, tables, size)
    for case in tables:
        path = next((workplace.folder / "tables").glob(f"{case.name}.*"))
        expected, found = read_back(case, path), lists(frames[case.name])
        assert list(found) == list(expected), case
        for name, kind in case.types.items():
            pairs = zip(found[name], expected[name], strict=True)
            for row, (ours, theirs) in enumerate(pairs):
                assert same(ours, theirs, kind), f"{name}, row {row}: {ours!r} and not {theirs!r}; {case}"
