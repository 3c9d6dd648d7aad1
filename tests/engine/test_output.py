"""The output: bytes, order, formats, and atomic appearance."""

import json
import os
import pickle

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from hypothesis.extra import pandas as pdst

from harness import wait_until


def test_elements_of_lists_become_lines(workplace):
    workplace.data(1)
    script = """
        import numpy as np
        def run(files):
            return ["cat.png: 3", 5, 0.1, True, None, [1, 2], (1, "a"), {"k": 1}, np.float32(0.1), np.float64(0.1),
                    np.array([1, 2, 3]), b"x", "two\\nlines", "", "ünï", np.array([[1, 2], [3, 4]]), float("nan")]
    """
    expected = "\n".join(
        [
            *["cat.png: 3", "5", "0.1", "True", "None", "[1, 2]", "(1, 'a')", "{'k': 1}", "0.10000000149011612", "0.1"],
            *["[1 2 3]", "b'x'", "two", "lines", "", "ünï", "[[1 2]", " [3 4]]", "nan", ""],
        ]
    )
    assert workplace.job(script).run().output.decode() == expected


CELLS = [
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.floats(width=32),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.sampled_from(["", " ", '"', "two words", 'q"q', "a,b", "a\tb", "a\nb", "a\rb", "'", "NaN", "None", "\\"]),
    st.none(),
    st.datetimes(),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 9), max_size=2),
]
TYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float32", "float64", "M8[ns]", "m8[ns]", "U5"]


@st.composite
def frames(draw):
    """Returns frames with every kind of column that scripts return."""
    rows = draw(st.integers(0, 6))
    frame = {}
    for position in range(draw(st.integers(1, 5))):
        name = f"c{position}"
        if draw(st.booleans()):
            kind = draw(st.sampled_from(TYPES))
            frame[name] = pd.Series(draw(npst.arrays(kind, rows)))
        else:
            cells = draw(st.one_of([st.lists(cell, min_size=rows, max_size=rows) for cell in CELLS]))
            frame[name] = pd.Series(cells, dtype=draw(st.sampled_from(["object", None])) if cells else "object")
    made = pd.DataFrame(frame)
    decoration = draw(st.sampled_from(["none", "category", "index", "midnight", "nullable"]))
    if decoration == "category" and rows:
        made["category"] = pd.Categorical(["two words", None, "b"] * 2, categories=["b", "two words"])[:rows]
    elif decoration == "index":
        made.index = [f"i{row}" for row in range(rows)]
    elif decoration == "midnight":
        made["day"] = pd.date_range("2020-01-01", periods=rows)
    elif decoration == "nullable":
        made["nullable"] = pd.array([1, None, 3, None, 5, 6][:rows], dtype="Int64")
    return made


def test_frames_equal_the_output_of_pandas(workplace):
    """One job returns generated frames; the output equals that of `to_csv`, byte for byte."""
    written = []
    (workplace.folder / "data").mkdir()

    @settings(max_examples=300, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(frames() | pdst.data_frames([pdst.column("x", dtype=float), pdst.column("y", dtype=str)]))
    def collect(frame):
        try:
            text = frame.to_csv(sep=" ", header=False, index=False, lineterminator="\n").encode()
        except UnicodeEncodeError:
            return
        with open(workplace.folder / "data" / f"{len(written):04}.pickle", "wb") as file:
            pickle.dump(frame, file)
        written.append((frame, text))

    collect()
    script = """
        import pickle
        def run(files):
            with open(files[0], "rb") as file:
                return pickle.load(file)
    """
    ended = workplace.job(script, process_count_per_node=2).run()
    expected = b"".join(text for _, text in written)
    if ended.output != expected:
        found = ended.output
        for frame, text in written:
            assert found[: len(text)] == text, f"first different frame:\n{frame}\n{frame.dtypes}"
            found = found[len(text) :]
    assert ended.mini_batches == (len(written), len(written), 0)


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
    """Rows have the order of the mini-batches; the output atomically replaces an older file."""
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


def test_append_row_job_without_succeeded_items_fails(workplace):
    workplace.data(3)
    script = """
        def run(files):
            return []
    """
    ended = workplace.job(script).run(expect=42)
    assert ended.state == "Failed"
    assert "run() returned no results: 0 of 3 items succeeded." in ended.cause
    assert ended.mini_batches == (3, 3, 0)
    assert not (workplace.folder / "output" / "rows.txt").exists()


def test_default_name(workplace):
    workplace.data(1)
    ended = workplace.job("def run(files): return files", append_row_file_name=None).run()
    assert ended.result["output"] == str(workplace.folder / "output" / "parallel_run_step.txt")


@pytest.mark.parametrize("extension", ["csv", "jsonl", "parquet"])
def test_native_formats_keep_types(workplace, extension):
    """Real CSV with a header, JSON lines and Parquet, with types."""
    workplace.data(3)
    script = """
        import pandas
        def run(files):
            number = int(open(files[0]).read())
            return pandas.DataFrame({"n": [number, number], "half": [number / 2, None], "text": ["a,b", 'q"q\\nz'],
                                     "yes": [True, False]})
    """
    job = workplace.job(script, append_row_file_name=f"rows.{extension}", output_format="native")
    file = job.run().result["output"]
    assert file.endswith(f"rows.{extension}")
    read = {"csv": pd.read_csv, "jsonl": lambda name: pd.read_json(name, lines=True), "parquet": pd.read_parquet}
    frame = read[extension](file)
    assert frame["n"].tolist() == [0, 0, 1, 1, 2, 2]
    assert frame["half"].fillna(-1).tolist() == [0.0, -1, 0.5, -1, 1.0, -1]
    assert frame["text"].tolist() == ["a,b", 'q"q\nz'] * 3
    assert frame["yes"].tolist() == [True, False] * 3


def test_unwritable_output_folder_is_rejected(workplace):
    """Root may write anywhere, so a file takes the place of the folder."""
    workplace.data(1)
    workplace.write({"output": "a file"})
    ended = workplace.job("def run(files): return files").start().wait()
    assert ended.exit_status in (2, 42), str(ended)
    assert "output" in ended.stderr + ended.stdout
    assert (workplace.folder / "output").read_text() == "a file"


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
