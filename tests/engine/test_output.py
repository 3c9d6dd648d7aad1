"""The output: bytes, order, formats, and atomic appearance."""

import json
import os
import signal

import pytest
from pyarrow import parquet

from harness import wait_until


def test_settings_file_and_header(workplace):
    """The snapshot sets arguments of `to_csv`; the header appears once at the top."""
    workplace.data(3)
    arguments = {"sep": ",", "float_format": "%.2f", "na_rep": "missing"}
    text = json.dumps({"append_row": {"pandas.DataFrame.to_csv": arguments}})
    workplace.write({"code/parallel_run_step.settings.json": text})
    script = """
        import pandas
        def run(files):
            return pandas.DataFrame({"name": ["a b"], "value": [1 / 3], "hole": [None]})
    """
    header = ["--append_row_dataframe_header", "True"]
    ended = workplace.job(script, arguments=header, process_count_per_node=2).run()
    assert ended.output == b"name,value,hole\n" + b"a b,0.33,missing\n" * 3


def test_output_has_the_same_bytes_at_any_parallelism(workplace):
    workplace.data(60)
    workplace.write({"output/rows.txt": "from an older job\n"})
    script = """
        import random, time
        def run(files):
            time.sleep(random.random() / 50)
            # Rows of a hundred kilobytes exceed messages.
            return [f"{file} " + "x" * (100_000 if file.endswith("5.txt") else 10) for file in files]
    """
    outputs = []
    for processes, nodes in ((1, 1), (8, 1), (2, 2)):
        job = workplace.job(script, mini_batch_size=1, process_count_per_node=processes, node_count=nodes)
        outputs.append(job.run("--fresh").output)
    assert outputs[0] == outputs[1] == outputs[2]
    names = [line.split()[0] for line in outputs[0].decode().splitlines()]
    assert names == [str(workplace.folder / "data" / f"{number:03}.txt") for number in range(60)]
    assert os.listdir(workplace.folder / "output") == ["rows.txt"], "nothing temporary is left"


def test_summary_only_counts(workplace):
    workplace.data(3)
    script = """
        import os
        def run(files):
            for file in files:
                with open(os.path.join(os.environ["AZUREML_BI_OUTPUT_PATH"], os.path.basename(file)), "w") as own:
                    own.write("own output")
            return [None] * (len(files) - 1)
    """
    job = workplace.job(script, output_action="summary_only", append_row_file_name=None, mini_batch_size=3)
    ended = job.run()
    assert ended.items == (3, 2, 1)
    assert ended.result["output"] == str(workplace.folder / "output")
    assert sorted(os.listdir(workplace.folder / "output")) == ["000.txt", "001.txt", "002.txt"]


@pytest.mark.parametrize("form", ["rows", "pandas.DataFrame(rows, dtype=object)"])
def test_mini_batch_without_a_value_keeps_the_type_of_a_column(workplace, form):
    """Parquet: the other mini-batches decide."""
    workplace.data(4)
    script = f"""
        import pandas
        def run(files):
            number = int(open(files[0]).read())
            rows = [{{"n": number or None, "half": number / 2 or float("nan"), "text": str(number) if number else None,
                     "yes": number == 1 or None, "never": None}}]
            return {form}
    """
    job = workplace.job(script, append_row_file_name="rows.parquet", output_format="native", mini_batch_size=1)
    table = parquet.read_table(job.run().result["output"])
    assert [str(kind) for kind in table.schema.types] == ["int64", "double", "string", "bool", "string"]
    assert table["n"].to_pylist() == [None, 1, 2, 3] and table["half"].to_pylist() == [None, 0.5, 1.0, 1.5]
    assert table["yes"].to_pylist() == [None, True, None, None] and table["never"].null_count == 4


def test_output_appears_only_at_the_end(workplace):
    workplace.data(4)
    workplace.write({"output/rows.txt": "from an older job\n"})
    script = """
        import os
        from recorder import record, wait_for
        def run(files):
            if files[0].endswith("003.txt"):
                record("waiting")
                wait_for(lambda: os.path.exists(os.environ["GO"]))
            return files
    """
    go = workplace.folder / "go"
    running = workplace.job(script).start(GO=str(go))
    running.wait_for_record("waiting")
    output = workplace.folder / "output" / "rows.txt"
    assert output.read_text() == "from an older job\n"
    go.touch()
    ended = running.wait()
    assert len(ended.lines) == 4
    assert output.read_bytes() == ended.output


def test_full_output_disk_fails_the_job_by_name(workplace):
    """On a file system of one megabyte the job fails, names the disk, and leaves no partial file."""
    mount = workplace.folder / "small"
    mount.mkdir()
    if os.system(f"mount -t tmpfs -o size=1m tmpfs {mount} 2>/dev/null") != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        workplace.data(40)
        script = """
            def run(files):
                return ["x" * 100_000]
        """
        ended = workplace.job(script, output="small/output").run(expect=42)
        assert "No space left on device" in ended.cause, ended.cause
        assert not (mount / "output" / "rows.txt").exists()
        assert wait_until(lambda: (workplace.home / "jobs" / ended.job_id / "result.json").exists(), "result.json")
    finally:
        os.system(f"umount {mount}")


def test_schema_of_a_file_changes_with_the_file(workplace):
    workplace.data(2)
    settings = {"append_row_file_name": "rows.csv", "output_format": "native"}
    workplace.job("def run(files): return [{'code': '007'} for _ in files]", **settings).run()
    schema = workplace.folder / "output" / ".rows.csv.schema.json"
    texts = schema.read_text()
    job = workplace.job("def run(files): return [{'code': 7} for _ in files]", **settings)
    assert job.start(GRISTMILL_CRASH_AT="BeforeRename").wait().exit_status == -signal.SIGKILL
    assert schema.read_text() == texts, "rows.csv still has texts"
    job.run()
    assert schema.read_text() != texts


def test_output_that_could_not_be_written_is_written_in_another_format(workplace):
    """No mini-batch runs again: the rows are tables until a file is written."""
    workplace.data(4)
    script = """
        import os
        from recorder import record
        def run(files):
            record("ran")
            # A folder is in the way of the file.
            os.makedirs(os.environ["AZUREML_BI_OUTPUT_PATH"] + "/rows.parquet/in the way", exist_ok=True)
            return [{"file": file[-7:], "id": 2**60 + 1} for file in files]
    """
    job = workplace.job(script, append_row_file_name="rows.parquet", output_format="native", mini_batch_size=1)
    failed = job.run(expect=42)
    assert "rows.parquet" in failed.cause, failed.cause
    refused = workplace.command("retry", failed.job_id, "--set", "output_format=text")
    assert refused.exit_status == 2 and "output_format=jsonl" in refused.stderr, str(refused)
    code = workplace.folder / "code"
    code.rename(workplace.folder / "elsewhere")
    refused = workplace.command("retry", failed.job_id, "--set", "output_format=csv")
    assert "code has no file entry.py" in refused.stderr, str(refused)
    (workplace.folder / "elsewhere").rename(code)
    again = workplace.command("retry", failed.job_id, "--json")
    assert again.exit_status == 42 and "rows.parquet" in again.cause, "a refused retry changes no format"
    ended = workplace.command("retry", failed.job_id, "--set", "output_format=jsonl")
    assert ended.exit_status == 0, str(ended)
    told = workplace.command("status", failed.job_id).stdout
    assert "  round 2 had only the output to write, and failed: 4 of 4 items succeeded\n" in told, told
    assert "  round 3 wrote the output: 4 of 4 items succeeded\n" in told, told
    lines = (workplace.folder / "output" / "rows.jsonl").read_text().splitlines()
    assert lines[3] == '{"file": "003.txt", "id": 1152921504606846977}' and len(lines) == 4
    assert len(workplace.recorded("ran")) == 4
