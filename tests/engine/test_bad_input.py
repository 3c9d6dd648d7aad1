"""Bad input causes one clear error, or counted failed items, and loses nothing else."""

import json
import re
import subprocess
import textwrap

import pytest


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


def test_inputs_without_items_are_named_as_the_cause(workplace):
    workplace.write({"data/empty.csv": "a,b\n"})
    inputs = [{"name": "data", "type": "tabular", "format": "csv", "path": "data"}]
    script = "def run(frame):\n    return frame\n"
    ended = workplace.job(script, inputs=inputs, mini_batch_size="1MB").run(expect=42)
    assert "The inputs contain no items" in ended.cause
