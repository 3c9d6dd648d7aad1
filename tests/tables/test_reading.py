"""Inputs are read as people expect: items, misfits, missing numbers, offsets, encodings, lines before headers."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import FAILED

REPR = "def run(frame): return [repr(row) for row in frame.to_dict('records')]"
ITEMS = "async def run_item(item): return ascii(item)"


def table(path="data", **options):
    return [{"name": "t", "type": "tabular", "path": path, **options}]


def tables(*options):
    """Returns an input for each of these options."""
    return [{**table(**each)[0], "name": f"t{number}"} for number, each in enumerate(options)]


def kinds(ended):
    return [(kind.get("column"), kind["problem"], kind["count"]) for kind in ended.result.get("warning_kinds", [])]


LINES = [
    '{"id": 1, "prompt": "hi", "max_tokens": 100}',
    '{"prompt": "yo", "id": 2}',
    '{"id": 3, "max_tokens": 1, "max_tokens": 99999999999999999999999}',
    '{"id": 4, "x": "\\ud83d", "y": [1, {"a": 1.0}], "z": 1e400}',
    '{"id": 5.0, "prompt": null, "late": {"k": true}}',
    "{}",
]


@pytest.mark.parametrize("types", ["original", "pandas"])
def test_items_are_what_json_makes_of_their_lines(workplace, types):
    workplace.write({"data/a.jsonl": "\n".join(LINES) + "\n"})
    ended = workplace.job(ITEMS, inputs=table(types=types)).run()
    assert ended.lines == [ascii(json.loads(line)) for line in LINES]
    script = "def run(items): return [ascii(item) for item in items]"
    ended = workplace.job(script, inputs=table(types=types), arguments=["--amlbi_file_format", "jsonl"]).run()
    assert ended.lines == [ascii(json.loads(line)) for line in LINES]


def test_items_have_mended_text_listed_keys_those_of_the_path_and_exact_numbers(workplace):
    workplace.write({"text/a.jsonl": b'{"t": "good"}\n{"t": "caf\xe9"}\n'})
    workplace.write({"keys/k/a.jsonl": '{"b": 1, "a": 2, "c": 3}\n{"c": 1}\n'})
    workplace.write({"numbers/a.csv": f"id,n\n{2**53 + 1},x\n,y\n"})
    keys = {"path": "keys", "columns": ["a", "b"], "partition_format": "keys/{k}/a.jsonl"}
    inputs = tables({"path": "text"}, keys, {"path": "numbers", "types": "pandas"})
    ended = workplace.job(ITEMS, inputs=inputs).run()
    text = [ascii({"t": "good"}), ascii({"t": "caf\ufffd"})]
    listed = ["{'b': 1, 'a': 2, 'k': 'k'}", "{'k': 'k'}"]
    assert ended.lines == [*text, *listed, f"{{'id': {2**53 + 1}, 'n': 'x'}}", "{'id': None, 'n': 'y'}"]
    warned = [kind for kind in kinds(ended) if kind[0] == "t"]
    assert warned == [("t", "bytes that are not valid in the encoding, replaced by U+FFFD", 1)]


def test_items_have_no_types_that_they_could_contradict(workplace):
    lines = [*(f'{{"id": {number}}}' for number in range(250)), '{"id": "late", "new": 1}', "no object", '{"id": 1.5}']
    workplace.write({"data/a.jsonl": "\n".join(lines) + "\n"})
    good = [line for line in lines if line.startswith("{")]
    ended = workplace.job(ITEMS, inputs=table(), mini_batch_size="1MB").run()
    assert ended.lines == [ascii(json.loads(line)) for line in good]
    assert ended.items == (253, 252, 1) and [kind[1] for kind in kinds(ended)] == [
        "lines that are not JSON objects, the record failed"
    ]
    ended = workplace.job("def run(df): return df.id.tolist()", inputs=table(), mini_batch_size="1MB").run()
    assert ended.lines == [str(number) for number in range(250)]
    assert [reject["detail"].rsplit(" ", 1)[1] for reject in ended.rejects()] == ["251", "252", "253"]


def test_half_a_surrogate_pair_is_replaced_with_a_warning(workplace):
    lines = ['{"id": 1, "t": "ok"}', '{"id": 2, "t": "cut \\ud83d"}', '{"id": 3, "t": "\\ud83d\\ude00"}']
    workplace.write({"data/a.jsonl": "\n".join(lines) + "\n"})
    script = "def run(df): return [f'{a} {ascii(b)}' for a, b in zip(df.id, df.t)]"
    ended = workplace.job(script, inputs=table()).run()
    assert ended.lines == ["1 'ok'", "2 'cut \\ufffd'", "3 '\\U0001f600'"]
    assert kinds(ended) == [("t", "half of a surrogate pair, replaced by U+FFFD", 1)]


def test_key_twice_in_a_line_does_not_change_the_type_of_its_column(workplace):
    workplace.write({"data/a.jsonl": '{"a": 2, "b": 1}\n{"a": "x", "a": 3, "b": 2}\n{"a": 4, "a": 5, "b": 3}\n'})
    script = "def run(df): return [f'{df.a.dtype} {value}' for value in df.a]"
    ended = workplace.job(script, inputs=table()).run()
    assert ended.lines == ["int64 2", "int64 3", "int64 5"]


def test_value_that_does_not_fit_fails_its_row(workplace):
    text = "id,v\n" + "".join(f"{row},{'soon' if row == 230 else row}\n" for row in range(260))
    workplace.write({"data/a.csv": text})
    script = "def run(df): return df.id.tolist()"
    job = workplace.job(script, inputs=table(), mini_batch_size="1MB", error_threshold=1)
    ended = job.run()
    assert ended.items == (260, 259, 1) and "230" not in ended.lines
    (reject,) = ended.rejects()
    assert reject["detail"].endswith("a.csv, line 232")
    assert reject["message"] == 'column "v": "soon" is not an integer'
    failed = workplace.job(script, inputs=table(), mini_batch_size="1MB", error_threshold=0).run(expect=FAILED)
    assert failed.state == "Failed", "a rejected row counts"
    kept = workplace.job(script, inputs=table(on_type_mismatch="missing"), mini_batch_size="1MB").run()
    assert kept.items == (260, 260, 0)
    assert kinds(kept) == [("v", "not a whole number, read as missing", 1)]


def test_rejects_of_several_files_name_their_own_file(workplace):
    text = "v\n" + "1\n2\n" * 100
    workplace.write({"data/a.csv": text, "data/b.csv": text + "soon\n", "data/c.csv": text + "late\n"})
    ended = workplace.job(REPR, inputs=table(), mini_batch_size="1MB").run()
    details = [reject["detail"].rsplit("/", 1)[1] for reject in ended.rejects()]
    assert details == ["b.csv, line 202", "c.csv, line 202"]


def test_codes_that_become_truth_values_are_said_once(workplace):
    workplace.write({"data/a.csv": "label,answer,t\n" + "1,Y,true\n0,N,false\n" * 20})
    ended = workplace.job(REPR, inputs=tables({}, {"types": "pandas"}), mini_batch_size="10 rows").run()
    assert ended.lines[0] == "{'label': True, 'answer': True, 't': True}"
    assert ended.lines[40] == "{'label': 1, 'answer': 'Y', 't': True}"
    found = {kind["column"]: kind for kind in ended.result["warning_kinds"]}
    assert sorted(found) == ["answer", "label"] and [kind[2] for kind in kinds(ended)] == [40] * 2, "of one input"
    assert found["label"]["remedy"] == "to keep them, set types: pandas, or columns: {label: int64}"
    assert found["answer"]["remedy"].endswith("columns: {answer: string}")


def test_dates_of_either_order_are_read_with_the_month_first_and_said_once(workplace):
    workplace.write({"data/a.csv": "at,due,n\n" + "1/2/2020,1/31/2020,1\n3/3/2020,2/1/2020,2\n" * 10})
    script = "def run(df): return [str(value.date()) for value in df['at']]"
    chosen = ({"columns": {"at": kind}} for kind in ("timestamp_day_first", "timestamp"))
    ended = workplace.job(script, inputs=tables({}, *chosen), mini_batch_size="10 rows").run()
    month_first, day_first = ["2020-01-02", "2020-03-03"] * 10, ["2020-02-01", "2020-03-03"] * 10
    assert ended.lines == [*month_first, *day_first, *month_first]
    # Only the first input leaves it open.
    assert kinds(ended) == [("at", "dates whose day and month could be swapped, read with the month first", 20)]
    remedy = ended.result["warning_kinds"][0]["remedy"]
    assert remedy.endswith("set columns: {at: timestamp_day_first} if days come first"), remedy


def test_dropped_offsets_are_said_once_and_kept_by_the_rules_of_pandas(workplace):
    workplace.write({"data/a.csv": "at,n\n2024-05-01T10:00:00+02:00,1\n2024-05-01T10:00:00-05:00,2\n"})
    script = "def run(df): return [f'{df.dtypes.iloc[0]} {value}' for value in df['at']]"
    keeps = {"types": "pandas", "columns": {"at": "timestamp"}}
    ended = workplace.job(script, inputs=tables({}, keeps)).run()
    assert ended.lines == [
        "datetime64[ns] 2024-05-01 08:00:00",
        "datetime64[ns] 2024-05-01 15:00:00",
        "datetime64[ns, UTC] 2024-05-01 08:00:00+00:00",
        "datetime64[ns, UTC] 2024-05-01 15:00:00+00:00",
    ]
    assert kinds(ended) == [("at", "times with an offset, converted to UTC and the offset dropped", 2)]
    remedy = ended.result["warning_kinds"][0]["remedy"]
    assert "types: pandas with columns: {at: timestamp}" in remedy, remedy


def test_encodings_have_the_names_of_python(workplace):
    names = ["latin-1", "latin1", "iso-8859-1", "ISO8859_1", "cp1252", "utf-8-sig", "utf_8", "utf-16", "utf_16_be"]
    workplace.write({f"data/{name}.csv": f"name\nZürich {name}\n".encode(name) for name in names})
    inputs = tables(*({"path": f"data/{name}.csv", "encoding": name} for name in names))
    ended = workplace.job("def run(df): return df.name.tolist()", inputs=inputs).run()
    assert ended.lines == [f"Zürich {name}" for name in names]


def test_lines_before_the_header_are_skipped(workplace):
    text = "made by a tool\n\nat: 2024, with a comma\nid,n\n" + "".join(f"{row},x\n" for row in range(2, 12))
    workplace.write({"data/a.csv": text, "data/b.csv": text})
    script = "def run(df): return [f'{list(df.columns)} {value}' for value in df.iloc[:, 0]]"
    for size in ("5 rows", 20, "1MB"):
        ended = workplace.job(script, inputs=table(skip_rows=3), mini_batch_size=size).run()
        assert ended.lines == [f"['id', 'n'] {row}" for row in range(2, 12)] * 2, size
    ended = workplace.job(script, inputs=table(skip_rows=4, header="no_header", support_multi_line=True)).run()
    assert ended.lines == [f"['Column1', 'Column2'] {row}" for row in range(2, 12)] * 2


def test_parquet_file_without_a_listed_column_is_named(workplace):
    (workplace.folder / "data").mkdir()
    pq.write_table(pa.table({"a": [1], "b": [2]}), workplace.folder / "data/a.parquet")
    pq.write_table(pa.table({"a": [100], "c": [3]}), workplace.folder / "data/c.parquet")
    ended = workplace.job(REPR, inputs=table(columns=["a", "b"]), run_max_try=1).run()
    (reject,) = ended.rejects()
    assert 'c.parquet has no column "b", which `columns` lists and the first file has' in reject["message"]
    assert "changed" not in reject["message"]


def test_note_about_other_headers_names_the_key_that_reads_them(workplace):
    workplace.write({"data/a.csv": "id,name\n1,a\n", "data/b.csv": "name,id\nb,2\n"})
    ended = workplace.job(REPR, inputs=table(), run_max_try=1).run()
    assert "set `header: all_files_different_headers` to read each file by its own" in ended.stderr
    ended = workplace.job(REPR, inputs=table(header="all_files_different_headers")).run()
    assert ended.lines == ["{'id': 1, 'name': 'a'}", "{'id': 2, 'name': 'b'}"]
    assert "another line" not in ended.stderr


def test_date_that_proves_the_other_order_says_so(workplace):
    workplace.write({"data/a.csv": "d,v\n" + "03/04/2024,1\n" * 250 + "25/12/2024,2\n"})
    ended = workplace.job(REPR, inputs=table()).run()
    remedies = {kind["column"]: kind["remedy"] for kind in ended.result["warning_kinds"]}
    assert remedies["d"].endswith("set columns: {d: timestamp_day_first} if days come first")


def test_long_row_where_the_first_look_ends_is_reported(workplace):
    """The look at the beginning of a file ends within a row of many cells, which is behind its last whole line."""
    text = "a,b\n" + "1,2\n" * 1020 + ",".join("123456789012") + "\n" + "1,2\n" * 100
    workplace.write({"data/a.csv": text})
    ended = workplace.job("def run(frame): return list(frame.a)", inputs=table()).run()
    assert len(ended.lines) == 1120 and ended.items == (1121, 1120, 1), str(ended)
