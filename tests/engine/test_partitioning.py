"""How inputs become mini-batches, and text becomes typed columns."""

import email.utils
import json
import os
import re

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from http_server import HttpServer

ROWS_OF_A_BLOCK = """
    from recorder import record
    def run(frame):
        record("run", rows=len(frame), first=str(frame.iloc[0, 0]))
        return [len(frame)] * len(frame)
"""


def csv_of(rows: int) -> str:
    return "id,name,val\n" + "".join(f"{row},{'x' * 20},{row * 1.5!r}\n" for row in range(rows))


def table(path="data", format="csv", **options):
    return [{"name": "table", "type": "tabular", "format": format, "path": path, **options}]


FILES = {"a_small.csv": csv_of(5), "b_mid.csv": csv_of(200), "c_big.csv": csv_of(2000)}

VECTORS = {
    "middle by 1024": ("b_mid.csv", 1024, [36, 35, 34, 33, 33, 29]),
    "middle by 4096": ("b_mid.csv", "4KB", [138, 62]),
    "big by 4096": (
        "c_big.csv",
        4096,
        [138, 132, 132, 133, 132, 128, 128, 126, 124, 124, 125, 124, 124, 124, 124, 82],
    ),
    "big by 10240": ("c_big.csv", "10kb", [336, 331, 320, 310, 311, 310, 82]),
    "every file on its own": ("data", "1MB", [5, 200, 2000]),
    "no final line feed": ("no_final.csv", 8, [1, 2, 0]),
    "lines longer than a block": ("long.csv", 40, [1, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0]),
    "JSON lines": ("lines.jsonl", 200, [12, 10, 11, 10, 7]),
    "a header alone": ("header.csv", 100, [0]),
    "by rows": ("b_mid.csv", "60 rows", [60, 60, 60, 20]),
}


@pytest.mark.parametrize("vector", VECTORS)
def test_blocks_of_text_tables(workplace, vector):
    path, size, expected = VECTORS[vector]
    if path == "data":
        workplace.write({f"data/{name}": text for name, text in FILES.items()})
    else:
        texts = {
            **FILES,
            "no_final.csv": "id,name\n1,a\n2,b\n3,c",
            "long.csv": "id,text\n" + "".join(f"{row},{'y' * 100}\n" for row in range(4)),
            "lines.jsonl": "".join(f'{{"id":{row},"s":"xx"}}\n' for row in range(50)),
            "header.csv": "id,name\n",
        }
        workplace.write({path: texts[path]})
    inputs = table(path, format="jsonl" if path.endswith("jsonl") else "csv")
    # A table without rows leaves nothing to append.
    action = "append_row" if any(expected) else "summary_only"
    ended = workplace.job(ROWS_OF_A_BLOCK, inputs=inputs, mini_batch_size=size, output_action=action).run()
    assert [int(row["Total"]) for row in ended.attempts()] == expected
    assert ended.mini_batches == (len(expected), len(expected), 0)
    assert ended.items == (sum(expected), sum(expected), 0)
    # Several blocks are prepared at once, so the order of the calls is not that of the blocks.
    assert sorted(fact["rows"] for fact in workplace.recorded("run")) == sorted(rows for rows in expected if rows)


def test_files_by_count_never_mix_folders(workplace):
    """Files are sorted, one folder after the other, with any name that Linux allows, and links to folders followed."""
    names = [
        b"data/b/2.txt",
        b"data/b/1.txt",
        b"data/b/3.txt",
        b"data/a/two words.txt",
        b"data/a/quote\"and'quote.txt",
        b"data/a/new\nline.txt",
        "data/a/übung.txt".encode(),
        b"data/a/not-\xff-text.txt",
        b"data/top.txt",
        b"elsewhere/linked.txt",
    ]
    root = bytes(workplace.folder)
    for name in names:
        path = root + b"/" + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"x")
    (workplace.folder / "data" / "c").symlink_to(workplace.folder / "elsewhere")
    script = """
        import os
        from recorder import record
        def run(files):
            for file in files:
                with open(file) as opened:
                    assert opened.read() == "x"
            record("run", files=[os.fsencode(os.path.relpath(file, os.environ["DATA"])).hex() for file in files])
            return [1] * len(files)
    """
    ended = workplace.job(script, mini_batch_size=2).run(DATA=str(workplace.folder / "data"))
    assert ended.items == (10, 10, 0)
    batches = [[bytes.fromhex(file) for file in fact["files"]] for fact in workplace.recorded("run")]
    in_a = sorted(name.removeprefix(b"data/") for name in names if name.startswith(b"data/a/"))
    assert sorted(map(len, batches)) == [1, 1, 1, 1, 2, 2, 2]
    assert [name for batch in batches for name in batch if name.startswith(b"a/")] == in_a
    assert [b"b/1.txt", b"b/2.txt"] in batches
    assert [b"b/3.txt"] in batches
    assert [b"c/linked.txt"] in batches
    assert [b"top.txt"] in batches


def test_several_inputs_never_mix(workplace):
    workplace.data(3, folder="one")
    workplace.data(2, folder="two")
    workplace.write({"extra.txt": "extra"})
    script = """
        def run(files):
            return [",".join(file.split("/")[-2] + "/" + open(file).read() for file in files)]
    """
    inputs = [
        {"name": "one", "type": "file", "path": "one"},
        {"name": "two", "type": "file", "paths": ["two/*.txt", "extra.txt"]},
    ]
    ended = workplace.job(script, inputs=inputs, mini_batch_size=2).run()
    assert ended.lines[:2] == ["one/000,one/001", "one/002"]
    assert "one" not in "".join(ended.lines[2:])
    assert "extra" in "".join(ended.lines[2:])


def test_partition_keys_group_files(workplace):
    names = [
        "user1/winter/disco.wav",
        "user1/fall/orchestra.wav",
        "user2/summer/piano.wav",
        "user3/fall/spirituality.wav",
        "user4/spring/piano.wav",
        "user4/fall/piano.wav",
    ]
    workplace.write({f"data/{name}": "wav" for name in names})
    script = """
        def run(files, context):
            key = context.partition_key_value
            assert list(key) == ["user", "genres"]
            return [f"{'/'.join(key.values())} {len(files)}"] * len(files)
    """
    inputs = [{"name": "wav", "type": "file", "path": "data", "partition_format": "{user}/{season}/{genres}.wav"}]
    job = workplace.job(script, inputs=inputs, mini_batch_size=None, partition_keys=["user", "genres"])
    ended = job.run()
    assert ended.lines == [
        "user1/disco 1",
        "user1/orchestra 1",
        "user2/piano 1",
        "user3/spirituality 1",
        "user4/piano 2",
        "user4/piano 2",
    ]
    assert ended.mini_batches == (5, 5, 0)
    assert ended.items == (6, 6, 0)


def test_partition_keys_group_tables(workplace):
    """33 stores and 3 brands; the keys are columns of text, at the end of the frame, in the order of the path."""
    for store in range(1000, 1033):
        for brand in ("dominicks", "minute.maid", "tropicana"):
            text = "WeekStarting,Quantity,Advert,Price,Revenue\n" + "".join(
                f"1990-06-{day:02},{day * 100},{day % 2},2.59,{day * 259}\n" for day in (14, 21)
            )
            workplace.write({f"data/{store}/{brand}/{store}_{brand}.csv": text})
    script = """
        def run(frame, context):
            columns = "WeekStarting,Quantity,Advert,Price,Revenue,Store,Brand".split(",")
            assert list(frame.columns) == columns, list(frame.columns)
            assert str(frame.dtypes["Advert"]) == "bool" and str(frame.dtypes["Price"]) == "float64"
            assert frame["Store"].unique().tolist() == [context.partition_key_value["Store"]]
            assert isinstance(frame["Store"][0], str)
            frame["total_income"] = frame["Price"] * frame["Quantity"]
            return frame
    """
    inputs = table(partition_format="{Store}/{Brand}/{file_name}.csv")
    settings = {"inputs": inputs, "mini_batch_size": None, "error_threshold": 0}
    ended = workplace.job(script, partition_keys=["Store", "Brand"], **settings).run()
    assert ended.mini_batches == (99, 99, 0)
    assert ended.items == (198, 198, 0)
    assert ended.lines[0].split()[-3:] == ["1000", "dominicks", "3626.0"]

    script = """
        def run(frame, context):
            return [f"{context.partition_key_value} {list(frame.columns)[-1]} {len(frame)}"] * len(frame)
    """
    ended = workplace.job(script, partition_keys=["Brand"], **settings).run()
    assert ended.mini_batches == (3, 3, 0)
    assert ended.lines[::66] == [
        f"{{'Brand': '{brand}'}} Brand 66" for brand in ("dominicks", "minute.maid", "tropicana")
    ]


def test_parquet_by_row_group_and_by_rows(workplace):
    frame = pd.DataFrame({"id": range(1000), "text": [f"t{row}" for row in range(1000)]})
    (workplace.folder / "data").mkdir()
    pq.write_table(pa.Table.from_pandas(frame), workplace.folder / "data/groups.parquet", row_group_size=400)
    inputs = table(format="parquet")
    ended = workplace.job(ROWS_OF_A_BLOCK, inputs=inputs, mini_batch_size="1KB").run()
    assert [int(row["Total"]) for row in ended.attempts()] == [400, 400, 200], "the size in bytes does not matter"

    ended = workplace.job(ROWS_OF_A_BLOCK, inputs=inputs, mini_batch_size="300 rows").run()
    totals = [int(row["Total"]) for row in ended.attempts()]
    assert sum(totals) == 1000
    assert max(totals) <= 300
    assert ended.items == (1000, 1000, 0)


COLUMNS = {
    # name: (texts of two rows, dtype, values as repr)
    "integer": (["1", "-20"], "int64"),
    "zeros": (["007", "08"], "int64"),
    "padded": (['" 5"', "+3"], "int64"),
    "date8": (["20200101", "20200102"], "int64"),
    "bits": (["0", "1"], "bool"),
    "ones": (["1", "1"], "bool"),
    "words": (["true", "FALSE"], "bool"),
    "letters": (["T", "F"], "bool"),
    "yn": (["Y", "N"], "bool"),
    "beyond": (["9223372036854775808", "1"], "float64"),
    "decimal": (["0.0", "1.0"], "float64"),
    "scientific": (["1e5", "2E-3"], "float64"),
    "nan": (["NaN", "inf"], "float64"),
    "holes": (["", "5"], "float64"),
    "iso": (["2020-01-31", "2020-02-01"], "datetime64[ns]"),
    "us": (["1/31/2020", "2/1/2020"], "datetime64[ns]"),
    "eu": (["31/1/2020", "1/2/2020"], "datetime64[ns]"),
    "iso_hole": (["2020-01-31 10:11:12", ""], "datetime64[ns]"),
    "yes": (["yes", "no"], "object"),
    "null": (["null", "NA"], "object"),
    "percent": (["5%", "6%"], "object"),
    "hex": (["0x10", "0x11"], "object"),
    "thousands": (['"1,234"', '"2,345"'], "object"),
    "time": (["10:11", "10:12"], "object"),
    "month": (["1 January 2020", "2 May 2020"], "object"),
    "mixed": (["1", "a"], "object"),
    "blank": (["", ""], "object"),
}


def test_column_types(workplace):
    header = ",".join(COLUMNS)
    rows = "\n".join(",".join(texts[row] for texts, _ in COLUMNS.values()) for row in range(2))
    workplace.write({"data/t.csv": f"{header}\n{rows}\n"})
    script = """
        from recorder import record
        def run(frame):
            record("run", types={name: str(kind) for name, kind in frame.dtypes.items()},
                   values={name: [repr(value) for value in frame[name].tolist()] for name in frame})
            return frame
    """
    inputs = table("data/t.csv")
    workplace.job(script, inputs=inputs).run()
    (typed,) = workplace.recorded("run")
    expected = {name: kind for name, (_, kind) in COLUMNS.items()}
    # pandas 3 has a separate type for text.
    found = {
        name: {"str": "object", "datetime64[us]": "datetime64[ns]"}.get(kind, kind)
        for name, kind in typed["types"].items()
    }
    assert found == expected
    assert typed["values"]["zeros"] == ["7", "8"]
    assert typed["values"]["padded"] == ["5", "3"]
    assert typed["values"]["blank"] == ["None", "None"]
    assert (
        typed["values"]["us"][1] == typed["values"]["eu"][1].replace("eu", "us") == "Timestamp('2020-02-01 00:00:00')"
    )
    assert typed["values"]["thousands"] == ["'1,234'", "'2,345'"]
    assert typed["values"]["iso_hole"][1] == "NaT"

    workplace.record_file.unlink()
    workplace.job(script, inputs=table("data/t.csv", infer_column_types=False)).run()
    (untyped,) = workplace.recorded("run")
    assert set(untyped["types"].values()) <= {"object", "str"}
    assert untyped["values"]["zeros"] == ["'007'", "'08'"]


def test_types_come_from_the_first_200_rows(workplace):
    """A value in row 200 still changes the type; a later one is converted, and the summary names it."""

    def text(deviating_row: int, value: str) -> str:
        return "n\n" + "".join(f"{value if row == deviating_row else row}\n" for row in range(1, 301))

    script = """
        from recorder import record
        def run(frame):
            record("run", kind=str(frame["n"].dtype), value=repr(frame["n"].tolist()[249]))
            return frame
    """
    workplace.write({"data/t.csv": text(200, "1.5")})
    workplace.job(script, inputs=table("data/t.csv")).run()
    assert workplace.recorded("run")[-1]["kind"] == "float64"

    for value, kind, converted in (("1.5", "int64", "1"), ("abc", "float64", "nan")):
        workplace.write({"data/t.csv": text(250, value)})
        ended = workplace.job(script, inputs=table("data/t.csv")).run()
        fact = workplace.recorded("run")[-1]
        assert (fact["kind"], fact["value"]) == (kind, converted)
        assert ended.items == (300, 300, 0)
        told = ended.log("job_result.txt") + ended.log("sys/warning/**/*")
        assert "t.csv" in told and "251" in told and "'n'" in told.replace('"', "'").replace("`", "'") and value in told

        strict = workplace.job(script, inputs=table("data/t.csv", on_type_mismatch="error")).run()
        assert strict.items == (300, 299, 1)
        assert len(strict.lines) == 299


def test_headers_delimiters_and_encodings_are_settings(workplace):
    script = """
        def run(frame):
            rows = [frame.columns, *frame.itertuples(index=False)]
            return ["|".join(map(str, row)) for row in rows]
    """
    cases = [
        (table("t", header="no_header"), "1,a\n2,b\n", ["Column1|Column2", "1|a", "2|b"]),
        (table("t", delimiter=";"), "n;t\n5;a,b\n", ["n|t", "5|a,b"]),
        (table("t", format="tsv"), "n\tt\n5\ta b\n", ["n|t", "5|a b"]),
        (table("t", encoding="iso-8859-1"), "n,t\n5,caf\xe9\n".encode("latin-1"), ["n|t", "5|café"]),
        (table("t"), b"\xef\xbb\xbfn,t\r\n5,a\r\n\r\n6,b", ["n|t", "5|a", "6|b"]),
        (table("t", support_multi_line=True), 'n,t\n5,"two\nlines"\n', ["n|t", "5|two", "lines"]),
    ]
    for inputs, text, expected in cases:
        workplace.write({"t": text})
        assert workplace.job(script, inputs=inputs, mini_batch_size="1MB").run().lines == expected


SALES = pd.DataFrame(
    {
        "id": range(500),
        "note": [f'line {row}, "quoted"' for row in range(500)],
        "price": [row * 0.25 for row in range(500)],
        "day": pd.date_range("2020-01-31", periods=500, freq="D"),
        "kind": ["even", "odd"] * 250,
    }
)
LISTED = ["kind", "price", "id"]
ROWS_AS_JSON = """
    import json
    def run(frame):
        return [json.dumps([list(frame.columns), *row]) for row in frame.itertuples(index=False)]
"""


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_only_the_listed_columns_are_read(workplace, format):
    """The frame has them in the order of the list, followed by those of the path."""
    file = workplace.folder / "data" / "north" / f"sales.{format}"
    file.parent.mkdir(parents=True)
    match format:
        case "csv":
            SALES.to_csv(file, index=False)
            expected = pd.read_csv(file, usecols=LISTED)[LISTED]
        case "jsonl":
            SALES.to_json(file, orient="records", lines=True, date_format="iso")
            expected = pd.read_json(file, lines=True)[LISTED]
        case "parquet":
            pq.write_table(pa.Table.from_pandas(SALES.astype({"kind": "category"})), file, row_group_size=200)
            expected = pd.read_parquet(file, columns=LISTED)[LISTED]
    inputs = table(format=format, columns=LISTED, partition_format=f"{{region}}/{{file_name}}.{format}")
    settings = {"inputs": inputs, "mini_batch_size": "150 rows", "process_count_per_node": 2}
    ended = workplace.job(ROWS_AS_JSON, **settings).run()
    names = [*LISTED, "region", "file_name"]
    assert [json.loads(line) for line in ended.lines] == [
        [names, kind, price, number, "north", "sales"] for kind, price, number in expected.itertuples(index=False)
    ]
    assert ended.items == (500, 500, 0)
    assert ended.result["warnings"] == 0


def test_unlisted_columns_cause_no_warnings(workplace):
    """Mismatched values fail their row only if they are read; rows that are too short always fail."""
    typed = "".join(f"{row},{row},x\n" for row in range(200))
    workplace.write({"data/t.csv": f"a,b,c\n{typed}200,oops,x\n201,201\n202,202,\xff\n".encode("latin-1")})
    for columns, items in (["c", "a"], (203, 202, 1)), (["b"], (203, 201, 2)):
        inputs = table(columns=columns, on_type_mismatch="error")
        ended = workplace.job("def run(frame): return frame", inputs=inputs).run()
        assert ended.items == items, columns


def test_missing_listed_columns_are_rejected(workplace):
    """Every command that would plan the job rejects them before any start, with the line of the job file."""
    workplace.write({"data/t.csv": "id,unit_price\n1,2\n", "data/u.csv": "id\n"})
    job = workplace.job("def run(frame): return frame", inputs=table(columns=["id", "unit_prize"]))
    line = 1 + job.file.read_text().splitlines().index('        "unit_prize"')
    expected = (
        f'{job.file}:{line}: inputs[0].columns: the files have no such column; did you mean "unit_price"? '
        '(found "unit_prize"; allowed: id, unit_price)\n'
    )
    target = f'[targets.here]\nqueue = "sqlite:{workplace.folder}/queue"\nstore = "file://{workplace.folder}/store"\n'
    workplace.write({"gristmill.toml": target})
    for command in ["run"], ["plan"], ["enqueue", "--target", "here"], ["run", "--target", "here"]:
        ended = workplace.command(*command, job.file)
        assert (ended.exit_status, ended.stderr) == (2, expected), f"{command}: {ended}"
    assert workplace.job_ids() == []
    assert not (workplace.folder / "store").exists()


def test_list_of_columns_makes_another_job(workplace):
    workplace.write({"data/t.csv": "id,n\n5,6\n"})
    script = "def run(frame): return frame"

    def ran(columns):
        return workplace.job(script, inputs=table(columns=columns), allow_reuse=True).run()

    first = ran(["n", "id"])
    assert (first.lines, first.result["reused"]) == (["6 5"], False)
    again = ran(["n", "id"])
    assert (again.job_id, again.result["reused"]) == (first.job_id, True)
    other = ran(["id", "n"])
    assert (other.lines, other.result["reused"]) == (["5 6"], False)


def test_ranks_run_without_input(workplace):
    script = """
        def run(nothing, context):
            assert nothing == []
            return [f"rank {context.minibatch_index}"]
    """
    settings = {"inputs": None, "mini_batch_size": None, "process_count_per_node": 2}
    ended = workplace.job(script, arguments=["--rank_mini_batch_count", 5], **settings).run()
    assert ended.lines == [f"rank {number}" for number in range(5)]
    assert ended.items == (5, 5, 0)


@pytest.fixture
def web_server(workplace):
    """Serves the folder `web` of the workplace, whole files and ranges of bytes."""
    folder = workplace.folder / "web"
    folder.mkdir()

    def answer(request):
        file = folder / request.path.lstrip("/")
        if not file.is_file():
            return 404, {}, b""
        content = file.read_bytes()
        headers = {"Last-Modified": email.utils.formatdate(file.stat().st_mtime, usegmt=True)}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        if not wanted:
            return 200, headers, content
        first, last = int(wanted[1]), min(len(content) - 1, int(wanted[2] or len(content)))
        return 206, headers | {"Content-Range": f"bytes {first}-{last}/{len(content)}"}, content[first : last + 1]

    with HttpServer(answer) as server:
        yield server.url


def test_inputs_by_url_are_downloaded(workplace, web_server):
    """The engine downloads a file before the script reads it, and reads a table in blocks like a local one."""
    workplace.write({"web/a.txt": "from the web", "web/t.csv": csv_of(200)})
    script = """
        def run(files):
            return [open(file).read() for file in files]
    """
    inputs = [{"name": "web", "type": "file", "path": f"{web_server}/a.txt"}]
    assert workplace.job(script, inputs=inputs).run().lines == ["from the web"]

    inputs = table(f"{web_server}/t.csv")
    ended = workplace.job(ROWS_OF_A_BLOCK, inputs=inputs, mini_batch_size=4096).run()
    assert [int(row["Total"]) for row in ended.attempts()] == [138, 62]

    inputs = [{"name": "web", "type": "file", "path": f"{web_server}/missing.txt"}]
    missing = workplace.job(script, inputs=inputs).start().wait()
    assert missing.exit_status in (2, 42), str(missing)
    assert "missing.txt" in missing.stdout + missing.stderr


def test_listed_columns_of_inputs_by_url(workplace, web_server):
    """Columns come from the head of a text or the footer of a Parquet file; mini-batches have the listed ones."""
    workplace.write({"web/t.csv": csv_of(200)})
    frame = pd.DataFrame({"id": range(300), "text": ["x" * 100] * 300, "n": range(300)})
    pq.write_table(pa.Table.from_pandas(frame), workplace.folder / "web/t.parquet", row_group_size=100)
    for format, columns, rows in ("csv", ["val", "id"], 200), ("parquet", ["n", "id"], 300):
        inputs = table(f"{web_server}/t.{format}", format=format, columns=columns)
        ended = workplace.job(ROWS_AS_JSON, inputs=inputs, mini_batch_size=4096).run()
        found = [json.loads(line) for line in ended.lines]
        assert [names for names, *_ in found] == [columns] * rows
        assert [number for *_, number in found] == list(range(rows))

        inputs = table(f"{web_server}/t.{format}", format=format, columns=["Id"])
        refused = workplace.job(ROWS_AS_JSON, inputs=inputs).start().wait()
        assert refused.exit_status == 2, str(refused)
        assert 'did you mean "id"?' in refused.stderr
