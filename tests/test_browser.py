"""The report of the main job in a real browser: no errors, pictures, no request that leaves the page."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nmln.report.page import Html, Section, write_page
from nmln.runs import pipeline
from tests.browser import Browser, find, running
from tests.runs.main_jobs import small, write_molecules

PROGRAM = find()
pytestmark = pytest.mark.skipif(
    PROGRAM is None,
    reason="no Chromium here: install the package chromium to open the report in it",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with running(PROGRAM, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a small job whose data have a name that would do harm."""
    folder = tmp_path_factory.mktemp("job")
    return pipeline.run(folder / "out", small(write_molecules(folder))).report


def test_the_report_opens_without_errors_and_asks_for_nothing(
    browser: Browser, report: Path
) -> None:
    seen = browser.open(report)
    assert seen.errors == []
    assert seen.requests == [report.resolve().as_uri()]


def test_pictures_are_there_and_have_a_size(browser: Browser, report: Path) -> None:
    browser.resize(1200)
    browser.open(report)
    plots = browser.tell(
        "[...document.querySelectorAll('figure svg')].map(one => one.clientHeight)"
    )
    drawn = browser.tell(
        "[...document.querySelectorAll('.molecule svg')].map(one => one.clientHeight)"
    )
    assert len(plots) >= 12
    assert len(drawn) >= 10
    assert min(plots) > 100
    assert min(drawn) > 60
    assert browser.tell("document.querySelectorAll('.molecule svg path').length") > 3 * len(drawn)
    assert browser.tell("document.querySelectorAll('img, script, iframe, link').length") == 0
    assert "onerror=alert(1)" in browser.tell("document.querySelector('h1').textContent")


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_the_screen_in_light_and_dark(
    browser: Browser, report: Path, width: int, scheme: str
) -> None:
    browser.resize(width)
    browser.prefer(scheme)
    browser.open(report)
    assert browser.tell("document.documentElement.scrollWidth") <= width
    paper, ink = (
        sum(browser.tell(f"getComputedStyle(document.body).{name}.match(/\\d+/g).map(Number)")[:3])
        for name in ("backgroundColor", "color")
    )
    assert (paper > ink) == (scheme == "light")
    card = browser.tell("getComputedStyle(document.querySelector('.molecule svg')).backgroundColor")
    assert card == "rgb(255, 255, 255)", "molecules are drawn on white"


HARM = """<script>document.title = 'taken'</script>
<img src='http://example.org/x.png' onerror="document.title = 'taken'">
<iframe src='http://example.org/'></iframe>
<style>p { background: url(http://example.org/y.png) }</style>
<form action='http://example.org/'><button>x</button></form>"""


def test_what_slips_through_the_escaping_does_nothing(browser: Browser, tmp_path: Path) -> None:
    path = write_page(tmp_path / "page.html", "kept", [Section("x", Html(HARM))])
    seen = browser.open(path)
    assert browser.tell("document.title") == "kept"
    assert (
        browser.tell("document.querySelectorAll('script, img, iframe').length") == 3
    )  # it slipped
    assert any("Content Security Policy" in one for one in seen.errors)
    assert not any("NAME_NOT_RESOLVED" in one for one in seen.errors)
    browser.tell("document.querySelector('button').click()")
    assert browser.tell("location.href") == path.resolve().as_uri()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("<script>throw new Error('x')</script>", "exception: Uncaught"),
        ("<script>console.error('oh')</script>", "console: error ['oh']"),
        ("<img src='missing.png'>", "failed: net::ERR_FILE_NOT_FOUND"),
        ("<img src='http://example.org/x.png'>", "failed: net::ERR_NAME_NOT_RESOLVED"),
        ("<style>p { background: url(//example.org/x.png) }</style><p>x", "failed: net::"),
    ],
)
def test_the_check_notices_what_goes_wrong(
    browser: Browser, tmp_path: Path, body: str, told: str
) -> None:
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><title>x</title>{body}")
    seen = browser.open(page)
    assert any(told in one for one in seen.errors), seen
    assert len(seen.requests) == (1 if "script" in body else 2)
