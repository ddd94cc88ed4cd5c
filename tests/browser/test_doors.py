"""What the studio must not open: files of the machine, other hosts, endless requests; and it stays up meanwhile."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from foveate.report import ReportRun, write_report


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


def test_long_requests_are_refused(address):
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


def test_a_port_that_is_taken_is_told(address):
    port = urllib.parse.urlsplit(address).port
    done = subprocess.run(
        [sys.executable, "-m", "foveate", "studio", "--port", str(port)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "studio: expected a free port, got" in done.stderr
    assert "choose another --port" in done.stderr
