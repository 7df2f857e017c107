"""A real browser for tests: the system's Chromium, without a window."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.support.patience import Patience

_Found = TypeVar("_Found")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
PATIENCE = 90.0
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="no Chromium here: install chromium and chromium-driver (make browser)"
)


class Browser:
    """A page at a time. It waits long for what it looks for, and looks at nothing only once."""

    def __init__(self, downloads: Path) -> None:
        self.downloads = downloads
        options = webdriver.ChromeOptions()
        options.accept_insecure_certs = True  # tests have authorities of their own
        options.binary_location = str(CHROMIUM)
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
        ):
            options.add_argument(argument)
        options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
        self.look(1280, 860)

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Be a screen of this size, of someone who prefers light or dark."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def until(self, condition: Callable[[], _Found | None]) -> _Found:
        """Wait until the condition returns something, and return that."""
        patience = Patience(PATIENCE)
        while True:
            try:
                found = condition()
            except StaleElementReferenceException:  # drawn anew between finding and looking
                found = None
            if found:
                return found
            assert not patience.exhausted(), self.text()
            time.sleep(0.05)

    def text(self) -> str:
        """All that can be read on the page."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    def find(self, selector: str, text: str | None = None) -> WebElement:
        """The first element that a selector means, and that has this text, as soon as it is there."""

        def look() -> WebElement | None:
            found = self.driver.find_elements(By.CSS_SELECTOR, selector)
            return next((one for one in found if one.is_displayed() and (text is None or text in one.text)), None)

        return self.until(look)

    def click(self, selector: str, text: str | None = None) -> None:
        """Press it."""

        def press() -> bool:
            self.find(selector, text).click()
            return True

        self.until(press)

    def type(self, selector: str, text: str) -> None:
        """Type into it."""

        def send() -> bool:
            self.find(selector).send_keys(text)
            return True

        self.until(send)

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements that a selector means, at one moment."""
        found: list[str] = self.driver.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map(one => one.innerText)", selector
        )
        return found

    def choose(self, selector: str, value: str) -> None:
        """Choose an option."""
        self.click(f'{selector} option[value="{value}"]')

    def attribute(self, selector: str, name: str) -> str:
        """An attribute of the first element that a selector means."""
        return self.until(lambda: self.find(selector).get_attribute(name)) or ""

    def run(self, script: str) -> Any:
        """The value of a script in the page."""
        return self.driver.execute_script(script)

    def complaints(self) -> list[str]:
        """Return what the browser has found wrong with the page, such as a script that was refused."""
        log: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        found = [entry["message"] for entry in log if entry["level"] == "SEVERE"]
        return [one for one in found if "Failed to load resource" not in one]  # what is refused, the page tells

    def close(self) -> None:
        """End it."""
        self.driver.quit()
