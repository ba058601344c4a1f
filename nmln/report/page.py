"""One self-contained HTML page: sections in a common frame, with nothing to fetch and no script.

It is readable on a laptop and on a phone, in light and dark mode. Text is escaped unless it is `Html`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from nmln.files import write_lines
from nmln.report.figures import panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# If a text is left unescaped by mistake, it is still not run, fetched or sent: a page needs only styles.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class Html(str):
    """Text that is HTML already; any other text is escaped when it is added to the page."""

    __slots__ = ()


@dataclass(frozen=True)
class Section:
    """A part of a page; a page shows its sections in the given order."""

    title: str
    html: Html


def write_page(
    path: str | Path, title: str, sections: Iterable[Section], lead: str = "", style: str = ""
) -> Path:
    """Write sections as one page; `lead` is the line below the title, `style` adds to the common one."""
    body = [f"<section>\n<h2>{markup(one.title)}</h2>\n{one.html}\n</section>" for one in sections]
    if lead:
        body.insert(0, f"<p class='lead'>{markup(lead)}</p>")
    filled = _PAGE.format(
        title=markup(title), style=_STYLE + style, body="\n".join(body), policy=POLICY
    )
    write_lines(path, [filled])
    return Path(path)


def markup(content: object) -> Html:
    """Anything as HTML: what is HTML stays, the rest is escaped; a number keeps its percent sign."""
    if isinstance(content, Html):
        return content
    return Html(escape(str(content)).replace(" %", "&nbsp;%"))


def joined(*parts: Html) -> Html:
    return Html("\n".join(parts))


def paragraph(text: str) -> Html:
    return Html(f"<p>{markup(text)}</p>")


def code(text: str) -> Html:
    """A command to copy; long ones are wrapped."""
    return Html(f"<pre>{markup(text)}</pre>")


def good(text: str) -> Html:
    """A box that reports no problem."""
    return Html(f"<p class='good'>{markup(text)}</p>")


def bad(texts: Iterable[str]) -> Html:
    """A box that reports problems."""
    return Html(f"<ul class='bad'>{_items(texts)}</ul>")


def bullets(texts: Iterable[str]) -> Html:
    return Html(f"<ul>{_items(texts)}</ul>")


def facts(pairs: Iterable[tuple[str, object]]) -> Html:
    """A table of names and values."""
    rows = (
        f"<tr><th scope='row'>{markup(name)}</th><td>{markup(value)}</td></tr>"
        for name, value in pairs
    )
    return Html(f"<div class='wide'><table class='facts'>{''.join(rows)}</table></div>")


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """A table that scrolls sideways where the screen is narrow."""
    top = "".join(f"<th scope='col'>{markup(name)}</th>" for name in head)
    body = (f"<tr>{''.join(f'<td>{markup(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return Html(
        f"<div class='wide'><table><thead><tr>{top}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def cards(parts: Iterable[tuple[str, Html]]) -> Html:
    """Small parts with titles, as many side by side as the screen has room for."""
    shown = (f"<div><h3>{markup(title)}</h3>{html}</div>" for title, html in parts)
    return Html(f"<div class='cards'>{''.join(shown)}</div>")


def panels(paints: Iterable[Callable[["Axes"], None]]) -> Html:
    """Separate plots, as many side by side as the screen has room for."""
    drawn = (f"<figure>{panel(paint)}</figure>" for paint in paints)
    return Html(f"<div class='panels'>{''.join(drawn)}</div>")


def _items(texts: Iterable[str]) -> str:
    return "".join(f"<li>{markup(text)}</li>" for text in texts)


# In dark mode a plot is inverted: lines become light on a dark background and keep their hue.
_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --quiet: #59636e; --paper: #ffffff;
  --line: #d8dee4; --soft: #f4f6f8; --good: #e8f3fa; --good-edge: #0072b2; --bad: #fdf1e7;
  --bad-edge: #d55e00 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e2e6ea; --quiet: #9aa4ae; --paper: #15181c; --line: #343a41; --soft: #1e2329;
    --good: #14283a; --good-edge: #58a6dd; --bad: #3a2312; --bad-edge: #f08a3c }
  figure svg { filter: invert(1) hue-rotate(180deg) brightness(1.1) }
}
* { box-sizing: border-box }
body { font: 15px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink);
  background: var(--paper); max-width: 74rem; margin: 0 auto; padding: 1.5rem 1rem 3rem }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0.5rem 0; overflow-wrap: anywhere }
h2 { font-size: 1.15rem; margin: 2.2rem 0 0.6rem; padding-bottom: 0.3rem;
  border-bottom: 1px solid var(--line) }
h3 { font-size: 0.95rem; margin: 0 0 0.2rem; color: var(--quiet) }
.lead { color: var(--quiet); margin: 0 0 1rem }
ul { margin: 0.6rem 0; padding-left: 1.4rem }
li { margin: 0.15rem 0 }
.wide { overflow-x: auto }
table { border-collapse: collapse; margin: 0.3rem 0; font-variant-numeric: tabular-nums }
td, th { padding: 0.22rem 1rem 0.22rem 0; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--line); white-space: nowrap }
td:first-child, th:first-child { text-align: left }
thead th, .facts th { font-weight: 500; color: var(--quiet) }
.facts td, .facts th { text-align: left; white-space: normal }
.facts td { overflow-wrap: anywhere }
.good, .bad { border-left: 4px solid; border-radius: 3px; padding: 0.7rem 1rem; margin: 0.8rem 0 }
.good { background: var(--good); border-color: var(--good-edge) }
.bad { background: var(--bad); border-color: var(--bad-edge); padding-left: 2.2rem }
pre { background: var(--soft); border: 1px solid var(--line); border-radius: 6px; margin: 0.4rem 0;
  padding: 0.6rem 0.8rem; font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere }
.panels, .cards { display: grid; gap: 1rem 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)) }
.cards { grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)) }
figure { margin: 0 }
figure svg { display: block; width: 100%; height: auto; overflow: visible }
figure svg text { font-family: system-ui, -apple-system, "Segoe UI", sans-serif !important }
@media print { figure, .cards > div { break-inside: avoid } }
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>"""
