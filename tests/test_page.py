"""The report's page in a real browser: Debian's Chromium, where it is installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from .conftest import ROOT

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt install chromium")
REPORT = ROOT / "results" / "report.html"
SIZES = {"phone": (390, 844), "desk": (1280, 900)}


@pytest.fixture(scope="module")
def browser() -> Iterator[api.Browser]:
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def opened(browser: api.Browser, size: str = "desk", theme: str = "light") -> api.Page:
    """The committed report; errors of its scripts, and any request, fail the test at ``close``."""
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda m: page.problems.append(m.text) if m.type == "error" else None)
    page.on("request", lambda r: page.problems.append(r.url) if r.url != REPORT.as_uri() else None)
    page.goto(REPORT.as_uri())
    return page


def column(page: api.Page, table: str, name: str) -> list[str]:
    head = f"table[aria-labelledby={table}] thead th"
    names = [text.strip() for text in page.locator(head).all_inner_texts()]
    place = names.index(name) + 1
    cells = page.locator(f"table[aria-labelledby={table}] tbody tr td:nth-child({place})")
    return [text.strip() for text in cells.all_inner_texts()]


def test_a_column_sorts_both_ways(browser: api.Browser) -> None:
    page = opened(browser)
    button = page.locator("table[aria-labelledby=runs] th button", has_text="dev ppl")
    before = column(page, "runs", "dev ppl")
    assert len(before) >= 4
    for sign, order in ((1, "ascending"), (-1, "descending")):
        button.click()
        assert column(page, "runs", "dev ppl") == sorted(before, key=lambda x: sign * float(x))
        head = page.locator("table[aria-labelledby=runs] th", has_text="dev ppl")
        assert head.get_attribute("aria-sort") == order
    page.locator("table[aria-labelledby=main] th button", has_text="QKNorm").first.click()
    sorted_column = column(page, "main", "QKNorm")
    assert sorted_column.index("–") >= 1  # numbers first, then what is none
    assert not page.problems


def test_a_number_opens_its_runs_details(browser: api.Browser) -> None:
    page = opened(browser)
    link = page.locator("table[aria-labelledby=runs] tbody a").first
    target = link.get_attribute("href")
    details = page.locator(target)
    assert details.get_attribute("open") is None
    for _ in range(2):  # again, after it was closed by hand
        link.click()
        assert details.get_attribute("open") is not None
        assert details.locator("dt", has_text="data digest").is_visible()
        assert "at commit" in details.inner_text()
        details.locator("summary").click()
    assert not page.problems


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_it_is_readable(browser: api.Browser, size: str, theme: str, tmp_path: Path) -> None:
    page = opened(browser, size, theme)
    width = SIZES[size][0]
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # no sideways scroll
    for box in (svg.bounding_box() for svg in page.locator("figure svg").all()):
        assert 300 < box["width"] <= width
    page.screenshot(path=tmp_path / "page.png")
    back = Image.open(tmp_path / "page.png").convert("L").getpixel((3, 3))
    text = page.evaluate("getComputedStyle(document.querySelector('svg text')).fill")
    red, *_ = (int(part) for part in text.removeprefix("rgb(").rstrip(")").split(","))
    assert (back > 200, red < 100) == ((True, True) if theme == "light" else (False, False))
    assert not page.problems
