"""Checked results: rows that do not fit `result_schema` reject their items."""

import datetime

import numpy
import pyarrow
import pytest
from agent import rows_of_tables

COLUMNS = {
    "columns": [
        {"name": "id", "type": "integer"},
        {"name": "total", "type": "number"},
        {"name": "note", "type": "string", "nullable": True},
    ]
}
JSON = {"json": {"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]}}


@pytest.fixture
def answer(start):
    """Returns the value of an expression from `run`, in one process for each schema and format of the output."""
    agents = {}
    script = "def run(mini_batch):\n    names = {}\n    exec(open('code.py').read(), names)\n    return names['result']"

    def answer(expression, schema, items=3, output_format="jsonl"):
        key = (str(schema), output_format)
        if key not in agents:
            agents[key] = start(script, row_schema=schema, output_format=output_format)
        imports = "".join(f"import {name}\n" for name in ("datetime", "numpy", "pandas") if name in expression)
        (agents[key].scratch / "code.py").write_text(f"{imports}result = {expression}")
        return agents[key].run([str(item) for item in range(items)])

    return answer


def tables_of(event):
    """Returns the tables on both sides of item 1, which has no row."""
    (_, bytes_before), (item, _) = event["pieces"]
    assert item == 2
    return [pyarrow.ipc.open_stream(event["rows"][start:]).read_all() for start in (0, bytes_before)]


def misfits(event):
    assert {(one["status"], one["error"]["category"]) for one in event.get("failed_items", [])} <= {
        ("illegal_result", "RowDoesNotFit")
    }
    return [(one["item"], one["error"]["message"]) for one in event.get("failed_items", [])]


def test_rows_that_fit_stay_as_they_are(answer):
    rows = [
        {"id": 1, "total": 1.5, "note": "a"},
        {"id": 2, "total": 2, "note": None},
        {"id": 3, "total": 3.0, "note": ""},
    ]
    event = answer(repr(rows), COLUMNS)
    assert (event["returned"], misfits(event)) == (3, [])
    assert rows_of_tables(event) == rows


def test_row_that_does_not_fit_is_left_out(answer):
    event = answer("[{'id': 1, 'total': 1}, {'id': 2, 'total': 'x'}, {'id': 3}]", COLUMNS)
    assert (event["status"], event["returned"]) == ("succeeded", 1)
    assert misfits(event) == [(1, 'total: expected number, got "x"'), (2, "total: missing, expected number")]
    (row,) = rows_of_tables(event)
    assert row == {"id": 1, "total": 1, "note": None} and list(row) == ["id", "total", "note"], "all, in their order"


def test_json_schema_leaves_rows_as_they_are(answer):
    event = answer("[{'total': 1, 'other': [1]}, {'total': None}, 'text']", JSON)
    assert misfits(event) == [(1, 'total: null is not of type "number"'), (2, '"text" is not of type "object"')]
    assert (event["returned"], rows_of_tables(event)) == (1, [{"total": 1, "other": [1]}])


def test_rows_of_csv_get_the_columns_and_those_of_text_stay(answer):
    result = "[{'total': 2.5, 'id': 1}, {'id': 'x', 'total': 2}, {'note': 'c', 'id': 3, 'total': 1.0}]"
    event = answer(result, COLUMNS, output_format="csv")
    assert rows_of_tables(event) == [{"id": 1, "total": 2.5, "note": None}, {"id": 3, "total": 1.0, "note": "c"}]
    text = answer(result, COLUMNS, output_format="text")
    assert text["rows"] == b"{'total': 2.5, 'id': 1}\n{'note': 'c', 'id': 3, 'total': 1.0}\n"
    assert misfits(event) == misfits(text) == [(1, 'id: expected integer, got "x"')]


def test_sequences_fill_columns_by_position_and_plain_values_the_column_value(answer):
    event = answer("[[1, 2.5, 'a'], (2, 'x', 'b'), [3, 1.0]]", COLUMNS, output_format="csv")
    assert rows_of_tables(event) == [{"id": 1, "total": 2.5, "note": "a"}]
    assert misfits(event) == [
        (1, 'total: expected number, got "x"'),
        (2, "expected the columns id, total, note, got [3,1.0]"),
    ]
    value = {"columns": [{"name": "value", "type": "string"}]}
    for output_format in ("csv", "jsonl"):
        event = answer("['a', 5, 'c']", value, output_format=output_format)
        assert rows_of_tables(event) == [{"value": "a"}, {"value": "c"}]
        assert misfits(event) == [(1, "value: expected string, got 5")]
    assert answer("['a', 5, 'c']", value, output_format="text")["rows"] == b"a\nc\n"


def test_frames(answer):
    frame = "pandas.DataFrame({'total': [1.5, None, 2.0], 'id': [1.0, 2.0, 3.0]})"
    event = answer(frame, COLUMNS, output_format="csv")
    assert rows_of_tables(event) == [{"id": 1, "total": 1.5, "note": None}, {"id": 3, "total": 2.0, "note": None}]
    assert list(rows_of_tables(event)[0]) == ["id", "total", "note"], "in the order of the schema"
    assert event["returned"] == 2
    assert misfits(event) == [(1, "total: expected number, got null")]
    event = answer("pandas.DataFrame({'total': [1.5, 2.5, 3.5], 'id': [1, 2, 3], 'more': [1, 2, 3]})", COLUMNS)
    assert (event["rows"], event["returned"]) == (b"", 0), "no row fits"
    assert misfits(event) == [(item, "more: not a column of result_schema") for item in range(3)]
    event = answer("pandas.DataFrame([[1, 2], [3, 4], [5, 6]], columns=['a', 'a'])", JSON)
    assert event["status"] == "illegal_result" and "unique column names" in event["error"]["message"]


def test_parquet(answer):
    schema = {"columns": [{"name": "at", "type": "timestamp"}, {"name": "name", "type": "string"}]}
    event = answer(
        "pandas.DataFrame({'name': ['a', None, 'c'], 'at': pandas.to_datetime(['2026-01-31'] * 3)})",
        schema,
        output_format="parquet",
    )
    assert misfits(event) == [(1, "name: expected string, got null")]
    assert [(table.column_names, table.num_rows) for table in tables_of(event)] == [(["at", "name"], 1)] * 2
    event = answer(
        "[{'name': 'a', 'at': datetime.datetime(2026, 1, 31)}, {'name': 'b', 'at': 7}, ['2026-01-31 10:00:00', 'c']]",
        schema,
        output_format="parquet",
    )
    assert misfits(event) == [(1, "at: expected timestamp, got 7")]
    assert [row for table in tables_of(event) for row in table.to_pylist()] == [
        {"at": datetime.datetime(2026, 1, 31), "name": "a"},
        {"at": "2026-01-31 10:00:00", "name": "c"},
    ], "the reducer makes instants of texts"


def test_bad_row_without_its_item_is_an_illegal_result(answer):
    event = answer("[{'total': 1}, {'total': 'x'}]", JSON)
    assert event["status"] == "illegal_result"
    assert event["error"]["message"] == (
        'row 1 of the result does not fit result_schema (total: "x" is not of type "number"), and which item it '
        "belongs to is unknown: run() returned 2 results for 3 items"
    )
    event = answer("[{'total': 1}, {'total': 2}]", JSON)
    assert (event["status"], event["returned"]) == ("succeeded", 2), "as without a schema"


def test_run_item_names_the_item_where_others_return_nothing(start):
    script = """
        async def run_item(item):
            return None if item == "1" else {"total": "x" if item == "2" else 1}
    """
    event = start(script, row_schema=JSON, output_format="jsonl").run(["0", "1", "2", "3"])
    assert (event["returned"], rows_of_tables(event)) == (3, [{"total": 1}, {"total": 1}])
    assert misfits(event) == [(2, 'total: "x" is not of type "number"')]


def test_each_of_many_bad_rows_is_named(answer):
    for value, step in (("'x'", 1), ("i if i % 2 else 'x'", 2)):
        event = answer(f"[{{'total': {value}}} for i in range(1000)]", JSON, items=1000)
        bad = range(0, 1000, step)
        assert misfits(event) == [(item, 'total: "x" is not of type "number"') for item in bad]
        assert (event["returned"], event.get("warnings", [])) == (1000 - len(bad), [])


def test_without_a_schema_nothing_is_checked(start):
    agent = start("import sys\ndef run(mini_batch): return ['gristmill.checked' in sys.modules]")
    assert agent.run()["rows"] == b"False\n"


def test_values_are_checked_as_json_lines_would_hold_them(answer):
    schema = {"json": {"properties": {"v": {"type": ["number", "null"]}}}}
    event = answer("[{'v': numpy.float32(1.5)}, {'v': float('nan')}, {'v': numpy.bool_(True)}]", schema)
    assert misfits(event) == [(2, 'v: true is not of types "null", "number"')]
    assert rows_of_tables(event) == [{"v": 1.5}, {"v": None}]


MISSING = "[{'at': pandas.NaT, 'n': pandas.NA}, {'at': float('nan'), 'n': float('nan')}, {'at': None, 'n': pandas.NaT}]"
NULLABLE = {
    "columns": [
        {"name": "at", "type": "timestamp", "nullable": True},
        {"name": "n", "type": "integer", "nullable": True},
    ]
}


@pytest.mark.parametrize("output_format", ["csv", "jsonl"])
def test_missing_values_of_pandas_fit_columns_that_may_be_null(answer, output_format):
    event = answer(MISSING, NULLABLE, output_format=output_format)
    assert (misfits(event), rows_of_tables(event)) == ([], [{"at": None, "n": None}] * 3)
    required = {"columns": [{**column, "nullable": False} for column in NULLABLE["columns"]]}
    assert misfits(answer(MISSING, required)) == [(item, "at: expected timestamp, got null") for item in range(3)]


def test_missing_values_of_pandas_in_parquet(answer):
    result = (
        "[{'at': pandas.Timestamp('2026-01-31'), 'n': 1}, {'at': pandas.NaT, 'n': pandas.NA}, {'at': None, 'n': 3.0}]"
    )
    event = answer(result, NULLABLE, output_format="parquet")
    table = pyarrow.ipc.open_stream(event["rows"]).read_all()
    assert table["at"].null_count == 2 and table["n"].to_pylist() == [1, None, 3]
    result = "[{'at': '2026-01-31 10:00:00', 'n': 1}, {'at': pandas.NaT, 'n': 2}, {'at': datetime.date(2026, 1, 31)}]"
    event = answer(result, NULLABLE, output_format="parquet")
    assert misfits(event) == [(2, 'at: expected timestamp, got "2026-01-31"')]
    table = pyarrow.ipc.open_stream(event["rows"]).read_all()
    assert table["at"].to_pylist() == ["2026-01-31 10:00:00", None], "not a text NaT"


INTEGERS = {"columns": [{"name": "n", "type": "integer", "nullable": True}, {"name": "x", "type": "number"}]}
OF_FLOATS = [
    "[{'n': 3.0, 'x': 1.0}, {'n': None, 'x': 2.5}, {'n': numpy.float32(4), 'x': 3.5}, {'n': numpy.int8(5), 'x': 1}]",
    "[[3.0, 1.0], [float('nan'), 2.5], (4, 3.5), (5, 1)]",
    "pandas.DataFrame({'x': [1.0, 2.5, 3.5, 1], 'n': [3.0, None, 4.0, 5.0]}, index=[0, 0, 1, 1])",
    "pandas.DataFrame({'n': pandas.Series([3.0, None, 4, 5.0], dtype=object), 'x': [1.0, 2.5, 3.5, 1]})",
    "pandas.DataFrame({'n': pandas.Series([3.0, None, 4, 5.0], dtype='Float64'), 'x': [1.0, 2.5, 3.5, 1]})",
    "pandas.DataFrame({'n': numpy.array([3, 'inf', 4, 5], 'float32'), 'x': [1.0, 2.5, 3.5, 1]})",
]


@pytest.mark.parametrize("output_format", ["csv", "jsonl", "parquet"])
def test_columns_of_integers_take_whole_floating_point_numbers(answer, output_format):
    for result in OF_FLOATS:
        event = answer(result, INTEGERS, items=4, output_format=output_format)
        # The reducer turns them into integers, and infinity into null.
        values = [None if row["n"] in (None, float("inf")) else int(row["n"]) for row in rows_of_tables(event)]
        assert (values, misfits(event)) == ([3, None, 4, 5], []), result


def test_lines_of_text_keep_floats(answer):
    event = answer("[{'n': 3.0, 'x': 1.0}] * 3", INTEGERS, output_format="text")
    assert event["rows"] == b"{'n': 3.0, 'x': 1.0}\n" * 3


STRINGS = {"columns": [{"name": "s", "type": "string", "nullable": True}]}


@pytest.mark.parametrize("rows", ["{}", "pandas.DataFrame({})"])
def test_bytes_are_not_a_string(answer, rows):
    """They have a text in JSON, but their column would be binary, which no other mini-batch fits."""
    for bad, kind in (("b'x'", "bytes"), ("bytearray(b'x')", "bytearray"), ("numpy.bytes_(b'x')", "bytes_")):
        result = f"[{{'s': 'a'}}, {{'s': {bad}}}, {{'s': 'c'}}]"
        event = answer(rows.format(result), STRINGS, output_format="parquet")
        assert misfits(event) == [(1, f"s: expected string, got {kind}")]
        assert [table.to_pylist() for table in tables_of(event)] == [[{"s": "a"}], [{"s": "c"}]]


def test_strings_are_the_texts_of_json(answer):
    """In every mini-batch: one with only instants or decimals would have a column of another type."""
    values = "[datetime.datetime(2026, 1, 31), datetime.time(1, 2), None, __import__('decimal').Decimal('1.50')]"
    texts = ["2026-01-31T00:00:00", "01:02:00", None, "1.50"]
    for result in (f"[{{'s': value}} for value in {values}]", f"pandas.DataFrame({{'s': {values}}}, dtype=object)"):
        event = answer(result, STRINGS, items=4, output_format="parquet")
        assert misfits(event) == []
        table = pyarrow.ipc.open_stream(event["rows"]).read_all()
        assert (table["s"].to_pylist(), table.schema.field("s").type) == (texts, pyarrow.string())


def test_number_beyond_64_bits_names_its_field(answer):
    columns = {"columns": [{"name": "n", "type": "number"}]}
    for number in ("2**63", "-(10**30)", "numpy.uint64(2**63)"):
        result = f"[{{'n': 1}}, {{'n': {number}}}, {{'n': 2.5}}]"
        for rows in (result, f"pandas.DataFrame({result}, dtype=object)"):
            event = answer(rows, columns, output_format="parquet")
            assert misfits(event) == [(1, f"n: expected a number of 64 bits, got {eval(number, {'numpy': numpy})}")]
        assert misfits(answer(result, columns)) == [], "JSON lines have a form for it"


def test_values_of_any_stay_as_they_are(answer):
    columns = {"columns": [{"name": "any", "type": "any"}]}
    event = answer("[{'any': value} for value in ['a', b'b', b'\\xff', [1, None], {'c': 2}, 7]]", columns, 6, "parquet")
    assert misfits(event) == []
    values = [row["any"] for row in rows_of_tables(event)]
    assert values == ["a", b"b", b"\xff", [1, None], {"c": 2}, 7], "the reducer makes texts of them"
