"""Another round of a job on a compute target, with the script as it is now."""

import textwrap

import pytest

from harness import file_names

FILES = 12
SCRIPT = """\
import os
def run(files):
    names = [os.path.basename(file) for file in files]
    if any(name in BAD for name in names):
        raise ValueError("bad")
    # Some rows become parts.
    return [f"{name} {'x' * (100_000 if name.endswith('1.txt') else 5)}" for name in names]
"""


def names(output):
    return [line.split()[0] for line in output.decode().splitlines()]


def test_retry_runs_rejects_aside_or_completes_the_output(workplace, target):
    workplace.data(FILES)
    settings = {"isolate": "items", "mini_batch_size": 4}
    first = target.run(workplace.job("BAD = ['002.txt', '003.txt', '009.txt']\n" + SCRIPT, **settings))
    assert first.items == (FILES, FILES - 3, 3)
    target.worker()
    target.reducer()
    workplace.write({"mended/entry.py": "BAD = []\n" + SCRIPT})
    arguments = ["--separate", "--source-directory", "mended", "--wait", "--json"]
    aside = target.command("retry", first.job_id, *arguments, expect=0)
    assert aside.items == (3, 3, 0)
    if "://" not in aside.result["output"]:
        assert names(target.output(aside.result)) == ["002.txt", "003.txt", "009.txt"]
    assert names(target.output(first.result)) == file_names(FILES, without=[2, 3, 9]), "that job does not change"

    workplace.job("BAD = ['009.txt']\n" + SCRIPT, **settings)
    second = target.command("retry", first.job_id, "--wait", "--json", expect=0)
    assert (second.job_id, second.items) == (first.job_id, (FILES, FILES - 1, 1))
    assert "the script has changed since the job began" in second.stderr
    assert names(target.output(second.result)) == file_names(FILES, without=[9])
    workplace.job("BAD = []\n" + SCRIPT, **settings)
    third = target.command("retry", first.job_id, "--wait", "--json", expect=0)
    assert third.items == (FILES, FILES, 0)
    assert names(target.output(third.result)) == file_names(FILES)


@pytest.mark.parametrize("target", ["sqs"], indirect=True)
def test_output_object_that_a_person_changed_is_kept(workplace, target, components):
    workplace.data(FILES)
    settings = {"isolate": "items", "mini_batch_size": 4, "output": f"s3://{target.prefix}/out"}
    first = target.run(workplace.job("BAD = ['002.txt', '009.txt']\n" + SCRIPT, **settings))
    url = f"s3://{target.prefix}/out/rows.txt"
    assert first.result["output"] == url
    s3 = components.client("s3")
    target.worker()
    target.reducer()
    for bad, rounds in (["009.txt"], 1), ([], 2):
        s3.put_object(Bucket=target.prefix, Key="out/rows.txt", Body=f"by hand {rounds}".encode())
        workplace.job(f"BAD = {bad}\n" + SCRIPT, **settings)
        last = target.command("retry", first.job_id, "--wait", "--json", expect=0)
        said = f"{url} was changed after the job had written it; the changed file is kept as {url}.edited-{rounds}"
        assert last.result["first_warnings"] == [said]

    def read(key):
        return s3.get_object(Bucket=target.prefix, Key=key)["Body"].read()

    assert names(read("out/rows.txt")) == file_names(FILES)
    assert [read(f"out/rows.txt.edited-{rounds}") for rounds in (1, 2)] == [b"by hand 1", b"by hand 2"]


def test_every_reject_of_a_long_list_runs_again(workplace, target):
    """A message cannot name them all, so the store does."""
    workplace.data(700)
    script = """
        import os
        async def run_item(file):
            number = int(os.path.basename(file)[:3])
            if number % 2 == 1 and not GOOD:
                raise ValueError(f"{number} is odd")
            return number
    """
    settings = {"isolate": "items", "mini_batch_size": 700}
    first = target.run(workplace.job("GOOD = False\n" + textwrap.dedent(script), **settings))
    assert (first.items, first.result["rejects"]["items"]) == ((700, 350, 350), 350)
    shown = target.command("rejects", first.job_id, expect=0).stdout
    assert "350 × ValueError: 1 is odd" in shown, shown
    workplace.job("GOOD = True\n" + textwrap.dedent(script), **settings)
    target.worker()
    target.reducer()
    second = target.command("retry", first.job_id, "--wait", "--json", expect=0)
    assert second.items == (700, 700, 0)
    assert names(target.output(second.result)) == [str(number) for number in range(700)]
