"""The page: the script of a job, two jobs side by side, and what runs a job again."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from page_client import COMPLETED, FAILED
from stand_in import StandIn

pytestmark = pytest.mark.xdist_group("page")


def test_script_is_shown_file_by_file(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{FAILED}/source")
    expect(page.get_by_role("group", name="score.py")).to_contain_text("return float(text)")
    page.get_by_label("File").select_option("helper.py")
    expect(page.get_by_role("group", name="helper.py")).to_contain_text("import math")
    page.get_by_label("File").select_option("model.py")
    expect(page.get_by_text("This file is not text, or is too long to show.")).to_be_visible()
    page.get_by_label("Script").select_option("at the start")
    expect(page).to_have_url(f"{stand_in.address}#/jobs/{FAILED}/source?file=model.py&version=0")


def test_script_is_compared_with_that_of_the_job_before(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{FAILED}/source")
    page.get_by_label("Compare with").select_option(f"the job before: {COMPLETED}")
    changes = page.get_by_role("group", name="Changes of score.py")
    expect(changes.locator(".removed")).to_have_text("-    return int(text)\n")
    expect(changes.locator(".added")).to_have_text("+    return float(text)\n")
    expect(page.get_by_text("1 other file is equal.")).to_be_visible()


def test_two_jobs_are_shown_side_by_side(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{FAILED}/compare")
    settings = page.locator(".panel").filter(has=page.get_by_role("heading", name="Settings"))
    expect(settings.locator("tbody tr")).to_have_count(1)
    expect(settings.locator("tbody tr")).to_have_text("run_max_try35")
    settings.get_by_label("Show equal settings").check()
    expect(settings.get_by_text("error_threshold")).to_be_visible()
    went = page.locator(".panel").filter(has=page.get_by_role("heading", name="How they went"))
    expect(went.get_by_role("row", name="of these succeeded")).to_have_text("of these succeeded2482400")
    expect(page.get_by_role("heading", name="Durations of attempts")).to_be_visible()
    page.get_by_role("link", name="Show the changes").click()
    expect(page.get_by_role("group", name="Changes of score.py")).to_be_visible()


def test_job_is_run_with_other_settings_by_a_command(stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{stand_in.address}#/jobs/{FAILED}")
    page.get_by_role("button", name="Run with other settings").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("code")).to_have_text("gristmill run /work/job.yaml --set run_max_try=5 --fresh")
    dialog.get_by_label("mini_batch_size").fill("20 files")
    dialog.get_by_label("error_threshold").fill("0")
    expect(dialog.locator("code")).to_have_text(
        "gristmill run /work/job.yaml --set run_max_try=5 --set 'mini_batch_size=20 files' --set error_threshold=0 "
        "--fresh"
    )


def test_rejected_items_are_run_again_by_a_button(own_stand_in: StandIn, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{own_stand_in.address}#/jobs/{FAILED}")
    causes = page.locator(".panel").filter(has_text="What failed, by cause")
    expect(causes.locator("summary")).to_have_text(
        [
            "ValueError: could not convert string to float: 'n/a' 42 failed attempts, 2 items rejected",
            "KeyError: 'currency' 1 item rejected",
        ]
    )
    expect(causes.get_by_text('{"total": "n/a"}').first).to_be_visible()
    causes.get_by_role("button", name="Run these again").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("code")).to_have_text(f"gristmill retry {FAILED}")
    dialog.get_by_role("button", name="Retry the job").click()
    expect(page.get_by_text("the job continues in a process of its own")).to_be_visible()
    assert own_stand_in.posted == [f"/jobs/{FAILED}/retry"]
