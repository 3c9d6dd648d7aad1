"""The display of a job: in one line, and as a card in a notebook."""

from __future__ import annotations

import html
from typing import Any

COLOURS = {"Completed": "#5a9e5a", "Failed": "#d1495b", "Canceled": "#8a8a8a"}
"""Colours of cards by the state of the job."""


def sentence(status: dict[str, Any]) -> str:
    """Returns state, counts, and the cause of failure or of a wait, in one line.

    :param status: the object of ``gristmill status --json``.
    """
    ended = status.get("result") or {}
    counts = (ended or status.get("progress") or {}).get("mini_batches") or {}
    parts = [status["state"]]
    if counts:
        of = f" of {counts['total']}" if counts["total"] else ""
        parts.append(f"{counts['succeeded']}{of} mini-batches succeeded, {counts['failed']} failed")
    cause = ended.get("cause") or ended.get("headline") or status.get("hint")
    return ", ".join(parts) + (f". {cause}" if cause else "")


REUSED = "this job has this result already: same code, inputs and settings; fresh=True runs it again"
"""The message of a call that ran nothing."""


def card(job_id: str, status: dict[str, Any], reused: bool, portal: str) -> str:
    """Returns a table in HTML: state, counts, cause of failure, and where output, logs and portal are.

    :param status: as of ``sentence``.
    :param reused: whether the call found the job ended, and ran nothing.
    :param portal: the address of the page of the job if a portal runs, or the command that starts one.
    """
    from gristmill._native import took

    ended = status.get("result") or {}
    counted = ended or status.get("progress") or {}
    rows = [("state", status["state"])]
    for kind in ("mini_batches", "items"):
        if counts := counted.get(kind):
            # The items of a plan are known at its end.
            is_total = counts["total"] and (ended or kind == "mini_batches")
            of = f" of {counts['total']:,}" if is_total else ""
            text = f"{counts['succeeded']:,}{of} succeeded, {counts['failed']:,} failed"
            rows.append((kind.replace("_", "-"), text))
    # A job that ended before its first progress has none.
    if ended.get("elapsed_seconds"):
        rows.append(("took", took(ended["elapsed_seconds"], ended["worked_seconds"])))
    for name in ("cause", "headline", "output"):
        if ended.get(name):
            rows.append((name, ended[name]))
    if status.get("hint"):
        rows.append(("waits for", status["hint"]))
    if reused:
        rows.append(("reused", REUSED))
    rows.append(("logs", status["logs"]))
    rows.append(("portal", portal))
    colour = COLOURS.get(status["state"], "#4c8bc9")
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{_linked(name, str(value))}</td></tr>"
        for name, value in rows
    )
    return (
        f"<div style='border-left:4px solid {colour};padding-left:10px'>"
        f"<b>{html.escape(job_id)}</b><table>{cells}</table></div>"
    )


def _linked(name: str, value: str) -> str:
    text = html.escape(value)
    if name == "portal":
        if value.startswith("http"):
            return f"<a href='{text}' target='_blank'>{text.partition('/?')[0]}</a>"
        return f"<code>{text}</code> shows it while it runs"
    if name in ("logs", "output") and value.startswith("/"):
        return f"<a href='file://{text}'>{text}</a>"
    return text
