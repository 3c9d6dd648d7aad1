"""Tables as arguments of `run`: nested values, given types, compressed files; and reports of lost values."""

import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

REPR = """
def run(frame):
    return [repr([row, [str(kind) for kind in frame.dtypes]]) for row in frame.to_dict(orient="records")]
"""


def table(path="data", **options):
    return [{"name": "t", "type": "tabular", "path": path, **options}]


def rows(ended):
    return [eval(line, {"nan": float("nan")}) for line in ended.lines]


def test_nested_json_lines_reach_the_script_as_dicts_and_lists(workplace):
    chats = [
        {"id": 1, "messages": [{"role": "user", "content": 'hi, "you"\n'}, {"role": "system", "content": None}]},
        {"id": 2, "messages": [], "tags": {"a": {"b": [1, 2.5, True, None, "x"]}}},
        {"id": 3, "messages": None, "tags": "text", "big": 2**70 + 1},
        {"id": 4, "tags": 7, "big": 1.5},
    ]
    workplace.write({"data/chats.jsonl": "".join(json.dumps(line) + "\n" for line in chats)})
    ended = workplace.job(REPR, inputs=table("data/chats.jsonl")).run()
    for (row, types), line in zip(rows(ended), chats, strict=True):
        assert row["id"] == line["id"] and row["messages"] == line.get("messages"), row
        assert row["tags"] == line.get("tags"), row
        assert types[:3] == ["int64", "object", "object"]
    kind = ended.result["warning_kinds"][0]
    assert (kind["column"], kind["count"]) == ("big", 1), "rounded, as missing values make it float64"


def test_nested_parquet_equals_the_conversion_of_pyarrow(workplace):
    (workplace.folder / "data").mkdir()
    columns = {
        "id": [1, 2],
        "struct": pa.array([{"a": 1, "b": [None, "x"]}, None]),
        "list": pa.array([[1, None], []], pa.list_(pa.int64())),
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "structs": pa.array([[{"role": "user"}], [{"role": None}]]),
    }
    pq.write_table(pa.table(columns), workplace.folder / "data/t.parquet")
    script = """
        import pickle, os
        def run(frame):
            frame.to_pickle(os.environ["FRAME"])
            return [1] * len(frame)
    """
    frame = workplace.folder / "frame.pickle"
    workplace.job(script, inputs=table("data/t.parquet")).run(FRAME=str(frame))
    expected = pq.read_table(workplace.folder / "data/t.parquet").to_pandas()
    assert repr(pd.read_pickle(frame).to_dict()) == repr(expected.to_dict())


def test_values_lost_after_the_first_rows_are_reported_with_a_remedy(workplace):
    text = (
        "a,b\n" + "".join(f"{row},{row % 2}\n" for row in range(200)) + "".join(f"{row},2\n" for row in range(200, 260))
    )
    workplace.write({"data/t.csv": text})
    script = "def run(frame): return [f'{value}' for value in frame['b']]"
    inputs = table("data/t.csv", on_type_mismatch="missing")
    job = workplace.job(script, inputs=inputs, mini_batch_size="100 rows")
    ended = job.run()
    assert ended.lines[-1] == "None"
    kind = ended.result["warning_kinds"]
    found = [(one["column"], one["count"], one["column_type"]) for one in kind]
    assert found == [("b", 200, "integer"), ("b", 60, "integer")]
    assert kind.pop(0)["problem"].startswith("only 0 and 1")
    assert kind[0]["first"].endswith('t.csv, line 202: "2"') and kind[0]["remedy"].endswith("set columns: {b: int64}")
    assert "not a truth value, read as missing (60 times; first: " in ended.log("job_result.txt")
    said = workplace.command("run", job.file)
    assert '    column "b": not a truth value, read as missing (60 times; first: ' in said.stdout + said.stderr

    ended = workplace.job(script, inputs=table("data/t.csv", columns={"b": "int64"})).run()
    assert (ended.lines[0], ended.lines[-1], ended.result["warnings"]) == ("0", "2", 0)
    assert "warning_kinds" not in ended.result


def test_parquet_columns_are_converted_exactly_or_rejected(workplace):
    (workplace.folder / "data").mkdir()
    pq.write_table(pa.table({"a": [1.0, 2.0], "b": [1.5, 2.0], "c": [[1], [2]]}), workplace.folder / "data/t.parquet")
    ended = workplace.job(REPR, inputs=table("data/t.parquet", columns=[{"a": "int64"}, {"b": "string"}])).run()
    assert rows(ended) == [[{"a": 1, "b": "1.5"}, ["int64", "object"]], [{"a": 2, "b": "2.0"}, ["int64", "object"]]]
    ended = workplace.job(REPR, inputs=table("data/t.parquet", columns={"b": "int64"}), error_threshold=0).run(
        expect=42
    )
    assert 'column "b" is Float64 and has values that are not int64' in ended.log("job_error.txt")
    ended = workplace.job(REPR, inputs=table("data/t.parquet", columns={"c": "int64"})).start().wait()
    assert ended.exit_status in (2, 42), str(ended)
    assert "cannot be read as int64" in ended.stdout + ended.stderr, str(ended)


def test_whole_numbers_of_parquet_that_pandas_rounds_are_reported_with_a_remedy(workplace):
    (workplace.folder / "data").mkdir()
    pq.write_table(pa.table({"id": [1, 2**53 + 1, None]}), workplace.folder / "data/t.parquet")
    ended = workplace.job(REPR, inputs=table("data/t.parquet")).run()
    assert [row[0]["id"] for row in rows(ended)][:2] == [1.0, 2.0**53]
    (kind,) = ended.result["warning_kinds"]
    assert (kind["column"], kind["count"], kind["problem"]) == ("id", 1, "more digits than float64 holds, rounded")
    assert kind["first"].endswith('t.parquet, row group 0, row 2: "9007199254740993"'), kind
    assert kind["remedy"] == "to keep them, set columns: {id: string}"
    assert "more digits than float64 holds, rounded (once: " in ended.log("job_result.txt")

    kept = workplace.job(REPR, inputs=table("data/t.parquet", columns={"id": "string"})).run()
    assert [row[0]["id"] for row in rows(kept)][1] == str(2**53 + 1) and kept.result["warnings"] == 0
    arrow = "__gristmill_arrow__ = True\ndef run(table): return [str(value) for value in table['id'].to_pylist()]"
    kept = workplace.job(arrow, inputs=table("data/t.parquet")).run()
    assert (kept.lines, kept.result["warnings"]) == (["1", str(2**53 + 1), "None"], 0)


def test_brotli_is_rejected_by_name(workplace):
    (workplace.folder / "data").mkdir()
    pq.write_table(pa.table({"a": [1, 2]}), workplace.folder / "data/t.parquet", compression="brotli")
    ended = workplace.job(REPR, inputs=table("data/t.parquet")).start().wait()
    assert ended.exit_status in (2, 42), str(ended)
    assert "t.parquet has columns compressed with brotli" in ended.stdout + ended.stderr
