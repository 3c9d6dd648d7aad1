"""The example of broken invoices: run, rejects, mend, retry."""

import shutil
import subprocess
import sys

from harness import ROOT


def test_broken_invoices_are_rejected_mended_and_run_again(workplace):
    folder = workplace.folder / "invoices"
    shutil.copytree(ROOT / "examples/invoices", folder, ignore=shutil.ignore_patterns("output", "data"))
    subprocess.run([sys.executable, folder / "prepare.py"], check=True)
    ended = workplace.command("run", folder / "job.yaml", "--json")
    assert ended.result["items"] == {"total": 2000, "succeeded": 1996, "failed": 4}, ended
    output = folder / "output/totals.txt"
    good = output.read_text().splitlines()

    shown = workplace.command("rejects", "invoices").stdout
    for cause in ("ParseError", "InvalidOperation", "has no total", "its lines are"):
        assert cause in shown, shown

    subprocess.run([sys.executable, folder / "prepare.py", "--mend"], check=True)
    script = folder / "code/totals.py"
    script.write_text(script.read_text().replace("Decimal(text)", 'Decimal(text.replace(",", "."))'))
    retry = workplace.command("retry", "invoices", "--json")
    assert retry.result["items"] == {"total": 2000, "succeeded": 2000, "failed": 0}, retry
    lines = output.read_text().splitlines()
    assert [line[:5] for line in lines] == [f"{number:05}" for number in range(2000)], "in the order of the input"
    assert [line for line in lines if line in set(good)] == good
