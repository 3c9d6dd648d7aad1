"""Invalid calls raise one clear exception, and leave no process behind."""

import os
import time
from pathlib import Path

import pandas as pd
import pytest
from calls import run

import gristmill
from gristmill.api.document import output_of


def processes_of(home):
    """Returns the command lines of the processes that work in this home folder."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if f"GRISTMILL_HOME={home}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.fixture(autouse=True)
def ended(home):
    """Every process that a test has started ends with it."""
    yield
    end = time.monotonic() + 20
    while processes_of(home) and time.monotonic() < end:
        time.sleep(0.1)
    assert processes_of(home) == []


def double(items):
    return [2 * item for item in items]


def test_processes_of_a_job_are_found(home):
    job = gristmill.submit(lambda items: time.sleep(3) or items, [1])

    def found(what):
        return any(what in one for one in processes_of(home))

    end = time.monotonic() + 30
    while not (found("bootstrap.py") and found("gristmill run")):
        assert time.monotonic() < end, processes_of(home)
    job.wait(progress=False)


def test_file_that_vanished_is_named(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(name)

    def read(files: list[str]):
        for other in ("a.txt", "b.txt"):
            if not files[0].endswith(other):
                os.unlink(os.path.join(os.path.dirname(files[0]), other))
        return [open(file).read() for file in files]

    with pytest.raises(gristmill.JobFailed) as raised:
        run(read, [tmp_path / "a.txt", tmp_path / "b.txt"], mini_batch_size=1)
    (failure,) = raised.value.job.failures
    assert "b.txt" in failure["message"], failure
    with pytest.raises(gristmill.InvalidJob, match=r"b\.txt"):
        run(read, [tmp_path / "b.txt"])


def test_target_that_is_unknown_or_cannot_be_reached_is_named():
    with pytest.raises(gristmill.GristmillError, match="nowhere"):
        gristmill.submit(double, [1], target="nowhere")
    Path("gristmill.toml").write_text(
        '[targets.closed]\nqueue = "amqp://guest:guest@127.0.0.1:9/%2f"\nstore = "store"\n'
    )
    with pytest.raises(gristmill.GristmillError, match=r"127\.0\.0\.1:9") as raised:
        gristmill.submit(double, [1], target="closed")
    assert "guest:guest" not in str(raised.value)
    with pytest.raises(gristmill.GristmillError, match="nothing-like-it"):
        gristmill.attach("nothing-like-it", target="closed")


def test_output_may_lie_beside_inputs_and_functions(tmp_path):
    """As in a notebook in the home folder, whose data are in a folder next to it."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a")
    job = run(lambda files: [Path(file).read_text() for file in files], "texts", output="out.csv")
    assert job.output == str(tmp_path / "out.csv")
    assert job.to_pandas().values.tolist() == [["a"]]


def test_folder_that_cannot_be_written_is_named(monkeypatch):
    with pytest.raises(gristmill.InvalidJob, match="/proc/self/results"):
        run(double, [1], output="/proc/self/results/out.parquet")
    monkeypatch.setenv("GRISTMILL_HOME", "/proc/self/nowhere")
    for inputs in ([1], pd.DataFrame({"x": [1]}), "*.csv"):
        with pytest.raises(gristmill.GristmillError, match="/proc/self/nowhere") as raised:
            run(double, inputs)
        assert "\n" not in str(raised.value).strip()


def test_function_that_ends_its_process_is_one_failure():
    def leave(items):
        os._exit(3)

    with pytest.raises(gristmill.JobFailed, match=r"exceeds error threshold 0"):
        run(leave, [1])


def test_init_that_fails_shows_its_error():
    def init():
        raise FileNotFoundError("model.bin")

    with pytest.raises(gristmill.JobFailed, match=r"FileNotFoundError: model\.bin") as raised:
        run(double, [1], init=init)
    assert 'raise FileNotFoundError("model.bin")' in str(raised.value)


def test_result_that_cannot_be_written_is_named():
    with pytest.raises(
        gristmill.JobFailed, match="should return a table, or a list of rows; for a single row, \\[row\\]"
    ):
        run(lambda items: 3, [1])
    with pytest.raises(gristmill.JobFailed, match="returned a object as a row, which has no form in a file"):
        run(lambda items: [object()], [1])


def test_interrupt_before_the_job_has_an_id_ends_the_command(monkeypatch):
    from gristmill.api.child import Child

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Child, "job_id", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(lambda items: time.sleep(600), [1])


def test_kernel_without_process_descriptors_is_waited_for(monkeypatch):
    def refused(pid):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)
    assert run(double, [1]).to_pandas()["value"].tolist() == [2]


@pytest.mark.parametrize(
    "inputs, output, meant",
    [([1], "s3:/bucket/out.csv", "s3://bucket"), ("http//host/a.csv", None, "http://host/a.csv")],
)
def test_url_with_a_mistake_is_refused_with_the_right_one(inputs, output, meant):
    with pytest.raises(gristmill.InvalidJob, match=f'did you mean "{meant}"'):
        run(double, inputs, output=output)


@pytest.mark.parametrize(
    ("misspelt", "meant"), [("verbos", "verbose"), ("freshh", "fresh"), ("outputt", "output"), ("targets", "target")]
)
def test_misspelt_keyword_of_a_call_is_named(misspelt, meant):
    with pytest.raises(TypeError, match=f"run has no keyword {misspelt}: did you mean {meant}"):
        run(double, [1], **{misspelt: True})


@pytest.mark.parametrize("output", ["s3://bucket/deep/out.csv", "S3://bucket/out.parquet", "file:///data/out.jsonl"])
def test_output_at_a_url_is_not_a_local_folder(output):
    keys = output_of(output)
    assert f"{keys['output']}/{keys['append_row_file_name']}" == output


def test_output_at_a_path_is_relative_to_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert output_of("out.csv")["output"] == str(tmp_path)
    assert output_of(Path("deep", "out.csv").as_posix())["output"] == str(tmp_path / "deep")
