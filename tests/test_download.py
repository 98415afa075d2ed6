"""Downloads from a loopback server that misbehaves in every way that servers do."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import http.server
import json
import random
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from data_prep.download import fetch_source
from data_prep.sources import RemoteFile, Source, load_sources, mirrors
from data_prep.text import PrepError
from data_prep.transfer import Patience

DATA = gzip.compress(random.Random(0).randbytes(300_000))
HTML = b"<!DOCTYPE html><html><body>Not here any more.</body></html>"
QUICK = Patience(timeout=2, attempts=3, backoff=0.01, slowest=20_000, window=0.3)


class Handler(http.server.BaseHTTPRequestHandler):
    """``/<what>/<name>`` answers as ``what`` says; requests and their ranges are kept."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str | None]]

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        what, asked = self.path.split("/")[1], self.headers.get("Range")
        before = sum(path == self.path for path, _ in self.seen)
        self.seen.append((self.path, asked))
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if self.headers["Accept-Encoding"] != "identity":
            self.answer(406, b"")  # a compressed answer would have another size
        elif what == "missing":
            self.answer(404, b"nothing here")
        elif (what == "busy-then-good" and before < 2) or what == "always-busy":
            self.answer(503, b"")
        elif what == "html":
            self.answer(200, HTML)
        elif what == "html-chunked":
            self.chunked(HTML)
        elif what == "loop":
            self.answer(302, b"", Location=self.path)
        elif what == "slow":
            time.sleep(0.3)
            self.answer(200, DATA)
        elif what == "other-size":
            self.answer(200, gzip.compress(b"something else"))
        elif what == "no-gzip":
            self.answer(200, b"x" * len(DATA))
        elif what == "bad-length":
            self.send_response(200)
            self.send_header("Content-Length", "12, 12")
            self.end_headers()
            self.close_connection = True
        elif what == "bad-location":
            self.answer(302, b"", Location="http://[::1")
        elif what == "tomorrow" and before < 1:
            self.answer(503, b"", **{"Retry-After": "86400"})
        elif what == "bit-by-bit":
            where = f"bytes {start}-{len(DATA) - 1}/{len(DATA)}"
            self.answer(
                206 if asked else 200,
                DATA[start : start + 60_000],
                length=len(DATA) - start,
                **{"Content-Range": where},
            )
            self.close_connection = True
        elif what.isdecimal() and before == 0:
            self.answer(int(what), b"")
        elif what == "moved":
            self.answer(302, b"", Location="/good/" + self.path.split("/")[2])
        elif what == "wrong":
            self.answer(200, DATA[:-1] + b"x")
        elif what == "long":
            self.chunked(DATA + b"more")
        elif what == "no-ranges":
            self.answer(200, DATA)
        elif what == "other-range" and asked:
            self.answer(206, DATA[7:], **{"Content-Range": f"bytes 7-{len(DATA) - 1}/{len(DATA)}"})
        elif what == "truncated" and before == 0:
            self.answer(200, DATA[:100_000], length=len(DATA))
            self.close_connection = True
        elif what == "drip":
            self.send_response(200)
            self.send_header("Content-Length", str(len(DATA)))
            self.end_headers()
            for byte in DATA[:100]:
                self.wfile.write(bytes([byte]))
                time.sleep(0.02)
            self.close_connection = True
        elif start:
            where = f"bytes {start}-{len(DATA) - 1}/{len(DATA)}"
            self.answer(206, DATA[start:], **{"Content-Range": where})
        else:
            self.answer(200, DATA)

    def answer(self, code: int, body: bytes, length: int | None = None, **headers: str) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def chunked(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")


class Server:
    def __init__(self, port: int):
        self.base = f"http://127.0.0.1:{port}"
        self.seen = Handler.seen = []

    def source(self, *whats: str, data: bytes = DATA) -> Source:
        name = "data.tar.gz"
        urls = tuple(f"{self.base}/{what}/{name}" for what in whats)
        file = RemoteFile(name, len(data), hashlib.sha256(data).hexdigest(), urls)
        splits = {"train": "train", "dev": "dev", "test": "test"}
        return Source("set", "a set", "yes", "for research only", "pairs", splits, (file,))

    def ranges(self) -> list[str | None]:
        return [asked for _, asked in self.seen]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    try:
        yield Server(httpd.server_address[1])
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def fetch(source: Source, folder: Path, *mirrors: str) -> bytes:
    paths = fetch_source(source, folder, mirrors, QUICK)
    assert not list(folder.rglob("*.partial"))
    return paths["data.tar.gz"].read_bytes()


PASSING = ["busy-then-good", "truncated", "tomorrow", "bit-by-bit", "429", "500", "502", "504"]


@pytest.mark.parametrize("what", ["good", "moved", *PASSING])
def test_what_passes_is_waited_for(server: Server, tmp_path: Path, what: str) -> None:
    assert fetch(server.source(what), tmp_path) == DATA
    if what == "truncated":
        assert server.ranges() == [None, "bytes=100000-"]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("missing", "answers 404 Not Found"),
        ("always-busy", r"an error of its own \(429 or 5xx\)"),
        ("html", f"answers 200 with an HTML page of {len(HTML)} bytes, not with the file of"),
        ("html-chunked", "answers 200 with an HTML page of unknown bytes"),
        ("other-size", r"answers 200 with something else of \d\d bytes, not with the file of"),
        ("no-gzip", "answers 200 with something else of 300"),
        ("bad-length", "data.tar.gz: "),
        ("bad-location", "data.tar.gz: "),
        ("loop", "redirects without end"),
        ("wrong", "its checksum is wrong: sha256 [0-9a-f]{64}"),
        ("long", "answers with more than the file's"),
        ("drip", r"too slow: \d+ bytes a second"),
    ],
)
def test_what_does_not_pass_is_left_for_the_next_address(
    server: Server, tmp_path: Path, what: str, message: str, capfd: pytest.CaptureFixture
) -> None:
    assert fetch(server.source(what, "good"), tmp_path) == DATA
    with pytest.raises(PrepError, match=message):
        fetch(server.source(what), tmp_path / "alone")
    assert not (tmp_path / "alone" / "set" / "data.tar.gz").exists()


def test_the_end_says_what_to_get_by_hand_and_how_to_check_it(
    server: Server, tmp_path: Path
) -> None:
    source = server.source("html", "missing")
    with pytest.raises(PrepError) as error:
        fetch(source, tmp_path)
    said = str(error.value)
    target = tmp_path / "set" / "data.tar.gz"
    sha256 = source.files[0].sha256
    for part in (*source.files[0].urls, f"{len(DATA)} bytes  sha256 {sha256}"):
        assert part in said
    assert f"sha256sum {target}\n" in said
    target.write_bytes(DATA)  # by hand
    before = len(server.seen)
    assert fetch(source, tmp_path) == DATA
    assert len(server.seen) == before


def test_the_end_names_all_that_is_missing(server: Server, tmp_path: Path) -> None:
    source = server.source("missing")
    (file,) = source.files
    other = dataclasses.replace(file, name="other.gz", sha256="0" * 64)
    with pytest.raises(PrepError, match=rf"^data.tar.gz could(.|\n)* other.gz .*{'0' * 64}"):
        fetch(dataclasses.replace(source, files=(file, other)), tmp_path)


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    file = RemoteFile("a.gz", 1, "0", ("http://127.0.0.1:9/a.gz",))
    source = Source("set", "", "", "", "pairs", {}, (file,))
    with pytest.raises(PrepError, match=r"a.gz: cannot be reached \(.*Connection refused\)\n"):
        fetch_source(source, tmp_path, [], QUICK)


def partial(folder: Path, content: bytes) -> None:
    (folder / "set").mkdir(parents=True)
    (folder / "set" / "data.tar.gz.partial").write_bytes(content)


def test_an_interrupted_download_goes_on(server: Server, tmp_path: Path) -> None:
    partial(tmp_path, DATA[:1234])
    assert fetch(server.source("missing", "html", "good"), tmp_path) == DATA
    assert server.ranges() == ["bytes=1234-"] * 3


@pytest.mark.parametrize("what", ["no-ranges", "other-range", "good"])
@pytest.mark.parametrize(
    "content", [DATA[:1234], b"x" * 1234, DATA + b"x", b"x" * len(DATA)], ids=len
)
def test_a_bad_beginning_or_a_refused_range_starts_over(
    server: Server, tmp_path: Path, what: str, content: bytes
) -> None:
    partial(tmp_path, content)
    assert fetch(server.source(what), tmp_path) == DATA


def test_a_file_that_is_there_is_taken_after_its_checksum(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "data.tar.gz").write_bytes(DATA)
    assert fetch(server.source("missing"), tmp_path) == DATA
    (folder / "data.tar.gz").write_bytes(DATA[:-1] + b"x")
    assert fetch(server.source("good"), tmp_path) == DATA
    assert (folder / "data.tar.gz.wrong").read_bytes() == DATA[:-1] + b"x"


@pytest.mark.parametrize("inside", ["set", "."])
def test_mirrors_come_first(server: Server, tmp_path: Path, inside: str) -> None:
    mirror = tmp_path / "mirror" / inside
    mirror.mkdir(parents=True)
    (mirror / "data.tar.gz").write_bytes(DATA)
    assert fetch(server.source("good"), tmp_path / "here", str(tmp_path / "mirror")) == DATA
    assert server.seen == []
    assert fetch(server.source("missing"), tmp_path / "there", f"{server.base}/good") == DATA
    (mirror / "data.tar.gz").write_bytes(DATA[:-1] + b"x")
    assert fetch(server.source("good"), tmp_path / "then", str(tmp_path / "mirror")) == DATA


def test_terms_are_shown_once_and_kept(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    for what in ("missing", "good", "good"):
        try:
            fetch(server.source(what), tmp_path)
        except PrepError:
            continue
    assert capfd.readouterr().err.count("terms of use: for research only") == 1
    manifest = json.loads((tmp_path / "set" / "manifest.json").read_text())
    assert manifest["terms"]["text"] == "for research only"
    file = manifest["files"]["data.tar.gz"]
    assert file["bytes"] == len(DATA)
    assert file["from"] == f"{server.base}/good/data.tar.gz"


def test_two_at_once_download_once(server: Server, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(fetch, server.source("slow"), tmp_path) for _ in range(3)]
    assert [job.result() for job in jobs] == [DATA] * 3
    assert len(server.seen) == 1


def test_tries_are_spaced_out(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    patience = dataclasses.replace(QUICK, attempts=4, backoff=1.0)
    file = RemoteFile("a.gz", 1, "0", ("http://127.0.0.1:9/a.gz",))
    source = Source("set", "", "", "", "pairs", {}, (file,))
    with pytest.raises(PrepError):
        fetch_source(source, tmp_path, [], patience)
    assert naps == [1, 2, 4]
    naps.clear()
    with pytest.raises(PrepError):
        fetch_source(server.source("always-busy"), tmp_path, [], patience)
    assert [nap for nap in naps if nap] == [2, 4, 8]


def test_an_invalid_certificate_is_refused(tmp_path: Path) -> None:
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    make += ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    try:
        subprocess.run([*make, "-days", "2"], check=True, capture_output=True)
    except OSError:
        pytest.skip("no openssl to make a certificate with")
    Handler.seen = []
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    try:
        url = f"https://127.0.0.1:{httpd.server_address[1]}/good/data.tar.gz"
        file = RemoteFile("data.tar.gz", len(DATA), hashlib.sha256(DATA).hexdigest(), (url,))
        source = Source("set", "", "", "", "pairs", {}, (file,))
        with pytest.raises(PrepError, match="its TLS certificate is not valid"):
            fetch_source(source, tmp_path / "downloads", [], QUICK)
        assert Handler.seen == []
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def test_mirrors_of_the_environment_come_after_those_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QKNORM_MT_MIRROR", raising=False)
    assert mirrors(["a"]) == ["a"]
    monkeypatch.setenv("QKNORM_MT_MIRROR", "b http://c/")
    assert mirrors(["a"]) == ["a", "b", "http://c/"]


def test_a_folder_in_the_files_place(server: Server, tmp_path: Path) -> None:
    (tmp_path / "set" / "data.tar.gz").mkdir(parents=True)
    with pytest.raises(PrepError, match=r"is a folder: the file data\.tar\.gz has to go there"):
        fetch(server.source("good"), tmp_path)


def test_published_sources_are_complete() -> None:
    sources = load_sources()
    assert set(sources) == {"iwslt15.en-vi", "ted_talks", "qi18naacl"}
    for source in sources.values():
        assert set(source.splits) == {"train", "dev", "test"}
        assert "research use" in source.terms
        for file in source.files:
            assert len(file.sha256) == 64
            assert len(file.urls) >= 2
            assert all(url.endswith("/" + file.name) for url in file.urls)
    (ted,) = sources["ted_talks"].files
    assert (ted.size, ted.sha256[:8]) == (352_222_045, "03457b9e")
    assert ted.urls[0] == "http://phontron.com/data/ted_talks.tar.gz"
    assert {f.name for f in sources["iwslt15.en-vi"].files} == {
        f"{name}.{lang}" for name in ("train", "tst2012", "tst2013") for lang in ("en", "vi")
    }


def test_the_published_dev_and_test_of_en_vi_are_those_at_hand(data_dir: Path) -> None:
    for file in load_sources()["iwslt15.en-vi"].files:
        if file.name.startswith("tst"):
            data = (data_dir / "iwslt15_en_vi" / file.name).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size, file.sha256)


LIST = (
    "a: {{layout: pairs, about: a, tokenised: b, terms: c, splits: {{train: a, dev: b, test: c}}, "
    "base: {}, files: {{{}: {{bytes: 1, sha256: " + "'" + "0" * 64 + "'}}}}}}"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "not a list of data sets"),
        ("a: {layout: zip}", "layout: 'zip'; legal is one of"),
        ("a: {layout: tsv}", "KeyError"),
        ("a: {layout: tsv, splits: {train: x}}", "legal is a name for each of train, dev and"),
        (LIST.format("http://x/", "a.gz"), "legal is a list of addresses"),
        (LIST.format("[http://x/]", "../a.gz"), "legal is names of letters"),
        (LIST.format("[http://x/]", "a.gz").replace("00", "0A", 1), "legal is 64 hex digits"),
        (LIST.format("[http://x/]", "a.gz").replace("bytes: 1", "bytes: x"), "legal is a number"),
    ],
)
def test_a_bad_list_of_sources(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "sources.yaml").write_text(text)
    with pytest.raises(PrepError, match=message):
        load_sources(tmp_path / "sources.yaml")
