"""The pages as one gradio app, and its server: by default on this machine only, without analytics or other hosts."""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from html import escape
from pathlib import Path
from typing import Any, get_type_hints

from foveate.apps.studio import PAGES, RunCatalogue
from foveate.apps.studio.caption_page import MAX_BEAMS
from foveate.apps.studio.gate import ALL_INTERFACES, LOOPBACK, guard, known_hosts
from foveate.apps.studio.picker import MAX_FILE, read_question, read_upload
from foveate.apps.studio.widgets import read_asset, script
from foveate.errors import DataError, FoveateError
from foveate.registry import load_target, optional
from foveate.signals import handle_signals

TITLE = "foveate studio"
ABOUT = "Ask about images, caption and search them, and see where models look."
PREVIEW = re.compile(
    rb'(<meta\s+(?:property|name)="((?:og|twitter):(?:title|description|creator|url))"\s+)content="[^"]*"'
)
MOST_IMAGES = 16  # of one call
FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "DejaVu Sans", "sans-serif")
CODE_FONTS = ("ui-monospace", "DejaVu Sans Mono", "Consolas", "monospace")
QUEUE, AT_ONCE = 64, 2  # events that wait, and events that are handled at the same time
SESSIONS = 200  # visitors whose state is kept
PORTS = range(7860, 7960)
MAX_PORT = 65535


def make_studio(runs: Path, *, verify: bool = True, any_model: bool = True) -> Any:
    """The studio as a `gradio.Blocks`.

    Args:
        runs: directory whose runs and reports are offered in addition to the embedded runs.
        verify: compare search indexes with their checksums.
        any_model: as in `RunCatalogue`.

    Raises MissingExtra without gradio, and DataError if it is older than version 6.
    """
    gr = load_gradio()
    catalogue = RunCatalogue(runs, verify=verify, any_model=any_model)
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 600), fill_width=True) as studio:
        gr.HTML(header_html())
        for name, page in PAGES.items():
            with gr.Column(elem_id=f"page-{name.lower()}", elem_classes="fv-page"):
                gr.HTML(f'<p class="fv-about">{page.about}</p>')
                load_target(f"foveate.apps.studio.{page.module}:build")(gr, catalogue)
        build_api(gr, catalogue)
    studio.state_session_capacity = SESSIONS
    return studio.queue(max_size=QUEUE, default_concurrency_limit=AT_ONCE, api_open=False)


def build_api(gr: Any, catalogue: RunCatalogue) -> None:
    """Add what programs may call, see docs/studio.md: images travel as data URLs, nothing is stored."""

    def answer(image: str, question: str, run: str = "scenes-vqa") -> dict[str, Any]:
        """Answer a question about an image."""
        found = catalogue.predictor(run).answer(read_upload(image), read_question(question))
        said = {"answer": found.text, "confidence": found.confidence, "best": found.best, "warning": found.warning}
        return {**said, "run": run, "trained_on": catalogue.trained_on(run), "map": found.attention.map()[0].tolist()}

    def caption(images: list[str], run: str = "photos-captioning", beams: int = 3) -> list[dict[str, Any]]:
        """Describe each of several images in a sentence."""
        if not isinstance(images, list) or not 0 < len(images) <= MOST_IMAGES:
            raise DataError(f"caption: expected a list of 1 to {MOST_IMAGES} images, got {type(images).__name__}")
        width = min(max(1, int(beams)), MAX_BEAMS)
        found = [catalogue.predictor(run).caption(read_upload(one), beams=width) for one in images]
        return [{"caption": one.text, "log_probability": one.best[0][1], "warning": one.warning} for one in found]

    def rank(text: str, images: list[str], run: str = "photos-search") -> list[list[float]]:
        """Rank images by how well a text describes them: pairs of position and similarity, best first."""
        if not isinstance(images, list) or not 0 < len(images) <= MOST_IMAGES:
            raise DataError(f"rank: expected a list of 1 to {MOST_IMAGES} images, got {type(images).__name__}")
        pixels = [read_upload(one) for one in images]
        scores = catalogue.predictor(run).match(pixels, [read_question(text, "text")])[:, 0]
        return [[float(n), float(scores[n])] for n in scores.argsort(descending=True).tolist()]

    for call in (answer, caption, rank):
        gr.api(_typed(gr, call), api_name=call.__name__)


def _typed(gr: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """A call whose errors become sentences for the caller; gradio reads its annotations, which must not be strings."""

    @wraps(call)
    def checked(*args: Any, **options: Any) -> Any:
        try:
            return call(*args, **options)
        except (FoveateError, ValueError, TypeError) as error:
            raise gr.Error(str(error), print_exception=False) from None

    checked.__annotations__ = get_type_hints(call)
    return checked


class LinkPreview:
    """ASGI middleware that names this page, not gradio, where a link to it is previewed."""

    def __init__(self, app: Any, title: str, about: str) -> None:
        self.app = app
        tags = {"og:title": title, "og:description": about, "twitter:title": title, "twitter:description": about}
        self.tags = {name.encode(): f'content="{escape(text)}"'.encode() for name, text in tags.items()}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on; the tags of the page are replaced."""
        if scope["type"] != "http" or scope["path"] != "/":
            await self.app(scope, receive, send)
            return
        start, body = dict[str, Any](), bytearray()

        async def collect(message: Any) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            page = PREVIEW.sub(lambda tag: tag[1] + self.tags.get(tag[2], b'content=""'), bytes(body))
            kept = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
            length = len(page) if scope["method"] == "GET" else len(body)
            await send({**start, "headers": [*kept, (b"content-length", str(length).encode())]})
            await send({"type": "http.response.body", "body": page})

        await self.app(scope, receive, collect)


def header_html() -> str:
    """The title and the links to the pages; `static/shell.js` shows the page that the address names."""
    links = "".join(f'<a href="#{name.lower()}">{name}</a>' for name in PAGES)
    return f'<header class="fv-head"><h1>{TITLE}</h1><nav class="fv-nav" aria-label="pages">{links}</nav></header>'


def make_app(runs: Path, *, verify: bool = True, any_model: bool = True) -> Any:
    """The studio as an ASGI application, to be served behind the gate."""
    page = mount_page(
        make_studio(runs, verify=verify, any_model=any_model),
        {"primary_hue": "blue", "neutral_hue": "slate"},
        css=read_asset("studio.css"),
        head=f"<script>{script('shell', pages=[name.lower() for name in PAGES])}</script>",
        max_file_size=MAX_FILE,
    )
    return LinkPreview(page, TITLE, ABOUT)


def mount_page(page: Any, hues: Mapping[str, str], **options: Any) -> Any:
    """A page as an ASGI application without monitoring, history, links to other hosts or a description of its API.

    Args:
        page: a `gradio.Blocks`.
        hues: colours of the theme.
        options: further ones of `gradio.mount_gradio_app`.
    """
    gr = load_gradio()
    from fastapi import FastAPI

    read = page.preprocess_data

    async def preprocess_data(*args: Any, **kwargs: Any) -> Any:
        # The page sends no such thing, and a terminal need not hold a traceback for what any client may send.
        try:
            return await read(*args, **kwargs)
        except Exception as error:
            raise gr.Error(f"these values cannot be read: {error}", print_exception=False) from None

    page.preprocess_data = preprocess_data
    return gr.mount_gradio_app(
        FastAPI(openapi_url=None),
        page,
        path="/",
        footer_links=[],
        run_history=False,
        app_kwargs={"openapi_url": None},
        show_error=False,
        ssr_mode=False,
        enable_monitoring=False,
        theme=gr.themes.Default(**hues, font=FONTS, font_mono=CODE_FONTS),
        **options,
    )


def serve(
    runs: Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    names: Collection[str] = (),
    verify: bool = True,
) -> None:
    """Serve the studio until it is interrupted.

    Args:
        runs, verify: as in `make_studio`.
        host: the address to listen on; by default only this machine can connect.
        port: the first free one from 7860 on if absent.
        names: further host names under which the page may be used, for instance behind a proxy; requests that name
            any other host are answered 403.

    Raises DataError if the port is in use or the address is not one of this machine.
    """
    is_own = known_hosts(host) <= LOOPBACK and not names  # only this machine's users may name any model
    serve_app(lambda: make_app(runs, verify=verify, any_model=is_own), TITLE, host=host, port=port, names=names)


def serve_app(
    make: Callable[[], Any],
    title: str,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    names: Collection[str] = (),
) -> None:
    """Serve an application behind the gate until it is interrupted.

    Args:
        make: builds the ASGI application, once the port is known to be free.
        title: printed with the address.
        host, port, names: as in `serve`.
    """
    limit_heap()
    load_gradio()
    import uvicorn

    with _listen(host, port) as listener:
        app = guard(make(), host, names)
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", server_header=False, ws="none", timeout_graceful_shutdown=2)
        )
        print(f"{title}: {_address(host, listener)}  (stop with Ctrl-C)", flush=True)
        # After its own shutdown the server raises the signal again; by default that would skip the clean-up.
        with handle_signals(at_once=True):
            server.run(sockets=[listener])


def limit_heap() -> None:
    """Make the C library return large blocks to the system; does nothing where it is not glibc.

    By default glibc has a heap per thread, and keeps what large messages leave behind in them: under load the memory of
    a server grows beyond what it uses, and stays there.
    """
    mmap_threshold, trim_threshold, arena_max = -3, -1, -8  # names of the options in malloc.h
    try:
        library = ctypes.CDLL(None)
        for option, value in ((mmap_threshold, 4 << 20), (trim_threshold, 16 << 20), (arena_max, AT_ONCE)):
            library.mallopt(option, value)
    except (OSError, AttributeError, TypeError):
        return


def load_gradio() -> Any:
    """Import gradio without analytics; raises MissingExtra if it is not installed, DataError if it is too old."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    if "GRADIO_TEMP_DIR" not in os.environ:
        # Gradio reads it once, on import, and leaves directories behind in a place that all users share.
        directory = tempfile.mkdtemp(prefix="foveate-studio-")
        os.environ["GRADIO_TEMP_DIR"] = directory
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
    gr = optional("studio", "gradio", extra="studio")
    if int(gr.__version__.partition(".")[0]) < 6:
        raise DataError(f"studio: expected gradio 6 or newer, got {gr.__version__}; run: pip install -U gradio")
    return gr


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens on a port, or on the first free one; raises DataError if there is none."""
    if port is not None and not 0 <= port <= MAX_PORT:  # the resolver would take it modulo 65 536
        raise DataError(f"studio: expected a port from 0 to {MAX_PORT}, got {port}; choose another --port")
    reason: Exception | None = None
    for number in PORTS if port is None else [port]:
        try:
            family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), number, type=socket.SOCK_STREAM)[0]
            listener = socket.socket(family, kind)
        except (OSError, UnicodeError) as error:
            raise DataError(f"studio: expected a host, got {host} ({error}); choose another --host") from None
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
        except OSError as error:
            listener.close()
            reason = error
        else:
            return listener
    raise DataError(f"studio: expected a free port, got {reason}; choose another --port or --host") from None


def _address(host: str, listener: socket.socket) -> str:
    """What to open in a browser."""
    shown = "localhost" if host in ALL_INTERFACES else f"[{host}]" if ":" in host and "[" not in host else host
    return f"http://{shown}:{listener.getsockname()[1]}/"
