"""The stand-in for ``mltable``: the expected frames are those of the real package, for the same files."""

import numpy
import pandas
import pytest
from agent import PACKAGE

from gristmill import mltable

FILES = {"1.csv": "a,b,c\n1,x,0\n2,,1\n", "2.csv": "a,d,c\n3,q,1\n", "sub/3.csv": "a,b,c\n7,z,0\n"}
ONE = {"1.csv": "a,b,c,d,e\n1,x,1.5,yes,31/01/2020\n2,,2.5,no,01/02/2020\n3,z,,maybe,\n"}
JSON = {
    "1.jsonl": '{"a": 1, "b": "x", "n": {"k": 1}}\n{"a": 2, "c": true, "l": [1, 2]}\n',
    "2.jsonl": '{"a": 3.5, "b": null, "z": "2020-01-01"}\n',
}
PARTS = {"S1/B1/w1.csv": "p\n1\n", "S1/B2/w2.csv": "p\n3\n", "S2/B1/w3.csv": "p\n5\n"}


def folder(tmp_path, files, *steps, reader="read_delimited", paths="pattern: ./*.csv", settings=""):
    """Writes a table, and returns its folder."""
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    settings = settings or ("delimiter: ','" if reader == "read_delimited" else "include_path_column: false")
    lines = ["type: mltable", "paths:", f"  - {paths}", "transformations:", f"  - {reader}: {{{settings}}}"]
    (tmp_path / "MLTable").write_text("\n".join([*lines, *(f"  - {step}" for step in steps)]) + "\n")
    return tmp_path


def shown(frame):
    """Returns columns, types and rows of a frame, with ``None`` for every missing value."""
    rows = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
    return {name: str(kind) for name, kind in frame.dtypes.items()}, rows


@pytest.mark.parametrize(
    ("header", "types", "rows"),
    [
        (
            "no_header",
            {"Column1": "object", "Column2": "object", "Column3": "object"},
            [["a", "b", "c"], ["1", "x", "0"], ["2", None, "1"], ["a", "d", "c"], ["3", "q", "1"]],
        ),
        (
            "from_first_file",
            {"a": "object", "b": "object", "c": "object"},
            [["1", "x", "0"], ["2", None, "1"], ["a", "d", "c"], ["3", "q", "1"]],
        ),
        (
            "all_files_different_headers",
            {"a": "int64", "b": "object", "c": "bool", "d": "object"},
            [[1, "x", False, None], [2, None, True, None], [3, None, True, "q"]],
        ),
        (
            "all_files_same_headers",
            {"a": "int64", "b": "object", "c": "bool"},
            [[1, "x", False], [2, None, True], [3, "q", True]],
        ),
    ],
)
def test_headers_of_delimited_files(tmp_path, header, types, rows):
    table = mltable.load(str(folder(tmp_path, FILES, settings=f"header: {header}")))
    assert shown(table.to_pandas_dataframe()) == (types, rows)


@pytest.mark.parametrize(
    ("text", "settings", "types", "rows"),
    [
        ("a,b\n1\n2,3,4\n\n5,6\n", "", ["int64", "float64", "float64"], [[1, None, None], [2, 3, 4], [5, 6, None]]),
        ('a,b\n"x, y",1\n"q""q",2\n', "", ["object", "int64"], [["x, y", 1], ['q"q', 2]]),
        ('a,b\n"x\ny",1\nz,2\n', "", ["object", "float64"], [['"x', None], ['y"', 1], ["z", 2]]),
        ('a,b\n"x\ny",1\nz,2\n', "support_multi_line: true", ["object", "int64"], [["x\ny", 1], ["z", 2]]),
        ("a,b\nx,1\n,\n", "empty_as_string: true", ["object", "object"], [["x", "1"], ["", ""]]),
        ("a,b\nx,1\n,\n", "infer_column_types: false", ["object", "object"], [["x", "1"], [None, None]]),
        ("a,b\r\n1, x \r\n", "", ["bool", "object"], [[True, " x "]]),
        ("a;b\n1;2,5\n", "delimiter: ;", ["bool", "object"], [[True, "2,5"]]),
        ("a,b\né,2\n".encode("latin1"), "encoding: latin1", ["object", "int64"], [["é", 2]]),
        ("a,b\né,2\n".encode("utf16"), "encoding: utf16", ["object", "int64"], [["é", 2]]),
        ("a,b\nNA,null\n", "", ["object", "object"], [["NA", "null"]]),
        ("a,b\ntrue,0\n,\nFALSE,1\n", "", ["object", "object"], [[True, False], [None, None], [False, True]]),
        ("a,b\n007,99999999999999999999\n010,1\n", "", ["int64", "float64"], [[7, 1e20], [10, 1]]),
        (
            "a,b,c\n1/31/2020,31/1/2020,2020-01-01T00:00:00+02:00\n2/1/2020,1/2/2020,\n",
            "",
            ["datetime64[ns]"] * 3,
            [
                [pandas.Timestamp("2020-01-31"), pandas.Timestamp("2020-01-31"), pandas.Timestamp("2019-12-31T22")],
                [pandas.Timestamp("2020-02-01"), pandas.Timestamp("2020-02-01"), None],
            ],
        ),
    ],
)
def test_cells_and_types(tmp_path, text, settings, types, rows):
    found = mltable.load(str(folder(tmp_path, {"1.csv": text}, settings=settings))).to_pandas_dataframe()
    assert shown(found)[0] == dict(zip(found.columns, types, strict=True))
    assert shown(found)[1] == rows


def test_types_are_those_of_the_first_rows(tmp_path):
    text = "b,i\n" + "".join(f"{row % 2},{row}\n" for row in range(250)) + "2,x\n1,1.5\n"
    found = mltable.load(str(folder(tmp_path, {"1.csv": text}, "skip: 249"))).to_pandas_dataframe()
    assert shown(found) == ({"b": "object", "i": "float64"}, [[True, 249], [None, None], [True, 1]])


def test_same_as_pandas_where_both_know_the_types(tmp_path):
    numbers = numpy.random.default_rng(1)
    frame = pandas.DataFrame(
        {"i": numbers.integers(5, 10**12, 500), "f": numbers.random(500), "s": [f"t{row}, ä" for row in range(500)]}
    )
    text = frame.to_csv(index=False)
    found = mltable.load(str(folder(tmp_path, {"1.csv": text}))).to_pandas_dataframe()
    known = pandas.read_csv(tmp_path / "1.csv").astype({"s": object})
    pandas.testing.assert_frame_equal(found, known, check_column_type=False)


@pytest.mark.filterwarnings("ignore:.*the table has no column none")
@pytest.mark.parametrize(
    ("steps", "columns", "rows"),
    [
        (["keep_columns: [c, a, none]"], ["a", "c"], 3),
        (["drop_columns: [c, none]"], ["a", "b", "d", "e"], 3),
        (["take: 2", "drop_columns: a"], ["b", "c", "d", "e"], 2),
        (["skip: 1", "take: 1", "keep_columns: a"], ["a"], 1),
    ],
)
def test_columns_and_rows_are_selected(tmp_path, steps, columns, rows):
    found = mltable.load(str(folder(tmp_path, ONE, *steps))).to_pandas_dataframe()
    assert (list(found.columns), len(found)) == (columns, rows)


@pytest.mark.parametrize(
    ("step", "settings", "said"),
    [
        ("keep_columns: [price, stor]", "", "keep_columns: the table has no column stor; did you mean store?"),
        ("drop_columns: [prise]", "", "drop_columns: the table has no column prise; did you mean price?"),
        ("drop_columns: [Path, zip]", "", "drop_columns: the table has no column zip; it has store, price"),
        (
            "convert_column_types: [{columns: [price, Store], column_type: string}]",
            "",
            "convert_column_types: the table has no column Store; did you mean store?",
        ),
        (
            "take: 1",
            "infer_column_types: {column_type_overrides: {stores: string}}",
            "column types: the table has no column stores; did you mean store?",
        ),
    ],
)
def test_column_that_the_table_does_not_have_is_a_warning(tmp_path, step, settings, said):
    """The real package ignores it."""
    table = mltable.load(str(folder(tmp_path, {"1.csv": "store,price\n1,2\n"}, step, settings=settings)))
    with pytest.warns(UserWarning) as warned:
        assert len(table.to_pandas_dataframe()) == 1
    assert [str(one.message) for one in warned] == [said]


def test_known_columns_and_empty_tables_give_no_warning(tmp_path, recwarn):
    steps = ["drop_columns: [Path, b]", "keep_columns: [a]"]
    for text in ("a,b,c\n1,2,3\n", ""):
        mltable.load(str(folder(tmp_path, {"1.csv": text}, *steps))).to_pandas_dataframe()
    assert not recwarn.list


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("keep_columns: [stor, prise]", "keep_columns: the table has no column stor; did you mean store?"),
        ("drop_columns: [store, price]", "drop_columns leaves the table no column: leave one out of its list"),
    ],
)
def test_table_without_columns_is_an_error(tmp_path, step, said):
    table = mltable.load(str(folder(tmp_path, {"1.csv": "store,price\n1,2\n"}, step)))
    with pytest.raises(mltable.InvalidTable) as raised:
        table.to_pandas_dataframe()
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("columns", "kind", "values", "dtype"),
    [
        ("a", "string", ["1", "2", "3"], "object"),
        ("a", "boolean", [True, True, True], "bool"),
        ("c", "int", [1, 2, None], "float64"),
        ("c", "string", ["1.5", "2.5", None], "object"),
        ("d", "int", [None, None, None], "object"),
        ("d", "{boolean: {true_values: ['yes'], false_values: ['no']}}", [True, False, None], "object"),
        (
            "d",
            "{boolean: {true_values: ['yes'], false_values: ['no'], mismatch_as: 'false'}}",
            [True, False, False],
            "bool",
        ),
        ("[e]", "string", ["2020-01-31T00:00:00+00:00", "2020-02-01T00:00:00+00:00", None], "object"),
        (
            "e",
            "{datetime: {formats: ['%d/%m/%Y']}}",
            [pandas.Timestamp("2020-01-31"), pandas.Timestamp("2020-02-01"), None],
            "datetime64[ns]",
        ),
    ],
)
def test_types_are_converted(tmp_path, columns, kind, values, dtype):
    step = f"convert_column_types: [{{columns: {columns}, column_type: {kind}}}]"
    found = mltable.load(str(folder(tmp_path, ONE, step))).to_pandas_dataframe()[columns.strip("[]")]
    assert ([None if pandas.isna(value) else value for value in found], str(found.dtype)) == (values, dtype)


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        ("int", {"1_000": None, " 5 ": 5, "٣": None, "+3": 3, "1e3": 1000, "x": None}),
        ("float", {"1_000": None, " .5": 0.5, "٣": None, "1.": 1.0, "-inf": -numpy.inf, "1e": None}),
        ("boolean", {"T": True, " true": True, "N": False, "0": False, "on": None, "FALSE": False, "1.0": None}),
        (
            "{boolean: {true_values: ['yes'], false_values: ['no']}}",
            {" yes": True, "YES": None, "no": False, "true": None},
        ),
    ],
)
def test_text_conversions_match_azure_ml(tmp_path, kind, cells):
    text = "k,v\n" + "".join(f"r,{cell}\n" for cell in cells)
    step = f"convert_column_types: [{{columns: v, column_type: {kind}}}]"
    place = folder(tmp_path, {"1.csv": text}, step, settings="infer_column_types: false")
    found = mltable.load(str(place)).to_pandas_dataframe()["v"]
    assert [None if pandas.isna(value) else value for value in found] == list(cells.values())


def test_digits_of_other_scripts_are_text(tmp_path):
    place = folder(tmp_path, {"1.csv": "a,b\n٣,1_000\n"})
    assert mltable.load(str(place)).to_pandas_dataframe().to_dict("list") == {"a": ["٣"], "b": ["1_000"]}


def test_columns_from_paths(tmp_path):
    step = "extract_columns_from_partition_format: {partition_format: '{Store}/{Brand}/{file}.{ext}'}"
    place = folder(tmp_path, PARTS, step, "drop_columns: [Path, file, ext]", paths="pattern: ./**/*.csv")
    table = mltable.load(str(place))
    assert shown(table.to_pandas_dataframe())[1] == [[1, "S1", "B1"], [3, "S1", "B2"], [5, "S2", "B1"]]
    days = {"2020/01/31/a.csv": "p\n2\n"}
    step = "extract_columns_from_partition_format: {partition_format: '{day:yyyy/MM/dd}/{name}.csv'}"
    place = folder(
        tmp_path / "days", days, step, paths="folder: .", settings="include_path_column: true, delimiter: ','"
    )
    types, rows = shown(mltable.load(str(place)).to_pandas_dataframe())
    assert list(types) == ["Path", "p", "name", "day"], "times come last"
    assert rows == [[f"{place}/2020/01/31/a.csv", 2, "a", pandas.Timestamp("2020-01-31")]]


def test_column_of_paths(tmp_path):
    settings = "delimiter: ',', include_path_column: true"
    place = folder(tmp_path / "a", FILES, settings=settings)
    types, rows = shown(mltable.load(str(place)).to_pandas_dataframe())
    assert types == {"Path": "object", "a": "int64", "b": "object", "c": "bool"}
    assert [row[0] for row in rows] == [f"{place}/1.csv", f"{place}/1.csv", f"{place}/2.csv"]
    for step, columns in [("drop_columns: [Path]", ["a", "b", "c"]), ("keep_columns: [c, Path]", ["Path", "c"])]:
        frame = mltable.load(str(folder(place, FILES, step, settings=settings))).to_pandas_dataframe()
        assert list(frame.columns) == columns
    place = folder(tmp_path / "b", FILES, settings="delimiter: ',', path_column: Path")
    assert "Path" not in mltable.load(str(place)).to_pandas_dataframe().columns, "as there"
    named = f"{settings}, path_column: from"
    table = mltable.load(str(folder(tmp_path / "d", FILES, settings=named))).to_pandas_dataframe()
    assert table.columns[0] == "from" and "Path" not in table.columns
    place = folder(tmp_path / "c", {"1.csv": "Path,a\nx,1\n"}, settings=settings)
    with pytest.raises(mltable.InvalidTable, match="the files have a column Path"):
        mltable.load(str(place)).to_pandas_dataframe()


def test_types_of_inference_are_those_of_the_columns(tmp_path):
    files = {"1.csv": "a,b,c\n007,1,2\n"}
    settings = "infer_column_types: {sample_size: 5, column_type_overrides: {a: string, b: float}}"
    types, rows = shown(mltable.load(str(folder(tmp_path / "a", files, settings=settings))).to_pandas_dataframe())
    assert (types, rows) == ({"a": "object", "b": "float64", "c": "int64"}, [["007", 1.0, 2]])
    place = folder(tmp_path / "b", files, settings="infer_column_types: {sample_size: 5}")
    assert mltable.load(str(place)).to_pandas_dataframe()["a"].tolist() == [7]
    with pytest.raises(mltable.InvalidTable, match="infer_column_types has no key types"):
        mltable.load(str(folder(tmp_path / "c", files, settings="infer_column_types: {types: {}}")))


def test_json_lines(tmp_path):
    place = folder(tmp_path, JSON, reader="read_json_lines", paths="pattern: ./*.jsonl")
    types, rows = shown(mltable.load(str(place)).to_pandas_dataframe())
    assert types == {"a": "float64", "b": "object", "n": "object", "c": "object", "l": "object", "z": "object"}
    assert rows[1] == [2, None, None, True, [1, 2], None]
    bad = {"1.jsonl": '{"a": 2}\nno\n{"a": 3}\n'}
    place = folder(tmp_path / "bad", bad, reader="read_json_lines", paths="pattern: ./*.jsonl")
    with pytest.raises(mltable.InvalidTable, match=r"1\.jsonl, line 2 is not a JSON object"):
        mltable.load(str(place)).to_pandas_dataframe()
    settings = "invalid_lines: drop"
    place = folder(place, bad, reader="read_json_lines", paths="pattern: ./*.jsonl", settings=settings)
    assert mltable.load(str(place)).to_pandas_dataframe()["a"].tolist() == [2, 3]


def test_parquet(tmp_path):
    pandas.DataFrame({"i": [1, 2], "s": ["a", None]}).to_parquet(tmp_path / "1.parquet")
    pandas.DataFrame({"i": [3], "x": [1.5]}).to_parquet(tmp_path / "2.parquet")
    place = folder(tmp_path, {}, reader="read_parquet", paths="pattern: ./*.parquet")
    types, rows = shown(mltable.load(str(place)).to_pandas_dataframe())
    assert types == {"i": "int64", "s": "object", "x": "float64"}
    assert rows == [[1, "a", None], [2, None, None], [3, None, 1.5]]


def test_table_from_calls(tmp_path, monkeypatch):
    folder(tmp_path, ONE)
    monkeypatch.chdir(tmp_path)
    paths = [{"file": "1.csv"}]
    table = mltable.from_delimited_files(paths, header=mltable.MLTableHeaders.all_files_same_headers, delimiter=",")
    kinds = {"a": mltable.DataType.to_string(), ("c", "b"): mltable.DataType.to_float()}
    table = table.convert_column_types(kinds).keep_columns(["a", "b", "c"]).take(1)
    assert shown(table.to_pandas_dataframe()) == ({"a": "object", "b": "object", "c": "float64"}, [["1", None, 1.5]])
    assert mltable.from_paths(paths).to_pandas_dataframe()["Path"].tolist() == [str(tmp_path / "1.csv")]
    assert table.paths == paths
    with pytest.raises(NotImplementedError, match=r"MLTable\.save is not supported by the stand-in for mltable"):
        table.save("x")


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (
            ["filter: 'col(\"a\") > 1'"],
            "the transformation filter is not supported here; supported are read_delimited,",
        ),
        (["take_random_sample: {probability: 0.1}"], "the transformation take_random_sample is not supported here"),
        (["keep_column: a"], "keep_column is not a transformation; did you mean keep_columns?"),
        (["read_parquet"], "a table has one reader, and this one has read_delimited, read_parquet"),
        (["take: x"], "take needs a number of rows, not 'x'"),
        (["drop_columns: []"], "drop_columns needs names of columns, not []"),
        (["extract_columns_from_partition_format: '{a'"], "'{a' is not a partition format"),
        (["convert_column_types: [{columns: a, column_type: datetime}]"], "datetime needs formats"),
        (["convert_column_types: [{columns: a, column_type: stream_info}]"], "'stream_info' is not supported"),
    ],
)
def test_invalid_step_is_named(tmp_path, steps, reason):
    with pytest.raises(mltable.InvalidTable) as raised:
        mltable.load(str(folder(tmp_path, ONE, *steps)))
    assert str(raised.value).startswith(f"{tmp_path}/MLTable: ")
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("paths", "settings", "reason"),
    [
        ("pattern: ./*.tsv", "", "/*.tsv of the table has no file"),
        ("file: none.csv", "", "none.csv of the table does not exist"),
        ("folder: none", "", "none of the table does not exist"),
        ("pattern: abfss://files@a.dfs.core.windows.net/*.csv", "", "make it an input of the job"),
        ("pattern: ./*.csv", "encoding: ascii", "1.csv is not ascii"),
        ("pattern: ./*.csv", "headers: no_header", "has no setting headers; did you mean header?"),
        ("pattern: ./*.csv", "header: none", "header must be one of no_header, from_first_file"),
        ("glob: ./*.csv", "", "a path must be one of file, folder and pattern"),
    ],
)
def test_unreadable_documents_are_named(tmp_path, paths, settings, reason):
    place = folder(tmp_path, {"1.csv": "a\né\n"}, paths=paths, settings=settings)
    with pytest.raises((mltable.InvalidTable, FileNotFoundError)) as raised:
        mltable.load(str(place)).to_pandas_dataframe()
    assert reason in str(raised.value)


def test_path_without_the_format_is_an_error(tmp_path):
    step = "extract_columns_from_partition_format: '{Store}-{Brand}.csv'"
    with pytest.raises(ValueError, match=r"1\.csv does not have the partition format '\{Store\}-\{Brand\}\.csv'"):
        mltable.load(str(folder(tmp_path, ONE, step))).to_pandas_dataframe()


def test_folder_without_a_table(tmp_path):
    with pytest.raises(mltable.InvalidTable, match="holds no file MLTable"):
        mltable.load(str(tmp_path))


def test_script_imports_it_unless_the_real_one_is_there(tmp_path, script):
    folder(tmp_path, ONE)
    shows = "import mltable\nprint(mltable.__doc__[:10], len(mltable.load('.').to_pandas_dataframe()))\n"
    assert script(shows) == "A stand-in 3\n"
    (tmp_path / "site").mkdir()
    (tmp_path / "site/mltable.py").write_text('"""The real one."""\ndef load(path): \n    class T:\n        '
                                              "def to_pandas_dataframe(self): return []\n    return T()\n")  # fmt: skip
    assert script(shows, PYTHONPATH=f"{tmp_path / 'site'}:{PACKAGE}") == "The real o 0\n"
