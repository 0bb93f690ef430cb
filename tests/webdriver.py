"""A browser for tests: Chromium, driven by what drives it for everyone, W3C WebDriver. Real pointer, real keys."""

import json
import shutil
import subprocess
import urllib.error
import urllib.request

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
# Neither a display nor a GPU, and nothing of its own to ask the network for. Tests may run as root, in containers:
# Chromium has no sandbox there, and the pages are ours.
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
    *("--window-size=1400,1000", "--hide-scrollbars"),
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # by which the standard marks a reference to an element
KEYS = {"Tab": "\ue004", "Escape": "\ue00c", "Left": "\ue012", "Up": "\ue013", "Right": "\ue014", "Down": "\ue015"}


class Browser:
    """One window. Close it, or leave the `with` block."""

    def __init__(self):
        self._driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True)
        line = next(line for line in self._driver.stdout if "started successfully on port" in line)
        self._root = f"http://127.0.0.1:{line.rsplit(' ', 1)[1].strip().rstrip('.')}/session"
        options = {"binary": CHROMIUM, "args": list(_FLAGS)}
        wanted = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        try:
            self._root += f"/{self._ask('POST', '', {'capabilities': wanted})['sessionId']}"
        except BaseException:
            self._stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ask("DELETE", "")
        self._stop()

    def _stop(self):
        self._driver.terminate()
        self._driver.communicate()

    def open(self, path):
        self._ask("POST", "/url", {"url": path.as_uri()})

    def run(self, script, *arguments):
        """The value of a script's `return`."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        """A reference to the one element that a CSS selector finds."""
        (found,) = self._ask("POST", "/elements", {"using": "css selector", "value": selector})
        return found

    def hover(self, element):
        """Move the pointer to the middle of an element, which is scrolled into view."""
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        move = {"type": "pointerMove", "duration": 0, "origin": {_ELEMENT: element[_ELEMENT]}, "x": 0, "y": 0}
        self._act({"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [move]})

    def press(self, *names):
        actions = [{"type": kind, "value": KEYS[name]} for name in names for kind in ("keyDown", "keyUp")]
        self._act({"type": "key", "id": "keyboard", "actions": actions})

    def choose(self, selector, text):
        """Take an option of a <select>, as a click on it does."""
        options = self._ask("POST", "/elements", {"using": "css selector", "value": f"{selector} option"})
        (option,) = (one for one in options if self.run("return arguments[0].textContent", one) == text)
        self._ask("POST", f"/element/{option[_ELEMENT]}/click", {})

    def set_theme(self, scheme):
        feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self._ask("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": feature})

    def complaints(self):
        """What the page has put on the console, errors of scripts among them."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def screenshot(self):
        """PNG in base64."""
        return self._ask("GET", "/screenshot")

    def _act(self, source):
        self._ask("POST", "/actions", {"actions": [source]})

    def _ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._root + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from error
