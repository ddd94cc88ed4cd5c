"""The studio under load: clients that ask all the time, whether any fails, and whether memory stays flat.

    python benchmarks/studio_load.py [--clients 8] [--seconds 120] [--save]

First one client alone, for the time of an answer; then all at once. A client picks an example, asks its questions one
after the other and has the maps drawn, as the page does. Needs the extra `studio`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

RESULTS = Path(__file__).parent / "results" / "studio.json"


@dataclass
class Times:
    """Seconds of every answer and of every drawing, and what went wrong."""

    answers: list[float] = field(default_factory=list)
    maps: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Client:
    """A visitor: one session of the studio, driven over the same requests as the page."""

    def __init__(self, address: str, times: Times) -> None:
        self.address, self.times, self.session = address, times, uuid.uuid4().hex
        self.config = json.loads(self._get("config"))
        self.parts = {part["props"].get("elem_id"): part["id"] for part in self.config["components"]}

    def visit(self, example: int) -> None:
        """Pick an example, which asks its first question, and have the maps drawn."""
        picked = self._event(self.parts["ask-examples"], "select")
        shown = self._run(picked, [], {"pick": str(example)})
        question = shown[3]
        asked, drawn = self._after(picked), self._after(self._after(picked))
        start = time.perf_counter()
        answer = self._run(asked, ["scenes-vqa", None, question])
        self.times.answers.append(time.perf_counter() - start)
        if "fv-answer" not in answer[1]:
            raise RuntimeError(f"no answer: {answer[1][:200]}")
        start = time.perf_counter()
        values = [self._value(part) for part in drawn["inputs"]]
        panels = self._run(drawn, values)
        self.times.maps.append(time.perf_counter() - start)
        if "fv-panel" not in panels[0]:
            raise RuntimeError(f"no maps: {panels[0][:200]}")

    def _event(self, part: int, name: str) -> dict:
        return next(e for e in self.config["dependencies"] if [part, name] in e["targets"])

    def _after(self, event: dict) -> dict:
        return next(e for e in self.config["dependencies"] if e["trigger_after"] == event["id"])

    def _value(self, number: int) -> object:
        part = next(part for part in self.config["components"] if part["id"] == number)
        return part["props"].get("value")

    def _run(self, event: dict, data: list, event_data: dict | None = None) -> list:
        body = {"data": data, "fn_index": event["id"], "session_hash": self.session, "event_data": event_data}
        request = urllib.request.Request(
            f"{self.address}gradio_api/queue/join", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            number = json.load(reply)["event_id"]
        stream = f"{self.address}gradio_api/queue/data?session_hash={self.session}"
        with urllib.request.urlopen(stream, timeout=120) as lines:
            for line in lines:
                told = json.loads(line[5:]) if line.startswith(b"data:") else {}
                if told.get("msg") == "process_completed" and told.get("event_id") == number:
                    if not told["success"]:
                        raise RuntimeError(f"failed: {str(told['output'])[:200]}")
                    return told["output"]["data"]
        raise RuntimeError("the stream ended without a result")

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.address + path, timeout=120) as reply:
            return reply.read()


def start_studio(runs: str) -> tuple[subprocess.Popen, str]:
    """The studio in a process of its own, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "foveate", "studio", "--port", str(port), "--runs", runs]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}/"
    for _ in range(600):
        if is_up(address):
            return server, address
        time.sleep(0.5)
    server.kill()
    raise RuntimeError("the studio did not start")


def is_up(address: str) -> bool:
    """Whether anybody answers."""
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except OSError:
        return False
    return True


def memory_of(process: int) -> float:
    """Megabytes that a process holds."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def press(address: str, process: int, clients: int, seconds: float) -> tuple[Times, list[float]]:
    """So many clients for so long: their times, and the memory of the server every few seconds."""
    times, memory, end = Times(), [], time.monotonic() + seconds

    def visit() -> None:
        try:
            client = Client(address, times)
        except Exception as error:
            times.failures.append(repr(error))
            return
        example = 0
        while time.monotonic() < end:
            try:
                client.visit(example % 8)
            except Exception as error:
                times.failures.append(repr(error))
            example += 1

    threads = [threading.Thread(target=visit) for _ in range(clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        memory.append(memory_of(process))
        time.sleep(min(5, seconds / 10))
    return times, memory


def summary(clients: int, times: Times, memory: list[float], spent: float) -> dict[str, float]:
    """The numbers of one round; memory after the first quarter, when everything is loaded, and at the end."""
    later = memory[len(memory) // 4 :] or [0.0]
    return {
        "clients": clients,
        "answers": len(times.answers),
        "failures": len(times.failures),
        "answer median, s": round(median(times.answers or [float("nan")]), 3),
        "answer 95 %, s": round(quantiles(times.answers, n=20)[-1], 3) if len(times.answers) > 1 else float("nan"),
        "maps median, s": round(median(times.maps or [float("nan")]), 3),
        "server seconds an answer": round(spent / max(len(times.answers), 1), 3),
        "memory at a quarter, MB": round(later[0]),
        "memory at the end, MB": round(later[-1]),
    }


def server_seconds(process: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as runs:
        server, address = start_studio(runs)
        try:
            press(address, server.pid, 1, 5)  # what is loaded first is not measured
            for clients, seconds in ((1, min(30.0, options.seconds)), (options.clients, options.seconds)):
                before = server_seconds(server.pid)
                times, memory = press(address, server.pid, clients, seconds)
                rows.append(summary(clients, times, memory, server_seconds(server.pid) - before))
                print(rows[-1], *times.failures[:3], sep="\n", flush=True)
        finally:
            server.terminate()
            server.wait(30)
    if options.save:
        RESULTS.write_text(json.dumps({"load": list(os.getloadavg()), "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
