"""An HTTP client that fetches one large file, resumes an interrupted download, and checks its hash.

It uses https only, follows no redirect to anything less, and takes no more bytes than the caller
allows. Plain http is accepted from servers on this machine (127.0.0.1, ::1, localhost), which no other
machine can impersonate. Errors carry what a program needs as fields; callers write the sentences.
"""

import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from nmln.extras import later
from nmln.files import open_regular

if TYPE_CHECKING:
    import pooch
    import requests
else:
    pooch = later("pooch")

DownloadProgress = Callable[[int, int | None], None]
"""Called with the number of bytes so far and, if the server names it, of the whole file."""

_CHUNK = 1 << 14  # bytes that an interruption may lose
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_SECONDS = 30  # without a byte, after which a connection counts as broken


class DownloadError(Exception):
    """A file could not be fetched."""


class UnreachableError(DownloadError):
    """The server cannot be reached, or does not offer the file; `reason` is one printable line."""

    def __init__(self, reason: str) -> None:
        self.reason = printable(reason)
        super().__init__(self.reason)


class InterruptedDownloadError(DownloadError):
    """The connection broke; the first `received` bytes are kept for the next attempt."""

    def __init__(self, received: int) -> None:
        self.received = received
        super().__init__(f"the connection broke after {received:,} bytes")


class WrongHashError(DownloadError):
    """The whole file was received, but its sha256 is not the expected one."""

    def __init__(self, sha256: str) -> None:
        self.sha256 = sha256
        super().__init__(f"the sha256 of the file is {sha256}")


def download(
    url: str,
    output: Path,
    *,
    part: Path,
    sha256: str | None,
    most: int,
    watch: DownloadProgress | None = None,
    attempts: int = 3,
) -> None:
    """Fetch an address into `output`, unless that file is there and has the expected hash.

    A file with another hash is not kept.

    Args:
        url: the address.
        output: the file to write.
        part: where the bytes of an unfinished download are kept.
        sha256: the hash that the file must have; without one, any content is taken.
        most: the largest number of bytes that is accepted.
        watch: called as bytes arrive.
        attempts: how often a broken connection is tried, the first attempt included.
    """
    _forget_damaged_version(part)
    downloader = ResumingDownload(part, sha256, most, watch, attempts)
    pooch.get_logger().setLevel(logging.WARNING)  # only the command line prints
    try:
        pooch.retrieve(
            url, sha256, output.name, output.parent, downloader=downloader  # type: ignore[arg-type]
        )  # fmt: skip
    except ValueError as error:
        if downloader.sha256 is None:  # the server redirects to a malformed address
            raise UnreachableError(str(error)) from None
        output.unlink(missing_ok=True)
        raise WrongHashError(downloader.sha256) from None


@dataclass
class ResumingDownload:
    """A downloader for pooch: fetches an address into `part`, then hands the whole file to pooch.

    A further attempt, in this process or another, asks for the missing bytes only. The request names
    the version that they belong to (If-Range); if the server has another version, or does not support
    ranges, the download restarts. Bytes are kept as they arrive, without unpacking. Without an
    expected hash, only a version that the server names can be resumed. A file of more than `most` bytes
    is refused by the length that the server states, and at the latest when so many have arrived.
    """

    part: Path
    expected: str | None
    most: int
    watch: DownloadProgress | None = None
    attempts: int = 3
    pause: float = 1.0
    sha256: str | None = field(default=None, init=False)

    def __call__(self, url: str, output_file: str, pooch_instance: object) -> None:
        import requests
        from urllib3.exceptions import HTTPError

        check_address(url)
        part = self.part
        for attempt in range(self.attempts):
            size = _size(part)
            try:
                self._resume(url, part)
                break
            except (requests.RequestException, HTTPError, ConnectionError, TimeoutError) as error:
                # A refusal or a malformed address stays one, however often it is tried.
                final = isinstance(error, requests.HTTPError | ValueError)
                if final or not _size(part):
                    raise UnreachableError(_why(error)) from None
                if attempt == self.attempts - 1:
                    raise InterruptedDownloadError(_size(part)) from None
                if _size(part) <= size:
                    time.sleep(self.pause)  # no byte arrived: the server may need a moment
        self.sha256 = pooch.file_hash(str(part), "sha256")
        os.replace(part, output_file)
        _version_file(part).unlink(missing_ok=True)

    def _resume(self, url: str, part: Path) -> None:
        """Fetch the missing bytes; an error leaves those that arrived."""
        start = _size(part)
        version = _version_file(part)
        tag = version.read_text(encoding="utf-8") if version.exists() else None
        if tag is None and self.expected is None:
            start = 0
        with self._request(url, start, tag) as response:
            beyond = start > 0 and response.status_code == 416
            if beyond and response.headers.get("Content-Range", "").endswith(f"/{start}"):
                return  # the part is the whole file
            fits = not beyond and _first_byte(response) in (0, start)
            if fits:
                response.raise_for_status()
                _keep_version(part, response)
                self._write(part, response, _first_byte(response))
        if not fits and not start:
            raise UnreachableError("the server sends another part of the file than was asked for")
        if not fits:
            part.unlink()
            self._resume(url, part)

    def _request(self, url: str, start: int, tag: str | None) -> "requests.Response":
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
        """Delete what arrived: it is not a part of the expected file."""
        part.unlink(missing_ok=True)
        _version_file(part).unlink(missing_ok=True)
        return UnreachableError(f"it has {size}, but at most {self.most:,} are expected")


def check_address(url: str, before: str | None = None) -> None:
    """Refuse an address that others can read or answer for; `before` is the one that redirects to it.

    A malformed address is left to the request, which reports it.
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


def printable(text: str, most: int = 200) -> str:
    """Text of a server or a file for a message: one printable line of at most `most` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= most else f"{line[:most]}…"


def _session() -> "requests.Session":
    import requests

    class CheckedSession(requests.Session):
        """Checks every redirect before it is followed."""

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

    return CheckedSession()


def _first_byte(response: "requests.Response") -> int:
    """The position of the first byte of an answer: 0 for the whole file, -1 if it is not readable."""
    if response.status_code != 206:
        return 0
    span = response.headers.get("Content-Range", "").removeprefix("bytes ").split("-")[0]
    return int(span) if span.isdecimal() else -1


def _keep_version(part: Path, response: "requests.Response") -> None:
    """Write down the version that the bytes belong to; weak tags do not identify bytes."""
    tag = response.headers.get("ETag") or ""
    tag = response.headers.get("Last-Modified") if not tag or tag.startswith("W/") else tag
    if tag:
        part.parent.mkdir(parents=True, exist_ok=True)
        _version_file(part).write_text(tag, encoding="utf-8")
    else:
        _version_file(part).unlink(missing_ok=True)


def _forget_damaged_version(part: Path) -> None:
    """Delete a kept version that no server can have sent and that does not fit into a header."""
    version = _version_file(part)
    if version.exists():
        text = version.read_bytes().decode("utf-8", "replace")
        if not re.fullmatch(r"[!-~\xa1-\xff][ -~\xa0-\xff]*", text):
            version.unlink()


def _version_file(part: Path) -> Path:
    return Path(f"{part}.version")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _why(error: Exception) -> str:
    """The cause in a few words; requests wraps it in several layers."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server says {error.response.status_code} {error.response.reason}"
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None:
        cause = inner
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror[:1].lower() + cause.strerror[1:]
    return str(cause) or type(cause).__name__
