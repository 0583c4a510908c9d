"""Check built pages in a headless browser: ``python docs/making/browser.py docs/_build/html --pictures FOLDER``.

Every page is opened 1,280 and 390 pixels wide, light and dark. It must log no error, request nothing from elsewhere,
and show everything: nothing wider than the window, except inside a box that scrolls. Needs ``pip install playwright``
and its Chromium, or another one named by ``QKV_BROWSER``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIZES = {"wide": (1280, 900), "narrow": (390, 844)}
SCHEMES = "light", "dark"

CUT = """() => {
  const width = document.documentElement.clientWidth, found = [];
  const scrolls = e => { for (let p = e.parentElement; p && p !== document.documentElement; p = p.parentElement) {
    const s = getComputedStyle(p); if (/auto|scroll/.test(s.overflowX) || s.position === "fixed") return true; } return false; };
  const seen = e => { const s = getComputedStyle(e); return s.visibility !== "hidden" && s.opacity !== "0" && !e.closest("[hidden]"); };
  if (document.documentElement.scrollWidth > width) found.push("the page itself: " + document.documentElement.scrollWidth);
  for (const e of document.querySelectorAll("main *, article *, body > *")) {
    const box = e.getBoundingClientRect();
    if (!box.width || !seen(e) || e.closest("svg svg, .sidebar-drawer, .toc-drawer, .visually-hidden, .headerlink")) continue;
    if ((box.right > width + 1 || box.left < -1) && !scrolls(e)) found.push(e.tagName + " " + e.className + ": " + Math.round(box.right));
    const s = getComputedStyle(e);
    if (/hidden|clip/.test(s.overflowX) && e.scrollWidth > e.clientWidth + 1 && s.textOverflow !== "ellipsis" && box.width > 2)
      found.push("cut inside " + e.tagName + " " + e.className);
  }
  for (const e of document.images) if (!e.complete || !e.naturalWidth) found.push("no picture: " + e.getAttribute("src"));
  return found.slice(0, 8);
}"""  # noqa: E501


def open_browser(playwright: Any) -> Any:
    """The browser named by ``QKV_BROWSER``, else Playwright's own."""
    named = os.environ.get("QKV_BROWSER")
    flags = ["--no-sandbox", "--disable-gpu", "--no-zygote"] if named else []
    return playwright.chromium.launch(executable_path=named, args=flags)


def problems(browser: Any, page: Path, size: str, scheme: str, picture: Path | None) -> Iterator[str]:
    """Problems of ``page`` in one size and colour scheme; ``picture``: file for a screenshot."""
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab, logged = context.new_page(), []
    tab.on(
        "console", lambda m: logged.append(f"console {m.type}: {m.text}") if m.type in ("error", "warning") else None
    )
    tab.on("pageerror", lambda e: logged.append(f"error: {e}"))
    tab.on("requestfailed", lambda r: logged.append(f"failed: {r.url}"))
    tab.on("request", lambda r: None if r.url.startswith(("file:", "data:")) else logged.append(f"request: {r.url}"))
    tab.goto(page.resolve().as_uri(), wait_until="load")
    tab.wait_for_timeout(150)
    logged += [f"cut: {what}" for what in tab.evaluate(CUT)]
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        tab.screenshot(path=str(picture), full_page=True)
    context.close()
    yield from (f"{page.name}, {size}, {scheme}: {what}" for what in logged)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="built pages")
    parser.add_argument("--pictures", type=Path, help="folder for screenshots")
    parser.add_argument("--only", default="", help="part of the pages' names")
    given = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print(
            "playwright is not installed; install it with pip install playwright, "
            "and a browser with playwright install chromium"
        )
        return 2

    pages = [p for p in sorted(given.folder.rglob("*.html")) if given.only in str(p.relative_to(given.folder))]
    found: list[str] = []
    with sync_playwright() as playwright:
        for page in pages:
            browser = open_browser(playwright)
            for size in SIZES:
                for scheme in SCHEMES:
                    name = page.relative_to(given.folder).with_suffix("").as_posix().replace("/", ".")
                    picture = given.pictures / f"{name}.{size}.{scheme}.png" if given.pictures else None
                    found += problems(browser, page, size, scheme, picture)
            browser.close()
    print("\n".join(found) or f"{len(pages)} pages, each in {len(SIZES)} sizes, light and dark: no problem")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
