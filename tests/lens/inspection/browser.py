"""Check pages of inspections in a headless browser: ``python -m tests.lens.inspection.browser --pictures FOLDER``.

Every view of every form of model is opened 1,280 and 390 pixels wide, light and dark; those of published folders,
which ``qkv inspect`` opens, in light. A page must log no error, ask no
other host, show everything, and answer a change of head within 100 ms. A page that is served computes a changed text,
and takes a head out. Needs what ``docs/making/browser.py`` needs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3] / "docs"))

from making.browser import CUT, SCHEMES, SIZES, open_browser
from tests.lens.inspection.forms import every_form
from tests.lens.inspection.published import every_folder

import qkv
from qkv.cli.main import main
from qkv.lens.inspection.inspection import inspect_run
from qkv.lens.inspection.local_server import LocalServer
from qkv.lens.inspection.views import VIEWS
from qkv.runs.run import Run

MILLISECONDS = 100
"""Longest time to draw a view."""


def open_page(browser: Any, url: str, size: str, scheme: str) -> tuple[Any, list[str]]:
    """Open a page; return the tab, and the list to which its errors and requests to others are added."""
    width, height = SIZES[size]
    tab = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme).new_page()
    logged = list[str]()
    own = (url.partition("#")[0], "data:", "blob:")
    tab.on("pageerror", lambda error: logged.append(f"error: {error}"))
    tab.on("console", lambda m: logged.append(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None)
    tab.on("request", lambda r: None if r.url.startswith(own) else logged.append(f"request: {r.url}"))
    tab.goto(url)
    return tab, logged


def settle(tab: Any) -> None:
    """Wait until the view is computed and drawn."""
    tab.wait_for_timeout(50)
    for _ in range(600):
        if "Computing" not in tab.inner_text("#view") and tab.inner_text("#view"):
            return
        tab.wait_for_timeout(50)
    raise TimeoutError(tab.inner_text("body"))


def quickest(tab: Any, key: str) -> float:
    """Milliseconds to draw the view after a key; the least of up to three, since other processes may be busy."""
    spent = float("inf")
    for _ in range(3):
        tab.keyboard.press(key)
        spent = min(spent, float(tab.evaluate("document.documentElement.dataset.milliseconds || 0")))
        if spent <= MILLISECONDS:
            break
    return spent


def problems(browser: Any, url: str, size: str, scheme: str, picture: Path | None) -> Iterator[str]:
    """Problems of all views of a page in one size and colour scheme; ``picture``: beginning of names of screenshots."""
    tab, logged = open_page(browser, url, size, scheme)
    for name in VIEWS:
        tab.click(f"[data-view={name}]")
        settle(tab)
        yield from (f"{name}: cut: {what}" for what in tab.evaluate(CUT))
        for key in ("ArrowDown", "ArrowRight", "."):
            spent = quickest(tab, key)
            if spent > MILLISECONDS:
                yield f"{name}: {key} took {spent:.0f} ms"
        if picture is not None:
            tab.screenshot(path=f"{picture}-{name}-{size}-{scheme}.png")
    view = tab.evaluate("location.hash")
    again, _ = open_page(browser, url.partition("#")[0] + view, size, scheme)
    settle(again)
    if again.inner_text("#view") != tab.inner_text("#view"):
        yield "the address does not reproduce the view"
    yield from logged
    for each in (tab, again):
        each.context.close()


def changes(browser: Any, run: Run, row: Mapping[str, Any]) -> Iterator[str]:
    """Problems of a page that is served: another text, and a head that is taken out and put back."""
    with LocalServer(inspect_run(run, row)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tab, logged = open_page(browser, server.url, "wide", "light")
        settle(tab)
        first = tab.inner_text(".bars")
        yield from warmer(tab, first)
        tab.fill("textarea", "the lazy dog jumps")
        tab.click("button[type=submit]")
        settle(tab)
        if "lazy" not in "".join(tab.locator(".tokens button").all_inner_texts()) or not tab.locator(".before").count():
            yield "another text is not shown beside the first one"
        tab.click("[data-view=attention]")
        settle(tab)
        tab.click("text=Take the head out")
        settle(tab)
        tab.click("[data-view=answers]")
        settle(tab)
        if not tab.locator("text=is out").count() or tab.inner_text(".bars") == first:
            yield "a head that is taken out changes nothing"
        tab.click("text=is out")
        settle(tab)
        if tab.locator("text=is out").count():
            yield "the head is not put back"
        yield from logged
        tab.context.close()
        server.shutdown()


def warmer(tab: Any, first: str) -> Iterator[str]:
    """Problems of the temperature, which is dragged to its highest value and set back."""
    box = tab.locator("input[type=range]").bounding_box()
    middle = box["y"] + box["height"] / 2
    tab.mouse.move(box["x"] + box["width"] / 2, middle)
    tab.mouse.down()
    for share in (0.6, 0.8, 1.2):
        tab.mouse.move(box["x"] + share * box["width"], middle)
    tab.mouse.up()
    if "temperature=4.4" not in tab.evaluate("location.hash") or tab.inner_text(".bars") == first:
        yield f"the temperature is not dragged to its end: {tab.evaluate('location.hash')}"
    tab.focus("input[type=range]")
    for _ in range(30):
        tab.keyboard.press("ArrowLeft")
    if tab.inner_text(".bars") != first:
        yield "the temperature is not set back to 1 by keys"


def write_pages(folder: Path, forms: Mapping[str, tuple[Run, Mapping[str, Any]]]) -> dict[str, Path]:
    """Return the files of the pages by name: of the forms, and of published folders, which the command opens."""
    pages = {name: inspect_run(run, row).save(folder / f"{name}.html") for name, (run, row) in forms.items()}
    for name, (published, given) in every_folder(folder / "published").items():
        pages[name] = folder / f"{name}.html"
        if main(["inspect", str(published), given, "--out", str(pages[name])]):
            raise RuntimeError(f"qkv inspect {published} failed")
    return pages


def every_problem(browser: Any, folder: Path, pictures: Path | None) -> list[str]:
    """Problems of the pages of every form and of every published folder."""
    found, forms = list[str](), every_form(folder)
    for name, page in write_pages(folder, forms).items():
        start = None if pictures is None else pictures / name.replace(" ", "-")
        for size in SIZES:
            for scheme in SCHEMES if name in forms else SCHEMES[:1]:
                told = problems(browser, page.resolve().as_uri(), size, scheme, start)
                found += [f"{name}, {size}, {scheme}: {problem}" for problem in told]
    served = {
        "rope": forms["rope"],
        "GPT-2": (qkv.load(folder / "published" / "GPT-2"), {"text": "the quick"}),
        "T5": (qkv.load(folder / "published" / "T5"), {"source": "the quick"}),
    }
    for name, (run, row) in served.items():
        found += [f"{name}, served: {problem}" for problem in changes(browser, run, row)]
    return found


def check() -> int:
    """Print all problems; 1 if there are any."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=Path, help="folder for screenshots")
    pictures = parser.parse_args().pictures
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = open_browser(playwright)
        found = every_problem(browser, Path(folder), pictures)
        browser.close()
    print("\n".join(found) or "every view of every form without a problem")
    return bool(found)


if __name__ == "__main__":
    sys.exit(check())
