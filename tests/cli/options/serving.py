"""The options of the commands that talk: chat and serve."""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "serve"))

import dofla
from dofla import MODEL, run
from options.checks import check, elsewhere, equal, option
from server import Server

PROMPT = "Once upon a time"


def talk(*options, lines="Hello\n", code=0):
    """What the model says to these lines."""
    done = subprocess.run([dofla.BINARY, "chat", MODEL, "--chat-template", "zephyr", *map(str, options)],
                          input=lines, capture_output=True, text=True)
    equal(done.returncode, code)
    return done.stdout


def differs(*options):
    check(talk("--max-tokens", 20, *options) != talk("--max-tokens", 20))


@option("chat", "--chat-template")
def _():
    run("chat", MODEL, "--chat-template", "gemma", code=1)
    run("chat", MODEL, code=1)  # the model names none
    check(talk("--max-tokens", 20) != "")


@option("chat", "--system")
def _():
    differs("--system", "You tell stories of cats and dogs.")


@option("chat", "--max-tokens")
def _():
    check(len(talk("--max-tokens", 30)) > len(talk("--max-tokens", 3)))


@option("chat", "--temperature")
def _():
    equal(talk("--max-tokens", 20, "--temperature", 0, "--seed", 1), talk("--max-tokens", 20, "--temperature", 0))
    differs("--temperature", 5)


@option("chat", "--top-k")
def _():
    equal(talk("--max-tokens", 20, "--top-k", 1), talk("--max-tokens", 20, "--temperature", 0))


@option("chat", "--top-p")
def _():
    equal(talk("--max-tokens", 20, "--top-p", 1e-9), talk("--max-tokens", 20, "--temperature", 0))


@option("chat", "--seed")
def _():
    differs("--seed", 12345)


@option("chat", "--device")
def _():
    equal(talk("--max-tokens", 20, "--device", "cpu"), talk("--max-tokens", 20))
    run("chat", MODEL, "--device", "abacus", code=2)


def served(*options):
    return Server(dofla.BINARY, MODEL, *options)


@option("serve", "--device")
def _():
    with served("--device", "cpu") as server:
        equal(server.ask("/health")[0], 200)
    run("serve", MODEL, "--device", "abacus", code=2)


@option("serve", "--cache-memory")
def _():
    def cached(*options):
        with served(*options) as server:
            body = {"prompt": PROMPT * 20, "max_tokens": 1}
            server.answer("/v1/completions", body)
            return server.answer("/v1/completions", body)["usage"]["prompt_tokens_details"]["cached_tokens"]
    check(cached() > 0)
    equal(cached("--cache-memory", "1"), 0)


@option("serve", "--state-memory")
def _():
    body = {"prompt": PROMPT, "max_tokens": 0, "keep_state": "a"}
    with served() as server:
        server.answer("/v1/completions", body)
    with served("--state-memory", "1") as server:
        check(server.ask("/v1/completions", body)[0] != 200)


@option("serve", "--max-connections")
def _():
    with served("--max-connections", 1) as server:
        first = server.connect()
        first.request("GET", "/health")
        equal(first.getresponse().status, 200)
        equal(server.ask("/health")[0], 503)
        first.close()


@option("serve", "--timeout")
def _():
    body = {"prompt": [PROMPT] * 250, "max_tokens": 500, "ignore_eos": True}
    with served("--timeout", 1, "--parallel", 1) as server:
        status, text = server.ask("/v1/completions", body)
        equal((status, json.loads(text)["error"]["type"]), (504, "server_error"))


for name, test in {"--alias": "test_several_models", "--api-key": "test_a_key_is_asked_for",
                   "--host": "test_a_key_is_asked_for", "--port": "test_two_servers_on_one_port",
                   "--parallel": "test_a_full_queue", "--queue": "test_a_full_queue",
                   "--chat-template": "test_conversations", "--max-tokens": "test_what_is_wrong_is_named",
                   "--max-body": "test_what_is_wrong_is_named"}.items():
    elsewhere("serve", name, test + r"\w*", "the tests of the server start one with it")
