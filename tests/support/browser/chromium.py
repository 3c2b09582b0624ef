"""Pages in headless Chromium, driven over a pipe with the DevTools protocol: no package beside Python's own is needed.

    with Chromium(folder) as browser:
        page = browser.open(Path("plans.html"), Screen(width=390, dark=True))
        page.run("document.title")
        page.press("Enter")
"""
import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

FLAGS = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--no-first-run", "--no-default-browser-check", "--password-store=basic", "--hide-scrollbars",
         "--force-color-profile=srgb"]
DEADLINE = 60  # seconds for one answer, on a machine that builds meanwhile


class BrowserError(Exception):
    """The browser does not start, or a script of a page fails."""


@dataclass
class Screen:
    width: int = 1280
    height: int = 900
    dark: bool = False
    touch: bool = False
    scale: float = 1
    print_media: bool = False


def above(descriptor):
    """A copy of a descriptor that is none of 3 and 4, which become those of the browser."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return copy


class Chromium:
    def __init__(self, folder):
        self.folder = Path(folder)
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if program is None:
            raise BrowserError("no chromium is installed: tools/setup.sh --tests installs it")
        self.program = program

    def __enter__(self):
        profile = self.folder / "profile"
        shutil.rmtree(profile, ignore_errors=True)
        profile.mkdir(parents=True)
        for_browser, to_browser = (above(end) for end in os.pipe())
        from_browser, by_browser = (above(end) for end in os.pipe())
        log = above(os.open(self.folder / "browser.log",
                            os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))
        self.process = os.posix_spawn(
            self.program, [self.program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            {**os.environ, "HOME": str(self.folder), "DBUS_SESSION_BUS_ADDRESS": "unix:path=/dev/null"},
            file_actions=[(os.POSIX_SPAWN_DUP2, for_browser, 3), (os.POSIX_SPAWN_DUP2, by_browser, 4),
                          (os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)],
            setpgroup=0)
        for end in (for_browser, by_browser, log):
            os.close(end)
        self.to_browser, self.from_browser = to_browser, from_browser
        self.buffer, self.number, self.events = b"", 0, []
        try:
            self.call("Browser.getVersion")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_):
        try:
            os.killpg(self.process, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self.process, 0)
        os.close(self.to_browser)
        os.close(self.from_browser)
        shutil.rmtree(self.folder / "profile", ignore_errors=True)

    def message(self, until):
        """The next message, or None at that time."""
        while b"\0" not in self.buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.from_browser], [], [], left)[0]:
                return None
            got = os.read(self.from_browser, 1 << 20)
            if not got:
                log = (self.folder / "browser.log").read_text(errors="replace")
                raise BrowserError(f"chromium ended: {log[-2000:]}")
            self.buffer += got
        text, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(text)

    def call(self, method, session=None, **params):
        self.number += 1
        number, until = self.number, time.monotonic() + DEADLINE
        request = {"id": number, "method": method, "params": params}
        if session:
            request["sessionId"] = session
        data = json.dumps(request).encode() + b"\0"
        while data:
            data = data[os.write(self.to_browser, data):]
        while True:
            message = self.message(until)
            if message is None:
                raise BrowserError(f"chromium did not answer {method} within {DEADLINE} s")
            if message.get("id") == number:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error']}")
                return message["result"]
            if "method" in message:
                self.events.append(message)

    def open(self, path, screen=None):
        return BrowserPage(self, Path(path).resolve().as_uri(), screen or Screen())


class BrowserPage:
    def __init__(self, browser, address, screen):
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.target = target
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.screen(screen)
        self.call("Page.navigate", url=address)
        until = time.monotonic() + DEADLINE
        while not self.has_event("Page.loadEventFired"):
            message = browser.message(until)
            if message is None:
                raise BrowserError(f"{address} did not load within {DEADLINE} s")
            browser.events.append(message)

    def call(self, method, **params):
        return self.browser.call(method, session=self.session, **params)

    def has_event(self, name):
        return any(event["method"] == name for event in self.mine())

    def mine(self):
        return [event for event in self.browser.events if event.get("sessionId") == self.session]

    def screen(self, screen):
        self.call("Emulation.setDeviceMetricsOverride", width=screen.width, height=screen.height,
                  deviceScaleFactor=screen.scale, mobile=screen.touch)
        self.call("Emulation.setEmulatedMedia", media="print" if screen.print_media else "screen",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if screen.dark else "light"}])

    def run(self, script):
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise BrowserError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def errors(self):
        """The lines that a console would show in red: errors of scripts, refused resources."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        found = []
        for event in self.mine():
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(params["exceptionDetails"]))
            if event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            if event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(params["args"]))
        return found

    def requests(self):
        """The addresses that the page loaded."""
        return [event["params"]["request"]["url"] for event in self.mine()
                if event["method"] == "Network.requestWillBeSent"]

    def click(self, selector):
        """A real click in the middle of the first element that the selector finds."""
        place = self.run(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null; "
                         "e.scrollIntoView({block: 'center', inline: 'center'}); const b = e.getBoundingClientRect(); "
                         "return [b.x + b.width / 2, b.y + b.height / 2]; })()")
        if place is None:
            raise BrowserError(f"no element {selector}")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def press(self, key):
        """Tab, Enter, Space, ArrowDown, or a letter, to the element with the focus."""
        codes = {"Tab": 9, "Enter": 13, "Space": 32, "ArrowDown": 40, "Escape": 27}
        words = {"Enter": "\r", "Space": " "}.get(key, key if len(key) == 1 else "")
        name = " " if key == "Space" else key
        code = codes.get(key, ord(key.upper()) if len(key) == 1 else 0)
        self.call("Input.dispatchKeyEvent", type="keyDown" if words else "rawKeyDown", key=name, text=words,
                  windowsVirtualKeyCode=code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name, windowsVirtualKeyCode=code)

    def type(self, words):
        self.call("Input.insertText", text=words)

    def picture(self, path, whole=False):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def paper(self, path):
        Path(path).write_bytes(base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True)["data"]))

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
