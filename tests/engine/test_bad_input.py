"""Bad input causes one clear error, or counted failed items, and loses nothing else."""

import json
import os
import re
import subprocess
import textwrap

import pytest

ECHO = "def run(files): return files"
INVALID = {
    # what: (settings, what the message must name)
    "missing script": ({"entry_script": "nowhere.py"}, "nowhere.py"),
    "missing source directory": ({"source_directory": "nowhere"}, "nowhere"),
    "missing input": ({"inputs": [{"name": "data", "type": "file", "path": "nowhere"}]}, "nowhere"),
    "unknown key": ({"mini_batch_sise": 5}, "mini_batch_size"),
    "size": ({"mini_batch_size": "1.5MB"}, "mini_batch_size"),
    "error threshold": ({"error_threshold": -2}, "greater than or equal to -1"),
    "output action": ({"output_action": "append"}, "must be summary_only or append_row"),
    "file name": ({"append_row_file_name": "a/b"}, "must be a valid UNIX file name"),
    "percent": ({"allowed_failed_percent": 101}, "is not between 0 and 100"),
    "reserved argument": ({"arguments": ["--output", "x"]}, "is a reserved argument"),
    "argument without name": ({"arguments": ["x"]}, "you can only use keyword argument"),
    "keys and size": ({"partition_keys": ["user"], "mini_batch_size": 5}, "mutually exclusive"),
    "name": ({"name": "Not A Name"}, "name"),
}


def test_invalid_job_names_the_field(workplace):
    workplace.data(1)
    for what, (settings, named) in INVALID.items():
        job = workplace.job(ECHO, **settings)
        if what == "missing script":
            (workplace.folder / "code" / "nowhere.py").unlink()
        ended = job.run(expect=2)
        assert named in ended.stderr, f"{what}: {ended}"
        assert "panicked" not in ended.stderr
    assert workplace.job_ids() == [], "an invalid job leaves nothing"


def test_validate_shows_every_problem_at_once(workplace):
    workplace.write(
        {
            "bad.yaml": """
                name: bad
                entry_script: entry.py
                mini_batch_sise: 10
                error_threshold: -5
                output_action: append
                run_max_try: 0
            """
        }
    )
    ended = workplace.command("validate", "bad.yaml")
    assert ended.exit_status == 2
    said = ended.stdout + ended.stderr
    for named in ("entry.py", "mini_batch_size", "-5", "append_row", "run_max_try", "inputs"):
        assert named in said, f"{named} in {said}"
    # dedent leaves an empty first line
    for line in (4, 5, 6, 7):
        assert f":{line}" in said or f"line {line}" in said, f"line {line} in {said}"

    workplace.data(1)
    job = workplace.job(ECHO)
    assert workplace.command("validate", job.file).exit_status == 0


def test_file_without_yaml_is_rejected(workplace):
    workplace.write({"a.yaml": "name: [unclosed", "b.yaml": b"\xff\xfe\x00", "c.yaml": "just text", "d.yaml": ""})
    for name in ("a.yaml", "b.yaml", "c.yaml", "d.yaml", "missing.yaml"):
        ended = workplace.command("run", name)
        assert ended.exit_status == 2, f"{name}: {ended}"
        assert name in ended.stderr
        assert "panicked" not in ended.stderr


def test_empty_folder_is_rejected(workplace):
    (workplace.folder / "data").mkdir()
    ended = workplace.job(ECHO).start().wait()
    assert ended.exit_status in (2, 42), str(ended)
    assert "data" in ended.stderr + ended.stdout


def test_deleted_file_fails_only_its_mini_batch(workplace):
    """The script opens its files itself, so a deleted file raises an exception in the script."""
    workplace.data(3)
    script = """
        import os
        def run(files):
            if files[0].endswith("000.txt"):
                os.remove(files[0].replace("000", "002"))
            return [open(file).read() for file in files]
    """
    ended = workplace.job(script).run()
    assert ended.lines == ["000", "001"]
    assert ended.items == (3, 2, 1)
    assert "002.txt" in ended.log("job_error.txt")


ODD_TABLES = {
    # name: (text, rows that reach run or fail, in total)
    "ragged": (b"a,b,c\n1,2,3\n4,5\n6,7,8,9\n10,11,12\n", 4),
    "carriage returns": (b"a,b\r\n1,2\r\n3,4\r\n", 2),
    "byte order mark": (b"\xef\xbb\xbfa,b\n1,2\n", 1),
    "no final line feed": (b"a,b\n1,2\n3,4", 2),
    "NUL": (b"a,b\n1,x\x00y\n3,4\n", 2),
    "invalid UTF-8": (b"a,b\n1,\xff\xfe\n3,4\n", 2),
    "open quote": (b'a,b\n1,"open\n3,4\n', 2),
}


def test_odd_text_tables_lose_no_row(workplace):
    script = """
        import os
        def run(frame):
            assert "a" in frame.columns, list(frame.columns)
            return frame
    """
    for name, (text, rows) in ODD_TABLES.items():
        workplace.write({"data/t.csv": text})
        inputs = [{"name": "t", "type": "tabular", "format": "csv", "path": "data/t.csv"}]
        ended = workplace.job(script, inputs=inputs).start().wait()
        assert ended.exit_status in (0, 42), f"{name}: {ended}"
        assert ended.items[0] == rows, f"{name}: {ended}"
        assert sum(ended.items[1:]) == rows, name
        assert ended.items[1] >= rows - 1, f"{name}: {ended}"


def test_corrupt_parquet_file_fails_only_its_mini_batches(workplace):
    pandas = pytest.importorskip("pandas")
    (workplace.folder / "data").mkdir()
    for name in "abc":
        pandas.DataFrame({"n": range(10)}).to_parquet(workplace.folder / "data" / f"{name}.parquet")
    whole = (workplace.folder / "data" / "b.parquet").read_bytes()
    inputs = [{"name": "t", "type": "tabular", "format": "parquet", "path": "data"}]
    script = "def run(frame): return frame"

    (workplace.folder / "data" / "b.parquet").write_bytes(b"PAR1" + b"\x00" * 40 + whole[44:])
    ended = workplace.job(script, inputs=inputs).start().wait()
    assert ended.exit_status == 0, str(ended)
    assert len(ended.lines) == 20
    assert ended.mini_batches == (3, 2, 1)
    assert "b.parquet" in ended.log("job_error.txt")

    (workplace.folder / "data" / "b.parquet").write_bytes(whole[:100])
    ended = workplace.job(script, inputs=inputs).start().wait()
    said = ended.stderr + ended.stdout
    assert "b.parquet" in said, str(ended)
    assert "panicked" not in said


def test_line_of_200_megabytes_is_one_row(workplace):
    """It is one row, delivered or failed; the rows around it arrive."""
    with open_large(workplace.folder / "data" / "t.csv") as file:
        file.write(b"n,text\n1,before\n2,")
        for _ in range(200):
            file.write(b"x" * 1_000_000)
        file.write(b"\n3,after\n")
    script = """
        def run(frame):
            return [f"{n} {len(text)}" for n, text in zip(frame["n"], frame["text"])]
    """
    inputs = [{"name": "t", "type": "tabular", "format": "csv", "path": "data/t.csv"}]
    ended = workplace.job(script, inputs=inputs, mini_batch_size="1MB").run()
    assert ended.items[0] == 3
    assert {"1 6", "3 5"} <= set(ended.lines)
    assert ended.items[1] == 3 or ended.items[2] == 1


def open_large(path):
    os.makedirs(path.parent, exist_ok=True)
    return open(path, "wb")


def test_unreadable_file_fails_only_its_mini_batch(workplace):
    if os.getuid() == 0:
        # Root reads all files, but not a dangling link.
        workplace.data(2)
        (workplace.folder / "data" / "broken.txt").symlink_to("/nowhere/at/all")
    else:
        workplace.data(3)
        (workplace.folder / "data" / "002.txt").chmod(0)
    script = """
        def run(files):
            return [open(file).read() for file in files]
    """
    ended = workplace.job(script).start().wait()
    assert ended.exit_status == 0, str(ended)
    assert ended.lines == ["000", "001"]


def test_full_disk_is_one_clear_error_and_loses_nothing(workplace):
    """The home is a disk of 3 MB, too small for the rows; once it is larger, `retry` finishes the job."""
    workplace.data(400)
    job = workplace.job("def run(files):\n    return ['x' * 10_000 for file in files]\n")
    (workplace.folder / "disk").mkdir()
    # A mount namespace of its own, so that nothing is left mounted, and no privilege is needed.
    script = f"""
        mount -t tmpfs -o size=3m tmpfs disk || exit 9
        {workplace.executable} run {job.file.name} --json > first.json 2> first.err; echo $? > first.status
        mount -o remount,size=300m disk || exit 9
        {workplace.executable} retry test --json > second.json 2> second.err; echo $? > second.status
    """
    environment = {**workplace.environment, "GRISTMILL_HOME": str(workplace.folder / "disk" / "home")}
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", textwrap.dedent(script)]
    subprocess.run(namespace, cwd=workplace.folder, env=environment, check=True, timeout=100)

    texts = {path.name: path.read_text() for path in workplace.folder.glob("*.*") if path.name.startswith(("fi", "se"))}
    assert texts["first.status"] == "42\n", texts
    first = json.loads(texts["first.json"])
    assert first["state"] == "Failed"
    assert re.search("No space left on device|the disk is full", first["cause"])
    assert "\n" not in first["cause"]
    assert texts["second.status"] == "0\n", texts
    second = json.loads(texts["second.json"])
    assert second["items"] == {"total": 400, "succeeded": 400, "failed": 0}
    assert (workplace.folder / "output" / "rows.txt").read_text() == ("x" * 10_000 + "\n") * 400
