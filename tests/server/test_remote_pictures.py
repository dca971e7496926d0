"""Pictures at URLs: what is fetched where the operator allows it, and what is refused.

Names are made up, and their addresses too: each connection goes to a server of this test.
"""

import asyncio
import base64
import json
import socket
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

from tests.server.serving import client_of
from tests.server.test_pictures import BLUE, COLD, RED, user
from wgpu_backend.cli.commands.serve.loads import make_bundled_entry
from wgpu_backend.server.core.remote_files import RemoteFile, RemoteFiles, is_public
from wgpu_backend.server.core.request import RequestError

PUBLIC = "93.184.216.34"
NAMES = {
    "pictures.example": [PUBLIC],
    "metadata.example": ["169.254.169.254"],
    "mixed.example": [PUBLIC, "10.0.0.5"],
    "localhost": ["::1", "127.0.0.1"],
    # As the resolver of the system reads them.
    "2130706433": ["127.0.0.1"],
    "0x7f.1": ["127.0.0.1"],
}
PLACES = {
    "/to/self": "/red.png",
    "/to/loop": "/to/loop",
    "/to/1": "/to/2",
    "/to/2": "/to/3",
    "/to/3": "/red.png",
    "/to/4": "/to/1",
    "/to/localhost": "http://localhost/secret",
    "/to/private": "http://192.168.1.1/secret",
    "/to/metadata": "http://metadata.example/latest/meta-data",
    "/to/ftp": "ftp://pictures.example/red.png",
    "/to/file": "file:///etc/hostname",
}


class Site(BaseHTTPRequestHandler):
    """Pictures, redirects, and answers that no reader should wait for."""

    def do_GET(self):
        self.server.asked.append(self.path)
        self.server.heads.append(dict(self.headers))
        if self.path in ("/red.png", "/red.png?a=%C3%A9"):
            self._answer(200, base64.b64decode(RED))
        elif self.path in PLACES:
            self._answer(302, b"", location=PLACES[self.path])
        elif self.path == "/large":
            self._answer(200, b"x" * 2000)
        elif self.path == "/endless":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000)
        elif self.path == "/zipped":
            self._answer(200, b"x", **{"content-encoding": "gzip"})
        elif self.path == "/other":
            self.wfile.write(b"220 mail ready\r\n\r\n")
        elif self.path == "/slow":
            self.server.gone.wait(10)
        else:
            self._answer(404, b"")

    def _answer(self, status, data, **headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def site():
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        server.asked, server.heads, server.gone = [], [], threading.Event()
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.gone.set()
        server.shutdown()


def files_of(site, names=NAMES, **limits):
    """A reader whose connections go to the site; it notes what was resolved and connected."""
    noted = []

    async def resolve(host, port):
        noted.append(("resolve", host))
        if host not in names:
            if host.replace(".", "").isdecimal() or ":" in host:
                return [host]
            raise OSError(-2, "unknown")
        found = names[host]
        return found.pop(0) if found and isinstance(found[0], list) else found

    async def connect(address, port, tls):
        noted.append(("connect", address, port, tls))
        return await asyncio.open_connection(*site.server_address)

    return RemoteFiles(resolve, connect, **limits), noted


def fetch(files, *urls):
    return asyncio.run(files.fetch_all([RemoteFile("url", url) for url in urls]))


def refuse(files, url):
    with pytest.raises(RequestError) as caught:
        fetch(files, url)
    assert caught.value.status == 400
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.255.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.0.1",
        "169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "192.0.2.1",
        "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "168.63.129.16",
        "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254",
        "::127.0.0.1", "::a9fe:a9fe", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::7f00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:7f00:1::1",
        "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1",
        "2001:db8::1", "no address",
    ],
)  # fmt: skip
def test_what_is_not_of_the_public_network(address):
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [PUBLIC, "1.1.1.1", "8.8.8.8", "2606:2800:220:1::1", "64:ff9b::808:808", "2002:808:808::1"],
)
def test_what_is_of_the_public_network(address):
    assert is_public(address)


def test_a_picture_is_fetched_from_the_address_that_was_checked(site):
    """The second look-up would give another address (DNS rebinding)."""
    names = {"pictures.example": [[PUBLIC], ["127.0.0.1"]]}
    files, noted = files_of(site, names)
    url = "http://pictures.example:8080/red.png?a=\u00e9#part"
    assert fetch(files, url) == [base64.b64decode(RED)]
    assert noted == [("resolve", "pictures.example"), ("connect", PUBLIC, 8080, None)]
    [head] = site.heads
    assert (head["Host"], "Cookie" in head) == ("pictures.example:8080", False)
    assert "no public address" in refuse(files, url)
    assert len(site.asked) == 1


def test_tls_checks_the_name_of_the_url(site):
    files, noted = files_of(site)
    fetch(files, "https://pictures.example/red.png")
    assert noted[1] == ("connect", PUBLIC, 443, "pictures.example")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://localhost/red.png", "no public address"),
        ("http://127.0.0.1:11434/api/tags", "no public address"),
        ("http://2130706433/red.png", "no public address"),
        ("http://0x7f.1/red.png", "no public address"),
        ("http://[::1]/red.png", "no public address"),
        ("http://[::ffff:127.0.0.1]/red.png", "no public address"),
        ("http://10.0.0.1/red.png", "no public address"),
        ("http://192.168.0.1/red.png", "no public address"),
        ("http://169.254.169.254/latest/meta-data", "no public address"),
        ("http://metadata.example/latest", "no public address"),
        ("http://mixed.example/red.png", "no public address"),
        ("http://nowhere.example/red.png", "its host has no address"),
        ("ftp://pictures.example/red.png", "scheme 'ftp', needs http or https"),
        ("file:///etc/hostname", "scheme 'file', needs http or https"),
        ("gopher://pictures.example/_x", "scheme 'gopher', needs http or https"),
        ("http://user:word@pictures.example/red.png", "has a user name"),
        ("http://pictures.example:25/red.png", "port 25, needs 80, 443, or at least 1024"),
        ("http://pictures.example:99999/red.png", "is not a URL"),
        ("http://[pictures/red.png", "is not a URL"),
        ("http://a..b/red.png", "is not a URL"),
        ("http:///red.png", "names no host"),
    ],
)
def test_a_url_that_is_refused_is_never_asked(site, url, why):
    files, noted = files_of(site)
    assert why in refuse(files, url)
    assert site.asked == []
    assert not [each for each in noted if each[0] == "connect"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/to/localhost", "no public address"),
        ("/to/private", "no public address"),
        ("/to/metadata", "no public address"),
        ("/to/ftp", "scheme 'ftp'"),
        ("/to/file", "scheme 'file'"),
        ("/to/loop", "has more than 3 redirects"),
        ("/to/4", "has more than 3 redirects"),
        ("/nothing", "answers with status 404"),
        ("/large", "has 2000 bytes, needs at most 1000"),
        ("/endless", "has more than 1000 bytes"),
        ("/zipped", "comes in the encoding 'gzip'"),
        ("/other", "does not speak HTTP"),
    ],
)
def test_an_answer_that_is_refused(site, path, why):
    files, noted = files_of(site, most_nbytes=1000)
    assert why in refuse(files, f"http://pictures.example{path}")
    assert {each[1] for each in noted if each[0] == "connect"} == {PUBLIC}


@pytest.mark.parametrize(("path", "hops"), [("/to/self", 2), ("/to/1", 4)])
def test_up_to_three_redirects_are_followed_each_checked(site, path, hops):
    files, noted = files_of(site)
    assert fetch(files, f"http://pictures.example{path}") == [base64.b64decode(RED)]
    assert [each[0] for each in noted] == ["resolve", "connect"] * hops


def test_a_slow_server_is_left_in_time_and_other_requests_wait(site):
    files, _ = files_of(site, most_seconds=0.2, most_at_once=1)
    begin = time.monotonic()
    assert "took longer than 0.2 s" in refuse(files, "http://pictures.example/slow")
    assert time.monotonic() - begin < 8

    async def wait_behind_another():
        # The other's limit would end at nearly the same time, so its place is held from here.
        async with files._places:
            with pytest.raises(RequestError, match="took longer"):
                await files.fetch_all([RemoteFile("b", "http://pictures.example/red.png")])

    asyncio.run(wait_behind_another())
    assert "/red.png" not in site.asked


def test_the_pictures_of_a_request_have_a_limit_together(site):
    size = len(base64.b64decode(RED))
    files, _ = files_of(site, most_total_nbytes=2 * size - 1)
    with pytest.raises(RequestError, match=f"has {size} bytes, needs at most {size - 1}"):
        fetch(files, "http://pictures.example/red.png", "http://pictures.example/to/self")


@pytest.fixture
def client(site, tmp_path):
    fixed = {"eyes": make_bundled_entry("eyes")}
    remote, noted = files_of(site)
    with client_of(tmp_path, fixed=fixed, remote=remote) as client:
        client.noted = noted
        yield client


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/v1/chat/completions", {"type": "image_url", "image_url": {"url": "URL"}}),
        ("/v1/responses", {"type": "input_image", "image_url": "URL"}),
        ("/v1/messages", {"type": "image", "source": {"type": "url", "url": "URL"}}),
    ],
)
def test_every_api_that_has_urls_fetches_them(client, path, part):
    part = json.loads(json.dumps(part).replace("URL", "http://pictures.example/to/self"))
    asks = {"type": "input_text" if "responses" in path else "text", "text": "Which colour?"}
    messages = user(part, asks)
    body = {"model": "eyes", "temperature": 0}
    body |= {"input": messages} if "responses" in path else {"messages": messages}
    body |= {"max_tokens": 8} if path == "/v1/messages" else {}
    found = client.post(path, json=body)
    assert found.status_code == 200, found.text
    assert "Red." in found.text
    if path == "/v1/messages":
        counted = client.post(
            "/v1/messages/count_tokens", json={"model": "eyes", "messages": messages}
        )
        assert counted.json()["input_tokens"] > 36


@pytest.mark.parametrize("stream", [False, True])
def test_a_picture_that_is_not_fetched_is_a_400_of_one_line(client, site, stream):
    url = "http://metadata.example/latest"
    messages = user({"type": "image_url", "image_url": {"url": url}})
    found = client.post(
        "/v1/chat/completions", json={"model": "eyes", "messages": messages, "stream": stream}
    )
    why = f"messages: image_url: '{url}': its host, or that of a redirect, has no public address"
    assert (found.status_code, found.json()["error"]["message"]) == (400, why)
    assert site.asked == []


def test_a_model_of_texts_fetches_nothing(client):
    part = {"type": "image_url", "image_url": {"url": "http://pictures.example/red.png"}}
    found = client.post("/v1/chat/completions", json={"model": "tale", "messages": user(part)})
    assert (found.status_code, "does not support images" in found.text) == (400, True), found.text
    assert client.noted == []


def test_other_fields_take_no_urls(client):
    """Ollama's API has base64 alone, and sounds have no field for a URL."""
    message = {"role": "user", "content": "a", "images": ["http://pictures.example/red.png"]}
    found = client.post("/api/chat", json={"model": "eyes", "messages": [message]})
    assert (found.status_code, "is not fetched" in found.text) == (400, True), found.text
    sound = {"type": "input_audio", "input_audio": {"data": "http://pictures.example/a.wav"}}
    found = client.post("/v1/chat/completions", json={"model": "eyes", "messages": user(sound)})
    assert (found.status_code, "is not fetched" in found.text) == (400, True), found.text
    # A data: URL is one of its own kind.
    message["images"] = [f"data:image/png;base64,{BLUE}"]
    found = client.post(
        "/api/chat",
        json={"model": "eyes", "messages": [message], "stream": False, "options": COLD},
    )
    assert found.status_code == 200, found.text
    assert client.noted == []


def test_a_server_without_tls_or_none_at_all_is_one_line(site):
    from wgpu_backend.server.core import remote_files

    async def resolve(host, port):
        return [PUBLIC]

    def connect_to(host, port):
        return lambda _, __, tls: remote_files._connect(host, port, tls)

    files = RemoteFiles(resolve, connect_to(*site.server_address))
    assert "has no TLS, or no valid certificate" in refuse(files, "https://pictures.example/a")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        files = RemoteFiles(resolve, connect_to(*free.getsockname()))
        assert "its server does not answer" in refuse(files, "http://pictures.example/a")


def test_a_real_connection_is_made_to_an_address(site):
    """The system's own look-up and connection, as the server uses them."""
    from wgpu_backend.server.core import remote_files

    async def ask():
        host, port = site.server_address
        assert host in await remote_files._resolve(host, port)
        _, writer = await remote_files._connect(host, port, None)
        with closing(writer):
            return writer.get_extra_info("peername")

    assert asyncio.run(ask()) == site.server_address
