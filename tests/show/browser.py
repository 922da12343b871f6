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
        yield Browser(driver)
    finally:
        driver.quit()
