"""The headless browser that some tests use, where there is one."""

import shutil

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
HEADLESS = (BROWSER, "--headless", "--no-sandbox", "--no-first-run")

needs_browser = pytest.mark.skipif(not BROWSER, reason="needs Chromium")
