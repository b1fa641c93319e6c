"""ARC-Easy as lm-evaluation-harness asks it (`local-completions` with the server's tokenizer): the same accuracy,
to the question, as `dofla evaluate --task`. Usage: harness_test.py DOFLA

Requests and the reading of answers are those of lm_eval/models/openai_completions.py and api_models.py. Exits
with 77, skipped, without the published files under DOFLA_TASKS."""

import json
import os
import subprocess
import sys
from pathlib import Path

from server import ROOT, Server

QUESTIONS = 200
BATCH = 16
MODEL = ROOT / "assets/wiki-mini"


def read_questions(path):
    lines = path.read_text().splitlines()
    for i in range(QUESTIONS):  # evenly spread, as --limit takes them
        record = json.loads(lines[i * len(lines) // QUESTIONS])
        choices = record["question"]["choices"]
        yield (f"Question: {record['question']['stem']}\nAnswer:", [choice["text"] for choice in choices],
               [choice["label"] for choice in choices].index(record["answerKey"]))


class LocalCompletions:
    """What the harness does with a context and its continuation."""

    def __init__(self, server):
        self.server = server
        info = server.answer("/tokenizer_info")
        assert "eos_token" in info and isinstance(self.encode("test"), list)

    def encode(self, text):
        return self.server.answer("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def encode_pair(self, context, continuation):
        whole = self.encode(context + continuation)
        before = self.encode(context)
        return before, whole[len(before):]

    def loglikelihood(self, requests):
        """(log-likelihood, whether it is what the model would say) of every (context, continuation)."""
        pairs = [self.encode_pair(*request) for request in requests]
        order = sorted(range(len(pairs)), key=lambda i: (-len(pairs[i][0] + pairs[i][1]), pairs[i][0] + pairs[i][1]))
        results = [None] * len(pairs)
        for begin in range(0, len(order), BATCH):
            batch = order[begin:begin + BATCH]
            reply = self.server.answer("/v1/completions", {
                "model": "wiki-mini", "prompt": [pairs[i][0] + pairs[i][1] for i in batch], "temperature": 0,
                "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True})
            for i, choice in zip(batch, sorted(reply["choices"], key=lambda one: one["index"]), strict=True):
                length = len(pairs[i][0])
                scores = choice["logprobs"]["token_logprobs"][length:-1]
                assert len(scores) == len(pairs[i][1])
                top = choice["logprobs"]["top_logprobs"][length:-1]
                results[i] = (sum(scores), all(own == max(best.values()) for own, best in zip(scores, top)))
        return results


def main():
    binary = sys.argv[1]
    folder = os.environ.get("DOFLA_TASKS")
    if not folder:
        print("skipped: DOFLA_TASKS names no folder with the published files of the tasks")
        sys.exit(77)
    questions = list(read_questions(Path(folder) / "arc_easy/ARC-Easy-Test.jsonl"))
    with Server(binary, MODEL) as server:
        requests = [(context, " " + text) for context, choices, _ in questions for text in choices]
        scores = iter(LocalCompletions(server).loglikelihood(requests))
    right = right_norm = greedy = 0
    for _, choices, gold in questions:
        own = [next(scores) for _ in choices]
        greedy += sum(one[1] for one in own)
        values = [value for value, _ in own]
        normed = [value / len(text) for value, text in zip(values, choices)]
        right += values.index(max(values)) == gold
        right_norm += normed.index(max(normed)) == gold
    wanted = json.loads(subprocess.run(
        [binary, "evaluate", MODEL, "--task", "arc_easy", "--task-data", folder, "--limit", str(QUESTIONS), "--json"],
        capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout)["tasks"][0]
    found = (right / QUESTIONS, right_norm / QUESTIONS)
    print(f"acc, acc_norm: {found} by the harness's requests, "
          f"{(wanted['acc'], wanted['acc_norm'])} by evaluate; {greedy} greedy answers")
    assert found == (wanted["acc"], wanted["acc_norm"])


if __name__ == "__main__":
    main()
