"""A headless Chromium for the tests of pages; where there is none they are skipped.

On Debian: ``apt-get install -y chromium chromium-driver`` and ``pip install selenium``.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--window-size=1300,1000",
)


def _found() -> tuple[str, str]:
    """Paths of browser and driver.

    Skips the test where one is missing, with the command that brings it.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    browser = browser or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        what = "chromium" if browser is None else "chromedriver"
        pytest.skip(f"{what} is not installed: apt-get install -y chromium chromium-driver")
    if importlib.util.find_spec("selenium") is None:
        pytest.skip("selenium is not installed: pip install selenium")
    return browser, driver


class Browser:
    """A page at a time, and all that the browser logged about it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a file; what was logged before is forgotten."""
        self.driver.get("about:blank")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(path.as_uri() + fragment)

    def js(self, code: str, *arguments: object) -> Any:
        """What a JavaScript expression gives."""
        return self.driver.execute_script(f"return {code}", *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        """Texts of the elements that are shown."""
        code = (
            "Array.from(document.querySelectorAll(arguments[0]))"
            ".filter(e => e.checkVisibility()).map(e => e.textContent)"
        )
        found: list[str] = self.js(code, selector)
        return found

    def keys(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def media(self, **features: str) -> None:
        """Preferences of the system, e.g. ``prefers_color_scheme="dark"``."""
        listed = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": listed})

    def scripts(self, allowed: bool) -> None:
        """Let pages run scripts, or not."""
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not allowed})

    def size(self, width: int, height: int = 1000) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def console(self) -> list[str]:
        """Errors and warnings of the console since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Every address that was asked for since the page was opened."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return found

    def wait(self, holds: Callable[[], bool], seconds: float = 30) -> None:
        """Until something holds; a busy machine may take seconds."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "it never held"
            time.sleep(0.05)


def start(profile: Path) -> Iterator[Browser]:
    """A browser with a new profile, ended when the generator is."""
    browser, driver_path = _found()
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    try:
        driver.set_page_load_timeout(120)
        driver.set_script_timeout(120)  # axe-core, on a busy machine
        yield Browser(driver)
    finally:
        driver.quit()


_FITS = (Path(__file__).parent / "fits.js").read_text(encoding="utf-8").partition("*/\n")[2]
_OPEN = (
    "document.querySelectorAll('.open').forEach((row, i) => i < 3 && row.click());"
    "document.querySelectorAll('details').forEach(part => { part.open = true; })"
)
_RUN_AXE = (
    "const [rules, done] = arguments;"
    " axe.run(document, {...rules, resultTypes: ['violations']}).then(found => done("
    "found.violations.map(v => `${v.id}: ${v.nodes.map(n => n.html).join(' ')}`)))"
)


def unseen(page: Browser) -> list[str]:
    """What a reader cannot see whole on the page that is open, with its parts opened."""
    page.driver.execute_script(_OPEN)
    found: list[str] = page.js(_FITS)
    return found


def assert_accessible(page: Browser, path: Path) -> None:
    """axe-core finds nothing on a page, in light and dark; skipped where it is not installed."""
    package = importlib.util.find_spec("axe_core_python")
    if package is None or package.origin is None:
        pytest.skip("axe-core is not installed: pip install axe-core-python")
    axe = Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8")
    page.driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
    try:
        # Nothing but colours differs in the dark.
        for scheme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            page.media(prefers_color_scheme=scheme)
            page.open(path)
            page.driver.execute_script(_OPEN)
            page.driver.execute_script(axe)
            assert page.driver.execute_async_script(_RUN_AXE, rules) == [], scheme
    finally:
        page.media(prefers_color_scheme="light")
        page.driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": False})
