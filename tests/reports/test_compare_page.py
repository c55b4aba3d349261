"""The comparison report as a page: safe, complete in itself, and readable in a real browser."""

import re

import pytest

from tests.browser import Browser
from yolov7fast.reports.render import Bullets, Cell, Report, Section, Table, Text, to_html, to_markdown


def test_text_is_escaped():
    cells = [Cell("<b>|", True), "a|b"]
    report = Report(
        "<script>alert(1)</script>", [Section("S & T", [Text("`x<y`"), Bullets(["**a**"]), Table(["h", "i"], [cells])])]
    )
    page = to_html(report)
    assert "<script" not in page and "&lt;script&gt;" in page and "<code>x&lt;y</code>" in page
    assert '<td class="best">&lt;b&gt;|</td>' in page and "<strong>a</strong>" in page
    assert "| **<b>\\|** | a\\|b |" in to_markdown(report, "p")


def test_page_needs_nothing_but_itself(written):
    page = written[1].read_text(encoding="utf-8")
    assert "<svg" in page and not [word for word in ("<script", "<img", "<link", "url(http", "src=") if word in page]
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids)), "the plots' inner ids must not meet"


@pytest.mark.parametrize("width, mobile", [(1280, False), (390, True)])
def test_page_in_a_browser(written, width, mobile):
    with Browser(width, mobile=mobile) as page:
        page.open(written[1])
        assert page.log() == [], "script error, or something that could not be loaded"
        sizes = page.run(
            "return [innerWidth, document.documentElement.scrollWidth,"
            " [...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().toJSON())]"
        )
        assert sizes[0] == width and sizes[1] <= width, "the page is wider than the screen"
        assert len(sizes[2]) >= 14 and all(200 < s["width"] <= width and s["height"] > 80 for s in sizes[2])
        smallest = page.run(
            "return Math.min(...[...document.querySelectorAll('figure svg text')].map(t => t.getBoundingClientRect())"
            ".map(r => Math.min(r.width, r.height)).filter(x => x > 0).concat([99]))"
        )
        assert smallest >= 4, "axis labels stay legible"
        body = page.run("return parseFloat(getComputedStyle(document.querySelector('td')).fontSize)")
        assert body >= 12
