"""The same work as `score_rows`, one call for each row."""

import score_rows


async def run_item(row):
    return score_rows.score(row)
