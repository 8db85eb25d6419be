"""The report in headless Chromium: rendering, contrast, sorting, keyboard access and escaping."""

from __future__ import annotations

import pytest

from acclimate.report import write_report
from tests.report.browser import Browser, chromium
from tests.report.full import EVIL

pytestmark = pytest.mark.skipif(chromium() is None, reason="needs Chromium")
SCORES = "Scores on end tasks"
HEADING = f"[...document.querySelectorAll('h2')].find(h => h.textContent === '{SCORES}')"
TABLE = f"{HEADING}.parentElement.querySelector('table')"
COLUMN = f"[...{TABLE}.tHead.rows[0].cells].findIndex(c => c.textContent === 'difference')"
HEAD = f"{TABLE}.tHead.rows[0].cells[{COLUMN}]"
CELLS = f"[...{TABLE}.tBodies[0].rows].map(r => r.cells[{COLUMN}])"
VALUES = f"{CELLS}.map(c => c.dataset.value ? Number(c.dataset.value) : null)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(full, tmp_path_factory):
    return write_report(full, tmp_path_factory.mktemp("page") / "report.html")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_it_renders_without_errors(browser, page, width, dark):
    browser.open(page, width, dark=dark)
    assert browser.errors == []
    figures = browser.run("[...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().toJSON())")
    assert len(figures) == 7
    assert all(box["width"] > 250 and box["height"] > 80 and box["right"] <= width for box in figures)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")  # wide tables scroll within themselves
    # WCAG AA requires a contrast of 4.5, also in figures.
    assert browser.run(CONTRAST) >= 4.5


def test_text_from_data_is_escaped(browser, page):
    browser.open(page)
    assert browser.run("document.scripts.length") == 1
    assert browser.run("window.evil === undefined")
    assert browser.run(f"document.body.innerText.includes({EVIL!r})")
    assert browser.run("[...document.querySelectorAll('.masked')].some(e => e.textContent.includes('<script>'))")


def sorted_ways(values):
    """Return whether values are in descending and in ascending order; missing values must be last."""
    known = [value for value in values if value is not None]
    assert values[len(known) :] == [None] * (len(values) - len(known))  # missing values
    return known == sorted(known, reverse=True), known == sorted(known)


def test_sorting_by_clicking(browser, page):
    browser.open(page)
    browser.run(f"{HEAD}.querySelector('button').id = 'sorted'")
    assert browser.run(f"{HEAD}.getAttribute('aria-sort')") is None
    browser.click("#sorted")
    assert browser.run(f"{HEAD}.getAttribute('aria-sort')") == "ascending"
    assert sorted_ways(browser.run(VALUES)) == (False, True)
    browser.click("#sorted")
    assert browser.run(f"{HEAD}.getAttribute('aria-sort')") == "descending"
    assert sorted_ways(browser.run(VALUES)) == (True, False)
    assert browser.run(f"{TABLE}.querySelectorAll('[aria-sort]').length") == 1
    assert browser.errors == []


def test_sorting_by_keyboard(browser, page):
    browser.open(page)
    browser.run(f"{HEAD}.previousElementSibling.querySelector('button').focus()")
    browser.key("Tab", 9)
    assert browser.run("document.activeElement.textContent") == "difference"
    browser.key("Enter", 13, "\r")
    assert browser.run(f"{HEAD}.getAttribute('aria-sort')") == "ascending"
    browser.key(" ", 32, " ")
    assert browser.run(f"{HEAD}.getAttribute('aria-sort')") == "descending"
    assert sorted_ways(browser.run(VALUES)) == (True, False)


def test_everything_is_reached_by_keyboard(browser, page):
    browser.open(page)
    browser.run("document.activeElement.blur(); window.seen = new Set(); window.hidden = []")
    for _ in range(400):
        browser.key("Tab", 9)
        if not browser.run(STEP):
            break
    missed = browser.run(
        "[...document.querySelectorAll('figure, .wide, summary, th button')]"
        ".filter(e => e.checkVisibility() && !seen.has(e)).map(e => e.outerHTML.slice(0, 80))"
    )
    assert missed == []
    assert browser.run("[...document.querySelectorAll('figure')].every(f => seen.has(f))")
    assert browser.run("hidden") == []  # the focus is always visible


STEP = """
(e => {
  if (e === document.body || seen.has(e)) return false;
  if (getComputedStyle(e).outlineStyle !== "solid") hidden.push(e.outerHTML.slice(0, 80));
  return !!seen.add(e);
})(document.activeElement)
"""
CONTRAST = """
(() => {
  const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const over = (a, b) => { const t = a.length > 3 ? a[3] : 1; return [0, 1, 2].map(i => a[i] * t + b[i] * (1 - t)); };
  const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = c.map(v => linear(v / 255)); return .2126 * r + .7152 * g + .0722 * b; };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
  const behind = e => { const found = [];
    for (; e; e = e.parentElement) found.unshift(parse(getComputedStyle(e).backgroundColor));
    return found.reduce((below, c) => c.length > 3 && c[3] === 0 ? below : over(c, below), [255, 255, 255]); };
  let worst = 99;
  for (const e of document.querySelectorAll('main *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest('style')) continue;
    const style = getComputedStyle(e), svg = e.namespaceURI.endsWith('svg');
    const colour = parse(svg ? style.fill : style.color), ground = behind(svg ? e.closest('figure') : e);
    worst = Math.min(worst, ratio(over(colour, ground), ground));
  }
  return worst;
})()
"""
