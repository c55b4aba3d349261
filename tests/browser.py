"""Debian's Chromium without a screen, driven over ChromeDriver's WebDriver protocol on loopback."""

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
NO_BROWSER = "needs Debian's packages chromium and chromium-driver, which are not on this machine"
QUIET = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-quic",
]


class Browser:
    """One page at a time, at a given width; `with Browser(390) as page: ...`. Skips the test where there is none."""

    def __init__(self, width: int, height: int = 844, mobile: bool = False):
        if not CHROMIUM or not DRIVER:
            pytest.skip(NO_BROWSER)
        self.width, self.height, self.mobile = width, height, mobile

    def __enter__(self) -> "Browser":
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._wait_until_ready()
            chrome = {"binary": CHROMIUM, "args": [*QUIET, f"--window-size={self.width},{self.height}"]}
            if self.mobile:
                chrome["mobileEmulation"] = {
                    "deviceMetrics": {"width": self.width, "height": self.height, "pixelRatio": 2.0, "mobile": True}
                }
            wanted = {"goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL"}}
            session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self.session = f"/session/{session['sessionId']}"
        except BaseException:
            self.process.kill()
            raise
        return self

    def __exit__(self, *_) -> None:
        try:
            self._call("DELETE", self.session)
        finally:
            self.process.terminate()
            self.process.wait(timeout=60)

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                if self._call("GET", "/status")["ready"]:
                    return
            except OSError:
                if time.monotonic() > end:
                    raise
            time.sleep(0.1)

    def _call(self, method: str, path: str, body: dict | None = None):
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def open(self, file: Path) -> None:
        self._call("POST", f"{self.session}/url", {"url": Path(file).resolve().as_uri()})

    def open_fitting(self, file: Path) -> None:
        """Open it; asserts that no script fails, nothing is missing and the page is no wider than the screen."""
        self.open(file)
        assert self.log() == [], "script error, or something that could not be loaded"
        assert self.run("return innerWidth") == self.width
        assert self.run("return document.documentElement.scrollWidth") <= self.width, "wider than the screen"

    def run(self, script: str):
        """The value of a script's `return`."""
        return self._call("POST", f"{self.session}/execute/sync", {"script": script, "args": []})

    def log(self) -> list[str]:
        """What the page wrote to the console, errors of scripts and of missing files included."""
        return [entry["message"] for entry in self._call("POST", f"{self.session}/se/log", {"type": "browser"})]

    def screenshot(self, file: Path) -> None:
        Path(file).write_bytes(base64.b64decode(self._call("GET", f"{self.session}/screenshot")))
