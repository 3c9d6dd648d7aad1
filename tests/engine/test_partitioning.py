"""How inputs become mini-batches, and text becomes typed columns."""

import email.utils
import json
import re

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from http_server import Answer, HttpServer, Request

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


def test_partition_keys_group_tables(workplace):
    """Columns of the path are columns of text, at the end of the frame, in the order of the path, keys or not."""
    for store in ("1000", "1001"):
        for brand in ("dominicks", "tropicana"):
            text = "Quantity,Advert,Price\n" + "".join(f"{day * 100},{day % 2},2.59\n" for day in (14, 21))
            workplace.write({f"data/{store}/{brand}/{store}_{brand}.csv": text})
    script = """
        def run(frame, context):
            key = context.partition_key_value
            of_path = ["Store", "Brand", "file_name"]
            assert list(frame.columns) == ["Quantity", "Advert", "Price", *of_path], list(frame.columns)
            assert set(frame["file_name"]) == set(frame["Store"] + "_" + frame["Brand"]), frame
            assert str(frame.dtypes["Advert"]) == "bool" and isinstance(frame["Brand"][0], str)
            assert {name: frame[name].unique().tolist() for name in key} == {name: [key[name]] for name in key}
            return [f"{list(key.items())} {len(frame)}"] * len(frame)
    """
    settings = {"inputs": table(partition_format="{Store}/{Brand}/{file_name}.csv"), "mini_batch_size": None}
    ended = workplace.job(script, partition_keys=["Store", "Brand"], **settings).run()
    assert (ended.mini_batches, ended.items) == ((4, 4, 0), (8, 8, 0))
    assert ended.lines[0] == "[('Store', '1000'), ('Brand', 'dominicks')] 2"
    ended = workplace.job(script, partition_keys=["Brand"], **settings).run()
    assert ended.lines[::4] == ["[('Brand', 'dominicks')] 4", "[('Brand', 'tropicana')] 4"]


def test_headers_delimiters_and_encodings_are_settings(workplace):
    script = """
        def run(frame):
            rows = [frame.columns, *frame.itertuples(index=False)]
            return ["|".join(map(str, row)) for row in rows]
    """
    cases = [
        ({"header": "no_header"}, "1,a\n2,b\n", ["Column1|Column2", "1|a", "2|b"]),
        ({"delimiter": ";"}, "n;t\n5;a,b\n", ["n|t", "5|a,b"]),
        ({"format": "tsv"}, "n\tt\n5\ta b\n", ["n|t", "5|a b"]),
        ({"encoding": "iso-8859-1"}, "n,t\n5,caf\xe9\n".encode("latin-1"), ["n|t", "5|café"]),
        ({}, b"\xef\xbb\xbfn,t\r\n5,a\r\n\r\n6,b", ["n|t", "5|a", "6|b"]),
        ({"support_multi_line": True}, 'n,t\n5,"two\nlines"\n', ["n|t", "5|two", "lines"]),
    ]
    workplace.write({f"t{number}": text for number, (_, text, _) in enumerate(cases)})
    inputs = [{**table(f"t{number}", **case[0])[0], "name": f"t{number}"} for number, case in enumerate(cases)]
    ended = workplace.job(script, inputs=inputs, mini_batch_size="1MB").run()
    assert ended.lines == [line for *_, lines in cases for line in lines]


ROWS_AS_JSON = """
    import json
    def run(frame):
        return [json.dumps([list(frame.columns), *row]) for row in frame.itertuples(index=False)]
"""


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


def test_store_that_denies_access_for_a_while_costs_no_try(workplace):
    """The node returns what it cannot read, waits, says so, and tries again."""
    denied = []

    def answer(request: Request) -> Answer:
        content = request.path.encode()
        if request.method == "GET" and len(denied) < 2:
            denied.append(request.path)
            return 403, {}, b""
        headers = {"Content-Length": str(len(content)), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        return 200, headers, b"" if request.method == "HEAD" else content

    script = """
        def run(files):
            return [open(file).read() for file in files]
    """
    with HttpServer(answer) as server:
        inputs = [{"name": name, "type": "file", "path": f"{server.url}/{name}.txt"} for name in "abc"]
        ended = workplace.job(script, inputs=inputs).run()
    assert ended.lines == ["/a.txt", "/b.txt", "/c.txt"]
    assert (ended.mini_batches, len(ended.attempts())) == ((3, 3, 0), 3)
    assert "access denied" in ended.log("sys/node/0/_main.txt")


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
