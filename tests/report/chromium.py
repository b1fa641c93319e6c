"""Headless Chromium through the DevTools protocol over a pipe: JSON messages, each ended by NUL."""

import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
]
PATIENCE_S = 60  # for any one answer; a browser that takes longer is broken


def find():
    """The path of Chromium, or None."""
    names = ["chromium", "chromium-browser", "google-chrome"]
    return next(filter(None, map(shutil.which, names)), None)


class Chromium:
    """One browser with one tab. Collects every console message and exception of the page."""

    def __init__(self, executable):
        self.profile = tempfile.mkdtemp(prefix="dofla-chromium-")
        # Chromium reads from descriptor 3 and writes to 4; ours must not be those already.
        child_reads, self.to_child = os.pipe()
        self.from_child, child_writes = os.pipe()
        high_reads, high_writes = (
            fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (child_reads, child_writes)
        )
        quiet = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        self.process = os.posix_spawn(
            executable,
            [executable, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"],
            os.environ,
            file_actions=[
                quiet,
                (os.POSIX_SPAWN_DUP2, high_reads, 3),
                (os.POSIX_SPAWN_DUP2, high_writes, 4),
            ],
            setpgroup=0,
        )
        for fd in (child_reads, child_writes, high_reads, high_writes):
            os.close(fd)
        self.unread = b""
        self.last_id = 0
        self.session = None
        self.console_messages = []
        self.events = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.to_child)
        os.close(self.from_child)
        try:
            os.killpg(self.process, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self.process, 0)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _receive(self):
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.from_child], [], [], deadline - time.monotonic())
            chunk = os.read(self.from_child, 1 << 16) if ready else b""
            if not chunk:
                raise RuntimeError("Chromium does not answer")
            self.unread += chunk
        message, self.unread = self.unread.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event):
        self.events.append(event)
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.console_messages.append(params["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled":
            self.console_messages.append([argument.get("value") for argument in params["args"]])
        elif method == "Log.entryAdded":
            self.console_messages.append(params["entry"])
        elif method == "Page.javascriptDialogOpening":
            self.console_messages.append(params)
            raise RuntimeError(f"the page opened a dialog: {params['message']}")

    def send(self, method, **params):
        """Calls a method of the protocol and returns its result."""
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        unsent = json.dumps(message).encode() + b"\0"
        while unsent:
            unsent = unsent[os.write(self.to_child, unsent):]
        while True:
            answer = self._receive()
            if answer.get("id") == self.last_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def open(self, path):
        """Opens a file and waits until it has loaded; what was collected before is forgotten."""
        self.open_address(path.as_uri())

    def open_address(self, url):
        self.console_messages.clear()
        self.events.clear()
        self.send("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self._note(self._receive())

    def evaluate(self, expression):
        """The value of a JavaScript expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def resize(self, width, height, phone=False):
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )

    def emulate(self, media="", colours="light"):
        features = [{"name": "prefers-color-scheme", "value": colours}]
        self.send("Emulation.setEmulatedMedia", media=media, features=features)

    def move_pointer(self, x, y):
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key)

    def requests(self):
        """The addresses that the page asked for, itself included."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
