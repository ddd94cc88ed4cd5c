"""Write the tables of README.md and of the results pages from the registry and the saved benchmark results.

python docs/tables.py
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mechanisms() -> str:
    """One row per mechanism, from `MECHANISMS`, with what was measured on Scenes; the best in bold."""
    from foveate import MECHANISMS

    measured = {label.split(" ")[0]: runs for label, runs in load("vqa_scenes")["rows"].items() if len(runs) > 1}
    best = {
        metric: max(factor * mean(run[metric] for run in runs) for runs in measured.values())
        for metric, (_, factor) in SHORT.items()
        if metric not in NEUTRAL
    }
    rows = []
    for name, row in MECHANISMS.items():
        cells = [f"`{name}`", row.summary, "density" if row.continuous else "weights", row.reference]
        for metric, (_, factor) in SHORT.items():
            values = [abs(factor) * run[metric] for run in measured.get(name, ())]
            bold = values and metric in best and math.isclose(mean(values), abs(best[metric]))
            cells.append(f"**{spread(values)}**" if bold else spread(values))
        rows.append(cells)
    return markdown(["name", "description", "output", "reference", *(head for head, _ in SHORT.values())], rows)


README_ROWS = (
    "sparsemax 512x608, forward",
    "1.5-entmax 512x608, with backward",
    "sparsemax, one row of 196",
    "TVmax 14x14 noise 0.1, with backward",
    "TVmax, one 14x14 map, per call",
    "continuous sparsemax, 100 functions, with backward",
    "choice of K <= 4, 3 restarts, forward",
    "attention tvmax, train",
    "attention multimodal, train",
    "8 heads, 196 x 196, entmax",
)


def speed() -> str:
    """The rows of the speed table that the README shows."""
    return markdown(HEAD_OF_KERNELS[:-1], [row[:-1] for row in _kernel_rows() if row[0] in README_ROWS])


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


# Properties of attention for which neither more nor less is better.
NEUTRAL = ("area", "regions", "components", "entropy", "words", "zero area")


def comparison(
    name: str, columns: dict[str, tuple[str, float]], *, several: bool = False, of: str = "attention"
) -> str:
    """One row per mechanism or model of a saved comparison: mean ± standard deviation over seeds, the best in bold.

    Args:
        name: of the file.
        columns: per metric the head of its column and a factor; a negative factor marks a metric that should be small.
        several: leave out rows with a single seed.
        of: what the rows are; names of models are not set as code.
    """
    rows = {label: runs for label, runs in load(name)["rows"].items() if len(runs) > several}
    table, means = [], {metric: {} for metric in columns}
    for label, runs in rows.items():
        for metric in columns:
            values = [run[metric] for run in runs if metric in run]
            if values:
                means[metric][label] = columns[metric][1] * mean(values)
    for label, runs in rows.items():
        cells = [named(label) if of == "attention" else label, str(len(runs))]
        for metric, (_, factor) in columns.items():
            text = spread([abs(factor) * run[metric] for run in runs if metric in run])
            best = metric not in NEUTRAL and means[metric].get(label) == max(means[metric].values())
            cells.append(f"**{text}**" if best else text)
        table.append(cells)
    return markdown([of, "seeds", *(head for head, _ in columns.values())], table)


def named(label: str) -> str:
    """The label of a row with its names set as code.

    >>> named("tvmax from scratch"), named("vqa-mcan-coco tvmax")
    ('`tvmax`, from scratch', '`vqa-mcan-coco`, `tvmax`')
    """
    first, *rest = label.split(" ", 1)
    if not rest:
        return f"`{first}`"
    return f"`{first}`, {rest[0] if ' ' in rest[0] else f'`{rest[0]}`'}"


def spread(values: list[float]) -> str:
    """Mean ± standard deviation, with digits that depend on the size."""
    if not values:
        return "-"
    digits = 1 if mean(values) >= 10 else 3 if mean(values) < 2 else 2
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{deviation}"


# What the README shows of the comparison on Scenes.
SHORT = {
    "accuracy": ("accuracy, %", 100.0),
    "js": ("JS to the true region, bits", -1.0),
    "js/two-distant": ("JS, two distant objects", -1.0),
    "pointing": ("maximum inside the region, %", 100.0),
}

ANSWERS = {
    "accuracy": ("accuracy, %", 100.0),
    "accuracy/yes/no": ("yes/no", 100.0),
    "accuracy/number": ("number", 100.0),
    "accuracy/other": ("other", 100.0),
}


def vqa_scenes_answers() -> str:
    more = {"accuracy/two-distant": ("two distant", 100.0), "accuracy/not two-distant": ("all others", 100.0)}
    return comparison("vqa_scenes", ANSWERS | more)


LOOKS = {
    "js": ("JS, bits", -1.0),
    "js/two-distant": ("JS, two distant", -1.0),
    "spearman": ("Spearman", 1.0),
    "mass": ("mass in region", 1.0),
    "pointing": ("pointing", 1.0),
    "area": ("area", -1.0),
    "regions": ("regions", -1.0),
    "components": ("K*", -1.0),
}


def vqa_scenes_attention() -> str:
    return comparison("vqa_scenes", LOOKS)


def vqa_scenes_background() -> str:
    """Multimodal attention with and without a background, from the same softmax run."""
    chosen = ("js", "js/two-distant", "spearman", "mass", "pointing", "regions", "components")
    accuracy = {"accuracy": ("accuracy, %", 100.0), "accuracy/two-distant": ("two distant, %", 100.0)}
    return comparison("vqa_scenes_background", accuracy | {name: LOOKS[name] for name in chosen})


def vqa_steps() -> str:
    return against_softmax("vqa_step")


def captioning_time() -> str:
    return against_softmax("captioner")


def against_softmax(name: str) -> str:
    """The time of each mechanism as a multiple of softmax in the same run, by the size of the model."""
    tables = {size: rows for size, rows in load(name).items() if size != "machine"}
    names = [row["mechanism"] for row in next(iter(tables.values()))]
    return markdown(
        ["attention", *tables],
        [
            [f"`{name}`", *(f"{rows[place]['to softmax']:.2f}" for rows in tables.values())]
            for place, name in enumerate(names)
        ],
    )


def vqa_coco() -> str:
    attention = {"components": ("K", 1.0), "entropy": ("entropy, bits", -1.0), "area": ("area", -1.0)}
    return comparison("vqa_coco", ANSWERS | attention)


CAPTIONS = {
    "cider-d": ("CIDEr-D", 1.0),
    "bleu-4": ("BLEU-4", 1.0),
    "rouge-l": ("ROUGE-L", 1.0),
    "meteor": ("METEOR", 1.0),
    "rep": ("REP", -1.0),
    "js between words": ("JS between words", 1.0),
    "zero area": ("zero area", 1.0),
    "mentioned": ("objects", 1.0),
    "words": ("words", 1.0),
}


def captioning_scenes() -> str:
    return comparison("captioning_scenes", CAPTIONS)


def captioning_flickr8k() -> str:
    return comparison("captioning_flickr8k", CAPTIONS)


MATCHES = {
    "rsum": ("rsum", 1.0),
    "i2t_r1": ("i2t R@1", 1.0),
    "t2i_r1": ("t2i R@1", 1.0),
    "attention_precision": ("precision", 1.0),
    "attention_recall": ("recall", 1.0),
    "attention_f1": ("F1", 1.0),
}


def matching_scenes() -> str:
    return comparison("matching_scenes", MATCHES, of="model")


def matching_flickr8k() -> str:
    return comparison("matching_flickr8k", MATCHES, of="model")


def matching_regions() -> str:
    return comparison("matching_regions", MATCHES, of="model")


# The metrics whose changes are shown, and their digits after the decimal point.
CHANGES = {"rsum": 1, "attention_precision": 3, "attention_recall": 3, "attention_f1": 3}


def changes(name: str) -> str:
    """What constraints change, seed by seed, since the spread between seeds is larger than the changes."""
    rows = load(name)["rows"]
    table = []
    for label, runs in rows.items():
        model, *constraints = label.split(" + ")
        if constraints:
            pairs = list(zip(rows[model], runs, strict=True))
            cells = [
                ", ".join(f"{after[metric] - before[metric]:+.{digits}f}" for before, after in pairs)
                for metric, digits in CHANGES.items()
            ]
            table.append([label, *cells])
    return markdown(["model", *(MATCHES[metric][0] for metric in CHANGES)], table)


def matching_scenes_changes() -> str:
    return changes("matching_scenes")


def matching_flickr8k_changes() -> str:
    return changes("matching_flickr8k")


def matching_regions_changes() -> str:
    return changes("matching_regions")


def components() -> str:
    """Fractions of K* by penalty."""
    heads = ["floor", "penalty", "K* = 1", "2", "3", "4", "mean K*", "JS", "JS, two distant", "accuracy, %"]
    return markdown(
        heads,
        [
            [
                f"`{row['floor']}`",
                f"{row['penalty']:g}",
                *(f"{100 * row[f'components = {k}']:.1f} %" for k in (1, 2, 3, 4)),
                f"{row['components']:.2f}",
                f"{row['js']:.3f}",
                f"{row['js/two-distant']:.3f}",
                f"{100 * row['accuracy']:.1f}",
            ]
            for row in load("components")["components"]
        ],
    )


HEAD_OF_KERNELS = ["work", "foveate", "without the kernels", "package from PyPI", "target"]


def short(value: float) -> str:
    """Three digits without an exponent.

    >>> short(4.5432), short(1946.1), short(27315.0)
    ('4.54', '1 950', '27 300')
    """
    return f"{float(f'{value:.3g}'):,g}".replace(",", " ")


def _kernel_rows() -> list[list[str]]:
    rows = []
    for row in load("native")["speed"]:
        unit = " µs" if row["unit"] == "us" else "x"
        shown = [f"{short(row[key])}{unit}" if row[key] == row[key] else "" for key in ("ours", "in torch", "peer")]
        rows.append([row["work"].replace(", a call", ", per call"), *shown, f"{row['bar']:g}{unit}"])
    return rows


def kernels() -> str:
    """Every row of the speed table: what is reached beside its bar."""
    return markdown(HEAD_OF_KERNELS, _kernel_rows())


def growth() -> str:
    """Time against the number of locations and of components."""
    saved = load("growth")
    head = [key for key in saved["locations"][0] if key.startswith("N")]
    rows = [
        [row["work"], row["in"], *(short(row[key]) for key in head), f"{row['exponent']:.2f}"]
        for row in saved["locations"]
    ]
    return markdown(["µs per example", "in", *head, "exponent"], rows)


def length_speed() -> str:
    """Attention over long sequences beside softmax, small ones beside the dense path."""
    saved = load("length")
    rows = [
        [row["work"], f"{short(100 * row['support'])} %", row["against"], f"{row['ratio']:.2f}x", f"{row['bar']:g}x"]
        for row in (*saved["speed"], *saved["small"])
    ]
    return markdown(["work", "support", "against", "ratio", "target"], rows)


def length_memory() -> str:
    """Peak memory of a process beyond its inputs and outputs."""
    rows = [
        [
            row["work"],
            f"{short(row['MB'])} MB" if row["MB"] >= 1 else "< 1 MB",
            f"{row['bar']:g} MB" if row["bar"] == row["bar"] else "",
        ]
        for row in load("length")["memory"]
    ]
    return markdown(["work", "memory", "target"], rows)


def length_growth() -> str:
    """Time and memory of forward and backward by the number of tokens."""
    rows = load("length")["growth"]
    head = [key for key in rows[0] if key.startswith("N")]
    table = [
        [
            row["way"],
            row["support"],
            row["unit"],
            *(short(row[key]) if row[key] == row[key] else "" for key in head),
            f"{row['exponent']:.2f}",
        ]
        for row in rows
    ]
    return markdown(["attention", "support", "in", *head, "exponent"], table)


def length_models() -> str:
    """One training step of whole models."""
    rows = [
        [row["model"], row["way"], f"{short(row['MB'])} MB", f"{row['loss']:.6f}", f"{row['s']:.1f} s"]
        for row in load("length")["models"]
    ]
    return markdown(["model", "attention", "memory of the process", "loss", "processor time"], rows)


def gpu() -> str:
    """Resources of the Triton kernels, and what an A100 needs at least."""
    saved = load("gpu")
    rows = [
        [
            f"`{row['kernel']}`",
            row["dtype"],
            *(f"{row[card]['registers']}, {row[card]['shared'] / 1024:.3g} KB" for card in saved["cards"]),
            short(row["MB"]),
            short(row["GFLOP"]),
            f"{short(row['bandwidth us'])} µs",
            f"{short(row['arithmetic us'])} µs",
        ]
        for row in saved["kernels"]
    ]
    heads = ["kernel", "dtype", *saved["cards"], "MB", "GFLOP", "A100: bandwidth", "arithmetic"]
    return markdown(heads, rows)


def starts() -> str:
    """Processor seconds of a new process."""
    rows = [[f"`{r['start']}`", f"{r['beyond torch s']:.2f} s", f"{r['bar']} s"] for r in load("start")["start"]]
    return markdown(["beyond `import torch`", "processor time", "target"], rows)


def threads() -> str:
    """Two threads beside one."""
    rows = [[r["work"], f"{r['one ms']:.2f} ms", f"{r['two threads, times']:.2f}x"] for r in load("growth")["threads"]]
    return markdown(["work", "one thread", "two threads"], rows)


def search_growth() -> str:
    """The exact index, LanceDB and faiss by the number of vectors; wall time, and processor time in brackets."""
    rows, size = [], None
    for row in load("search")["growth"]:
        indexed = _both(row, "indexed", "s") if row["indexed s"] > 0.005 else ""
        megabytes = [f"{row[key]:,.0f} MB".replace(",", " ") for key in ("peak MB", "disk MB", "live MB")]
        rows.append(
            [
                f"{row['vectors']:,}".replace(",", " ") if row["vectors"] != size else "",
                row["index"],
                _both(row, "added", "s"),
                indexed,
                _both(row, "query", "ms"),
                f"{row['recall@10']:.3g}",
                *megabytes,
                f"{row['others']:.1f}",
            ]
        )
        size = row["vectors"]
    head = ["vectors", "index", "added", "indexed", "one query", "recall@10", "peak memory", "disk", "live", "others"]
    return markdown(head, rows)


def _both(row: dict[str, float], what: str, unit: str) -> str:
    wall, processor = (
        f"{v:.0f}" if v >= 10 else f"{v:.2g}" for v in (row[f"{what} {unit}"], row[f"{what}, processor {unit}"])
    )
    return f"{wall} {unit} ({processor})"


BLOCKS = {
    "search-growth": search_growth,
    "kernels": kernels,
    "growth": growth,
    "threads": threads,
    "starts": starts,
    "length-speed": length_speed,
    "length-memory": length_memory,
    "length-growth": length_growth,
    "length-models": length_models,
    "gpu": gpu,
    "mechanisms": mechanisms,
    "speed": speed,
    "vqa-scenes-answers": vqa_scenes_answers,
    "vqa-scenes-attention": vqa_scenes_attention,
    "vqa-scenes-background": vqa_scenes_background,
    "vqa-steps": vqa_steps,
    "vqa-coco": vqa_coco,
    "components": components,
    "captioning-scenes": captioning_scenes,
    "captioning-flickr8k": captioning_flickr8k,
    "captioning-time": captioning_time,
    "matching-scenes": matching_scenes,
    "matching-scenes-changes": matching_scenes_changes,
    "matching-flickr8k": matching_flickr8k,
    "matching-flickr8k-changes": matching_flickr8k_changes,
    "matching-regions": matching_regions,
    "matching-regions-changes": matching_regions_changes,
}
PAGES = (
    ROOT / "README.md",
    ROOT / "docs/performance.md",
    ROOT / "docs/scale.md",
    *sorted((ROOT / "docs").glob("results-*.md")),
)


def fill(text: str) -> str:
    """The text with every block between `<!-- name -->` and `<!-- /name -->` written again."""
    for name, make in BLOCKS.items():
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, found, rest = text.partition(start)
        if found:
            text = before + start + make() + "\n" + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")
