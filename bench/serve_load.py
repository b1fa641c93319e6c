#!/usr/bin/env python3
"""Many clients of `dofla serve` at once, polite and rude, for a while: every stream must be what `dofla generate`
gives with the same seed, nothing may fail that was not meant to, and memory must stay flat.

usage: serve_load.py DOFLA [--seconds 300] [--streams 64] [--model FOLDER]

Prints a line every ten seconds, a summary as JSON, and exits with 1 if anything was wrong."""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = ["The river flows", "In 1914 the war", "The city of Berlin", "She was born in", "A species of bird that"]
SEEDS = 16
BROKEN = [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Le", b"\x16\x03\x01\x00\xff" * 40,
          b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{\"prompt\"",
          b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"]
WRONG = [({"prompt": [1, 10**9]}, 400), ({"prompt": "a", "max_tokens": -3}, 400), ({"prompt": "a", "model": "x"}, 404),
         ({"prompt": "a", "tools": [1]}, 400), ("no json", 400)]


def generate(binary, model, prompt, seed, tokens):
    done = subprocess.run([binary, "generate", model, "--prompt", prompt, "--seed", str(seed), "--max-tokens",
                           str(tokens), "--temperature", "1", "--top-p", "0.9", "--json"],
                          capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    return json.loads(done.stdout)["text"]


def memory(process):
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024


class Load:
    def __init__(self, port, expected, tokens, until):
        self.port, self.expected, self.tokens, self.until = port, expected, tokens, until
        self.counts = dict.fromkeys(("streams", "tokens", "aborted", "slow", "broken", "refused", "wrong"), 0)
        self.complaints = []

    def complain(self, text):
        self.counts["wrong"] += 1
        if len(self.complaints) < 10:
            self.complaints.append(text)

    async def post(self, body):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(data) + data)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        return status, reader, writer

    async def stream(self, kind):
        """A stream that is read to its end, left in its midst, or read slowly."""
        prompt, seed = random.choice(list(self.expected))
        status, reader, writer = await self.post({
            "prompt": prompt, "seed": seed, "max_tokens": self.tokens, "temperature": 1, "top_p": 0.9,
            "stream": True, "stream_options": {"include_usage": True}})
        text, finished, left = "", False, random.randrange(1, 10)
        try:
            if status != 200:
                return self.complain(f"a stream had status {status}: {await reader.read()}")
            async for line in reader:
                if kind == "slow":
                    await asyncio.sleep(0.02)
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    text += "".join(choice["text"] for choice in event["choices"])
                    if event.get("usage"):
                        self.counts["tokens"] += event["usage"]["completion_tokens"]
                    left -= 1
                finished = finished or line.startswith(b"data: [DONE]")
                if kind == "aborted" and left == 0:
                    break
        finally:
            writer.close()
        wanted = self.expected[prompt, seed]
        self.counts["streams"] += 1
        if kind != "streams":
            self.counts[kind] += 1
        if kind == "aborted" and not finished:
            if not wanted.startswith(text):
                self.complain(f"{prompt} {seed}: {text!r} does not begin {wanted!r}")
        elif text != wanted or not finished:
            self.complain(f"{prompt} {seed}: {text!r} is not {wanted!r}")

    async def client(self):
        while time.monotonic() < self.until:
            kind = random.choices(("streams", "aborted", "slow", "broken", "refused"), (60, 15, 10, 8, 7))[0]
            try:
                if kind == "broken":
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.write(random.choice(BROKEN))
                    await asyncio.sleep(random.random() * 0.2)
                    writer.close()
                    self.counts[kind] += 1
                elif kind == "refused":
                    body, wanted = random.choice(WRONG)
                    status, reader, writer = await self.post(body)
                    if status != wanted or "error" not in json.loads(await reader.read()):
                        self.complain(f"{body}: {status}")
                    writer.close()
                    self.counts[kind] += 1
                else:
                    await self.stream(kind)
            except OSError as error:
                self.complain(f"{kind}: {error!r}")


async def run(load, streams, process):
    clients = [asyncio.create_task(load.client()) for _ in range(streams)]
    sizes = []
    start = time.monotonic()
    while time.monotonic() < load.until:
        await asyncio.sleep(min(10, max(0.1, load.until - time.monotonic())))
        sizes.append(memory(process))
        print(f"{time.monotonic() - start:5.0f} s, {sizes[-1]} MiB, {load.counts}", flush=True)
    await asyncio.gather(*clients)
    return sizes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--model", default=str(ROOT / "assets/wiki-mini"))
    arguments = parser.parse_args()
    expected = {(prompt, seed): generate(arguments.binary, arguments.model, prompt, seed, arguments.tokens)
                for prompt in PROMPTS for seed in range(SEEDS)}
    server = subprocess.Popen([arguments.binary, "serve", arguments.model, "--port", "0"], stdout=subprocess.PIPE,
                              text=True, env={**os.environ, "OMP_WAIT_POLICY": "passive"})
    port = int(server.stdout.readline().rsplit(":", 1)[1])
    load = Load(port, expected, arguments.tokens, time.monotonic() + arguments.seconds)
    sizes = asyncio.run(run(load, arguments.streams, server.pid))
    server.terminate()
    code = server.wait(timeout=60)
    settled = sizes[len(sizes) // 5:]  # once every buffer was filled for the first time
    grown = settled[-1] - settled[0]
    print(json.dumps({**load.counts, "seconds": arguments.seconds, "streams_at_once": arguments.streams,
                      "tokens_per_second": round(load.counts["tokens"] / arguments.seconds),
                      "memory_mib": [settled[0], settled[-1]], "exit": code, "complaints": load.complaints}))
    flat = grown <= 0.02 * settled[0] + 8
    if load.counts["wrong"] or code != 0 or not flat:
        sys.exit(1)


if __name__ == "__main__":
    main()
