"""The log tree: every file has its place in the original."""

import pstats
import re

import pytest


def test_log_tree_is_complete(workplace):
    workplace.data(6)
    script = """
        import glob, logging, os, subprocess, sys
        from azureml_user.parallel_run import EntryScript
        from recorder import wait_for

        def init():
            print("print from init")

        def run(files):
            name = os.path.basename(files[0])
            print(f"print {name}")
            logging.warning("root logging %s", name)
            EntryScript().logger.info("entry script %s", name)
            print(f"stderr {name}", file=sys.stderr)
            subprocess.run(["sh", "-c", f"echo child out {name}; echo child err {name} >&2"])
            if name == "005.txt":
                logs = os.path.dirname(os.path.dirname(os.path.dirname(EntryScript().log_dir)))
                # The last measured file.
                wait_for(lambda: glob.glob(os.path.join(logs, "perf/0/os/*/processes_*")))
                raise ValueError("the sixth file is bad")
            return [name]

        def shutdown():
            print("print from shutdown")
    """
    arguments = ["--resource_monitor_interval", 1, "--profiling_module", "cProfile"]
    ended = workplace.job(script, arguments=arguments, run_max_try=2).run()
    files = ended.log_files()

    (overview,) = [name for name in files if re.fullmatch(r"job_progress_overview\..+\.txt", name)]
    overview_text = ended.log(overview)
    assert re.search(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\S* ", overview_text), "ISO time with microseconds"
    assert "Scheduling finished. Scheduled 6 mini batches" in overview_text
    assert re.search(r"Processed \d+ of 6 mini batches", overview_text)
    assert "Completed" in ended.log("job_result.txt")
    assert "the sixth file is bad" in ended.log("job_error.txt")
    assert "sys/node" in ended.log("readme.txt")
    assert ended.log("sys/master_role.txt")

    rows = ended.attempts()
    columns = [
        *["Mini-batch Id", "Picked Count", "Process", "Process Start Time (UTC)", "Total", "Succeeded", "Failed"],
        *["Elapsed Seconds", "Process Seconds", "Run Method Seconds", "Status", "Error Category", "Error Message"],
        *["Mini-batch Detail", "Node", "Process Name"],
        *["Waited Seconds", "Prepared Seconds", "Loaded Seconds", "Reported Seconds", "Second Start"],
    ]
    assert list(rows[0]) == columns
    for row in rows:
        assert float(row["Waited Seconds"]) > 0 and not row["Second Start"], row
        parts = [float(row[f"{phase} Seconds"]) for phase in ("Loaded", "Run Method", "Reported")]
        assert sum(parts) == pytest.approx(float(row["Elapsed Seconds"]), abs=1e-5), row
    assert {(row["Node"], row["Process Name"]) for row in rows} == {("0", "process000")}
    assert [row["Status"] for row in rows] == ["RUN_DONE"] * 5 + ["RUN_EXCEPTION"] * 2
    assert [row["Picked Count"] for row in rows] == ["1"] * 6 + ["2"]
    assert rows[5]["Error Category"] == "ValueError"
    assert "005.txt" in rows[5]["Mini-batch Detail"]

    for report in ("process_summary.csv", "node_summary.csv"):
        (summary,) = ended.table(f"sys/job_report/{report}")
        assert "6" in summary.values() or "7" in summary.values(), summary

    node = ended.log("sys/node/0/process000.txt")
    assert re.search(r"\d+\|", node) and "INFO" in node
    assert "process000 exits with returncode 0." in ended.log("sys/node/0/_main.txt")
    assert pstats.Stats(str(ended.logs / "sys/node/0/process000.profile")).total_calls > 0

    names = ["000.txt", "001.txt", "002.txt", "003.txt", "004.txt", "005.txt", "005.txt"]
    stdout = ended.log("user/stdout/0/process000.stdout.txt").splitlines()
    prints = [line for line in stdout if line.startswith("print ")]
    assert prints == ["print from init", *(f"print {name}" for name in names), "print from shutdown"]
    assert sum("root logging" in line for line in stdout) == 7, "logging and print share a file, as they did"
    stderr = ended.log("user/stderr/0/process000.stderr.txt").splitlines()
    assert [line for line in stderr if line.startswith("stderr ")] == [f"stderr {name}" for name in names]
    entry = ended.log("user/entry_script_log/0/process000.log.txt").splitlines()
    assert [line.split("|")[-1].split()[-1] for line in entry if "entry script" in line] == names
    inherited = "\n".join(ended.log(name) for name in files if "stdout" in name or "stderr" in name)
    for name in names:
        assert f"child out {name}" in inherited and f"child err {name}" in inherited

    places = [
        [int(number) for number in line.split()] for line in ended.log("sys/printed/0/process000.txt").splitlines()
    ]
    tried = [(mini_batch, try_number) for _, mini_batch, try_number, *_ in places]
    assert tried == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (5, 2)], "a line for each attempt"
    assert [time for time, *_ in places] == sorted(time for time, *_ in places)
    files_of_streams = [
        (ended.logs / f"user/{name}/0/process000.{name}.txt").read_text() for name in ("stdout", "stderr")
    ]
    for (_, _, _, *ranges), name in zip(places, names, strict=True):
        out, err = (text[ranges[2 * at] : ranges[2 * at + 1]] for at, text in enumerate(files_of_streams))
        assert f"print {name}\n" in out and err == f"stderr {name}\n"
        assert not any(other in out for other in names if other != name)

    assert "the sixth file is bad" in ended.log("user/error.txt")
    errors = ended.log("user/error/0/process000.txt")
    assert "Traceback" in errors and "the sixth file is bad" in errors and "entry.py" in errors

    perf = [name for name in files if name.startswith("perf/0/")]
    for name in ("node_resource_usage.csv", "node_disk_usage.csv", "processes_resource_usage.csv"):
        assert f"perf/0/{name}" in perf
    assert any("os/" in name and "processes_" in name for name in perf)
    header = ended.log("perf/0/node_resource_usage.csv").splitlines()[0]
    assert header.startswith("Utc Time,Cpu Percent,Memory Total (MB),Memory Available (MB)")


def test_logging_level_without_samples_and_profiles(workplace):
    workplace.data(1)
    script = """
        import logging
        from azureml_user.parallel_run import EntryScript
        def run(files):
            for level in ("debug", "info", "warning"):
                getattr(EntryScript().logger, level)(f"entry {level}")
                getattr(logging, level)(f"root {level}")
            return files
    """
    for level, seen in (("DEBUG", 3), ("INFO", 2), ("WARNING", 1)):
        ended = workplace.job(script, logging_level=level, arguments=["--resource_monitor_interval", 0]).run()
        assert not [name for name in ended.log_files() if name.startswith("perf/") or name.endswith(".profile")]
        entry = ended.log("user/entry_script_log/0/process000.log.txt")
        assert sum(f"entry {name}" in entry for name in ("debug", "info", "warning")) == seen
        stdout = ended.log("user/stdout/0/process000.stdout.txt")
        assert sum(f"root {name}" in stdout for name in ("debug", "info", "warning")) == seen
