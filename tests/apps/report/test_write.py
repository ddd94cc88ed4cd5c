"""The report: one page that holds all, fetches nothing, and cannot be spoilt by what is written into it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from foveate.apps.report import ReportRun, write_report
from foveate.apps.report.page import html_legend
from foveate.apps.report.write import curve_lines, draw_curves
from foveate.errors import DataError
from foveate.lab.tasks.vqa import VQA


class Reader(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.links, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "action", "data")]

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture
def runs(make_run):
    return [
        ReportRun("softmax", (make_run("softmax-0", accuracy=0.5), make_run("softmax-1", accuracy=0.7))),
        ReportRun("tvmax <&>", (make_run("tvmax-0", "tvmax", accuracy=0.8),)),
    ]


def test_the_page_is_whole_and_fetches_nothing(runs, tmp_path):
    path = write_report(tmp_path / "new", "A <script>alert(1)</script> report", runs, examples=1)
    text = path.read_text(encoding="utf-8")
    page = Reader(text)
    assert path == tmp_path / "new" / "report.html"
    assert not {"link", "iframe", "object"} & set(page.tags)
    assert page.tags.count("script") == 1  # the one that sorts, allowed by its hash
    digest = base64.b64encode(hashlib.sha256(re.search("<script>(.*?)</script>", text, re.DOTALL)[1].encode()).digest())
    assert f"script-src 'sha256-{digest.decode()}'" in text
    assert len(page.links) >= 6  # two curves; image, two maps and the truth
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert "default-src 'none'" in text
    assert not re.search(r"https?://", text)
    assert "A <script>alert(1)</script> report" in page.words  # as text


def test_the_table_has_means_spreads_baselines_and_the_best(runs, tmp_path):
    text = write_report(tmp_path, "t", runs, examples=0).read_text(encoding="utf-8")
    heads = re.findall(r"<th[^>]*>(.*?)</th>", text.partition("</table>")[0])
    assert heads[1] == "right answers <small>% ↑</small>"
    rows = {cells[0]: cells for cells in table_rows(text)}
    assert rows["softmax"][1] == "60.0 ± 14.1"
    assert '<td class="best">80.0</td>' in text
    step = heads.index("time of a training step <small>s ↓</small>")
    assert [rows[name][step] for name in ("softmax", "tvmax &lt;&amp;&gt;")] == ["0.100 ± 0.000", "0.100"]
    js = heads.index("distance from the true region (JS) <small>bits ↓</small>")
    assert (rows["uniform"][1], rows["uniform"][js]) == ("", "0.75")  # a row, which no width cuts off


def table_rows(text: str) -> list[list[str]]:
    """The cells of the first table."""
    body = re.search(r"<tbody>(.*?)</tbody>", text, re.DOTALL)[1]
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in body.split("</tr>") if "<td" in row]


def test_numbers_can_be_those_of_another_split(make_run, tmp_path):
    run = ReportRun("softmax", (make_run("a"),), metrics=({"accuracy": 0.123},))
    assert ">12.3<" in write_report(tmp_path, "t", [run], examples=0).read_text(encoding="utf-8")


def test_commands_come_first_and_name_the_best_run(runs, tmp_path):
    text = write_report(tmp_path, "t", runs, examples=0, commands=[("mine", "do --this")]).read_text(encoding="utf-8")
    commands = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", text)
    assert commands[0] == "do --this"
    assert any(c.startswith("foveate answer") and "tvmax-0" in c for c in commands)


def test_examples_are_as_many_as_asked_and_of_the_split(runs, tmp_path, monkeypatch):
    asked, read = [], []

    def draw(predictors, examples, count):
        asked.append((list(predictors), examples, count))
        yield from ()

    def examples(self, split, root):
        read.append((split, root))
        return "the examples"

    monkeypatch.setattr(VQA, "presentation", replace(VQA.presentation, title="Title", draw=draw))
    monkeypatch.setattr(VQA, "examples", examples)
    text = write_report(tmp_path, "t", runs, examples=3, split="test", data=Path("d")).read_text(encoding="utf-8")
    assert asked == [(["softmax", "tvmax <&>"], "the examples", 3)]
    assert read == [("test", Path("d"))]
    assert "<h2>Title</h2>" in text


def test_a_task_that_draws_nothing_is_reported_without_examples(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(VQA, "presentation", replace(VQA.presentation, draw=None))
    assert "Where they look" not in write_report(tmp_path, "t", runs, examples=2).read_text(encoding="utf-8")


def test_a_run_without_a_log_has_no_curves(tmp_path):
    run = ReportRun("embedded", ("scenes-vqa",))
    assert draw_curves([run]) is None
    assert "Curves" not in write_report(tmp_path, "t", [run], examples=0).read_text(encoding="utf-8")


def test_curves_have_a_line_a_seed(runs):
    left, right = draw_curves(runs).axes
    assert [len(left.get_lines()), len(right.get_lines())] == [3, 3]
    assert list(right.get_lines()[2].get_ydata()) == [40, 80]
    first, second = curve_lines(runs)
    assert (first[0], second[0]) == ("softmax", "tvmax <&>")
    assert [line.get_color() for line in right.get_lines()] == [first[1], first[1], second[1]]
    assert first[1] != second[1]
    assert html_legend([first, second]).count("<line") == 2
    assert "tvmax &lt;&amp;&gt;" in html_legend([second])


def test_small_evaluations_make_the_line_and_whole_ones_circles(make_run, tmp_path):
    directory = make_run("a", accuracy=0.8)
    with (directory / "log.jsonl").open("a") as log:
        for step, value in ((5, 0.1), (10, None), (20, 0.7)):
            log.write(json.dumps({"step": step, "event": "curve", "examples": 9, "accuracy": value}) + "\n")
    runs = [ReportRun("softmax", (directory,))]
    line, circles = draw_curves(runs).axes[1].get_lines()
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([5, 20], [10, 70])
    assert (list(circles.get_xdata()), circles.get_linestyle()) == ([10, 20], "None")
    assert "on the first 9 examples of val" in write_report(tmp_path, "t", runs, examples=0).read_text(encoding="utf-8")


def test_errors_say_what_to_do(make_run, tmp_path):
    with pytest.raises(DataError, match=r"report: expected runs of one task, got no runs; name the runs of one"):
        write_report(tmp_path, "t", [])
    directory = make_run("never")
    (directory / "metrics.json").unlink()
    with pytest.raises(DataError, match=r"report: expected an evaluated run, got .*never without metrics.json"):
        write_report(tmp_path, "t", [ReportRun("never", (directory,))])
