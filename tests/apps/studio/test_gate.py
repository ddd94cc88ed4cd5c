"""Who may ask the studio for what, and how much: the gate around a small application, without gradio."""

from __future__ import annotations

import asyncio

import pytest

from foveate.apps.studio import gate
from foveate.apps.studio.gate import (
    BodyLimit,
    ErrorSentences,
    OpenPaths,
    OwnOrigin,
    SecurityHeaders,
    guard,
    known_hosts,
)

HOST = b"127.0.0.1:7860"
PATH = "/gradio_api/queue/join"


async def answer(scope, receive, send):
    """An application that reads the whole request and answers 200 with its length."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RuntimeError("the client has gone")
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": str(size).encode()})


def call(app, path="/", method="GET", headers=(), chunks=(b"",), kind="http", server=("127.0.0.1", 7860)):
    """Status, headers and body of the answer; everything that was sent for another kind of connection."""
    sent, waiting = [], list(chunks)

    async def receive():
        if not waiting:
            await asyncio.sleep(60)
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "path": path, "method": method, "headers": list(headers), "server": server}
    asyncio.run(app(scope, receive, send))
    if kind != "http":
        return sent
    starts = [message for message in sent if message["type"] == "http.response.start"]
    assert len(starts) == 1
    return starts[0]["status"], dict(starts[0]["headers"]), b"".join(m.get("body", b"") for m in sent)


def host(name: bytes = HOST, **others: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"host", name), *((key.replace("_", "-").encode(), value) for key, value in others.items())]


LOCAL = known_hosts("127.0.0.1")


@pytest.mark.parametrize(
    ("name", "origin", "status"),
    [
        (b"localhost:9000", None, 200),  # the near end of a tunnel: ssh -L 9000:localhost:7860
        (b"localhost.", None, 200),  # the same name, written in full
        (b"localhost:9000", b"http://localhost:9000", 200),
        (b"localhost:7860", b"http://localhost:8888", 403),  # another server of this machine
        (b"localhost:7860", b"http://127.0.0.1:7860", 403),
        (b"localhost:7860", b"https://localhost:7860", 200),  # behind a proxy that speaks TLS
        (b"localhost:7860", b"https://localhost", 403),
    ],
)
def test_ports_and_schemes(name, origin, status):
    """The port of a host is not checked, since tunnels change it; an origin must be the host, with its port."""
    headers = host(name) if origin is None else host(name, origin=origin)
    assert call(OwnOrigin(answer, LOCAL), PATH, "POST", headers)[0] == status


@pytest.mark.parametrize("name", [b"127.0.0.1:7860", b"localhost:7860", b"LOCALHOST", b"[::1]:7860", b"localhost.:80"])
def test_the_hosts_of_the_machine_itself_are_known(name):
    assert call(OwnOrigin(answer, LOCAL), headers=host(name))[0] == 200


@pytest.mark.parametrize(
    "name",
    [
        b"evil.example",
        b"evil.example:7860",
        b"127.0.0.1.evil.example",
        b"localhost.evil",
        b"",
        b"0.0.0.0",
        b"[::1",
        b":",
    ],
)
def test_other_hosts_are_unknown(name):
    status, _, body = call(OwnOrigin(answer, LOCAL), headers=host(name))
    assert status == 403
    assert b"foveate studio" in body
    assert call(OwnOrigin(answer, LOCAL), headers=[])[0] == 403
    assert call(OwnOrigin(answer, LOCAL), headers=[*host(), *host(name)])[0] == 403


def test_hosts_follow_the_address_that_the_server_was_started_with():
    assert known_hosts("192.168.1.7") == {"192.168.1.7"}
    assert {"127.0.0.1", "localhost", "[::1]"} <= known_hosts("0.0.0.0")
    assert "[fe80::1]" in known_hosts("fe80::1")
    assert "studio.example" in known_hosts("127.0.0.1", ["Studio.Example"])
    # the address that a connection came in on is always known, for servers on all interfaces
    own = OwnOrigin(answer, known_hosts("0.0.0.0"))
    assert call(own, headers=host(b"10.0.0.5:7860"), server=("10.0.0.5", 7860))[0] == 200
    assert call(own, headers=host(b"10.0.0.6:7860"), server=("10.0.0.5", 7860))[0] == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (b"http://127.0.0.1:7860", 200),
        (b"https://127.0.0.1:7860", 200),
        (b"http://evil.example", 403),
        (b"http://127.0.0.1:3000", 403),
        (b"http://localhost:7860", 403),
        (b"null", 403),
        (b"", 403),
        (b"file://", 403),
        (b"http://127.0.0.1:7860.evil.example", 403),
    ],
)
def test_only_the_page_itself_may_send(origin, status):
    for method in ("GET", "POST", "OPTIONS"):
        assert call(OwnOrigin(answer, LOCAL), PATH, method, host(origin=origin))[0] == status


def test_a_named_host_may_be_the_origin_behind_a_proxy():
    own = OwnOrigin(answer, known_hosts("127.0.0.1", ["studio.example"]), frozenset({"studio.example"}))
    assert call(own, PATH, "POST", host(origin=b"https://studio.example"))[0] == 200
    assert call(own, PATH, "POST", host(b"studio.example", origin=b"https://studio.example"))[0] == 200
    assert call(own, PATH, "POST", host(origin=b"https://evil.example"))[0] == 403


@pytest.mark.parametrize("site", [b"cross-site", b"same-site"])
def test_other_pages_may_link_to_the_studio_and_nothing_else(site):
    own = OwnOrigin(answer, LOCAL)
    link = {"sec_fetch_site": site, "sec_fetch_mode": b"navigate", "sec_fetch_dest": b"document"}
    assert call(own, "/", "GET", host(**link))[0] == 200
    assert call(own, PATH, "POST", host(**link))[0] == 403
    assert call(own, "/", "GET", host(**link | {"sec_fetch_dest": b"iframe"}))[0] == 403
    assert call(own, "/config", "GET", host(sec_fetch_site=site, sec_fetch_mode=b"no-cors"))[0] == 403
    assert call(own, "/config", "GET", host(sec_fetch_site=b"same-origin", sec_fetch_mode=b"cors"))[0] == 200


@pytest.mark.parametrize("path", ["/", "/config", "/assets/a.js", "/gradio_api/queue/data", "/gradio_api/heartbeat/x"])
def test_what_the_page_reads_is_open(path):
    assert call(OpenPaths(answer), path)[0] == call(OpenPaths(answer), path, "HEAD")[0] == 200
    assert call(OpenPaths(answer), path, "POST")[0] == 404


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/upload",
        "/gradio_api/upload/",
        "/gradio_api/upload_progress",
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/proxy=http://example.org",
        "/gradio_api/run/predict",
        "/gradio_api/call/x",
        "/gradio_api/component_server",
        "/gradio_api/vibe-edit",
        "/monitoring",
        "/login",
        "/elsewhere",
        "/assets/" + "a" * 300,
    ],
)
def test_everything_else_is_closed(path):
    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        status, _, body = call(OpenPaths(answer), path, method)
        assert (status, body) == (404, b"foveate studio: there is nothing at this address")


def test_the_page_may_send_its_events():
    for path in (PATH, "/gradio_api/reset", "/gradio_api/cancel"):
        assert call(OpenPaths(answer), path, "POST", chunks=[b"{}"])[0] == 200
        assert call(OpenPaths(answer), path, "GET")[0] == 404


def limited(**options):
    return BodyLimit(answer, **{"limit": 10, "total": 1000, "small": 5} | options)


def test_long_requests_are_stopped():
    assert call(limited(), headers=[(b"content-length", b"11")])[0] == 413
    assert call(limited(), headers=[(b"content-length", b"-1")])[0] == 413
    assert call(limited(), headers=[(b"content-length", b"\xb2")])[0] == 413
    assert call(limited(), chunks=[b"12345678", b"90123", b"more"])[0] == 413  # without a content length
    assert call(limited(), headers=[(b"content-length", b"3")], chunks=[b"12345678", b"90123"])[0] == 413
    assert call(limited(), headers=[(b"content-length", b"10")], chunks=[b"1234567890"])[2] == b"10"


def test_slow_requests_are_stopped():
    assert call(limited(seconds=0.05), chunks=[b"123", b"123"])[0] == 200
    waiting = limited(seconds=0.05)

    async def slow():
        sent = []

        async def receive():
            await asyncio.sleep(0.5)
            return {"type": "http.request", "body": b"1", "more_body": True}

        async def send(message):
            sent.append(message)

        await waiting({"type": "http", "path": PATH, "method": "POST", "headers": []}, receive, send)
        return sent

    assert asyncio.run(slow())[0]["status"] == 408


def test_large_requests_share_a_budget_and_small_ones_do_not(monkeypatch):
    now = 100.0
    monkeypatch.setattr(gate, "monotonic", lambda: now)
    app = limited(total=25)
    large, small = {"chunks": [b"1234567890"]}, {"chunks": [b"12345"]}
    declared = [(b"content-length", b"10")]
    assert [call(app, **large)[0] for _ in range(3)] == [200, 200, 503]
    assert call(app, headers=declared, **large)[0] == 503
    assert all(call(app, **small)[0] == 200 for _ in range(20))
    now += gate.WINDOW + 1
    assert call(app, headers=declared, **large)[0] == 200


def test_after_the_body_the_application_may_wait_for_the_end_of_the_connection():
    async def patient(scope, receive, send):
        await receive()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(receive(), 0.2)  # the limit of seconds is over by then
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    assert call(BodyLimit(patient, seconds=0.05))[0] == 200


def broken(error=None, status=None):
    async def app(scope, receive, send):
        if status is not None:
            await send({"type": "http.response.start", "status": status, "headers": [(b"x", b"secret")]})
            await send({"type": "http.response.body", "body": b"Internal Server Error"})
        if error is not None:
            raise error

    return ErrorSentences(app)


@pytest.mark.parametrize(
    "options", [{"error": KeyError("secret")}, {"status": 500}, {"error": KeyError(1), "status": 500}]
)
def test_no_raw_errors(options, caplog):
    status, headers, body = call(broken(**options), PATH, "POST")
    assert (status, headers.get(b"x")) == (400, None)
    assert body == b"foveate studio: this request cannot be answered; reload the page and try again"
    assert call(broken(**options), "/", "GET")[0] == 500
    assert b"Internal" not in call(broken(**options), "/", "GET")[2]
    assert all(PATH in record.message or "/" in record.message for record in caplog.records)


def test_other_answers_pass_as_they_are():
    assert call(ErrorSentences(answer), chunks=[b"abc"])[2] == b"3"
    assert call(broken(status=404), "/", "GET")[2] == b"Internal Server Error"


def test_a_response_that_breaks_off_stays_broken():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        call(ErrorSentences(app))


def test_every_answer_has_security_headers():
    for app in (answer, OpenPaths(answer)):
        _, headers, _ = call(SecurityHeaders(app), "/elsewhere")
        assert headers[b"x-content-type-options"] == b"nosniff"
        assert headers[b"x-frame-options"] == b"DENY"
        assert headers[b"referrer-policy"] == b"no-referrer"
        assert headers[b"cross-origin-resource-policy"] == b"same-origin"
        policy = headers[b"content-security-policy"].decode()
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "http" not in policy


def test_the_gate_as_a_whole():
    app = guard(answer, "127.0.0.1")
    assert call(app, "/", headers=host())[0] == 200
    status, headers, _ = call(app, "/gradio_api/upload", "POST", host(), [b"file"])
    assert status == 404
    assert b"content-security-policy" in headers
    assert call(app, "/", headers=host(b"evil.example"))[0] == 403
    assert call(app, PATH, "POST", host(origin=b"http://evil.example"))[0] == 403
    assert call(app, PATH, "POST", host(content_length=b"99999999999"))[0] == 413
    assert call(app, kind="websocket", headers=host()) == [{"type": "websocket.close", "code": 1008}]


def test_the_start_of_the_server_passes_the_gate():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    asyncio.run(guard(app, "127.0.0.1")({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"]
