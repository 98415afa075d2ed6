"""One file from one address: resumed, watched, and believed by its checksum alone.

It grows under ``<name>.partial``, so that an interrupted download goes on where it stopped, and is
renamed when it is whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import requests
from requests.adapters import HTTPAdapter
from tqdm import tqdm
from urllib3.exceptions import HTTPError
from urllib3.util.retry import Retry

from .sources import RemoteFile
from .stage import flush, log, sha256_file

BLOCK = 1 << 16
PASSING = (429, 500, 502, 503, 504)  # what servers answer when they will answer otherwise later
GZIP = b"\x1f\x8b"
AGENT = "qknorm-mt data_prep (research; one download a user)"


@dataclass(frozen=True)
class Patience:
    """How long a server is waited for.

    Attributes:
        timeout: seconds without any answer, or without a byte.
        attempts: tries of one address that bring nothing, going on where the last one stopped.
        backoff: seconds before the second try; doubled before each further one.
        slowest: bytes a second, over ``window`` seconds, below which an address is given up.
        window: seconds.
    """

    timeout: float = 30.0
    attempts: int = 4
    backoff: float = 1.0
    slowest: float = 2000.0
    window: float = 30.0


class Failed(Exception):
    """One address did not give the file."""


class Unavailable(Failed):
    """An address does not have the file; the message says what it has instead."""


class Wrong(Failed):
    """What was received is not the file."""


class Broken(Failed):
    """A download broke off; the next try goes on from there."""


class TooSlow(Broken):
    """It would take too long."""


def download(file: RemoteFile, url: str, target: Path, patience: Patience) -> None:
    """Download from one address, trying again where it breaks off.

    Raises:
        Unavailable, Wrong, Broken, requests.RequestException: if it cannot be had there.
    """
    partial = partial_of(target)
    attempt, most = 0, -1
    while True:
        resumed = partial.exists()
        have = partial.stat().st_size if resumed else 0
        attempt = 1 if have > most else attempt + 1
        most = max(most, have)
        try:
            with session(patience) as http:
                receive(http, file, url, partial, patience)
            finish(file, partial, target)
            return
        except TooSlow:
            raise
        except Wrong as error:
            partial.unlink(missing_ok=True)
            if not resumed or attempt >= patience.attempts:
                raise
            log(f"{file.name}: {error}: starting over, for what was there may be at fault")
        except (Broken, requests.ConnectionError, requests.Timeout) as error:
            if attempt >= patience.attempts:
                raise
            log(f"{file.name}: {reason(error)}: trying again")
            time.sleep(patience.backoff * 2 ** (attempt - 1))


def session(patience: Patience) -> requests.Session:
    """HTTP with verified TLS, few redirects, and retries of what servers say will pass."""
    retry = Retry(
        total=patience.attempts,
        connect=0,
        read=0,
        redirect=5,
        backoff_factor=patience.backoff,
        status_forcelist=PASSING,
        respect_retry_after_header=False,  # which may say days
    )
    http = requests.Session()
    http.max_redirects = 5
    http.headers = {"User-Agent": AGENT, "Accept-Encoding": "identity"}  # type: ignore[assignment]
    for scheme in ("http://", "https://"):
        http.mount(scheme, HTTPAdapter(max_retries=retry))
    return http


def receive(
    http: requests.Session, file: RemoteFile, url: str, partial: Path, patience: Patience
) -> None:
    """Append to ``partial`` what it lacks."""
    have = partial.stat().st_size if partial.exists() else 0
    if have >= file.size:
        return
    headers = {"Range": f"bytes={have}-"} if have else {}
    with http.get(url, headers=headers, stream=True, timeout=patience.timeout) as answer:
        if answer.status_code == 416:
            raise Wrong("it has fewer bytes")
        if answer.status_code not in (200, 206):
            raise Unavailable(f"answers {answer.status_code} {answer.reason}")
        if answer.status_code == 200:
            have = 0  # from the start, whatever was asked for
        elif not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise Wrong("answers with another part of the file than was asked for")
        blocks = blocks_of(answer)
        first = next(blocks, b"")
        check_start(file, answer, have, first)
        with partial.open("ab" if have else "wb") as sink:
            for block in watched(chain([first], blocks), file, have, patience):
                sink.write(block)
    if partial.stat().st_size < file.size:
        raise Broken(f"broke off after {partial.stat().st_size} of {file.size} bytes")


def blocks_of(answer: requests.Response) -> Iterator[bytes]:
    """What has arrived, as it arrives: a drip must not look like silence."""
    try:
        while block := answer.raw.read1(BLOCK):
            yield block
    except HTTPError as error:
        raise Broken(f"broke off ({innermost(error)})") from error


def check_start(file: RemoteFile, answer: requests.Response, have: int, first: bytes) -> None:
    """Refuse at once what says that it is of another size, or begins like something else."""
    length = answer.headers.get("Content-Length", "")
    is_html = first[:200].lstrip().lower().startswith((b"<!doctype html", b"<html"))
    is_gzip = have > 0 or not file.name.endswith(".gz") or first.startswith(GZIP[: len(first)])
    fits = not length.isdecimal() or int(length) == file.size - have
    if is_html or not is_gzip or not fits:
        raise Unavailable(
            f"answers {answer.status_code} with {'an HTML page' if is_html else 'something else'} "
            f"of {length or 'unknown'} bytes, not with the file of {file.size}"
        )


def watched(
    blocks: Iterable[bytes], file: RemoteFile, have: int, patience: Patience
) -> Iterator[bytes]:
    """The blocks, with a progress bar; ends with an error if there are too many or too slowly."""
    since, got = time.monotonic(), 0
    with tqdm(
        total=file.size, initial=have, desc=file.name, unit="B", unit_scale=True, disable=None
    ) as bar:
        for block in blocks:
            have += len(block)
            got += len(block)
            if have > file.size:
                raise Wrong(f"answers with more than the file's {file.size} bytes")
            bar.update(len(block))
            yield block
            passed = time.monotonic() - since
            if passed > patience.window:
                if got / passed < patience.slowest:
                    raise TooSlow(f"too slow: {got / passed:.0f} bytes a second")
                since, got = time.monotonic(), 0


def finish(file: RemoteFile, partial: Path, target: Path) -> None:
    """Believe the file if its checksum is right; forget it otherwise."""
    digest = sha256_file(partial)
    if digest != file.sha256:
        partial.unlink()
        raise Wrong(f"its checksum is wrong: sha256 {digest}")
    flush(partial)
    partial.replace(target)
    flush(target.parent)


def partial_of(target: Path) -> Path:
    return target.with_name(target.name + ".partial")


def reason(error: Exception) -> str:
    """One line of what may be a chain of libraries' errors."""
    if isinstance(error, requests.exceptions.SSLError):
        return f"its TLS certificate is not valid ({error})"
    if isinstance(error, requests.TooManyRedirects):
        return "redirects without end"
    if isinstance(error, requests.exceptions.RetryError):
        return "goes on answering with an error of its own (429 or 5xx)"
    if isinstance(error, requests.Timeout):
        return "does not answer"
    if isinstance(error, requests.ConnectionError):
        return f"cannot be reached ({innermost(error)})"
    return str(error)


def innermost(error: BaseException) -> BaseException:
    """The error at the bottom of what requests and urllib3 wrap around it."""
    inside = [
        e for e in (getattr(error, "reason", None), *error.args) if isinstance(e, BaseException)
    ]
    return innermost(inside[0]) if inside else error
