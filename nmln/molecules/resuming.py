"""A downloader for pooch that goes on where the last attempt stopped.

It asks over https only, follows no redirect to anything less, and takes no more bytes than it is told to
expect. Plain http is for servers on this machine (127.0.0.1, ::1, localhost), which no other machine can
pretend to be.
"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from nmln.extras import later
from nmln.files import open_regular
from nmln.molecules.smiles_files import Watch

if TYPE_CHECKING:
    import pooch
    import requests
else:
    pooch = later("pooch")

_CHUNK = 1 << 14  # what an interruption may cost
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_SECONDS = 30  # without a byte, after which a connection counts as broken


class UnreachableError(Exception):
    """The server is not there, or does not have the file; the message says which."""


class InterruptedDownloadError(Exception):
    """The connection broke on the way; the message says after how much."""


@dataclass
class Resuming:
    """Fetches an address into `FILE.part` beside `target`, then hands the whole file to pooch.

    A further attempt, in this process or another, asks for the bytes that are missing. The server
    is told which version they belong to (If-Range); if it has another one, or knows no ranges, the
    file is begun anew. Bytes are kept as they travel: no unpacking on the way. Without a hash to
    expect, only a version that the server names can be resumed. A file of more than `most` bytes is
    refused by the length that the server tells, and at the latest when they have come.
    """

    target: Path
    expected: str | None
    most: int
    watch: Watch | None = None
    attempts: int = 3
    pause: float = 1.0
    sha256: str | None = field(default=None, init=False)

    def __call__(self, url: str, output_file: str, pooch_instance: object) -> None:
        import requests
        from urllib3.exceptions import HTTPError

        check_address(url)
        part = Path(f"{self.target}.part")
        for attempt in range(self.attempts):
            size = _size(part)
            try:
                self._go_on(url, part)
                break
            except (requests.RequestException, HTTPError, ConnectionError, TimeoutError) as error:
                final = isinstance(error, requests.HTTPError | ValueError)  # refused, or no address
                if final or not _size(part):
                    raise UnreachableError(_why(error)) from None
                if attempt == self.attempts - 1:
                    raise InterruptedDownloadError(f"after {_size(part):,} bytes") from None
                if _size(part) <= size:
                    time.sleep(self.pause)  # nothing came: perhaps the server needs a moment
        self.sha256 = pooch.file_hash(str(part), "sha256")
        os.replace(part, output_file)
        _tag(part).unlink(missing_ok=True)

    def _go_on(self, url: str, part: Path) -> None:
        """Ask for what is missing and write it down, or raise and leave what came."""
        start = _size(part)
        tag = _tag(part).read_text(encoding="utf-8") if _tag(part).exists() else None
        if tag is None and self.expected is None:
            start = 0
        with self._ask(url, start, tag) as response:
            beyond = start > 0 and response.status_code == 416
            if beyond and response.headers.get("Content-Range", "").endswith(f"/{start}"):
                return  # all of it was there
            fits = not beyond and _begins(response) in (0, start)
            if fits:
                response.raise_for_status()
                _remember(part, response)
                self._write(part, response, _begins(response))
        if not fits and not start:
            raise UnreachableError("the server sends another part of the file than was asked for")
        if not fits:
            part.unlink()
            self._go_on(url, part)

    def _ask(self, url: str, start: int, tag: str | None) -> "requests.Response":
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers |= {"Range": f"bytes={start}-"} | ({"If-Range": tag} if tag else {})
        with _session() as session:
            return session.get(url, headers=headers, stream=True, timeout=_SECONDS)

    def _write(self, part: Path, response: "requests.Response", begin: int) -> None:
        length = response.headers.get("Content-Length", "")
        total = begin + int(length) if length.isdecimal() else None
        done = begin
        if total is not None and total > self.most:
            raise self._too_large(part, f"{total:,} bytes")
        with open_regular(part, "ab" if begin else "wb") as file:
            for chunk in response.raw.stream(_CHUNK, decode_content=False):
                done += len(chunk)
                if done > self.most:
                    raise self._too_large(part, f"{done:,} bytes and more")
                file.write(chunk)
                if self.watch is not None:
                    self.watch(done, total)
        if total is not None and done < total:
            raise ConnectionError(f"{total - done:,} bytes are missing")

    def _too_large(self, part: Path, size: str) -> UnreachableError:
        """What is not the file is not kept either."""
        part.unlink(missing_ok=True)
        _tag(part).unlink(missing_ok=True)
        return UnreachableError(f"it has {size}, but at most {self.most:,} are expected")


def check_address(url: str, before: str | None = None) -> None:
    """Refuse an address that others can listen to or answer for; `before` redirects to it.

    What is no address at all is left to the request, which says so.
    """
    try:
        scheme, host = urlsplit(url).scheme.lower(), urlsplit(url).hostname
    except ValueError:
        return
    if scheme != "http":
        return
    if before is not None and urlsplit(before).scheme.lower() == "https":
        raise UnreachableError(f"it redirects from https to {url}, which is not protected")
    if host not in _LOOPBACK:
        raise UnreachableError(
            "http is not protected against changes on the way; give an https address"
        )


def _session() -> "requests.Session":
    import requests

    class Checked(requests.Session):
        """Looks at every redirect before it is followed."""

        def get_redirect_target(self, resp: requests.Response) -> str | None:
            target = super().get_redirect_target(resp)
            if target is None:
                return None
            try:
                check_address(urljoin(resp.url, target), before=resp.url)
            except (UnreachableError, ValueError):
                resp.close()
                raise
            return target

    return Checked()


def _begins(response: "requests.Response") -> int:
    """The position of the first byte of an answer: 0 if it is the whole file."""
    if response.status_code != 206:
        return 0
    span = response.headers.get("Content-Range", "").removeprefix("bytes ").split("-")[0]
    return int(span) if span.isdecimal() else -1


def _remember(part: Path, response: "requests.Response") -> None:
    """The version that the bytes belong to; weak tags do not stand for bytes."""
    tag = response.headers.get("ETag") or ""
    tag = response.headers.get("Last-Modified") if not tag or tag.startswith("W/") else tag
    if tag:
        part.parent.mkdir(parents=True, exist_ok=True)
        _tag(part).write_text(tag, encoding="utf-8")
    else:
        _tag(part).unlink(missing_ok=True)


def _tag(part: Path) -> Path:
    return Path(f"{part}.version")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _why(error: Exception) -> str:
    """The cause in a few words; requests wraps it in several layers of its own."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server says {error.response.status_code} {error.response.reason}"
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror[:1].lower() + cause.strerror[1:]
    return str(cause) or type(cause).__name__
