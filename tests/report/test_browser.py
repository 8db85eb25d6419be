"""The report in headless Chromium: rendering, contrast, sorting, keyboard access and escaping."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from acclimate.report import write_report
from acclimate.report.next_steps import next_steps
from acclimate.report.page import all_figures
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


OTHERS = [pytest.param(width, dark, marks=pytest.mark.slow) for width, dark in ((1280, True), (390, False))]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True), *OTHERS])
def test_it_renders_without_errors(browser, page, full, width, dark):
    browser.open(page, width, dark=dark)
    assert browser.errors == []
    figures = browser.run("[...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().toJSON())")
    assert len(figures) == len(all_figures(full))
    assert all(box["width"] > 250 and box["height"] > 80 and box["right"] <= width for box in figures)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")  # wide tables scroll within themselves
    # WCAG AA requires a contrast of 4.5, also in figures.
    assert browser.run(CONTRAST) >= 4.5


def test_tables_fit_the_screen(browser, results, tmp_path):
    """With one model and one domain, as in a first study: the main columns on a phone, all columns on a desktop."""
    one = replace(results, domains=["cs"], masked=[])
    for name in ("scores", "losses", "adaptations"):
        one = replace(one, **{name: [row for row in getattr(one, name) if row.domain == "cs"]})
    page = write_report(replace(one, means=[], verdict_counts=[], contamination=[]), tmp_path / "one.html")
    wide = "[...document.querySelectorAll('section > .table > .wide')]"
    too_wide = f"{wide}.filter(e => e.scrollWidth > e.clientWidth).map(e => e.innerText)"
    seen = f"[...{TABLE}.tHead.rows[0].cells].filter(c => c.checkVisibility()).map(c => c.textContent)"
    browser.open(page, 1400)
    assert browser.run(f"{wide}.length") >= 3 and browser.run(too_wide) == []
    assert {"p (Holm)", "95 % interval"} <= set(browser.run(seen))
    browser.open(page, 390)
    assert browser.run(too_wide) == []
    assert browser.run(seen) == ["task", "method", "verdict", "difference"]
    bottom = browser.run("document.querySelector('.verdict table').getBoundingClientRect().top")
    assert bottom < 844  # the first screen has the verdict and the start of the table
    browser.run(f"{TABLE}.closest('.table').querySelector('.tools input').click()")
    assert "95 % interval" in browser.run(seen)


@pytest.mark.parametrize("width", [1400, 390])
def test_commands_break_between_words_and_are_copied(browser, page, full, width):
    browser.open(page, width)
    broken = (
        "[...document.querySelectorAll('.command span')].filter(e => e.getBoundingClientRect().height > "
        "1.6 * parseFloat(getComputedStyle(e).lineHeight) && e.offsetWidth < .6 * e.closest('pre').clientWidth)"
    )
    assert (
        browser.run("document.querySelectorAll('.command span').length") > 5 and browser.run(f"{broken}.length") == 0
    )
    browser.run("navigator.clipboard.writeText = async text => { window.copied = text; }")
    browser.run("document.querySelector('.command button').click()")
    assert browser.run("window.copied") == next_steps(full, page.parent)[0].commands[0]


def test_tables_are_copied(browser, page):
    browser.open(page)
    browser.run("navigator.clipboard.writeText = async text => { window.copied = text; }")

    def copied(place, kind):
        browser.run(f"{place}.querySelector('[data-copy={kind}]').click()")
        return browser.run("window.copied")

    scores = f"{TABLE}.closest('.table')"
    lines = list(csv.reader(io.StringIO(copied(scores, "csv"))))
    assert lines[0] == titled_columns(browser) and len({len(line) for line in lines}) == 1
    assert lines[2][lines[0].index("difference")].lstrip("+-").replace(".", "").isdigit()  # an ordinary minus
    text = copied(scores, "latex")
    assert text.startswith("\\begin{tabular}{lll") and r"95 \% interval" in text and r"$\pm$" in text
    assert text.count(r" \\" + "\n") == len(lines)
    overview = list(csv.reader(io.StringIO(copied("document.querySelector('.verdict .table')", "csv"))))
    assert overview[0][:2] == ["task", "method"] and {line[0] for line in overview[1:]} >= {
        "cs · intent",
        "food · aspect",
    }
    assert browser.errors == []


def titled_columns(browser):
    return browser.run(f"[...{TABLE}.tHead.rows[0].cells].map(c => c.textContent)")


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
