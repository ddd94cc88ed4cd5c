"""What the studio must not serve: files of the machine, other pages and hosts, endless requests; and it stays up."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from foveate.apps.report import ReportRun, write_report


def status(address: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.parametrize(
    "path",
    [
        "gradio_api/file=/etc/passwd",
        "gradio_api/file=../../../../../../etc/passwd",
        "gradio_api/file=pyproject.toml",
        f"gradio_api/file={Path(__file__).resolve()}",
        "static/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "gradio_api/file=https://example.org/",
        "gradio_api/proxy=https://example.org/",
    ],
)
def test_no_file_of_the_machine_is_handed_out(address, path):
    code, body = status(address + path)
    assert code >= 400
    assert b"root:" not in body
    assert b"[project]" not in body


def send(address: str, path: str, body: bytes = b"{}", **headers: str) -> http.client.HTTPResponse:
    """The answer to a request with these headers; `Host` replaces the usual one."""
    line = http.client.HTTPConnection(urllib.parse.urlsplit(address).netloc, timeout=60)
    line.putrequest("POST", path, skip_host="Host" in headers)
    for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
        line.putheader(name, value)
    line.endheaders(body)
    answer = line.getresponse()
    answer.body = answer.read()
    line.close()
    return answer


JOIN = "/gradio_api/queue/join"
SERIOUS = ("serious", "critical")


def test_nothing_can_be_uploaded(address):
    form = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.txt"\r\n\r\nhello\r\n--b--\r\n'
    for path in ("/gradio_api/upload", "/gradio_api/upload?upload_id=1", "/upload"):
        answer = send(address, path, form, **{"Content-Type": "multipart/form-data; boundary=b"})
        assert answer.status == 404
        assert answer.body.startswith(b"foveate studio: ")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:7860", "Origin": "http://evil.example:7860"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_other_pages_are_not_served(address, headers):
    answer = send(address, JOIN, **headers)
    assert answer.status == 403
    assert answer.getheader("Access-Control-Allow-Origin") is None


def test_the_page_itself_is_served(address):
    port = urllib.parse.urlsplit(address).port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        answer = send(address, JOIN, Host=host, Origin=f"http://{host}")
        assert answer.status == 422  # past the gate; gradio misses the fields of an event
        assert b"Field required" in answer.body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[" * 100_000,
        b"\xff",
        b'{"data":[],"fn_index":9999,"session_hash":"x"}',
        b'{"data":[],"fn_index":-1,"session_hash":"x"}',
        b'{"data":[],"fn_index":1e99,"session_hash":"x"}',
        b'{"data":[null],"fn_index":0,"session_hash":"x","event_data":{"a":[]}}',
    ],
)
def test_nonsense_gets_no_raw_error(address, body):
    answer = send(address, JOIN, body)
    assert answer.status < 500
    assert b"Internal Server Error" not in answer.body
    assert b"Traceback" not in answer.body


def test_answers_have_security_headers(address):
    with urllib.request.urlopen(address, timeout=60) as answer:
        headers = answer.headers
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Server"] is None


def test_a_page_of_another_site_cannot_use_the_studio(browser, address, tmp_path):
    """A real browser on another origin: every request is refused, and nothing can be read."""
    page = browser.new_page()
    page.route("http://evil.example/", lambda route: route.fulfill(body="<h1>evil</h1>", content_type="text/html"))
    page.goto("http://evil.example/")
    tries = page.evaluate(
        """async address => {
            const form = new FormData();
            form.append('files', new Blob(['hello']), 'a.txt');
            const tries = [
                ['gradio_api/upload', { method: 'POST', body: form }],
                ['gradio_api/upload', { method: 'POST', body: form, mode: 'no-cors' }],
                ['gradio_api/queue/join', { method: 'POST', body: '{}' }],
                ['config', {}],
            ];
            const seen = [];
            for (const [path, options] of tries)
                seen.push(await fetch(address + path, options).then(a => a.type + a.status, e => 'refused'));
            return seen;
        }""",
        address,
    )
    page.close()
    assert tries[0] in ("refused", "cors403")
    assert tries[1] in ("refused", "opaque0")  # sent, and answered 403 or 404 that nobody can read
    assert tries[2] in ("refused", "cors403")
    assert tries[3] in ("refused", "cors403")


def test_long_requests_are_stopped(address):
    host = urllib.parse.urlsplit(address).netloc
    line = http.client.HTTPConnection(host, timeout=60)
    line.putrequest("POST", "/gradio_api/queue/join")
    line.putheader("Content-Length", "17000000")
    line.endheaders()  # the answer comes before anything is sent
    assert line.getresponse().status == 413
    line.close()
    assert status(address)[0] == 200


def test_nothing_is_offered_to_programs(address):
    _, body = status(address + "gradio_api/info")
    assert json.loads(body) == {"named_endpoints": {}, "unnamed_endpoints": {}}


def test_the_page_names_no_other_host(address):
    config = status(address + "config")[1]
    assert json.loads(config)["analytics_enabled"] is False
    for host in (b"fonts.googleapis", b"cdn.", b"huggingface.co"):
        assert host not in config


def test_a_report_opens_by_itself(browser, tmp_path):
    path = write_report(tmp_path, "Title <b>", [ReportRun("softmax", ("scenes-vqa",))], examples=1)
    page = browser.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text))
    page.on(
        "request", lambda request: wrong.append(request.url) if not request.url.startswith(("file:", "data:")) else None
    )
    page.goto(path.as_uri())
    assert page.title() == "Title <b>"
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    page.close()
    assert wrong == []


@pytest.fixture
def report(tmp_path):
    """A report of three runs with a baseline, and one example."""
    numbers = {"a": (0.5, 0.30), "b": (0.9, 0.25), "c": (0.7, 0.20)}
    runs = [
        ReportRun(name, ("scenes-vqa",), metrics=({"accuracy": accuracy, "js": js, "js of uniform": 0.8},))
        for name, (accuracy, js) in numbers.items()
    ]
    return write_report(tmp_path, "Three runs", runs, examples=1)


def rows(page) -> list[str]:
    return page.locator("table >> nth=0 >> tbody td:first-child").all_inner_texts()


def test_tables_of_a_report_sort_by_mouse_and_key(browser, report):
    page = browser.new_page()
    page.goto(report.as_uri())
    assert rows(page) == ["a", "b", "c", "uniform"]
    head = page.locator("table >> nth=0 >> thead th").get_by_text("right answers")
    head.click()
    assert rows(page) == ["b", "c", "a", "uniform"]  # what has no value comes last
    head.click()
    assert rows(page) == ["a", "c", "b", "uniform"]
    page.locator("table >> nth=0 >> thead th").get_by_text("distance from the true region").focus()
    page.keyboard.press("Enter")
    assert rows(page) == ["uniform", "a", "b", "c"]
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_report_fits_any_width(browser, report, axe, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for text in ("uniform", "0.80"):  # the baseline and its value, without scrolling sideways
        box = page.locator("table >> nth=0").get_by_text(text, exact=True).bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= width
    for title in page.locator(".sheet figcaption").all():
        assert title.evaluate("e => parseFloat(getComputedStyle(e).fontSize)") >= 13  # pixels
        assert title.bounding_box()["width"] <= width
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    serious = [f"{one['id']}: {one['nodes'][0]['html'][:150]}" for one in found if one["impact"] in SERIOUS]
    context.close()
    assert serious == []


def test_a_studio_leaves_nothing_behind(runs, tmp_path):
    """Started and stopped, also by a signal, it leaves no file and no directory in the place for temporary files."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("GRADIO_TEMP_DIR", None)
    command = [sys.executable, "-m", "foveate", "studio", "--runs", str(runs)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert "http://127.0.0.1:" in server.stdout.readline()
    server.terminate()
    server.wait(60)
    server.stdout.close()
    assert [path.name for path in tmp_path.rglob("*")] == []


@pytest.mark.parametrize("port", ["99999999", "-1"])
def test_a_port_that_does_not_exist_is_reported(port, tools):
    done = subprocess.run(
        [sys.executable, "-m", "foveate", "studio", f"--port={port}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "studio: expected a" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_reported(address):
    port = urllib.parse.urlsplit(address).port
    done = subprocess.run(
        [sys.executable, "-m", "foveate", "studio", "--port", str(port)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "studio: expected a free port, got" in done.stderr
    assert "choose another --port" in done.stderr
