"""dofla serve as its clients meet it. Usage: server_test.py DOFLA"""

import json
import math
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

from server import MODEL, Server

binary = None
PROMPT = "Once upon a time"


def generate(prompt, *options):
    done = subprocess.run([binary, "generate", MODEL, "--prompt", prompt, "--json", *map(str, options)],
                          capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    return json.loads(done.stdout)


class Answers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(binary, MODEL, "--chat-template", "zephyr", "--max-body", "100kB",
                            "--max-tokens", "300")
        cls.addClassCleanup(cls.server.__exit__)

    def complete(self, **body):
        return self.server.answer("/v1/completions", {"prompt": PROMPT, **body})

    def refused(self, path, body, status, part, param=None):
        code, text = self.server.ask(path, body)
        self.assertEqual(code, status, text)
        error = json.loads(text)["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertIn(part, error["message"])
        self.assertEqual(error["param"], param)

    def test_answers_are_those_of_generate(self):
        for temperature, top_k, top_p, seed in ((0, 0, 1, 0), (0.8, 0, 0.95, 7), (1, 5, 1, 8), (1.5, 0, 0.5, 9)):
            wanted = generate(PROMPT, "--max-tokens", 40, "--temperature", temperature, "--top-k", top_k,
                              "--top-p", top_p, "--seed", seed)
            body = {"max_tokens": 40, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
            answer = self.complete(**body)
            self.assertEqual(answer["choices"][0]["text"], wanted["text"])
            self.assertEqual(answer["usage"]["completion_tokens"], len(wanted["ids"]))
            events = self.server.events("/v1/completions", {"prompt": PROMPT, **body})
            self.assertEqual("".join(event["choices"][0]["text"] for event in events), wanted["text"])
            self.assertEqual([event["choices"][0]["finish_reason"] for event in events][-1], "length")

    def test_usage_as_it_grows(self):
        events = self.server.events("/v1/completions", {"prompt": PROMPT, "max_tokens": 30, "stream_options": {
            "include_usage": True, "continuous_usage_stats": True}})
        counts = [event["usage"]["completion_tokens"] for event in events]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(counts[-1], 30)

    def test_prompts_are_text_ids_and_lists_of_both(self):
        ids = self.server.answer("/tokenize", {"prompt": PROMPT})["tokens"]
        one = self.complete(max_tokens=8, temperature=0)["choices"][0]["text"]
        self.assertEqual(self.complete(prompt=ids, max_tokens=8, temperature=0)["choices"][0]["text"], one)
        both = self.complete(prompt=[PROMPT, ids, "The"], max_tokens=8, temperature=0)
        self.assertEqual([choice["index"] for choice in both["choices"]], [0, 1, 2])
        self.assertEqual([choice["text"] for choice in both["choices"]][:2], [one, one])
        self.assertEqual(both["usage"]["prompt_tokens"],
                         2 * len(ids) + len(self.server.answer("/tokenize", {"prompt": "The"})["tokens"]))
        self.assertNotEqual(self.complete(prompt="")["choices"][0]["text"], "")

    def test_several_answers_have_the_next_seeds(self):
        texts = [choice["text"] for choice in self.complete(n=3, seed=5, max_tokens=10)["choices"]]
        self.assertEqual(texts, [self.complete(seed=seed, max_tokens=10)["choices"][0]["text"]
                                 for seed in (5, 6, 7)])

    def test_stop_strings(self):
        whole = self.complete(max_tokens=60, temperature=0)["choices"][0]["text"]
        for stop in (whole[10:15], whole[3:4], whole[20:40], [whole[30:33], whole[12:17]]):
            first = min(whole.find(one) for one in ([stop] if isinstance(stop, str) else stop))
            body = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0, "stop": stop}
            choice = self.server.answer("/v1/completions", body)["choices"][0]
            self.assertEqual((choice["text"], choice["finish_reason"]), (whole[:first], "stop"))
            events = self.server.events("/v1/completions", body)
            self.assertEqual("".join(event["choices"][0]["text"] for event in events), whole[:first])

    def test_echo_scores_the_prompt(self):
        for most in (0, 1):
            choice = self.complete(max_tokens=most, echo=True, logprobs=2, temperature=0)["choices"][0]
            scores = choice["logprobs"]
            count = len(self.server.answer("/tokenize", {"prompt": PROMPT})["tokens"]) + most
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                self.assertEqual(len(scores[name]), count)
            self.assertIsNone(scores["token_logprobs"][0])
            self.assertTrue(choice["text"].startswith(PROMPT))
            for token, own, top, at in zip(*(scores[name][2:] for name in (
                    "tokens", "token_logprobs", "top_logprobs", "text_offset"))):
                self.assertTrue(choice["text"][at:].startswith(token), (token, choice["text"][at:]))
                self.assertEqual(len(top), 2)
                self.assertLessEqual(own, max(top.values()))
                if token in top:
                    self.assertEqual(own, top[token])  # the same float

    def test_scores_of_an_answer_are_those_of_reading_it(self):
        answer = self.complete(max_tokens=12, temperature=0, logprobs=1)["choices"][0]
        prompt = self.server.answer("/tokenize", {"prompt": PROMPT})["tokens"]
        ids = generate(PROMPT, "--max-tokens", 12, "--temperature", 0)["ids"]
        read = self.complete(prompt=prompt + ids, max_tokens=0, echo=True, logprobs=1)["choices"][0]
        for a, b in zip(answer["logprobs"]["token_logprobs"], read["logprobs"]["token_logprobs"][len(prompt):]):
            self.assertAlmostEqual(a, b, delta=1e-4)
        self.assertAlmostEqual(sum(math.exp(value) for value in self.complete(
            max_tokens=1, logprobs=20)["choices"][0]["logprobs"]["top_logprobs"][0].values()), 1, delta=0.5)

    def test_conversations(self):
        body = {"messages": [{"role": "user", "content": "Tell me a story"}], "max_tokens": 20, "temperature": 0,
                "logprobs": True, "top_logprobs": 3}
        answer = self.server.answer("/v1/chat/completions", body)
        choice = answer["choices"][0]
        self.assertEqual(answer["object"], "chat.completion")
        self.assertEqual(choice["message"]["role"], "assistant")
        scores = choice["logprobs"]["content"]
        self.assertEqual(len(scores), answer["usage"]["completion_tokens"])
        self.assertTrue(all(len(one["top_logprobs"]) == 3 for one in scores))
        self.assertEqual(bytes(scores[0]["bytes"]).decode(), scores[0]["token"])
        events = self.server.events("/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
        self.assertEqual(events[0]["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual("".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1]),
                         choice["message"]["content"])
        self.assertEqual(events[-1]["usage"], {**answer["usage"], "prompt_tokens_details":
                                               events[-1]["usage"]["prompt_tokens_details"]})
        self.assertEqual(self.server.answer("/tokenize", {"messages": body["messages"]})["count"],
                         answer["usage"]["prompt_tokens"])

    def test_other_paths(self):
        models = self.server.answer("/v1/models")
        self.assertEqual([model["id"] for model in models["data"]], ["stories260K"])
        self.assertEqual(self.server.answer("/v1/models/stories260K"), models["data"][0])
        self.assertEqual(self.server.answer("/health"), {"status": "ok"})
        ids = self.server.answer("/tokenize", {"prompt": "a cat", "add_special_tokens": False})["tokens"]
        self.assertEqual(self.server.answer("/detokenize", {"tokens": ids})["prompt"], "a cat")
        self.assertEqual(self.server.answer("/tokenizer_info")["eos_token"], "</s>")
        self.complete(max_tokens=3)
        metrics = self.server.ask("/metrics")[1]
        self.assertRegex(metrics, r'llamacpp:tokens_predicted_total\{model="stories260K"\} [1-9]')
        status, page = self.server.ask("/")
        self.assertEqual(status, 200)
        self.assertIn("<title>dofla serve</title>", page)

    def test_states(self):
        path = "/v1/completions"
        whole = self.complete(max_tokens=20, temperature=0)["choices"][0]["text"]
        ids = self.server.answer("/tokenize", {"prompt": PROMPT})["tokens"]
        self.complete(prompt=ids[:3], max_tokens=0, keep_state="first")
        self.assertEqual([(state["id"], state["tokens"]) for state in self.server.answer("/v1/states")["data"]],
                         [("first", 3)])
        forked = self.server.answer("/v1/states", {"from": "first", "name": "second"})
        self.assertEqual((forked["id"], forked["tokens"]), ("second", 3))
        again = self.complete(prompt=ids[3:], from_state="second", max_tokens=20, temperature=0)
        self.assertEqual(again["choices"][0]["text"], whole)
        connection = self.server.connect()
        connection.request("GET", "/v1/states/first?model=stories260K")
        saved = connection.getresponse().read()
        connection.close()
        self.assertEqual(self.server.ask("/v1/states/first", method="DELETE")[0], 200)
        self.refused(path, {"prompt": [5], "from_state": "first"}, 404, "first", "from_state")
        self.assertEqual(self.server.ask("/v1/states/third", saved, method="PUT")[0], 200)
        back = self.complete(prompt=ids[3:], from_state="third", max_tokens=20, temperature=0)
        self.assertEqual(back["choices"][0]["text"], whole)
        damaged = saved[:-10] + bytes([saved[-10] ^ 1]) + saved[-9:]
        for name, content, status in (("fourth", damaged, 400), ("fourth", b"nonsense", 400),
                                      ("..%2Fpasswd", saved, 400), ("a%20b", saved, 400)):
            self.assertEqual(self.server.ask(f"/v1/states/{name}", content, method="PUT")[0], status)
        self.assertEqual(self.server.ask("/v1/states/nothing")[0], 404)
        self.refused("/v1/states", {"name": "a"}, 400, "keep_state", "from")
        for name in ("second", "third"):
            self.assertEqual(self.server.ask(f"/v1/states/{name}", method="DELETE")[0], 200)

    def test_what_is_wrong_is_named(self):
        path = "/v1/completions"
        self.refused(path, "nonsense", 400, "not valid JSON")
        self.refused(path, '{"temperature": NaN}', 400, "not valid JSON")
        self.refused(path, {"prompt": PROMPT, "max_tokens": -1}, 400, "from 0 to 300", "max_tokens")
        self.refused(path, {"prompt": [1, 512]}, 400, "vocabulary of 512", "prompt")
        self.refused(path, {"prompt": [1] * 600}, 400, "600 tokens", "prompt")
        self.refused(path, {"prompt": PROMPT, "model": "other"}, 404, "other is not served", "model")
        self.refused(path, {"prompt": PROMPT, "logit_bias": {"1": 2}}, 400, "logit_bias is not", "logit_bias")
        self.refused("/v1/chat/completions", {"messages": [{"role": "tool", "content": "a"}]}, 400, "role", "messages")
        self.refused("/v1/models/other", None, 404, "other is not served", "model")
        self.refused("/v1/nothing", None, 404, "nothing is served")
        self.refused("/../../etc/passwd", None, 404, "nothing is served")
        self.refused("/detokenize", {"tokens": "a"}, 400, "token ids", "tokens")
        self.refused(path, {"prompt": "x" * 200_000}, 413, "more than 100000 bytes")
        code, text = self.server.ask(path, method="GET")
        self.assertEqual(code, 405, text)
        code, text = self.server.ask("/v1/models", headers={"Host": "evil.example"})
        self.assertEqual(code, 403, text)

    def test_a_client_that_leaves_frees_its_place(self):
        connection = socket.create_connection(("127.0.0.1", self.server.port))
        body = json.dumps({"prompt": PROMPT, "max_tokens": 300, "stream": True, "ignore_eos": True})
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
                           f"\r\n\r\n{body}".encode())
        connection.recv(100)
        connection.close()
        while 'llamacpp:requests_processing{model="stories260K"} 0\n' not in self.server.ask("/metrics")[1]:
            time.sleep(0.01)


class Lifecycle(unittest.TestCase):
    def test_a_key_is_asked_for_and_needed_for_other_machines(self):
        with tempfile.TemporaryDirectory() as folder:
            key = Path(folder) / "key"
            key.write_text("a secret\n")
            with Server(binary, MODEL, "--api-key", key) as server:
                self.assertEqual(server.ask("/v1/models")[0], 401)
                self.assertEqual(server.ask("/v1/models", headers={"Authorization": "Bearer a secret"})[0], 200)
                self.assertEqual(server.ask("/health")[0], 200)
        with Server(binary, MODEL, environment={"DOFLA_API_KEY": "k"}) as server:
            self.assertEqual(server.ask("/v1/models")[0], 401)
        done = subprocess.run([binary, "serve", MODEL, "--host", "0.0.0.0", "--port", "0"], capture_output=True,
                              text=True, stdin=subprocess.DEVNULL, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("DOFLA_API_KEY", done.stderr)

    def test_two_servers_on_one_port(self):
        with Server(binary, MODEL) as server:
            done = subprocess.run([binary, "serve", MODEL, "--port", str(server.port)], capture_output=True,
                                  text=True, stdin=subprocess.DEVNULL, timeout=60)
            self.assertEqual(done.returncode, 1)
            self.assertIn("cannot listen", done.stderr)

    def test_several_models(self):
        with Server(binary, MODEL, MODEL, "--alias", "one", "two") as server:
            self.assertEqual([model["id"] for model in server.answer("/v1/models")["data"]], ["one", "two"])
            body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 4}
            self.assertEqual(server.answer("/v1/completions", body)["model"], "one")
            self.assertEqual(server.answer("/v1/completions", {**body, "model": "two"})["model"], "two")
        done = subprocess.run([binary, "serve", MODEL, MODEL], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--alias", done.stderr)

    def test_a_full_queue(self):
        with Server(binary, MODEL, "--parallel", "1", "--queue", "1") as server:
            code, text = server.ask("/v1/completions", {"prompt": [PROMPT] * 8, "max_tokens": 100})
            self.assertEqual((code, json.loads(text)["error"]["code"]), (429, "queue_full"), text)

    def test_what_is_under_way_is_answered_before_the_end(self):
        with Server(binary, MODEL) as server:
            answers = []
            body = {"prompt": PROMPT, "max_tokens": 300, "temperature": 0, "ignore_eos": True}
            thread = threading.Thread(target=lambda: answers.append(server.ask("/v1/completions", body)))
            thread.start()
            while 'requests_processing{model="stories260K"} 0\n' in server.ask("/metrics")[1] and not answers:
                pass
            self.assertEqual(server.stop(), 0)
            thread.join()
            self.assertEqual(answers[0][0], 200)
            self.assertEqual(json.loads(answers[0][1])["usage"]["completion_tokens"], 300)


class Terminal(unittest.TestCase):
    def chat(self, text, *options):
        return subprocess.run([binary, "chat", MODEL, "--max-tokens", "8", *options], input=text, text=True,
                              capture_output=True, timeout=60)

    def test_a_line_is_a_message(self):
        done = self.chat("Hello\n\nAgain\n", "--chat-template", "chatml", "--temperature", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        with Server(binary, MODEL, "--chat-template", "chatml") as server:
            messages = []
            wanted = ""
            for text in ("Hello", "Again"):
                messages.append({"role": "user", "content": text})
                answer = server.answer("/v1/chat/completions",
                                       {"messages": messages, "max_tokens": 8, "temperature": 0})
                messages.append(answer["choices"][0]["message"])
                wanted += messages[-1]["content"] + "\n"
        self.assertEqual(done.stdout, wanted)

    def test_a_model_without_a_template_says_what_to_do(self):
        done = self.chat("Hello\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("--chat-template", done.stderr)

    def test_generate_reads_a_pipe(self):
        options = ["--max-tokens", "5", "--temperature", "0", "--json"]
        wanted = generate(PROMPT, *options[:-1])["ids"]
        for more in ([], ["--prompt", "-"]):
            done = subprocess.run([binary, "generate", MODEL, *options, *more], input=PROMPT, text=True,
                                  capture_output=True, timeout=60)
            self.assertEqual(json.loads(done.stdout)["ids"], wanted)


if __name__ == "__main__":
    binary = sys.argv.pop(1)
    unittest.main()
