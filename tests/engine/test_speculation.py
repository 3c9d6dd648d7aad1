"""Slow mini-batches are started a second time, and the first success counts."""

from harness import file_names, is_alive, wait_until

FILES = 12
SLOW = "005.txt"
# The first start of one mini-batch marks itself; the second start finds the mark.
SCRIPT = """
    import os, time
    from recorder import record, wait_for
    def run(files):
        name = os.path.basename(files[0])
        mark = os.environ["MARK"]
        if name != "005.txt":
            time.sleep(0.05)
            return [name]
        first = not os.path.exists(mark)
        record("first" if first else "second")
        open(mark, "a").close()
        return (run_first if first else run_second)(name)
"""


def job(workplace, first, second, **settings):
    """Returns a job whose slow mini-batch runs this code in its first and in its second start."""
    workplace.data(FILES)
    lines = [f"def {name}(name):\n        {code}" for name, code in (("run_first", first), ("run_second", second))]
    script = SCRIPT + "".join(f"    {line}\n" for line in lines)
    workplace.environment["MARK"] = str(workplace.folder / "mark")
    return workplace.job(script, **{"process_count_per_node": 3, **settings})


def all_lines(ended):
    return ended.lines == file_names(FILES)


def test_second_start_ends_the_job(workplace):
    ended = job(workplace, "time.sleep(1000)", "return [name]").run()
    assert all_lines(ended)
    assert ended.mini_batches == (FILES, FILES, 0)
    assert ended.result["copies"] == {"started": 1, "won": 1}
    assert ended.result["elapsed_seconds"] < 40
    assert "1 second start, 1 won" in ended.log("job_result.txt")
    assert f"{SLOW}) takes far longer than others" in ended.log("sys/master_role.txt")
    assert [len(workplace.recorded(which)) for which in ("first", "second")] == [1, 1]
    (slower,) = workplace.recorded("first")
    wait_until(lambda: not is_alive(slower["pid"]), "the end of the slower start")


def test_killed_job_continues_after_a_second_start(workplace):
    first = "time.sleep(1000)"
    running = job(workplace, first, first).start()
    (second,) = running.wait_for_record("second")
    running.kill(second["pid"])
    (job_id,) = workplace.job_ids()
    entry = workplace.folder / "code/entry.py"
    entry.write_text(entry.read_text().replace("time.sleep(1000)", "return [name]"))
    ended = workplace.command("retry", job_id, "--json")
    assert ended.exit_status == 0, str(ended)
    assert all_lines(ended)
    # The first start has lost its delivery, the second start none.
    assert ended.mini_batches == (FILES, FILES, 0)
