import re
from html.parser import HTMLParser
from pathlib import Path

from matplotlib.axes import Axes

from nmln.report import page
from nmln.report.page import Html, Section, write_page

VOID = {"meta", "br", "img", "hr"}


class Reader(HTMLParser):
    """Checks that every element is closed where it should be, and collects names and ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.ids: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.ids += [value for name, value in attrs if name == "id" and value is not None]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_whole_html_with_nothing_to_fetch(tmp_path: Path) -> None:
    def dots(axes: Axes) -> None:
        axes.plot([3, 2, 1], "o")

    sections = [Section("Plots", page.panels([dots])), Section("More", page.panels([dots]))]
    text = write_page(tmp_path / "a" / "page.html", "T", sections).read_text()
    reader = Reader(text)
    assert "script" not in reader.names
    assert "svg" in reader.names
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    assert policy is not None
    assert policy.start() < text.index("<style>")  # it rules over what comes after it only
    assert "default-src 'none'" in policy[1]
    assert "script-src" not in policy[1]
    assert not re.search(r"(src|href)=.http|url\(http|@import", text)
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text
    for name in re.findall(r"url\(#([^)]*)\)", text) + re.findall(r'href="#([^"]*)"', text):
        assert name in reader.ids


def test_different_plots_share_no_names() -> None:
    def rising(axes: Axes) -> None:
        axes.plot([1, 2])

    def falling(axes: Axes) -> None:
        axes.plot([2, 1])

    ids = Reader(page.panels([rising, falling])).ids
    assert len(ids) == len(set(ids)) > 0


def test_all_text_is_escaped_but_html_is_not(tmp_path: Path) -> None:
    bad = "<script>alert('&')</script>"
    parts = [
        page.paragraph(bad), page.code(bad), page.good(bad), page.bad([bad]), page.bullets([bad]),
        page.facts([(bad, bad)]), page.table([bad], [[bad]]), page.cards([(bad, Html("<i>x</i>"))]),
    ]  # fmt: skip
    path = write_page(tmp_path / "p.html", bad, [Section(bad, page.joined(*parts))], bad)
    text = path.read_text()
    assert "script" not in Reader(text).names
    assert text.count("&lt;script&gt;") == 14
    assert "<i>x</i>" in text


def test_sections_stand_in_the_order_given(tmp_path: Path) -> None:
    sections = [Section(name, page.paragraph(name)) for name in ("One", "Two", "Three")]
    text = write_page(tmp_path / "p.html", "T", sections).read_text()
    assert re.findall("<h2>(.*?)</h2>", text) == ["One", "Two", "Three"]
