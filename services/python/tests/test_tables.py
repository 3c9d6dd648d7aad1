"""Tables from the agent: the frame for `run`, and the lifetime of its memory."""

import datetime
import decimal
import os

import pyarrow as pa
from agent import lines, memory_file

SHOW = """
import numpy, pandas
def run(frame):
    return [f"{name}|{frame.dtypes.iloc[at]}|{frame.iloc[:, at].tolist()}" for at, name in enumerate(frame.columns)]
"""


def batch(**columns):
    return pa.record_batch(list(columns.values()), names=list(columns))


def shown(agent, table):
    return lines(agent.run_table(table))


def test_columns_have_the_types_of_pandas(start):
    agent = start(SHOW)
    instant = datetime.datetime(2020, 1, 2, 3, 4, 5)
    table = batch(
        i=pa.array([1, -2], pa.int64()),
        i_missing=pa.array([1, None], pa.int64()),
        small=pa.array([1, 2], pa.int8()),
        unsigned=pa.array([1, 2**64 - 1], pa.uint64()),
        f=pa.array([0.5, None], pa.float64()),
        short=pa.array([0.5, None], pa.float32()),
        b=pa.array([True, False]),
        b_missing=pa.array([True, None]),
        text=pa.array(["é", None]),
        large=pa.array(["", "x" * 100], pa.large_string()),
        view=pa.array(["view", None], pa.string_view()),
        dictionary=pa.array(["same", None]).dictionary_encode(),
        blank=pa.array([None, None], pa.null()),
    )
    assert shown(agent, table) == [
        "i|int64|[1, -2]",
        "i_missing|float64|[1.0, nan]",
        "small|int8|[1, 2]",
        "unsigned|uint64|[1, 18446744073709551615]",
        "f|float64|[0.5, nan]",
        "short|float32|[0.5, nan]",
        "b|bool|[True, False]",
        "b_missing|object|[True, None]",
        "text|object|['é', None]",
        f"large|object|['', '{'x' * 100}']",
        "view|object|['view', None]",
        "dictionary|object|['same', None]",
        "blank|object|[None, None]",
    ]
    table = batch(
        ns=pa.array([instant, None], pa.timestamp("ns")),
        us=pa.array([instant, None], pa.timestamp("us")),
        s=pa.array([instant, None], pa.timestamp("s")),
        day=pa.array([datetime.date(2020, 1, 2), None], pa.date32()),
    )
    expected = "[Timestamp('2020-01-02 03:04:05'), NaT]"
    assert shown(agent, table) == [
        f"ns|datetime64[ns]|{expected}",
        f"us|datetime64[ns]|{expected}",
        f"s|datetime64[ns]|{expected}",
        "day|object|[datetime.date(2020, 1, 2), None]",
    ]
    [line] = shown(agent, batch(t=pa.array([datetime.datetime(1066, 10, 14)], pa.timestamp("us"))))
    assert line.startswith(("t|datetime64[us]|[Timestamp('1066-", "t|object|[datetime.datetime(1066,"))

    # Text of JSON becomes values of Python.
    cells = ['{"a": [1, null, {"b": "é"}]}', None, '"text"', "[]", "18446744073709551616", "1.5", "true", "NaN", "null"]
    field = pa.field("j", pa.large_string(), metadata={"ARROW:extension:name": "arrow.json"})
    table = pa.record_batch([pa.array(cells, pa.large_string())], schema=pa.schema([field]))
    values = "[{'a': [1, None, {'b': 'é'}]}, None, 'text', [], 18446744073709551616, 1.5, True, nan, None]"
    assert shown(agent, table) == [f"j|object|{values}"]
    many = pa.record_batch(
        [pa.array([f'["{"x" * 1000}", {row}]' for row in range(2000)], pa.large_string())], schema=pa.schema([field])
    )
    [line] = shown(agent, many)
    assert line.count("['xxx") == 2000 and line.endswith("', 1999]]"), "several calls of the parser make one column"

    # These need pyarrow.
    table = batch(
        money=pa.array([decimal.Decimal("1.50"), None], pa.decimal128(5, 2)),
        zoned=pa.array([0, None], pa.timestamp("us", tz="Europe/Berlin")),
        raw=pa.array([b"\xff", None], pa.binary()),
        nested=pa.array([[1], None], pa.list_(pa.int64())),
        kind=pa.array(["a", None]).cast(pa.dictionary(pa.int8(), pa.string())),
        plain=pa.array([1, 2]),
    )
    money, zoned, raw, nested, kind, plain = shown(agent, table)
    assert money == "money|object|[Decimal('1.50'), None]"
    zones = [f"zoned|datetime64[{unit}, Europe/Berlin]|[Timestamp('1970-01-01 01:00:00+0100'" for unit in ("us", "ns")]
    assert zoned.startswith(tuple(zones))
    assert raw == "raw|object|[b'\\xff', None]"
    assert nested == "nested|object|[array([1]), None]"
    assert kind.startswith("kind|category|['a', nan]")
    assert plain == "plain|int64|[1, 2]"


def test_missing_pyarrow_is_named_with_the_column(start):
    agent = start("import sys\nsys.modules['pyarrow'] = None\n" + SHOW)
    event = agent.run_table(batch(money=pa.array([decimal.Decimal("1.50")])))
    assert event["status"] == "load_failed"
    assert "column 'money'" in event["error"]["message"] and "pyarrow" in event["error"]["message"]
    assert shown(agent, batch(i=pa.array([1]))) == ["i|int64|[1]"], "the process continues"


def test_index_starts_at_zero_and_names_may_repeat(start):
    agent = start(
        """
        def run(frame):
            return [frame.index, list(frame.columns), frame.columns.dtype, type(frame.iloc[0, 0]), frame.shape]
        """
    )
    table = pa.record_batch([pa.array(["a", "b"]), pa.array([1, 2]), pa.array([3, 4])], names=["x", "y", "x"])
    for _ in range(2):
        assert agent.run_table(table)["rows"].decode().splitlines() == [
            "RangeIndex(start=0, stop=2, step=1)", "['x', 'y', 'x']", "object", "<class 'str'>", "(2, 3)",
        ]  # fmt: skip


def test_script_may_change_its_frame(start):
    agent = start(
        """
        def run(frame):
            frame["total"] = frame["n"] * 2
            frame.loc[0, "n"] = 100
            frame.loc[0, "text"] = "new"
            frame["n"].to_numpy(copy=False)
            return frame
        """
    )
    event = agent.run_table(batch(n=pa.array([1, 2]), text=pa.array(["a b", None])))
    assert event["rows"].decode() == "100 new 2\n2  4\n"
    assert event["columns"] == ["n", "text", "total"]


def test_ranges_of_a_table_share_its_frame_and_none_sees_what_another_changes(start):
    agent = start(
        """
        import gristmill.tables as tables
        reads, read_frame = [], tables.read_frame

        def counted(*arguments):
            reads.append(1)
            return read_frame(*arguments)

        tables.read_frame = counted

        def run(frame):
            seen = "|".join(f"{row}" for row in frame.values.tolist()) + f" read {len(reads)}"
            frame.iloc[:, 0] = 9
            for cell in frame.iloc[:, -1]:
                if isinstance(cell, list):
                    cell.append("changed")
            return [seen]
        """
    )
    plain = batch(n=pa.array([1, 2, 3]), text=pa.array(["a", None, "c"]))
    rows = [agent.run_table(plain, mini_batch=7, items=items)["rows"] for items in ([0, 2], [0, 1], [1, 3], [0, 1])]
    ranges = [b"[1, 'a']|[2, None]", b"[1, 'a']", b"[2, None]|[3, 'c']", b"[1, 'a']"]
    assert rows == [seen + b" read 1\n" for seen in ranges]
    assert agent.run_table(plain, mini_batch=8, items=[2, 3])["rows"] == b"[3, 'c'] read 2\n"

    field = pa.field("j", pa.large_string(), metadata={"ARROW:extension:name": "arrow.json"})
    schema = pa.schema([pa.field("n", pa.int64()), field])
    nested = pa.record_batch([pa.array([1]), pa.array(["[5]"], pa.large_string())], schema=schema)
    for read in (3, 4):
        event = agent.run_table(nested, mini_batch=9, items=[0, 1])
        assert event["rows"] == f"[1, [5]] read {read}\n".encode()


def test_several_tables_in_one_frame_keep_their_order_and_a_damaged_one_fails_alone(start):
    agent = start("def run(frame): return frame", strict_results=True)
    entries, descriptors = [], []
    for number in range(40):
        memory, length = memory_file(batch(n=pa.array([number])))
        entries.append(agent.mini_batch({"kind": "table", "rows": 1, "total": 1, "bytes": length}))
        descriptors.append(memory)
    agent.hand_over(*entries, descriptors=descriptors)
    assert [agent.receive()["rows"] for _ in entries] == [f"{number}\n".encode() for number in range(40)]

    damaged = {"kind": "table", "rows": 1, "total": 1, "bytes": 70}
    memory = os.memfd_create("damaged")
    os.write(memory, b"\xff\xff\xff\xff" + b"\x10\0\0\0" + b"garbage" * 10)
    agent.hand_over(agent.mini_batch(damaged), descriptors=[memory])
    event = agent.receive()
    assert event["status"] == "load_failed"
    assert "cannot be read" in event["error"]["message"]
    agent.hand_over(agent.mini_batch(damaged))
    assert "without its memory file" in agent.receive()["error"]["message"]

    # Records that failed before `run` make no result short.
    event = agent.run_table(batch(n=pa.array([1, 2])), total=5)
    assert (event["status"], event["returned"]) == ("succeeded", 2)


def test_memory_files_are_closed_after_use(start):
    agent = start("import os\ndef run(frame): return [len(os.listdir('/proc/self/fd'))]")
    counts = {agent.run_table(batch(n=pa.array([1])))["rows"] for _ in range(5)}
    assert len(counts) == 1


def test_pandas_is_not_imported_for_files(start):
    agent = start("import sys\ndef run(mini_batch): return ['pandas' in sys.modules, 'numpy' in sys.modules]")
    assert agent.run()["rows"] == b"False\nFalse\n"


def test_later_frames_do_not_change_a_frame(start):
    agent = start(
        """
        kept = []

        def run(frame):
            kept.append(frame)
            return [f"{one.iloc[0, 0]} {one.iloc[0, 1]} {len(one)}" for one in kept]
        """
    )
    for round, (number, text, rows) in enumerate([(1, "a", 3), (2, "b", 1), (3, "a", 2)]):
        table = batch(number=pa.array([number] * rows), text=pa.array([text] * rows))
        assert shown(agent, table)[: round + 1] == ["1 a 3", "2 b 1", "3 a 2"][: round + 1]


def test_texts_of_pandas_have_its_type_and_stay(start):
    agent = start(
        """
        import pandas as pd
        kept = []

        def run(frame):
            assert frame["t"].dtype == pd.Series([""]).dtype
            kept.append(frame["t"])
            frame.loc[0, "t"] = "changed"
            kept.append(frame["t"])
            return [repr([text if isinstance(text, str) else None for text in one]) for one in kept]
        """
    )
    expected = []
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        field = pa.field("t", kind, metadata={"gristmill.pandas": "nan"})
        for texts in (["", None, "é", "\U0001f600\n"], [None], ["b", "c"]):
            column = pa.array(["left out", *texts, None], kind).slice(1, len(texts))
            rows = shown(agent, pa.record_batch([column], schema=pa.schema([field])))
            expected += [texts, ["changed", *texts[1:]]]
            assert rows == [repr(one) for one in expected], kind


def test_recurring_and_unique_texts_across_mini_batches(start):
    """One column repeats more values than the cache holds, the other has only new ones."""
    agent = start(
        """
        def run(frame):
            return [f"{again} {new}" for again, new in zip(frame["again"], frame["new"])]
        """
    )
    for round in range(3):
        again = [f"value {row * 7 % 20_000}" for row in range(50_000)]
        new = [f"{round} {row}" for row in range(50_000)]
        table = batch(again=pa.array(again), new=pa.array(new))
        assert shown(agent, table) == [f"{one} {other}" for one, other in zip(again, new, strict=True)]
