"""Check the links of a built site: every local page, file and anchor exists, and nothing is loaded from another host.

python tools/links.py docs/_build
"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href"}


class Page(HTMLParser):
    """The anchors of a page and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        named = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := named.get(key))}
        if target := named.get("href" if tag == "a" else LOADED.get(tag, "")):
            self.links.append(target)
            if tag != "a" and named.get("rel") not in ("canonical", "index", "search", "next", "prev"):
                self.loaded.append(target)


@cache
def read(path: Path) -> Page:
    """A page of the site."""
    return Page(path.read_text(encoding="utf-8"))


def problems(site: Path) -> list[str]:
    """One line per link that leads nowhere or loads from another host."""
    found = []
    for path in sorted(site.rglob("*.html")):
        page, name = read(path), path.relative_to(site)
        found += [f"{name}: loads {url}" for url in page.loaded if urlsplit(url).netloc]
        for link in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{name}: no file for {link}")
            elif url.fragment and target.suffix == ".html" and unquote(url.fragment) not in read(target).anchors | {""}:
                found.append(f"{name}: no anchor for {link}")
    return found


if __name__ == "__main__":
    lines = problems(Path(sys.argv[1]))
    print("\n".join(lines) or "every local link leads somewhere, and no page loads from another host")
    sys.exit(bool(lines))
