"""The pages as one gradio app, and its server: on this machine alone, without analytics and without other hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from foveate.errors import DataError
from foveate.registry import optional
from foveate.studio import PAGES, Shelf
from foveate.studio.limits import MAX_FILE, BodyLimit
from foveate.studio.widgets import CSS

TITLE = "foveate studio"
FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "DejaVu Sans", "sans-serif")
CODE_FONTS = ("ui-monospace", "DejaVu Sans Mono", "Consolas", "monospace")
QUEUE, AT_ONCE = 64, 2


def make_studio(runs: Path) -> Any:
    """The studio as a `gradio.Blocks`.

    Args:
        runs: folder whose runs and reports are offered besides the embedded runs.

    Without gradio, or with one older than 6, an error says what to install.
    """
    gr = load_gradio()
    shelf = Shelf(runs)
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 600), fill_width=True) as studio:
        gr.HTML(f"<h1>{TITLE}</h1>")
        with gr.Tabs():
            for name, page in PAGES.items():
                with gr.Tab(name):
                    gr.HTML(f'<p class="fv-note">{page.about}</p>')
                    page.build(gr, shelf)
    return studio.queue(max_size=QUEUE, default_concurrency_limit=AT_ONCE, api_open=False)


def serve(runs: Path, *, host: str = "127.0.0.1", port: int | None = None, block: bool = True) -> str:
    """Start the studio and return its address.

    Args:
        runs: as in `make_studio`.
        host: the address to listen on; this machine alone unless told.
        port: the first free one from 7860 on when absent.
        block: stay until interrupted; otherwise it serves in the background.
    """
    gr = load_gradio()
    from starlette.middleware import Middleware

    studio = make_studio(runs)
    try:
        _, address, _ = studio.launch(
            server_name=host,
            server_port=port,
            prevent_thread_lock=True,
            share=False,
            show_error=False,
            quiet=True,
            inbrowser=False,
            ssr_mode=False,
            enable_monitoring=False,
            run_history=False,
            footer_links=[],
            allowed_paths=[],
            state_session_capacity=200,
            max_file_size=MAX_FILE,
            app_kwargs={"middleware": [Middleware(BodyLimit)], "docs_url": None, "redoc_url": None},
            theme=gr.themes.Default(font=FONTS, font_mono=CODE_FONTS),
            css=CSS,
        )
    except OSError as error:
        raise DataError(f"studio: expected a free port, got {error}; choose another --port") from None
    if block:
        print(f"{TITLE}: {address}  (stop with Ctrl-C)")
        studio.block_thread()
    return address


def load_gradio() -> Any:
    """Import gradio without analytics; MissingExtra when it is not there, DataError when it is too old."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    gr = optional("studio", "gradio", extra="studio")
    if int(gr.__version__.partition(".")[0]) < 6:
        raise DataError(f"studio: expected gradio 6 or newer, got {gr.__version__}; run: pip install -U gradio")
    return gr
