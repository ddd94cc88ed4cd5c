"""Draw free photographs of installed packages: ranked for two sentences (README), and asked (photos-questions.md).

python docs/photos_figure.py     needs the extra photos, scikit-image and scikit-learn
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from PIL import Image, ImageOps

import foveate as fv
from foveate.lab.data.image_sources import example_photos
from foveate.plot.canvas import glow_colours

OUT = Path(__file__).parent / "images" / "photos.png"
SENTENCES = ("a cat", "a rocket in the sky")
ASKED_OUT = OUT.with_name("photos-asked.png")
ASKED = (
    ("motorcycle_left", "Is there a motorcycle?"),
    ("grace_hopper", "Is there a hat?"),
    ("astronaut", "What is the woman wearing?"),
    ("china", "Is there a building?"),
)
SHOWN = 5
SIZE = (240, 180)


def ranked(run: Any, sentence: str, photos: dict[str, Path]) -> list[tuple[float, Path]]:
    """The photographs with their cosine similarities to a sentence, the best first."""
    text = run.embed_text(sentence)[0]
    return sorted(((float(text @ run.embed_image(path)[0]), path) for path in photos.values()), reverse=True)


def main() -> None:
    """Rank and draw."""
    run, photos = fv.load("photos-search"), example_photos()
    figure, panels = plt.subplots(len(SENTENCES), SHOWN, figsize=(10, 4.2), layout="constrained")
    for row, sentence in zip(panels, SENTENCES, strict=True):
        found = ranked(run, sentence, photos)
        print(sentence, [f"{path.stem} {value:.2f}" for value, path in found])
        for panel, (value, path) in zip(row, found, strict=False):
            panel.imshow(ImageOps.fit(Image.open(path).convert("RGB"), SIZE))
            panel.set_axis_off()
            panel.set_title(f"{value:.2f}", fontsize=9, loc="right")
        row[0].set_title(f"“{sentence}”", fontsize=10, loc="left")
    save(figure, OUT)
    ask(photos)


def ask(photos: dict[str, Path]) -> None:
    """Draw where `photos-vqa` looks for its answers, right and wrong ones."""
    run = fv.load("photos-vqa")
    figure, panels = plt.subplots(1, len(ASKED), figsize=(10, 2.6), layout="constrained")
    for panel, (name, question) in zip(panels, ASKED, strict=True):
        answer = run.answer(str(photos[name]), question)
        print(question, answer.text, f"{answer.confidence:.2f}")
        image = Image.open(photos[name]).convert("RGB")
        panel.imshow(image)
        weights, extent = answer.attention.map(10, 10)[0].numpy(), (0, image.width, image.height, 0)
        panel.imshow(weights, extent=extent, cmap=glow_colours(), interpolation="bilinear")
        panel.set_axis_off()
        panel.set_title(f"{question} {answer.text}", fontsize=9)
    save(figure, ASKED_OUT)


def save(figure: Any, out: Path) -> None:
    """Write a figure with few colours."""
    file = BytesIO()
    figure.savefig(file, dpi=90)
    Image.open(file).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE).save(out, optimize=True)


if __name__ == "__main__":
    main()
