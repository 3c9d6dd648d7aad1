"""The identity of a job: its code and the data that it asks for, not other files beside it."""

import os
import shutil
import textwrap

from harness import go, wait_until

HOLDS = textwrap.dedent("""
    import os
    from recorder import record, wait_for
    def run(files):
        name = os.path.basename(files[0])
        if name == os.environ.get("HOLD"):
            record("held")
            wait_for(lambda: False)
        record("run", name=name)
        return [name]
""")


def test_difference_from_an_unfinished_job_is_shown(workplace):
    workplace.data(4)
    workplace.write({"code/labels.txt": "a"})
    script = HOLDS + "LABELS = 'labels.txt'\n"
    job_id = workplace.job(script).interrupt("003.txt", 3)
    shutil.copytree(workplace.home, workplace.folder / "kept")

    def change_labels():
        workplace.write({"code/labels.txt": "changed"})
        # Later than the last moment of the job.
        os.utime(workplace.folder / "code" / "labels.txt", (2e9, 2e9))

    for difference, change in (
        ("run_max_try is 2 and was 1", lambda: workplace.job(script, run_max_try=2)),
        ("labels.txt has changed", lambda: change_labels() or workplace.job(script)),
        ("entry.py has changed", lambda: workplace.job(script + "# changed\n")),
    ):
        ended = change().run()
        assert difference in ended.stderr and f"gristmill retry {job_id}" in ended.stderr, str(ended)
        assert ended.job_id != job_id
        shutil.rmtree(workplace.home)
        shutil.copytree(workplace.folder / "kept", workplace.home)


def test_finished_job_that_is_not_reused_says_why(workplace):
    """In one line: which file, key or input differs, or what has become of its output."""
    workplace.data(2)
    workplace.write({"code/helper.py": "X = 1\n"})
    changed = "import helper\ndef run(files): return list(files)"

    def run(script="import helper\ndef run(files): return files", **settings):
        ended = workplace.job(script, allow_reuse=True, **settings).run()
        lines = [line for line in ended.stderr.splitlines() if "this is a new job" in line]
        return ended, lines

    first, said = run()
    assert said == []
    assert run()[0].result["reused"] is True
    workplace.write({"code/helper.py": "X = 2\n"})
    second, said = run()
    assert said == [f"job {first.job_id} has completed, and this is a new job, because helper.py has changed"]
    workplace.write({"code/entry.py": "import helper\ndef run(files): return ["})
    rejected = workplace.command("run", "job.yaml")
    assert rejected.exit_status == 2
    assert len(rejected.stderr.splitlines()) == 1, "a job that does not begin has no reason to be new"
    edited, said = run(changed)
    assert said == [f"job {second.job_id} has completed, and this is a new job, because entry.py has changed"]
    third, said = run(changed, mini_batch_size=2)
    assert said == [
        f"job {edited.job_id} has completed, and this is a new job, because "
        'mini_batch_size is "2 files" and was "1 files"'
    ]
    os.utime(workplace.folder / "data" / "001.txt", (1, 1))
    fourth, said = run(changed, mini_batch_size=2)
    assert said == [
        f"job {third.job_id} has completed, and this is a new job, because the files of input data have changed"
    ]
    (workplace.folder / "output" / "rows.txt").unlink()
    _, said = run(changed, mini_batch_size=2)
    assert (
        len(said) == 1 and f"job {fourth.job_id} " in said[0] and "rows.txt is missing, or was changed since" in said[0]
    )


def test_failed_job_of_the_same_script_is_named(workplace):
    workplace.data(2)
    script = "import os\ndef run(files):\n    assert 'FAIL' not in os.environ\n    return files"
    job = workplace.job(script, allow_reuse=True, error_threshold=0)
    failed = job.run(expect=42, FAIL="1")
    ended = job.run()
    assert f"job {failed.job_id} has failures, and this is a new job; `gristmill retry" in ended.stderr, str(ended)


def test_retry_with_a_changed_script_says_so_and_is_never_reused(workplace):
    workplace.data(4)
    scripts = {version: HOLDS.replace("return [name]", f"return ['{version}']") for version in ("old", "new")}
    job_id = workplace.job(scripts["old"], allow_reuse=True).interrupt("003.txt", 3)
    ended = workplace.job(scripts["new"], allow_reuse=True).retry(job_id)
    assert "the script has changed since the job began" in ended.stderr
    assert ended.lines == ["old", "old", "old", "new"]
    for version, script in scripts.items():
        fresh = workplace.job(script, allow_reuse=True).run()
        assert not fresh.result["reused"] and fresh.lines == [version] * 4


def test_changed_inputs_make_another_job(workplace):
    workplace.data(4)
    job = workplace.job(HOLDS)
    job.interrupt("003.txt", 3)
    (workplace.folder / "data" / "000a.txt").write_text("one more")
    ended = job.run()
    assert "the inputs have changed since job" in ended.stderr
    assert ended.items == (5, 5, 0)
    assert len(workplace.job_ids()) == 2


def test_side_input_that_changes_while_the_job_runs_is_reported(workplace):
    workplace.data(2)
    workplace.write({"labels.txt": "old"})
    script = """
        import sys
        def run(files):
            with open(sys.argv[sys.argv.index("--labels") + 1], "a") as labels:
                labels.write("new")
            return files
    """
    job = workplace.job(script, side_inputs={"labels": "labels.txt"}, arguments=["--labels", "${{side_inputs.labels}}"])
    ended = job.run()
    assert "side input labels has changed while the job ran: rows may come from either version" in ended.stderr
    assert not job.run().result["reused"]


def test_job_whose_processes_still_exit_delays_no_other(workplace):
    """It has a result, and writes its output no more."""
    workplace.data(1)
    job = workplace.job("""
        import atexit, os
        from recorder import recorded, wait_for
        atexit.register(wait_for, lambda: recorded("go"))
        def run(files): return [os.path.basename(files[0])]
    """, allow_reuse=True)  # fmt: skip

    def results():
        return len([*workplace.home.glob("jobs/*/result.json")])

    running = [job.start()]
    wait_until(lambda: results() == 1, "the first job has a result")
    assert workplace.command("run", job.file, "--json").exit_status == 0
    assert results() == 1, "the result is reused"
    running.append(workplace.start("run", job.file, "--fresh"))
    wait_until(lambda: results() == 2, "another job has written the same output")
    assert [one.process.poll() for one in running] == [None, None]
    go(workplace)
    assert [one.wait().exit_status for one in running] == [0, 0]
