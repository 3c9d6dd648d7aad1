"""Tables that pandas, Polars and pyarrow write, and read again: the forms, types and values of
`tests/tables/test_other_libraries.py`."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from hypothesis import strategies as st

TEXTS = st.text(st.sampled_from(list("abé ü€😀,;\t'\"\\|{}[]#0\n")), max_size=12).map(lambda text: "t" + text)
"""None of them looks like a number, and every reader treats white space as blank."""
PLAIN_TEXTS = st.text(st.sampled_from(list("abé ü€😀;'|{}[]#0")), max_size=12).map(lambda text: "t" + text)
"""Without quotes, delimiters, line breaks and escape characters."""
LOOKALIKES = st.sampled_from(
    [
        "007",
        "1e5",
        "-0",
        "+1",
        "0x1f",
        "1_000",
        "inf",
        "nan",
        "NaN",
        "2020-01-31",
        "1/31/2020",
        "12:30",
        "true",
        "T",
        "null",
        "None",
        "NA",
        "  5",
        "5 ",
        " t ",
        "\xa05",
        "t\u2003",
    ]
)
"""Texts that look like numbers, dates, truth values or missing values, and texts with spaces at their ends."""
RETURNS = st.text(st.sampled_from(list("ab \r")), min_size=1, max_size=9).map(lambda text: f"t{text}t")
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
    "lookalike": LOOKALIKES,
}
OF_PARQUET = {
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint8": st.integers(0, 2**8 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "time": st.times(),
    "duration": st.timedeltas(datetime.timedelta(-(10**5)), datetime.timedelta(10**5)),
    "null": st.none(),
    "binary": st.binary(max_size=9),
    "fixed_binary": st.binary(min_size=4, max_size=4),
    "chats": CHATS,
    "numbers": st.lists(FLOATS, max_size=3),
    "fixed_list": st.lists(FLOATS, min_size=2, max_size=2),
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
    "lookalike": pa.string(),
    "returns": pa.string(),
    **{kind: getattr(pa, kind)() for kind in ("int16", "int32", "uint8", "uint16", "uint32", "null", "string_view")},
    "time": pa.time64("us"),
    "duration": pa.duration("us"),
    "decimal256": pa.decimal256(60, 2),
    "fixed_binary": pa.binary(4),
    "fixed_list": pa.list_(pa.float64(), 2),
    "enum": pa.dictionary(pa.int32(), pa.string()),
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
    "lookalike": "string",
    "returns": "string",
}
"""The names of `columns` in the job file."""
WHOLE = ("int64", "int8", "uint64", "int16", "int32", "uint8", "uint16", "uint32")
NUMBERS = (*WHOLE, "float64", "float32", "decimal")


class Form(NamedTuple):
    """How a library writes a table."""

    format: str
    writer: str
    compression: str
    quoting: str = ""


QUOTINGS = {
    "pandas": ["minimal", "all", "nonnumeric", "none"],
    "polars": ["necessary", "always", "non_numeric", "never"],
    "pyarrow": ["needed", "all_valid", "none"],
}
QUOTES_NOTHING = ("none", "never")
QUOTES_EVERY_TEXT = ("all", "nonnumeric", "always", "non_numeric", "all_valid")
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
    if form.quoting in QUOTES_NOTHING:
        kinds |= {"string": PLAIN_TEXTS}
    if form.quoting in QUOTES_EVERY_TEXT:
        kinds |= {"returns": RETURNS}
    if form.format == "jsonl":
        kinds |= {"chats": CHATS}
        if form.writer == "json":
            kinds |= {"json": JSON_VALUES}
    if form.format == "parquet":
        kinds |= OF_PARQUET
        if form.writer == "polars":
            kinds |= {"enum": kinds["category"]}
        else:
            kinds |= {"decimal256": st.decimals(-(10**50), 10**50, places=2)}
        if form.writer == "pyarrow":
            pairs = st.dictionaries(TEXTS, st.integers(0, 9), max_size=3)
            kinds |= {"map": pairs.map(lambda entries: list(entries.items())), "string_view": TEXTS}
    return kinds


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
            enums = [pl.col("^enum_.*$").cast(pl.String).cast(pl.Enum(["ta", "tbé", "t c"]))]
            pl.from_arrow(table).with_columns(enums).write_parquet(
                path, compression=codec, row_group_size=choices["group"]
            )
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
