"""Selection of input files, their format, and its presentation to the user."""

import gzip
import json
import re
import subprocess

import pandas as pd
import pytest

ECHO = "def run(frame): return frame"
FRAME = pd.DataFrame({"id": [1, 2, 3], "name": ["a", "b", "c"]})


def table(path="data", **options):
    return [{"name": "sales", "type": "tabular", "path": path, **options}]


WRITERS = {
    "parquet": lambda path: FRAME.to_parquet(path),
    "pq": lambda path: FRAME.to_parquet(path),
    "tsv": lambda path: FRAME.to_csv(path, sep="\t", index=False),
    "csv": lambda path: FRAME.to_csv(path, index=False),
    "jsonl": lambda path: FRAME.to_json(path, orient="records", lines=True),
    "JSON": lambda path: FRAME.to_json(path, orient="records", lines=True),
}


def test_folders_are_read_in_the_format_of_their_files(workplace):
    for extension, write in WRITERS.items():
        (workplace.folder / "data" / extension / "k=1").mkdir(parents=True)
        for name in ("part 0", "k=1/pärt-1"):
            write(workplace.folder / "data" / extension / f"{name}.{extension}")
        # Files of Spark, Hadoop and desktops.
        left_out = {"_SUCCESS": "", ".part-0.crc": b"crc\0", ".DS_Store": b"\0\0\0\1Bud1"}
        workplace.write({f"data/{extension}/{name}": content for name, content in left_out.items()})
    inputs = [{**table(f"data/{extension}")[0], "name": f"t{number}"} for number, extension in enumerate(WRITERS)]
    ended = workplace.job(ECHO, inputs=inputs).run()
    assert ended.lines == ["1 a", "2 b", "3 c"] * 2 * len(WRITERS)
    *partitions, note = ended.result["notes"]
    said = 'lies in the folder k=1, and no column is read from its name: set `partition_format: "k={k}/*"`'
    assert [said in partition for partition in partitions] == [True] * len(WRITERS), partitions
    assert note.startswith("left out of the inputs: ")
    assert "data/parquet/_SUCCESS (begins with `_`)" in note


def test_non_tables_are_rejected_before_the_first_mini_batch(workplace):
    """Every command rejects them, in one line that names the job file, the line, the file and the remedy."""
    target = f'[targets.here]\nqueue = "sqlite:{workplace.folder}/queue"\nstore = "file://{workplace.folder}/store"\n'
    workplace.write({"gristmill.toml": target, "data/a.csv": "id\n1\n", "data/b.parquet": "PAR1PAR1"})
    job = workplace.job(ECHO, inputs=table())
    commands = ["validate"], ["plan"], ["run"], ["enqueue", "--target", "here"], ["run", "--target", "here"]
    said = set()
    for command in commands:
        ended = workplace.command(*command, job.file)
        assert ended.exit_status == 2, f"{command}: {ended}"
        said.add(ended.stderr)
    [message] = said
    assert message.startswith(f"{job.file}:") and message.count("\n") == 1, message
    assert "several formats: csv (" in message and "b.parquet" in message, message
    assert workplace.job_ids() == []


def test_local_file_that_changes_while_the_job_runs_fails_by_name(workplace):
    """Data that was appended, cut or replaced after planning reaches no script. The script handles missing files."""
    workplace.data(6)
    script = """
        import os
        def run(files):
            [file] = files
            if file.endswith("000.txt"):
                with open(file.replace("000", "001"), "a") as other:
                    other.write("more")
                os.truncate(file.replace("000", "002"), 1)
                with open(file + ".new", "w") as new:
                    new.write("new")
                os.rename(file + ".new", file.replace("000", "003"))
                os.remove(file.replace("000", "004"))
            return [open(file).read() if os.path.exists(file) else "gone"]
    """
    ended = workplace.job(script).run()
    assert ended.lines == ["000", "gone", "005"]
    assert ended.mini_batches == (6, 3, 3)
    errors = {row["Mini-batch Id"]: row["Error Message"] for row in ended.attempts()}
    for mini_batch, name in ("1", "001.txt"), ("2", "002.txt"), ("3", "003.txt"):
        assert "input changed since the job was planned" in errors[mini_batch], errors
        assert name in errors[mini_batch], errors


def test_local_table_that_changes_while_the_job_runs_fails_by_name(workplace):
    for number in range(8):
        workplace.write({f"data/{number}.csv": f"id\n{number}\n"})
    script = """
        import os
        def run(frame):
            if frame["id"][0] == 0:
                with open(os.path.join(os.environ["DATA"], "7.csv"), "a") as other:
                    other.write("8\\n")
            return frame
    """
    # Few are prefetched, so that the last one is read after the first has run.
    settings = {"GRISTMILL_PREFETCH_BYTES": "1", "DATA": str(workplace.folder / "data")}
    ended = workplace.job(script, inputs=table()).run(**settings)
    assert ended.lines == [str(number) for number in range(7)]
    [failed] = ended.result["failed_mini_batches"]
    assert "7.csv (planned as 5 bytes, modified" in failed["error"], failed
    assert "now 7 bytes" in failed["error"], failed


def test_plan_shows_the_decisions_for_each_input(workplace):
    workplace.write(
        {
            "data/a.csv": "id;name\n1;x\n2;y\n",
            "data/b.csv": "name;id\nx;1\n",
            "data/_old.csv": "",
            "more/a.tsv": "\ufeffcode\tday\tn\n007\t2020-01-31\t\n008\t2020-02-01\t2.5\n",
        }
    )
    inputs = [*table(), {"name": "more", "type": "tabular", "path": "more"}]
    job = workplace.job(ECHO, inputs=inputs)
    ended = workplace.command("plan", job.file)
    assert ended.exit_status == 0, str(ended)
    for expected in [
        "input sales: a table in 2 files of 28 B",
        "format: csv, by the names of its files",
        "encoding: utf-8, no byte order mark",
        'a.csv (and one more file) has no `,` in its first line but 1 `;`: set `delimiter: ";"`',
        "b.csv begins with another line than ",
        "format: tsv, by the names of its files",
        "byte order mark of UTF-8",
        "delimiter: `\\t`",
        "left out of the inputs: ",
        "_old.csv (begins with `_`)",
        "3 mini-batches of 3 files",
    ]:
        assert expected in ended.stdout, f"{expected}\n{ended}"
    columns = [re.split(r"  +", line.strip()) for line in ended.stdout.splitlines() if re.search(r"values? seen", line)]
    assert columns[-3:] == [
        ["code", "int64", "7, 8", "whole numbers (2 values seen); leading zeros, dropped"],
        ["day", "datetime64[ns]", "2020-01-31T00:00:00, 2020-02-01T00:00:00", "dates (2 values seen)"],
        ["n", "float64", "2.5", "numbers (1 value seen, 1 of 2 missing)"],
    ]
    # One object per line, which the harness does not expect.
    planned = subprocess.run(
        [workplace.executable, "plan", job.file, "--json"], env=workplace.environment, capture_output=True, check=True
    )
    last = json.loads(planned.stdout.splitlines()[-1])
    assert (last["mini_batches"], last["left_out"]["count"]) == (3, 1)
    sales, more = last["inputs"]
    assert (sales["format"], sales["text"]["delimiter"], len(sales["notes"])) == ("csv", ",", 2)
    columns = {column["name"]: (column["type"], column["samples"]) for column in more["columns"]}
    assert columns == {
        "code": ("int64", ["7", "8"]),
        "day": ("datetime64[ns]", ["2020-01-31T00:00:00", "2020-02-01T00:00:00"]),
        "n": ("float64", ["2.5"]),
    }
    assert all(column["reason"] for column in more["columns"])
    # The end of the job repeats the notes.
    ended = workplace.command("run", job.file)
    assert ended.exit_status == 0, str(ended)
    assert ended.stdout.count("  note: ") == 3, str(ended)


@pytest.mark.parametrize(
    ("types", "first", "second", "kind", "reason"),
    [
        (
            "original",
            "1/2/2020 3/4/2020",
            "",
            "datetime64[ns]",
            "dates such as 1/2/2020, with the month before the day",
        ),
        ("original", "1/2/2020 1/31/2020", "", "datetime64[ns]", "dates"),
        ("pandas", "true NA", "", "object (bool)", "truth values of one notation"),
        ("pandas", "7", "seven", "object (str)", "numbers in these rows, but other rows have other values"),
        ("pandas", f"7 {2**70}", "", "object (str)", "whole numbers beyond 64 bits"),
    ],
)
def test_plan_explains_a_type_by_the_values_that_decide_it(workplace, types, first, second, kind, reason):
    """The plan shows values of the first file, and those of both decide."""

    def text(values):
        return "v,n\n" + "".join(f"{value},1\n" for value in values.split())

    workplace.write({"data/a.csv": text(first), "data/b.csv": text(second)})
    ended = workplace.command("plan", workplace.job(ECHO, inputs=table(types=types)).file)
    (line,) = [line for line in ended.stdout.splitlines() if line.strip().startswith("v ")]
    assert re.split(r"  +", line.strip())[1] == kind and f"  {reason} (" in line, str(ended)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_surprising_column_name_is_named_by_every_command(workplace, name):
    text = b"a,b,a\n1,2,3\n"
    workplace.write({"data/_readme": "", f"data/{name}": gzip.compress(text) if name.endswith("gz") else text})
    inputs = [{"name": "sales", "type": "tabular", "path": f"data/{name}"}]
    job = workplace.job("def run(rows): return [list(rows.columns)]", inputs=inputs)
    note = f"{workplace.folder}/data/{name} names several columns `a`, and the next one becomes `a.1`"
    planned = workplace.command("plan", job.file)
    assert f"note: {note}" in planned.stdout, planned
    validated = workplace.command("validate", job.file)
    enqueued = workplace.command("enqueue", job.file, "--queue", "sqlite:queues", "--store", "store")
    assert enqueued.exit_status == 0, enqueued
    ran = job.run()
    for ended in (validated, enqueued, ran):
        assert f"note: input sales: {note}" in ended.stdout + ended.stderr, ended
    assert any(note in told for told in ran.result["notes"]), ran
