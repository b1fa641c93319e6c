"""A running `dofla serve` for tests in Python, and a plain client of it."""

import http.client
import json
import os
import signal
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/models/stories260K"


class Server:
    """`dofla serve ARGUMENTS` on a port of its own choice; ended with the `with` block."""

    def __init__(self, binary, *arguments, environment=None):
        clean = {name: value for name, value in os.environ.items() if name != "DOFLA_API_KEY"}
        self.process = subprocess.Popen(
            [str(binary), "serve", *map(str, arguments), "--port", "0"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**clean, "OMP_WAIT_POLICY": "passive", **(environment or {})})
        line = self.process.stdout.readline()
        if not line.startswith("listening on http://"):
            raise RuntimeError(f"no server: {line}{self.process.stderr.read()}")
        self.url = line.split()[-1]
        self.port = int(self.url.rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def stop(self, number=signal.SIGTERM):
        """Asks the server to end and returns its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def ask(self, path, body=None, headers=None, method=None):
        """Status and text of an answer. A body that is no text is sent as JSON."""
        connection = self.connect()
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
        connection.request(method or ("GET" if body is None else "POST"), path, body, headers or {})
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply.status, text

    def answer(self, path, body=None):
        """The JSON of an answer that must succeed."""
        status, text = self.ask(path, body)
        assert status == 200, f"{path}: {status} {text}"
        return json.loads(text)

    def events(self, path, body):
        """The events of a stream, which must end as it should."""
        status, text = self.ask(path, {**body, "stream": True})
        assert status == 200, text
        lines = text.split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""], lines[-2:]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
