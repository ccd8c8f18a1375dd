"""A real Chromium, and pages that remember what they said and asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.programs import find, require

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)


CONTRAST = """() => {
  const bright = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const rgb = text => { const m = text.match(/[\\d.]+/g).map(Number);
    return m.length === 4 && m[3] === 0 ? null : m.slice(0, 3); };
  const ground = element => { for (let e = element; e; e = e.parentElement) {
    const c = rgb(getComputedStyle(e).backgroundColor); if (c) return c; } return [255, 255, 255]; };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; node = walker.nextNode();) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest('svg')) continue;
    const style = getComputedStyle(element);
    const [one, two] = [bright(rgb(style.color)), bright(ground(element))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (two + 0.05);
    const large = parseFloat(style.fontSize) >= 24;
    if (ratio < (large ? 3 : 4.5)) poor.push([node.data.trim().slice(0, 40), ratio.toFixed(2)]);
  }
  return poor;
}"""
"""Texts whose contrast is below WCAG 2.2 AA (4.5 to 1; 3 to 1 for large text), with the ratio."""


@dataclass
class Visit:
    """A page as opened, with what its console said and every address that it asked for beyond itself."""

    page: Page
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


Open = Callable[..., Visit]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    program = find("chromium") or find("chromium-browser")
    if program is None:
        require("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Browser, tmp_path: Path) -> Iterator[Open]:
    """`visit(html_or_address, width=…, dark=…, script=…)` opens a page in a fresh context."""
    contexts = []

    def open_page(source: str, *, width: int = 1200, dark: bool = False, script: bool = True, **more: Any) -> Visit:
        context = chromium.new_context(
            viewport={"width": width, "height": 844}, color_scheme="dark" if dark else "light",
            java_script_enabled=script, **more,
        )
        contexts.append(context)
        seen = Visit(context.new_page())
        if source.startswith("http://"):
            address = source
        else:
            file = tmp_path / f"page{len(contexts)}.html"
            file.write_text(source, encoding="utf-8")
            address = file.as_uri()
        seen.page.on("console", lambda message: seen.console.append(message.text))
        seen.page.on("pageerror", lambda error: seen.console.append(str(error)))
        seen.page.on(
            "request",
            lambda request: seen.requests.append(request.url)
            if request.url != address and not request.url.startswith("data:") else None,
        )
        seen.page.goto(address)
        return seen

    yield open_page
    for context in contexts:
        context.close()
