"""The built site, a server of it, and Chromium."""

from __future__ import annotations

import fcntl
import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

BOOK = Path(__file__).parents[2]
INSTALL_BROWSER = (
    "sudo apt-get install chromium" if shutil.which("apt-get") else ".venv/bin/playwright install chromium"
)


from build import is_current  # noqa: E402


def make_book() -> str:
    """Run `make book`; return its output if it failed, else ""."""
    # Chapters compile kernels, but Triton's interpreter, which these tests set, prevents that.
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    build = subprocess.run(["make", "book"], cwd=BOOK, env=settings, capture_output=True, text=True)
    return "" if build.returncode == 0 else build.stdout + build.stderr


@pytest.fixture(scope="session")
def site(tmp_path_factory, testrun_uid) -> Path:
    """The folder of the built site, brought up to date once a test run."""
    shared = tmp_path_factory.getbasetemp().parent
    with open(shared / f"site-{testrun_uid}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = shared / f"site-{testrun_uid}.done"
        if not done.exists():
            done.write_text("" if is_current(BOOK) else make_book())
    if problem := done.read_text():
        pytest.fail(f"make book failed:\n{problem}", pytrace=False)
    return BOOK / "_build" / "html"


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, *args: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    """Does not mind a window that closes before it has everything."""

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@pytest.fixture(scope="session")
def address(site) -> str:
    """Where the site is served."""
    server = Server(("127.0.0.1", 0), functools.partial(Handler, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="session")
def browser():
    """Chromium: the system's, or playwright's own; without one the tests skip, but not in CI."""
    playwright_api = pytest.importorskip("playwright.sync_api")
    system = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with playwright_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=system, args=["--no-sandbox"])
        except playwright_api.Error as error:
            reason = f"no Chromium to test the site in; install it with: {INSTALL_BROWSER}"
            if os.environ.get("CI") == "true":
                pytest.fail(f"{reason}\n{error}", pytrace=False)
            pytest.skip(reason)
        yield browser
        browser.close()


# Until the page is laid out, and the boxes that scroll know it.
SETTLED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"

WIDE = {"width": 1280, "height": 900}


class Visit:
    """A window, with what the page in it asked for and what it complained of."""

    def __init__(self, browser):
        self.page = browser.new_context(viewport=WIDE, color_scheme="light").new_page()
        self.complaints, self.requests = [], []
        self.page.on("console", self.note_message)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("requestfailed", self.note_failure)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def note_message(self, message) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} ({message.location['url']})")

    def note_failure(self, request) -> None:
        # A window that goes to another page no longer waits for what the last one asked for, such as its icon.
        if request.failure != "net::ERR_ABORTED":
            self.complaints.append(f"failed: {request.url}, {request.failure}")

    def open(self, url: str) -> None:
        self.page.goto(url, wait_until="load")
        self.page.evaluate(SETTLED)

    def leave(self) -> None:
        """Forget the page and what it stored, if one was opened."""
        self.page.evaluate("() => { try { localStorage.clear(); sessionStorage.clear(); } catch {} }")
        self.page.goto("about:blank")
        self.complaints.clear()
        self.requests.clear()


@pytest.fixture(scope="session")
def window(browser) -> Visit:
    """One for all pages: a new one would compile every script again, which takes as long as showing a page."""
    return Visit(browser)


@pytest.fixture
def visit(window) -> Visit:
    """The window as a new one would be."""
    window.page.set_viewport_size(WIDE)
    window.page.emulate_media(media="null", color_scheme="light")
    yield window
    window.leave()
