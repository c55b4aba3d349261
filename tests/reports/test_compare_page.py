"""The comparison report as a page: safe, complete in itself, and readable in a real browser."""

import re

import pytest

from tests.browser import Browser
from yolov7fast.reports.html_page import (
    Cell,
    ComparisonReport,
    ReportTable,
    Section,
    to_html,
    to_markdown,
)


def test_text_is_escaped():
    cells = [Cell("<b>|", True), "a|b"]
    report = ComparisonReport(
        "<script>alert(1)</script>",
        [Section("S & T", ["`x<y`", ["**a**"], ReportTable(["h", "i"], [cells])])],
    )
    page = to_html(report)
    assert "<script>alert" not in page and "&lt;script&gt;" in page and "<code>x&lt;y</code>" in page
    assert '<td class="best">&lt;b&gt;|</td>' in page and "<strong>a</strong>" in page
    assert "| **<b>\\|** | a\\|b |" in to_markdown(report)


def test_page_needs_nothing_but_itself(written):
    page = written[1].read_text(encoding="utf-8")
    assert "<svg" in page and page.count("<script>") == 1 and "script-src 'sha256-" in page
    assert not [word for word in ("<img", "<link", "url(", "src=", "http:", "https:") if word in page]
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids)), "the plots' inner ids must not meet"


@pytest.mark.parametrize("width, mobile", [(1280, False), (390, True)])
def test_in_a_browser_nothing_overflows_and_curves_show_their_values(written, width, mobile):
    with Browser(width, mobile=mobile) as page:
        page.open_fitting(written[1])
        sizes = page.run(
            "return [...document.querySelectorAll('figure > svg')].map(s => s.getBoundingClientRect().toJSON())"
        )
        assert len(sizes) >= 13 and all(200 < s["width"] <= width and s["height"] > 80 for s in sizes)
        smallest = page.run(
            "return Math.min(...[...document.querySelectorAll('figure svg text')].map(t => t.getBoundingClientRect())"
            ".map(r => Math.min(r.width, r.height)).filter(x => x > 0).concat([99]))"
        )
        assert smallest >= 4, "axis labels stay legible"
        body = page.run("return parseFloat(getComputedStyle(document.querySelector('td')).fontSize)")
        assert body >= 12
        shown = page.run(
            "const f = [...document.querySelectorAll('.chart')].find(f => f.textContent.includes('Total training'));"
            "const s = f.querySelector('svg'), v = () => [...f.querySelectorAll('.value')].map(v => v.textContent);"
            "const last = v(); s.focus(); s.dispatchEvent(new KeyboardEvent('keydown', {key: 'Home'}));"
            "const first = v(), at = f.querySelector('.at').textContent; s.blur();"
            "return [last, first, at, v(), f.querySelector('.at').textContent]"
        )
        assert shown == [["0.1295", "0.0781"], ["0.2254", "0.1626"], "epoch 0", ["0.1295", "0.0781"], ""]
        assert page.log() == []
