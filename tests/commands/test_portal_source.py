"""The portal shows the script with which a job ran, how it differs from others, and what runs the job again."""

from __future__ import annotations

import json
import shlex

from harness import FAILED, Workplace, wait_until
from portal_client import Portal

FIRST = """
    import helper
    def run(files):
        return [helper.named(file) for file in files]
"""
HELPER = "def named(file):\n    return file\n"
MENDED = "import time\ndef run(files):\n    time.sleep(1)\n    return files\n"
FAILS = MENDED.replace("return files", "raise ValueError('not yet')")
FAILS_ON_ODD = """
    def run(files):
        for file in files:
            if int(file[-5]) % 2:
                raise ValueError(f"{file} is odd")
        return files
"""


def texts(source: dict) -> dict[str, str]:
    return {file["path"]: file["text"] for file in source["files"]}


def test_script_is_kept_and_compared_with_that_of_another_job(workplace: Workplace, portal: Portal) -> None:
    workplace.data(2)
    workplace.write({"code/helper.py": HELPER, "code/notes.txt": "no code"})
    first = workplace.job(FIRST).run().job_id
    (workplace.folder / "code/helper.py").unlink()
    second = workplace.job("def run(files):\n    return [1 for _ in files]\n").run().job_id
    assert first != second
    source = portal.get(f"/jobs/{first}/source")
    assert (source["versions"], source["entry_script"], source["changes"]) == (1, "entry.py", None)
    assert list(texts(source)) == ["entry.py", "helper.py", "recorder.py"] and texts(source)["helper.py"] == HELPER
    assert portal.get(f"/jobs/{second}")["lineage"]["before"] == first
    changes = portal.get(f"/jobs/{second}/source?since={first}")["changes"]
    assert [(file["path"], file["change"]) for file in changes["files"]] == [
        ("entry.py", "changed"),
        ("helper.py", "missing"),
    ]
    assert "+    return [1 for _ in files]\n" in changes["files"][0]["difference"]
    assert (changes["same"], changes["absent"]) == (1, None)


def test_each_script_of_a_continued_job_is_kept_and_its_time_is_that_of_its_rounds(
    workplace: Workplace, portal: Portal
) -> None:
    workplace.data(1)
    job = workplace.job(FAILS, error_threshold=0, run_max_try=1)
    first = job.run(expect=FAILED).result
    job_id = first["job_id"]
    workplace.write({"code/entry.py": MENDED})
    second = job.retry(job_id).result
    assert first["elapsed_seconds"] >= 1 and second["elapsed_seconds"] >= first["elapsed_seconds"] + 1
    assert second["worked_seconds"] <= second["elapsed_seconds"]
    assert portal.get(f"/jobs/{job_id}")["elapsed_seconds"] == second["elapsed_seconds"]
    source = portal.get(f"/jobs/{job_id}/source?since={job_id}/0")
    assert (source["versions"], source["version"]) == (2, 1)
    assert "return files" in texts(source)["entry.py"]
    assert "-    raise ValueError('not yet')\n+    return files\n" in source["changes"]["files"][0]["difference"]
    assert texts(portal.get(f"/jobs/{job_id}/source?version=0"))["entry.py"] == FAILS


def test_script_of_a_target_is_that_of_its_snapshot(workplace: Workplace, sqlite) -> None:
    workplace.data(1)
    workplace.write({"code/helper.py": HELPER, "code/table.bin": "\0\1"})
    job_id = sqlite.enqueue(workplace.job(FIRST))
    portal = Portal(workplace, "--target", sqlite.name)
    assert "import helper" in texts(portal.get(f"/jobs/{job_id}/source"))["entry.py"]
    for snapshot in (sqlite.folder / "store/snapshots").iterdir():
        snapshot.unlink()
    assert "no longer in the store" in portal.get(f"/jobs/{job_id}/source")["absent"]


def test_command_runs_the_job_again_with_what_the_command_line_changed(workplace: Workplace, portal: Portal) -> None:
    workplace.data(4)
    job = workplace.job("def run(files): return files")
    job_id = job.run("--set", "mini_batch_size=3", "--set", "description=two words").job_id
    [command] = [each["command"] for each in portal.get(f"/jobs/{job_id}")["commands"] if each["what"] == "run"]
    assert command.endswith(" --set mini_batch_size=3 --set 'description=two words'"), command
    words = shlex.split(command)[1:]
    again = workplace.command(*words, "--set", "run_max_try=2", "--json")
    assert again.exit_status == 0, str(again)
    new = portal.get(f"/jobs/{json.loads(again.stdout)['job_id']}")
    assert new["mini_batches"]["total"] == 2 and new["description"] == "two words"
    settings = {setting["key"]: setting["value"] for setting in new["settings"]}
    assert (settings["mini_batch_size"], settings["run_max_try"]) == ("3 files", "2")


def test_rejected_items_run_again_from_the_portal(workplace: Workplace, sqlite) -> None:
    """Here and on a target: with the script as it is now, and the output of the job is complete then."""
    workplace.data(4)
    job = workplace.job(FAILS_ON_ODD, isolate="items", mini_batch_size=4, output="output")
    local = job.run().job_id
    there = sqlite.enqueue(workplace.job(FAILS_ON_ODD, isolate="items", mini_batch_size=4, output="there"))
    sqlite.reducer()
    sqlite.worker()
    sqlite.wait_for_end(there)
    workplace.write({"code/entry.py": "def run(files):\n    return files\n"})
    for portal, job_id in ((Portal(workplace), local), (Portal(workplace, "--target", sqlite.name), there)):
        shown = portal.get(f"/jobs/{job_id}")
        assert shown["can_retry"] and shown["items"]["failed"] == 2, shown
        [cause] = shown["failures"]
        [group] = portal.get(f"/jobs/{job_id}/rejects")["groups"]
        assert cause["reason"] == group["reason"] and group["items"] == 2
        status, answer = portal.post(f"/jobs/{job_id}/retry")
        assert status == 202, answer

        def is_mended(portal: Portal = portal, job_id: str = job_id) -> bool:
            job = portal.get(f"/jobs/{job_id}")
            return job["state"] == "Completed" and job["items"] == {"total": 4, "succeeded": 4, "failed": 0}

        wait_until(is_mended, "the next round", 60)
        assert portal.get(f"/jobs/{job_id}/rejects")["items"] == 0
        assert not portal.get(f"/jobs/{job_id}")["can_retry"]
        status, answer = portal.post(f"/jobs/{job_id}/retry")
        assert status in (202, 409), answer
