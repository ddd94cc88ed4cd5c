"""The studio under load: honest and hostile clients at once, whether any honest one fails, whether memory stays flat.

    python benchmarks/studio_load.py [--clients 12] [--hostile 4] [--seconds 120] [--save]

First a single client, for the time of an answer; then all at once. An honest client picks an example, which asks its
first question and draws the maps, and turns an option; every fifth visit uploads a small image before. A hostile
client sends, in turn, requests of another origin, for another host, to gradio's upload, of 15 MB and of 20 MB, broken
images, broken JSON, and events that do not exist. Each of its requests must be answered by an error of the client, by
"busy", or, for broken images, by a sentence. Needs the extra `studio`.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from PIL import Image

RESULTS = Path(__file__).parent / "results" / "studio.json"
JOIN = "gradio_api/queue/join"


@dataclass
class Times:
    """Seconds per answer and per drawing, failures of honest clients, and the answers to hostile ones."""

    answers: list[float] = field(default_factory=list)
    maps: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    served: list[str] = field(default_factory=list)


class Client:
    """A visitor: one session of the studio, with the same requests as the page."""

    def __init__(self, address: str, times: Times) -> None:
        self.address, self.times, self.session = address, times, uuid.uuid4().hex
        self.config = json.loads(self._get("config"))
        self.parts = {part["props"].get("elem_id"): part["id"] for part in self.config["components"]}

    def visit(self, example: int) -> None:
        """Pick an example, which asks its first question and draws the maps; then turn an option."""
        picked, cards = self.event("ask-examples", "select"), self.parts["ask-cards"]
        value = self._value(cards)
        if example % 5 == 4:
            self.run(self.event("ask-examples", "upload"), [None, value], {"address": data_url(png(example))})
        start = time.perf_counter()
        answer = self.run(picked, [None, value], {"pick": str(example % 8)})
        self.times.answers.append(time.perf_counter() - start)
        if "fv-answer" not in answer[5] or "fv-panel" not in answer[6]:
            raise RuntimeError(f"no answer: {answer[5][:200]}")
        start = time.perf_counter()
        turned = json.dumps({**json.loads(value), "knobs": {"smoothness": 0.05 * (example % 20)}})
        panels = self.run(self.event("ask-cards", "change"), [None, turned])
        self.times.maps.append(time.perf_counter() - start)
        if "fv-panel" not in panels[0]:
            raise RuntimeError(f"no maps: {panels[0][:200]}")

    def event(self, element: str, name: str) -> dict:
        """What the page does when something happens to one of its elements."""
        target = [self.parts[element], name]
        return next(e for e in self.config["dependencies"] if target in e["targets"])

    def run(self, event: dict, data: list, event_data: dict | None = None) -> list:
        """Send an event and wait for its result."""
        body = {"data": data, "fn_index": event["id"], "session_hash": self.session, "event_data": event_data}
        host = urllib.parse.urlsplit(self.address).netloc
        headers = {"Content-Type": "application/json", "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        request = urllib.request.Request(self.address + JOIN, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as reply:
            number = json.load(reply)["event_id"]
        stream = f"{self.address}gradio_api/queue/data?session_hash={self.session}"
        with urllib.request.urlopen(stream, timeout=120) as lines:
            for line in lines:
                message = json.loads(line[5:]) if line.startswith(b"data:") else {}
                if message.get("msg") == "process_completed" and message.get("event_id") == number:
                    if not message["success"]:
                        raise RuntimeError(f"failed: {str(message['output'])[:200]}")
                    return message["output"]["data"]
        raise RuntimeError("the stream ended without a result")

    def _value(self, number: int) -> object:
        part = next(part for part in self.config["components"] if part["id"] == number)
        return part["props"].get("value")

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.address + path, timeout=120) as reply:
            return reply.read()


class Attacker:
    """A visitor with bad intentions, a new kind of request at every visit."""

    def __init__(self, address: str, times: Times) -> None:
        self.host, self.times, self.client = urllib.parse.urlsplit(address).netloc, times, Client(address, times)
        self.upload = self.client.event("ask-examples", "upload")
        event = json.dumps({"data": [], "fn_index": self.upload["id"], "session_hash": "x"}).encode()
        form = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n%s\r\n--b--' % bytes(
            9_500_000
        )
        unknown = json.dumps({"data": [], "fn_index": 99999, "session_hash": "x"}).encode()
        self.kinds: list[tuple[str, Callable[[], int]]] = [
            ("foreign origin", lambda: self.send(JOIN, event, {"Origin": "http://evil.example"})),
            ("opaque origin", lambda: self.send(JOIN, event, {"Origin": "null"})),
            ("wrong host", lambda: self.send(JOIN, event, {"Host": "evil.example"})),
            (
                "upload",
                lambda: self.send("gradio_api/upload", form, {"Content-Type": "multipart/form-data; boundary=b"}),
            ),
            ("15 MB", lambda: self.send(JOIN, b'{"data": ["' + b"a" * 15_000_000)),
            ("20 MB", lambda: self.send(JOIN, bytes(20_000_000))),
            ("broken JSON", lambda: self.send(JOIN, b"[" * 50_000)),
            ("unknown event", lambda: self.send(JOIN, unknown)),
            ("broken image", self.broken_image),
            ("file of the machine", lambda: self.send("gradio_api/file=/etc/passwd", b"", method="GET")),
        ]

    def visit(self, number: int) -> None:
        """Send one request; it must be refused."""
        name, attack = self.kinds[number % len(self.kinds)]
        status = attack()
        self.times.refused[f"{name}: {status}"] += 1
        if not 400 <= status < 500 and status != 503:
            self.times.served.append(f"{name}: {status}")
        time.sleep(0.05)

    def send(self, path: str, body: bytes, headers: dict[str, str] | None = None, method: str = "POST") -> int:
        """The status of the answer; 499 if the server cut the connection before all was sent."""
        line = http.client.HTTPConnection(self.host, timeout=60)
        sent = {
            "Host": self.host,
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }
        try:
            line.putrequest(method, f"/{path}", skip_host=True)
            for name, value in sent.items():
                line.putheader(name, value)
            line.endheaders(body)
            return line.getresponse().status
        except ConnectionError:
            return 499
        finally:
            line.close()

    def broken_image(self) -> int:
        """422 if the page shows a sentence, 200 if it takes the image."""
        cut = png(1)[: len(png(1)) // 2]
        value = self.client._value(self.client.parts["ask-cards"])
        said = str(self.client.run(self.upload, [None, value], {"address": data_url(cut)})[1])
        return 422 if "cannot be decoded" in said and "BytesIO" not in said else 200


def png(seed: int) -> bytes:
    """A small image."""
    file = io.BytesIO()
    Image.new("RGB", (160, 120), ((37 * seed) % 256, 90, 180)).save(file, "PNG")
    return file.getvalue()


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def start_studio(runs: str, wait: float = 0.5) -> tuple[subprocess.Popen, str]:
    """The studio in a process of its own, once it answers, asked every `wait` seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "foveate", "studio", "--port", str(port), "--runs", runs]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}/"
    end = time.monotonic() + 300
    while time.monotonic() < end:
        if is_up(address):
            return server, address
        time.sleep(wait)
    server.kill()
    raise RuntimeError("the studio did not start")


def is_up(address: str) -> bool:
    """Whether the server answers."""
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except OSError:
        return False
    return True


def memory_of(process: int) -> float:
    """Megabytes that a process holds."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def press(address: str, process: int, honest: int, hostile: int, seconds: float) -> tuple[Times, list[float]]:
    """Run the clients for some time: their times, and the memory of the server every few seconds."""
    times, memory, end = Times(), [], time.monotonic() + seconds

    def work(kind: type[Client] | type[Attacker], first: int) -> None:
        try:
            client = kind(address, times)
        except Exception as error:
            times.failures.append(repr(error))
            return
        number = first
        while time.monotonic() < end:
            try:
                client.visit(number)
            except Exception as error:
                (times.failures if kind is Client else times.served).append(repr(error))
            number += 1

    kinds = [(Client, n) for n in range(honest)] + [(Attacker, 3 * n) for n in range(hostile)]
    threads = [threading.Thread(target=work, args=kind) for kind in kinds]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        memory.append(memory_of(process))
        time.sleep(min(5, seconds / 10))
    return times, memory


def summary(honest: int, hostile: int, times: Times, memory: list[float], spent: float) -> dict[str, object]:
    """The numbers of one round; memory after the first quarter, when everything is loaded, and at the end."""
    later = memory[len(memory) // 4 :] or [0.0]
    return {
        "honest clients": honest,
        "hostile clients": hostile,
        "answers": len(times.answers),
        "failures": len(times.failures),
        "answer median, s": round(median(times.answers or [float("nan")]), 3),
        "answer 95 %, s": round(quantiles(times.answers, n=20)[-1], 3) if len(times.answers) > 1 else float("nan"),
        "maps median, s": round(median(times.maps or [float("nan")]), 3),
        "server seconds per answer": round(spent / max(len(times.answers), 1), 3),
        "memory at a quarter, MB": round(later[0]),
        "memory at the end, MB": round(later[-1]),
        "largest memory, MB": round(max(memory or [0.0])),
        "memory over time, MB": [round(one) for one in memory[:: max(1, len(memory) // 12)]],
        "hostile requests": sum(times.refused.values()),
        "hostile requests served": len(times.served),
        "answers to hostile requests": dict(sorted(times.refused.items())),
    }


def server_seconds(process: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=12, help="honest and hostile ones together")
    parser.add_argument("--hostile", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as runs:
        server, address = start_studio(runs)
        try:
            press(address, server.pid, 1, 0, 5)  # what is loaded first is not measured
            rounds = (
                (1, 0, min(30.0, options.seconds)),
                (options.clients - options.hostile, options.hostile, options.seconds),
            )
            for honest, hostile, seconds in rounds:
                before = server_seconds(server.pid)
                times, memory = press(address, server.pid, honest, hostile, seconds)
                rows.append(summary(honest, hostile, times, memory, server_seconds(server.pid) - before))
                print(json.dumps(rows[-1], indent=1), *times.failures[:3], *times.served[:3], sep="\n", flush=True)
        finally:
            server.terminate()
            server.wait(30)
    if options.save:
        RESULTS.write_text(json.dumps({"load": list(os.getloadavg()), "rows": rows}, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(row["failures"] or row["hostile requests served"] for row in rows))


if __name__ == "__main__":
    main()
