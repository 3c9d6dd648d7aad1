"""Entry script: what is the species of a flower? A service knows."""

import asyncio
import json
import os
from urllib.request import Request, urlopen


async def run_item(flower):
    """Returns one line for a flower. Each call is one request, which waits for the `limits` of the job."""
    sizes = [value for value in flower.values() if isinstance(value, float)]
    answer = await asyncio.to_thread(ask, sizes)
    return f"{' '.join(map(str, sizes))}: {answer['species']}"


def ask(sizes):
    """Returns the answer of the service. Status 429 raises, and Gristmill calls `run_item` again later."""
    with urlopen(Request(os.environ["SERVICE"], json.dumps(sizes).encode()), timeout=30) as answer:
        return json.load(answer)
