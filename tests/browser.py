"""A headless Chromium that opens a page, clicks, presses keys and takes pictures.

It is driven through its own protocol over a pipe, so what it counts and times is real.
"""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

_PATIENCE = 60  # seconds, for an answer
# When the first frame after the page's script is there, in milliseconds since the navigation.
_WATCH = """
addEventListener("load", () => requestAnimationFrame(() => setTimeout(() => {
  window.interactiveAfter = performance.now();
})));
"""


class Browser:
    """One page. `errors` has what its console shows as errors, exceptions too."""

    def __init__(self, folder, width=1200, height=900, dark=False):
        assert CHROMIUM is not None
        self.errors = []
        self._numbers = itertools.count(1)
        self._bytes = b""
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += ["--remote-debugging-pipe", f"--user-data-dir={folder / 'browser'}"]
        # Chromium reads from descriptor 3 and writes to 4.
        theirs, self._write = os.pipe()
        self._read, their_write = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs, their_write)]

        def place():
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            command, preexec_fn=place, pass_fds=(3, 4), stderr=subprocess.DEVNULL
        )
        for fd in (theirs, their_write, *high):
            os.close(fd)
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def open(self, path: Path) -> float:
        """Opens a file; the seconds from there to the first frame in which it can be used."""
        self._call("Page.navigate", url=f"file://{path.resolve()}")
        end = time.monotonic() + _PATIENCE
        while not self.evaluate("window.interactiveAfter || 0"):
            assert time.monotonic() < end, f"{path} was not ready: {self.errors}"
            time.sleep(0.02)
        return self.evaluate("window.interactiveAfter") / 1000

    def evaluate(self, expression):
        """The value of a JavaScript expression."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression):
        """Waits for a promise."""
        self._call("Runtime.evaluate", expression=expression, awaitPromise=True)

    def click(self, selector, number=0):
        """Clicks the middle of an element with the mouse, where it is shown."""
        x, y = self.evaluate(f"""(() => {{
            const one = document.querySelectorAll({json.dumps(selector)})[{number}];
            one.scrollIntoView({{ block: "center" }});
            const box = one.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()""")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="none" if kind == "mouseMoved" else "left")

    def mouse(self, kind, x, y, **how):
        """An event of the mouse, at a point of the window."""
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, clickCount=1, **how)

    def press(self, *keys):
        """Presses keys, one after the other, where the focus is."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for key in keys:
            text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
            facts = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key[0]))}
            self._call("Input.dispatchKeyEvent", type="keyDown", **facts, **text)
            self._call("Input.dispatchKeyEvent", type="keyUp", **facts)

    def picture(self, path: Path, height=None):
        """Writes what is shown, as PNG; or the page from the top on, so high in pixels."""
        clip = {}
        if height is not None:
            width = self.evaluate("innerWidth")
            clip = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        found = self._call("Page.captureScreenshot", captureBeyondViewport=bool(clip), **clip)
        path.write_bytes(base64.b64decode(found["data"]))

    def _call(self, method, **parameters):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _next(self):
        while b"\0" not in self._bytes:
            ready, _, _ = select.select([self._read], [], [], _PATIENCE)
            found = os.read(self._read, 1 << 20) if ready else b""
            assert found, "the browser does not answer"
            self._bytes += found
        message, _, self._bytes = self._bytes.partition(b"\0")
        answer = json.loads(message)
        self._note(answer.get("method"), answer.get("params", {}))
        return answer

    def _note(self, method, facts):
        if method == "Runtime.exceptionThrown":
            self.errors.append(facts["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and facts["type"] in ("error", "assert"):
            self.errors.append(facts["args"])
        elif method == "Log.entryAdded" and facts["entry"]["level"] == "error":
            self.errors.append(facts["entry"])
