#!/usr/bin/env python3
"""What the commands that train report: losses and accuracies are those that evaluate finds in the
model that they leave, tables for people have the numbers of the JSON, and so does the page.
reported_training_test.py BINARY"""

import json
import math
import statistics
import unittest

from dofla import (MODEL, answer, model_tensors, new_path, run, sentences, task_folder, text_file,
                   write)
from reported import Reported, parts, ungrouped, with_bytes_unit


class Distill(Reported):
    def test_the_student_is_judged_by_the_last_windows(self):
        config_layers, said = self.config["num_hidden_layers"], self.distilled
        held_out = new_path("held-out.json")
        ids = answer("tokenize", MODEL, "--text", sentences(20))["ids"]
        rows = [ids[i:i + 32] for i in range(0, len(ids) - 31, 32)]
        self.assertEqual(len(rows), len(self.whole))
        held_out.write_text(json.dumps(rows[-3:]))
        again = answer("evaluate", self.student, "--teacher", MODEL, "--ids", held_out)
        self.assertAlmostEqual(said["teacher_loss"],
                               statistics.mean(w["loss"] for w in self.whole[-3:]), places=5)
        for own, other in (("teacher_loss", "teacher_loss"), ("student_loss", "loss"), ("kl", "kl"),
                           ("same_top", "same_top")):
            self.assertAlmostEqual(said[own], again[other], places=5)
        for own, value in said["fidelity"].items():
            if isinstance(value, float):
                self.assertAlmostEqual(value, again[own], places=5, msg=own)
        self.assertEqual(len(said["attention_error"]), config_layers)
        for own, other in zip(said["attention_error"], again["attention_error"], strict=True):
            self.assertAlmostEqual(own, other, places=5)

    def test_the_table_has_the_numbers_of_the_json(self):
        said = self.distilled
        out = new_path()
        table = run(*self.distill, "--samples", 48, "--out", out)[0]
        inspected = answer("inspect", out)
        loss, tokens = parts(table, "teacher", r"(\S+) nats a token on (\S+) held-out tokens")
        self.shows(loss, said["teacher_loss"], 4)
        self.assertEqual(tokens, str(3 * 31))
        loss, more = parts(table, "student", r"(\S+)  \((\S+)\)")
        self.shows(loss, said["student_loss"], 4)
        self.assertEqual(more, f"{said['student_loss'] - said['teacher_loss']:+.4f}")
        self.shows(parts(table, "KL", r"(\S+)")[0], said["kl"], 4)
        self.shows(parts(table, "agreement", r"(\S+) %")[0], 100 * said["same_top"], 1)
        dims, mean = parts(table, "features", r"([\d ]+), mean (\S+) a head")
        self.assertEqual([int(m) for m in dims.split()], said["dims"])
        self.shows(mean, statistics.mean(said["dims"]), 1)
        config = self.config
        cache = (2 * config["num_hidden_layers"] * config["num_key_value_heads"]
                 * config["max_position_embeddings"] * inspected["head_size"] * 2)  # in 16 bits
        self.assertEqual(
            parts(table, "memory", r"(.*) a sequence, .* takes (.*) at (\S+) tokens"),
            (with_bytes_unit(inspected["linear_attention"]["state_bytes"]),
             with_bytes_unit(cache), f"{config['max_position_embeddings']:,}"))
        errors = parts(table, "layer error", r"([\d. ]+?)  of")[0].split()
        self.assertEqual(errors, [f"{e:.3f}" for e in said["attention_error"]])
        steps, rate = parts(table, "training", r"(\d+) steps of the softmax loss, (\S+) tokens/s")
        self.assertEqual(int(steps), said["steps"])
        self.assertGreater(ungrouped(rate), 0)
        # Training is a part of the whole time.
        self.assertGreaterEqual(said["tokens_per_second"], 3 * 2 * 32 / said["seconds"])

    def test_the_page_has_the_numbers_of_the_json(self):
        said, page = self.distilled, (self.student / "report.html").read_text()
        for fact, value in (("Teacher loss", f"{said['teacher_loss']:.4g}</dd>"),
                            ("Student loss", f"{said['student_loss']:.4g}<small>"
                             f"{said['student_loss'] - said['teacher_loss']:.3g} above"),
                            ("KL(teacher‖student)", f"{said['kl']:.4g}</dd>"),
                            ("Same likeliest token", f"{100 * said['same_top']:.3g} %</dd>")):
            self.assertIn(f"<dt>{fact}</dt><dd>{value}", page)
        self.assertIn(f"KL, mean</bdi></th><td><bdi>{said['kl']:.4f} ±", page)

    def test_every_window_of_a_pass_is_trained_on(self):
        rows = [[1 + (7 * t * (b + 1)) % 500 for t in range(16)] for b in range(3)]

        def features(changed):
            ids = [list(row) for row in rows]
            if changed is not None:
                ids[changed].reverse()
            out = new_path()
            answer("distill", MODEL, "--ids", write("rows.json", json.dumps(ids)), "--cost", 4,
                   "--strategy", "fix", "--init", "iid", "--steps", 2, "--batch", 1, "--held-out",
                   1, "--out", out)
            return {name: values for name, (_, _, values) in model_tensors(out).items()}

        plain = features(None)
        self.assertNotEqual(features(0), plain)
        self.assertNotEqual(features(1), plain)
        self.assertEqual(features(2), plain)  # held out

    def test_an_estimate_is_steps_times_their_time(self):
        said = answer(*self.distill, "--samples", 48, "--out", new_path(), "--dry-run")
        self.assertEqual(said["steps"], 3)
        self.assertAlmostEqual(said["seconds"], 3 * said["step_seconds"], places=9)
        table = run(*self.distill, "--samples", 48, "--out", new_path(), "--dry-run")[0]
        self.assertEqual(parts(table, "steps", r"(\d+) of (\d+) x (\d+) tokens"), ("3", "2", "32"))


class Finetune(Reported):
    def test_on_text_losses_are_those_that_evaluate_finds(self):
        out = new_path()
        arguments = ["finetune", MODEL, *self.text, "--held-out", 3, "--epochs", 2, "--batch", 4,
                     "--lr", 1e-3]
        said = answer(*arguments, "--out", out)
        after = [w for w in answer("evaluate", out, *self.text)["sequences"] if w["tokens"] == 31]
        of_last = lambda windows: statistics.mean(w["loss"] for w in windows[-3:])
        self.assertAlmostEqual(said["before"]["held_out_loss"], of_last(self.whole), places=5)
        self.assertAlmostEqual(said["epochs"][said["kept"] - 1]["held_out_loss"], of_last(after),
                               places=5)
        count = len(self.whole) - 3
        self.assertEqual((said["train_windows"], said["held_out_windows"]), (count, 3))
        self.assertEqual(said["steps"], 2 * math.ceil(count / 4))
        table = run(*arguments, "--out", new_path())[0]
        self.assertIn(f"{count} windows of 32 tokens, {said['steps']} steps of 4, learning rate "
                      "0.001; judged by 3 windows", table)
        self.shows(parts(table, "before", r"(\S+)$")[0], said["before"]["held_out_loss"], 4)
        for number, epoch in enumerate(said["epochs"], 1):
            label = f"{number} kept" if number == said["kept"] else str(number)
            loss, held_out = parts(table, label, r"(\S+) +(\S+)$")
            self.shows(loss, epoch["loss"], 4)
            self.shows(held_out, epoch["held_out_loss"], 4)

    def test_beside_a_teacher_the_divergence_is_what_evaluate_finds(self):
        out, held_out = new_path(), new_path("held-out.json")
        arguments = ["finetune", self.student, "--teacher", MODEL, *self.text, "--held-out", 3,
                     "--epochs", 1, "--batch", 4]
        whole = answer(*arguments, "--out", out)
        said, before, after = whole["fidelity"], whole["before"], whole["epochs"][0]
        self.assertEqual(whole["kept"], int(after["held_out_kl"] <= before["held_out_kl"]))
        kept = after if whole["kept"] else before
        self.assertAlmostEqual(kept["held_out_kl"], said["kl"], places=9)
        self.assertAlmostEqual(kept["held_out_loss"], said["loss"], places=9)
        ids = answer("tokenize", MODEL, "--text", sentences(20))["ids"]
        rows = [ids[i:i + 32] for i in range(0, len(ids) - 31, 32)]
        held_out.write_text(json.dumps(rows[-3:]))
        again = answer("evaluate", out, "--teacher", MODEL, "--ids", held_out)
        for name in ("tokens", "loss", "teacher_loss", "kl", "kl_stderr", "kl_99", "same_top"):
            self.assertAlmostEqual(said[name], again[name], places=5, msg=name)
        table = run(*arguments, "--out", new_path())[0]
        self.shows(parts(table, "KL", r"(\S+)")[0], said["kl"], 4)
        for label, epoch in (("before", before), ("1", after)):
            label += " kept" if epoch is kept else ""
            held_out, kl = parts(table, label, r"(?:\S+ +)?(\S+) +(\S+)$")
            self.shows(held_out, epoch["held_out_loss"], 4)
            self.shows(kl, epoch["held_out_kl"], 4)

    def test_an_epochs_loss_is_the_mean_over_its_steps(self):
        said = answer("finetune", MODEL, *self.text, "--held-out", 3, "--epochs", 1, "--batch",
                      len(self.whole) - 3, "--lr", 0, "--out", new_path())
        self.assertEqual(said["steps"], 1)
        self.assertAlmostEqual(said["epochs"][0]["loss"],
                               statistics.mean(w["loss"] for w in self.whole[:-3]), places=4)

    def test_the_loss_of_an_epoch_is_its_own(self):
        # One step an epoch: the second has the loss of the model that the first one leaves.
        first = new_path()
        arguments = ["finetune", MODEL, *self.text, "--held-out", 3, "--batch",
                     len(self.whole) - 3, "--lr", 1e-4]
        answer(*arguments, "--epochs", 1, "--out", first)
        said = answer(*arguments, "--epochs", 2, "--out", new_path())
        windows = [w for w in answer("evaluate", first, *self.text)["sequences"]
                   if w["tokens"] == 31]
        for epoch, of in zip(said["epochs"], (self.whole, windows), strict=True):
            self.assertAlmostEqual(epoch["loss"], statistics.mean(w["loss"] for w in of[:-3]),
                                   places=4)
        self.assertNotAlmostEqual(said["epochs"][0]["loss"], said["epochs"][1]["loss"], places=2)

    def test_on_a_task_accuracies_are_those_that_evaluate_finds(self):
        out = new_path()
        task = ["--task", "piqa", "--task-data", task_folder()]
        arguments = ["finetune", MODEL, *task, "--epochs", 2, "--batch", 2, "--lr", 1e-3]
        said = answer(*arguments, "--out", out)
        before = answer("evaluate", MODEL, *task)["tasks"][0]
        after = answer("evaluate", out, *task)["tasks"][0]
        for measure in ("questions", "acc", "acc_stderr", "acc_norm", "acc_norm_stderr"):
            self.assertEqual(said["before"][measure], before[measure])
            self.assertEqual(said["epochs"][said["kept"] - 1][measure], after[measure])
        table = run(*arguments, "--out", new_path())[0]
        self.assertIn("piqa: 7 questions of train, 8 steps of 2, learning rate 0.001; accuracy on "
                      "5 questions of validation", table)
        percent = lambda one, m: f"{100 * one[m]:.1f} ± {100 * one[m + '_stderr']:.1f} %"
        self.assertEqual(parts(table, "before", r"(\S+ ± \S+ %) +(\S+ ± \S+ %)$"),
                         (percent(said["before"], "acc"), percent(said["before"], "acc_norm")))
        for number, epoch in enumerate(said["epochs"], 1):
            label = f"{number} kept" if number == said["kept"] else str(number)
            self.assertEqual(parts(table, label, r"(\S+) +(\S+ ± \S+ %) +(\S+ ± \S+ %)$"),
                             (f"{epoch['loss']:.4f}", percent(epoch, "acc"),
                              percent(epoch, "acc_norm")))


class Reproduce(Reported):
    def test_its_tables_have_what_distill_and_evaluate_say(self):
        out = new_path()
        suite = write("suite.json", json.dumps({
            "teacher": str(MODEL), "data": [str(text_file())], "length": 32, "held_out": 3,
            "costs": [12], "strategies": ["fix", "sensitivity"], "losses": ["softmax"], "baselines": [],
            "seeds": [5], "steps": 3, "batch": 2, "dof": {"samples": 16}}))
        said = answer("reproduce", suite, "--out", out)
        self.assertEqual((said["ran"], said["skipped"], said["failed"]), (4, 0, []))
        alone = answer(*self.distill, "--strategy", "fix", "--features", "prf", "--seed", 5, "--out", new_path())
        tables = (out / "tables.md").read_text()
        self.assertRegex(tables, rf"\| Fix \| {alone['student_loss']:.3f} \|")
        measured = answer(*self.distill, "--strategy", "sensitivity", "--features", "prf",
                          "--seed", 5, "--out", new_path())
        self.assertRegex(tables, rf"\| Sensitivity \| {measured['student_loss']:.3f} \|")
        self.assertIn(f"| Teacher | {alone['teacher_loss']:.3f} | 3.3558 |", tables)
        count = len(self.whole) - 3
        self.assertIn(f"{count} windows of 32 tokens to train on, 3 held out", tables)


if __name__ == "__main__":
    unittest.main()
