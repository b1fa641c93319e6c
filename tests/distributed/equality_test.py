#!/usr/bin/env python3
"""Several ranks find what one finds: losses to six digits, and what is not a sum over ranks to the bit.
equality_test.py BINARY [TEST...]"""

import json
import unittest

import mpi
from dofla import MODEL, answer, new_path, run, sentences, task_folder, text_file, write

SIX_DIGITS = 1e-6


def logged(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def numbers(value, where=""):
    """All numbers of a JSON value by their place; what has a name in a list is known by it."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from numbers(one, f"{where}.{key}")
    elif isinstance(value, list):
        for i, one in enumerate(value):
            name = one.get("name", i) if isinstance(one, dict) else i
            yield from numbers(one, f"{where}[{name}]")
    elif isinstance(value, (int, float)):
        yield where, value


class Equality(unittest.TestCase):
    def same(self, found, expected, tolerance=SIX_DIGITS, but=("seconds", "tokens_per_second")):
        found, expected = dict(numbers(found)), dict(numbers(expected))
        self.assertEqual(found.keys(), expected.keys())
        for where, value in expected.items():
            if not any(name in where for name in but):
                self.assertLessEqual(abs(found[where] - value), tolerance * max(1, abs(value)), where)

    def trained(self, ranks, *command, first=""):
        """What a run logs of its steps and says in the end, and the model; `first` is of mpi.run."""
        out, log = new_path(), new_path("log.jsonl")
        arguments = [*command, "--out", out, "--log", log]
        said = json.loads(mpi.run(ranks, *arguments, "--json", first=first)[0]) if ranks > 1 else answer(*arguments)
        self.assertTrue((out / "model.safetensors").exists())
        self.assertEqual([path.name for path in out.parent.glob(out.name + "*")], [out.name])
        return logged(log), said, out

    def equal_training(self, *command, ranks=(2, 3), tolerance=SIX_DIGITS, but=()):
        """On one rank and on several; returns the model of the first of these."""
        steps, said, _ = self.trained(1, *command)
        models = []
        for count in ranks:
            other_steps, other_said, out = self.trained(count, *command)
            self.same(other_steps, steps, tolerance, but=("seconds", "per_second", "layers"))
            self.same(other_steps, steps, 10 * tolerance)  # a layer's own: Adam enlarges what rounding leaves
            self.same(other_said, said, tolerance=max(tolerance, 1e-4),
                      but=("seconds", "per_second", "max", "stderr", "99", "bins", *but))
            models.append(out)
        return models[0]


class Distill(Equality):
    # The built-in model.
    COMMAND = ["distill", "--data", write("wiki.txt", sentences(60)), "--length", 48, "--sequences", 12,
               "--held-out", 3, "--steps", 4, "--cost", 8]

    def test_layerwise(self):
        command = [*self.COMMAND, "--strategy", "fix", "--batch", 5]  # which neither can share evenly
        model = self.equal_training(*command)
        # As often as one likes.
        again = self.trained(2, *command)[2]
        self.assertEqual((again / "model.safetensors").read_bytes(), (model / "model.safetensors").read_bytes())

    def test_direct(self):
        for loss in ("direct", "kl"):
            self.equal_training(*self.COMMAND, "--strategy", "fix", "--loss", loss, ranks=(2,))

    def test_ranks_without_rows(self):
        self.equal_training(*self.COMMAND, "--strategy", "fix", "--batch", 2, ranks=(3,))

    def test_exact_keys(self):
        # Not its features alone: where they weigh nothing beside the keys, their gradient is rounding.
        self.equal_training(*self.COMMAND, "--strategy", "fix", "--keys", 24, ranks=(2,), but=("controls[features]",))

    def test_measured_plans(self):
        small = ["distill", MODEL, *self.COMMAND[1:]]
        self.equal_training(*small, ranks=(3,))
        self.equal_training(*small, "--strategy", "dof", "--samples", 64, ranks=(3,))

    def test_dry_run(self):
        said = json.loads(mpi.run(2, *self.COMMAND, "--out", new_path(), "--dry-run", "--json")[0])
        self.assertEqual(said["steps"], 4)


class Finetune(Equality):
    def test_text(self):
        text = ["--data", text_file(40), "--length", 32, "--held-out", 2, "--batch", 5, "--epochs", 2]
        self.equal_training("finetune", MODEL, *text)

    def test_small_moments(self):
        # Rounded by the number of an element, not by who holds it.
        text = ["--data", text_file(40), "--length", 32, "--held-out", 2, "--batch", 5, "--epochs", 1]
        self.equal_training("finetune", MODEL, *text, "--moments", "bf16")

    def test_teacher(self):
        text = ["--data", text_file(40), "--length", 32, "--held-out", 2, "--batch", 2, "--epochs", 1]
        self.equal_training("finetune", MODEL, "--teacher", MODEL, *text, ranks=(3,))

    def test_teacher_on_disk(self):
        text = ["--data", text_file(40), "--length", 32]
        student, file = new_path(), new_path("top.teacher")
        run("finetune", MODEL, *text, "--held-out", 2, "--batch", 5, "--epochs", 1, "--lr", 1e-3, "--out", student)
        run("teach", MODEL, *text, "--top", 16, "--out", file)
        command = ["finetune", student, "--taught", file, *text, "--held-out", 2, "--batch", 5, "--epochs", 1]
        model = self.equal_training(*command)
        again = self.trained(2, *command)[2]
        self.assertEqual((again / "model.safetensors").read_bytes(), (model / "model.safetensors").read_bytes())

    def test_low_rank_updates(self):
        text = ["--data", text_file(40), "--length", 32, "--held-out", 2, "--batch", 5, "--epochs", 1]
        self.equal_training("finetune", MODEL, "--lora", 2, *text, ranks=(2,))

    def test_built_in_model(self):
        text = ["--data", write("wiki.txt", sentences(60)), "--length", 48, "--sequences", 7, "--held-out", 2,
                "--batch", 3, "--epochs", 1]
        self.equal_training("finetune", *text, ranks=(2,))

    def test_task(self):
        # The loss is of differences of scores, sums over some ten tokens: these have the six digits.
        self.equal_training("finetune", MODEL, "--task", "piqa", "--task-data", task_folder(), "--batch", 3, ranks=(2,),
                            tolerance=10 * SIX_DIGITS)


class Measured(Equality):
    TEXT = ["--data", text_file(40), "--length", 32]

    def of_ranks(self, ranks, *command):
        return json.loads(mpi.run(ranks, *command, "--json")[0])

    def test_evaluate_has_the_bits_of_one_rank(self):
        # An odd number of windows, the last one shorter; and fewer than ranks.
        for text in (self.TEXT, [*self.TEXT, "--sequences", 2]):
            command = ["evaluate", MODEL, *text]
            expected = answer(*command)
            for ranks in (2, 3):
                self.assertEqual(self.of_ranks(ranks, *command), expected)

    def test_evaluate_beside_a_teacher(self):
        student = new_path()
        answer("distill", MODEL, *self.TEXT, "--held-out", 2, "--cost", 8, "--strategy", "fix", "--steps", 2, "--keys", 24,
               "--out", student)
        command = ["evaluate", student, "--teacher", MODEL, *self.TEXT]
        expected = answer(*command)
        for ranks in (2, 3):
            found = self.of_ranks(ranks, *command)
            self.same(found, expected)
            self.assertEqual(found["kl"], expected["kl"])
            self.assertEqual(found["kl_stderr"], expected["kl_stderr"])

    def test_dof(self):
        command = ["dof", MODEL, *self.TEXT, "--samples", 48, "--draws", 2, "--errors"]
        for coordinates in ("raw", "balanced"):
            expected = answer(*command, "--coordinates", coordinates)
            for ranks in (2, 3):
                found = self.of_ranks(ranks, *command, "--coordinates", coordinates)
                self.same(found, expected)
                if coordinates == "raw":  # nothing is a sum over ranks
                    self.assertEqual(found, expected)

    def test_dof_of_fewer_sequences_than_ranks(self):
        command = ["dof", MODEL, *self.TEXT, "--samples", 16, "--draws", 1, "--sequences", 1]
        self.same(self.of_ranks(3, *command), answer(*command))

    def test_sensitivity(self):
        command = ["sensitivity", MODEL, *self.TEXT, "--ladder", "2,8", "--steps", 3, "--batch", 2, "--windows", 3,
                   "--held-out", 2]
        expected = answer(*command)
        for ranks in (2, 3):
            self.same(self.of_ranks(ranks, *command), expected, tolerance=1e-5)

    def test_sensitivity_with_exact_keys(self):
        command = ["sensitivity", MODEL, *self.TEXT, "--memory", "20kB", "--steps", 1, "--held-out", 2]
        self.same(self.of_ranks(2, *command), answer(*command), tolerance=1e-5)

    def test_answers_have_the_bits_of_one_rank(self):
        tasks = ["--task-data", task_folder()]
        wiki = write("wiki-long.txt", sentences(300))
        for command in (["evaluate", MODEL, "--task", "piqa", "--task", "wsc", *tasks],
                        ["evaluate", MODEL, "--task", "arc_easy", "--letters", "likelihood", *tasks],
                        ["evaluate", MODEL, "--task", "arc_easy", "--letters", "generated", *tasks],
                        # The built-in model, whose tokenizer has the digits that are asked for.
                        ["evaluate", "--recall", "--distances", "40,60", "--questions", 5, "--data", wiki]):
            expected = answer(*command)
            for ranks in (2, 3):
                self.assertEqual(self.of_ranks(ranks, *command), expected, command)

    def test_last_words(self):
        # They are read in batches, and a batch of other rows is rounded otherwise.
        lines = [json.dumps({"context": f"Lily saw {i} red", "continuation": word})
                 for i, word in enumerate(("birds", "cats", "birds in the park", "dogs", "birds"))]
        command = ["evaluate", MODEL, "--last-words", write("last-words.jsonl", "\n".join(lines))]
        for ranks in (2, 3, 6):
            self.same(self.of_ranks(ranks, *command), answer(*command))

    def test_compare(self):
        student, page, markdown = new_path(), new_path("page.html"), new_path("page.md")
        text = write("wiki-long.txt", sentences(300))
        answer("distill", "--data", text, "--length", 64, "--held-out", 2, "--cost", 8, "--strategy", "fix", "--steps", 2,
               "--keys", 24, "--out", student)
        teacher = MODEL.parents[2] / "assets/wiki-mini"
        command = ["compare", teacher, student, "--texts", text, "--length", 64, "--windows", 5, "--tasks", task_folder()]
        expected = answer(*command)
        for ranks in (2, 3):
            found = self.of_ranks(ranks, *command, "--out", page, "--markdown", markdown)
            self.same(found, expected, but=("tokens_per_second",))
            for one in (found, expected):
                self.assertGreater(one["teacher_cost"]["decode_tokens_per_second"], 0)
            self.assertEqual(found["students"][0]["abilities"], expected["students"][0]["abilities"])
            self.assertEqual(found["students"][0]["worst"], expected["students"][0]["worst"])
            self.assertTrue(page.read_text().endswith("</html>\n"))
            self.assertIn(student.name, markdown.read_text())

    def test_saved_by_one(self):
        out = new_path("dof.json")
        mpi.run(2, "dof", MODEL, *self.TEXT, "--samples", 16, "--out", out)
        self.assertEqual(answer("plan", out, "--cost", 4)["cost"], 4)


if __name__ == "__main__":
    mpi.skip_without_mpi()
    unittest.main()
