"""The tables of rejects in the store of a compute target."""

import pytest

from targets import KINDS, lend

FILES = 40


@pytest.fixture(params=KINDS)
def target(request, workplace, components):
    """Each kind of target in turn."""
    yield from lend(request.param, workplace, components)


def test_rejects_of_a_target_are_in_its_store(workplace, target):
    workplace.data(FILES)
    script = """
        import os
        def run(files):
            if files[0].endswith("7.txt"):
                raise ValueError("missing total")
            return [os.path.basename(file) for file in files]
    """
    first = target.run(workplace.job(script))
    csv, parquet = (target.objects(f"jobs/{first.job_id}/logs/rejects.{kind}") for kind in ("csv", "parquet"))
    (lines,) = (text.decode().splitlines() for text in csv.values())
    assert [line.split(",")[4].rsplit("/", 1)[-1] for line in lines if line[0].isdigit()] == [
        f"{ten}7.txt" for ten in ("00", "01", "02", "03")
    ]
    assert len(parquet) == 1 and first.result["rejects"]["items"] == 4
    shown = target.command("rejects", first.job_id, expect=0).stdout
    assert "4 × ValueError: missing total, first:" in shown and "logs/rejects.csv" in shown
