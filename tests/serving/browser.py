"""Check the server's page in a headless browser: ``python -m tests.serving.browser --pictures FOLDER``.

The page is opened 1,280 and 390 pixels wide, light and dark. It must log no error, ask no other host, show everything,
and chat, complete and stop. Needs what ``docs/making/browser.py`` needs.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

from making.browser import CUT, SCHEMES, SIZES, open_browser
from tests.serving.conftest import Running, serving
from tests.serving.models import byte_pairs, text_run

from qkv.serving.http.app import Access


def until(tab: Any, condition: str) -> None:
    """Wait until an expression of the page is true; the page itself allows no evaluation of texts."""
    for _ in range(600):
        if tab.evaluate(condition):
            return
        tab.wait_for_timeout(50)
    raise TimeoutError(f"{condition}; the page says: {tab.inner_text('body')}")


@contextlib.contextmanager
def settings_shown(tab: Any) -> Iterator[None]:
    """Open the settings, which a narrow page hides, and close them at the end."""
    hidden = not tab.is_visible("#settings")
    if hidden:
        tab.click("#toggle")
    yield
    if hidden:
        tab.click("#toggle")


def set_value(tab: Any, name: str, value: str | bool) -> None:
    """Set a value of the settings."""
    with settings_shown(tab):
        tab.fill(f"#{name}", value) if isinstance(value, str) else tab.set_checked(f"#{name}", value)


def used(tab: Any) -> Iterator[str]:
    """Problems in the use of the page: a chat, its buttons, probabilities, a completion that is stopped."""
    tab.fill("#key", "secret")
    tab.dispatch_event("#key", "change")
    until(tab, "document.querySelectorAll('#model option').length === 2")
    set_value(tab, "max_tokens", "30")
    for turn in (1, 2):
        tab.fill("#prompt", "the quick brown fox")
        tab.press("#prompt", "Enter")
        until(tab, f"document.querySelectorAll('.turn').length === {2 * turn} && !running")
        if not tab.locator(".turn.assistant .text").nth(turn - 1).inner_text():
            yield f"the answer {turn} is empty"
    yield from (f"cut: {what}" for what in tab.evaluate(CUT))
    yield from buttons(tab)
    set_value(tab, "max_tokens", "30")
    tab.click("#complete")
    set_value(tab, "scored", True)
    tab.fill("#prompt", "the quick")
    tab.click("#send")
    until(tab, "document.querySelectorAll('#log span[title]').length > 20 && !running")
    yield from (f"cut: {what}" for what in tab.evaluate(CUT))
    if tab.inner_text("#log .given") != "the quick":
        yield "the prompt is not shown"
    set_value(tab, "max_tokens", "1900")
    tab.fill("#prompt", "the quick")
    tab.click("#send")
    until(tab, "running !== null")
    tab.click("#stop")
    with settings_shown(tab):
        until(tab, "running === null && Number(document.querySelector('#running').textContent) === 0")
    if note := tab.inner_text("#note"):
        yield f"a note after the end: {note}"
    set_value(tab, "max_tokens", "100000")
    tab.fill("#prompt", "the quick")
    tab.click("#send")
    until(tab, "document.querySelector('#log').textContent.includes('limit of 2048 tokens') && !running")


def buttons(tab: Any) -> Iterator[str]:
    """Problems of Retry after a refusal and an answer, Save chat, New and Open chat, after a chat of two turns."""
    set_value(tab, "max_tokens", "100000")
    tab.fill("#prompt", "again")
    tab.click("#send")
    until(tab, "document.querySelector('#log').textContent.includes('limit of 2048 tokens') && !running")
    set_value(tab, "max_tokens", "30")
    for what in ("a refusal", "an answer"):
        before = tab.locator(".turn.assistant .text").last.inner_text()
        tab.click(".retry >> nth=-1")
        until(tab, "document.querySelectorAll('.turn').length === 6 && !running")
        if tab.locator(".turn.assistant .text").last.inner_text() in ("", before):
            yield f"Retry after {what} wrote nothing new"
    set_value(tab, "system", "Be brief.")
    texts = tab.locator(".turn .text").all_inner_texts()
    with tab.expect_download() as download, settings_shown(tab):
        tab.click("#save")
    saved = Path(download.value.path()).with_suffix(".jsonl")
    saved.write_bytes(Path(download.value.path()).read_bytes())
    tab.click("#clear")
    until(tab, "document.querySelectorAll('.turn').length === 0")
    set_value(tab, "system", "")
    tab.set_input_files("#file", str(saved))
    until(tab, "document.querySelectorAll('.turn').length === 6")
    if tab.locator(".turn .text").all_inner_texts() != texts or tab.input_value("#system") != "Be brief.":
        yield "a saved chat is not the same when it is opened"
    yield from (f"cut: {what}" for what in tab.evaluate(CUT))


def problems(browser: Any, server: Running, size: str, scheme: str, pictures: Path | None) -> Iterator[str]:
    """Problems of the page in one size and colour scheme."""
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab, logged = context.new_page(), list[str]()
    tab.on("pageerror", lambda error: logged.append(f"error: {error}"))
    tab.on("request", lambda r: None if r.url.startswith((server.url, "data:")) else logged.append(f"request: {r.url}"))
    tab.on("console", lambda m: logged.append(m.text) if m.type == "error" and "status of 40" not in m.text else None)
    tab.goto(server.url)
    until(tab, "document.querySelector('#note').textContent.includes('key')")
    yield from used(tab)
    yield from logged
    if pictures is not None:
        tab.screenshot(path=str(pictures / f"serve-{size}-{scheme}.png"), full_page=True)
    context.close()


def main() -> int:
    """Print all problems; 1 if there are any."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=Path, help="folder for screenshots")
    pictures = parser.parse_args().pictures
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: text_run(Path(folder), name, byte_pairs()) for name in ("rope", "gru")}
        with serving(runs, access=Access(key="secret")) as server, sync_playwright() as playwright:
            browser = open_browser(playwright)
            found = [
                f"{size} {scheme}: {problem}"
                for size in SIZES
                for scheme in SCHEMES
                for problem in problems(browser, server, size, scheme, pictures)
            ]
            browser.close()
    print("\n".join(found) or f"{len(SIZES) * len(SCHEMES)} views of the page without a problem")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
