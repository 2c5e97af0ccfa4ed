"""How tests read HTML pages: they parse them, and open them in a real browser if one is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest


class Page(HTMLParser):
    """Collects what the tests ask about. It refuses an end tag that closes another element."""

    VOID = frozenset({"meta", "link", "input", "br", "hr", "img"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, n, value in self.attributes if n == name]


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium found")


def assert_orderly(page: Page) -> None:
    """One top heading, no level skipped, no id used twice."""
    levels = [int(h[1]) for h in page.headings]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(b <= a + 1 for a, b in pairwise(levels))
    ids = page.values("id")
    assert len(ids) == len(set(ids))


def browse(path: Path, profile: Path, moment: str = "") -> Page:
    assert BROWSER is not None
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}",
        "--virtual-time-budget=3000", "--enable-logging=stderr", "--dump-dom",
    ]  # fmt: skip
    done = subprocess.run(
        [BROWSER, *flags, path.as_uri() + moment], capture_output=True, text=True, timeout=120, check=True
    )
    assert "CONSOLE" not in done.stderr, done.stderr  # no errors, and nothing that the page's security policy refused
    return Page(done.stdout)


def sticks_out(pages: Sequence[str], folder: Path, widths: Sequence[int] = (390, 1280)) -> list[str]:
    """The elements that reach beyond the screen at each width, and how far the page scrolls sideways. Good: ["", "0"].

    Pages are shown in frames, because a browser window cannot be as narrow as a phone. Tables of suites and of runs may
    scroll in their box.
    """
    measure = """<script>onload = () => document.querySelectorAll("iframe").forEach((frame) => {
      const inside = frame.contentDocument, page = inside.documentElement, edge = page.clientWidth + 0.5;
      const shown = [...inside.querySelectorAll("main *")].filter((e) => e.getClientRects().length);
      const free = shown.filter((e) => !e.closest("table.grid, table.runs"));
      const wide = free.filter((e) => e.getBoundingClientRect().right > edge || e.getBoundingClientRect().left < 0);
      frame.dataset.wide = wide.map((e) => `${e.tagName}.${e.getAttribute("class")}`).join(" ");
      frame.dataset.scroll = page.scrollWidth - page.clientWidth;
      frame.removeAttribute("srcdoc");
    });</script>"""
    frames = "".join(
        f'<iframe width="{width}" height="900" srcdoc="{escape(page)}"></iframe>' for width in widths for page in pages
    )
    path = folder / "frames.html"
    path.write_text(f"<!doctype html><body>{frames}{measure}</body>", encoding="utf-8")
    seen = browse(path, folder / "profile")
    return [*seen.values("data-wide"), *seen.values("data-scroll")]
