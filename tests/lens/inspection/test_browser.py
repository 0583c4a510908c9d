"""Pages of inspections in a headless browser."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

BROWSER = os.environ.get("QKV_BROWSER") or shutil.which("chromium")


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
def test_every_view_of_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    from tests.lens.inspection.browser import every_problem, open_browser

    monkeypatch.setenv("QKV_BROWSER", str(BROWSER))
    with playwright.sync_playwright() as engine:
        browser = open_browser(engine)
        assert every_problem(browser, tmp_path, None) == []
        browser.close()
