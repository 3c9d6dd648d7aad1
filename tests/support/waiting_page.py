"""The page "Why does my job wait?", by the sentences that it explains."""

from __future__ import annotations

import re

from harness import ROOT

PAGE = ROOT / "services/cli/WAITING.md"


def fixed(sentence: str) -> str:
    """Returns what a sentence has in common with others of its kind: all up to its details, without numbers."""
    alike = re.sub(r"\d+", "N", sentence).replace("N job at", "N jobs at")
    return re.split(r" \(|; |: |…", alike)[0].strip()


def sections() -> dict[str, str]:
    """Returns each section with the sentence that is its heading."""
    parts = re.split(r"^### (.*)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {heading: text.partition("\n## ")[0] for heading, text in zip(parts[::2], parts[1::2], strict=True)}


def explains(hint: str) -> bool:
    """Returns whether the page has a section for what a job waits for."""
    for heading, text in sections().items():
        others = re.findall(r"\b[Oo]r (`+)(.+?)\1", text.replace("\n", " "))
        known = [heading, *(sentence for _, sentence in others)]
        if any(fixed(hint).startswith(fixed(sentence)) for sentence in known if fixed(sentence)):
            return True
    return "; since " in hint
