#!/usr/bin/env python3
"""What the commands that measure report, compared with a plain recomputation or with another
command that has the same number: tables for people with the JSON, and the JSON with files,
definitions and Transformers' own figures. reported_test.py BINARY"""

import json
import math
import re
import statistics
import unittest

from dofla import FIXTURES, MODEL, answer, model_tensors, new_path, run, task_folder, tensors, write
from reported import Reported, parts, with_bytes_unit


class Inspect(Reported):
    def test_shape_and_size_are_those_of_the_files(self):
        said, table = answer("inspect", MODEL), run("inspect", MODEL)[0]
        count = sum(math.prod(shape) for _, shape, _ in model_tensors(MODEL).values())
        width = {"F32": 4, "F16": 2, "BF16": 2}[said["dtype"]]
        self.assertEqual((said["parameters"], said["bytes"]), (count, count * width))
        head_size = self.config["hidden_size"] // self.config["num_attention_heads"]
        self.assertEqual(parts(table, "layers", r"(\d+)"), (str(self.config["num_hidden_layers"]),))
        self.assertEqual(
            parts(table, "heads", r"(\d+) of size (\d+), (\d+) for keys and values"),
            (str(self.config["num_attention_heads"]), str(head_size),
             str(self.config["num_key_value_heads"])))
        self.assertEqual(parts(table, "width", r"(\d+)"), (str(self.config["hidden_size"]),))
        self.assertEqual(parts(table, "vocabulary", r"(\S+)"), (f"{self.config['vocab_size']:,}",))
        self.assertEqual(parts(table, "context", r"(\S+)"),
                         (f"{self.config['max_position_embeddings']:,}",))
        self.assertEqual(parts(table, "parameters", r"(\S+)"), (f"{count:,}",))
        self.assertEqual(parts(table, "weights", r"(.*), (\S+)"),
                         (with_bytes_unit(count * width), said["dtype"]))

    def test_vocabulary_and_context_are_not_taken_for_each_other(self):
        folder = FIXTURES / "gpt2"
        config, table = json.loads((folder / "config.json").read_text()), run("inspect", folder)[0]
        self.assertEqual(parts(table, "vocabulary", r"(\S+)"), (f"{config['vocab_size']:,}",))
        self.assertEqual(parts(table, "context", r"(\S+)"), (f"{config['n_positions']:,}",))

    def test_a_students_state_follows_from_its_features(self):
        said, table = answer("inspect", self.student), run("inspect", self.student)[0]
        features = said["linear_attention"]["features"]
        # A maximum, a sum, and a row of sums for every feature, in float32.
        state = sum(m * (said["head_size"] + 2) * 4 for layer in features for m in layer)
        self.assertEqual(said["linear_attention"]["state_bytes"], state)
        self.assertEqual(parts(table, "state", r"(.*) a sequence"), (with_bytes_unit(state),))
        for number, layer in enumerate(features, 1):
            self.assertEqual(parts(table, f"layer {number}", r"(\d+) a head"), (str(layer[0]),))
            self.assertEqual(set(layer), {self.distilled["dims"][number - 1]})

    def test_what_a_token_takes_follows_from_shapes(self):
        said, table = answer("inspect", self.student), run("inspect", self.student)[0]
        heads, groups, size = (said[name] for name in ("heads", "kv_heads", "head_size"))
        shown = r"(.+), (\S+) operations a token"
        costs = said["linear_attention"]["layer_costs"]
        for number, layer in enumerate(said["linear_attention"]["features"], 1):
            # The features of a key and of the queries of its group, products with value and sums.
            products = sum(m * size * (2 + 2 * heads // groups) for m in layer)
            cost = {"bytes": sum(m * (size + 2) * 4 for m in layer), "operations": 2 * products}
            self.assertEqual(costs[number - 1], cost)
            self.assertEqual(parts(table, f"layer {number}", r"\d+ a head: " + shown),
                             (with_bytes_unit(cost["bytes"]), f"{cost['operations']:,}"))
        softmax = {"bytes": 2 * groups * size * said["context"] * 2,
                   "operations": 2 * 2 * heads * size * said["context"]}
        self.assertEqual(said["linear_attention"]["softmax_layer_cost"], softmax)
        self.assertEqual(parts(table, "teacher", r"a layer at (\S+) tokens: " + shown),
                         (f"{said['context']:,}", with_bytes_unit(softmax["bytes"]),
                          f"{softmax['operations']:,}"))
        plan = json.loads((self.student / "plan.json").read_text())
        self.assertEqual(plan["layer_costs"], costs)
        self.assertIn("operations a token", (self.student / "report.html").read_text())


class DofAndPlan(Reported):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.file = new_path("dof.json")
        cls.dof = ["dof", MODEL, *cls.text, "--samples", 40, "--draws", 3, "--lambda", "2^-6"]
        cls.said = answer(*cls.dof, "--out", cls.file)
        cls.table = run(*cls.dof)[0]
        cls.measured = json.loads(cls.file.read_text())

    def of(self, layer, head, ridge):
        """The degrees of freedom of every draw, from the spectra in the file."""
        return [sum(value / (value + ridge) for value in spectrum)
                for spectrum in self.measured["layers"][layer]["heads"][head]["spectra"]]

    def test_json_is_the_mean_and_spread_over_the_draws(self):
        for s, layer in enumerate(self.said["layers"]):
            for h, head in enumerate(layer["heads"]):
                draws = self.of(s, h, 2**-6)
                self.assertAlmostEqual(head["dof"], statistics.mean(draws), places=9)
                self.assertAlmostEqual(head["spread"], statistics.stdev(draws), places=9)
            largest = max(layer["heads"], key=lambda head: head["dof"])
            self.assertEqual((layer["dof"], layer["spread"]), (largest["dof"], largest["spread"]))

    def test_the_table_has_the_numbers_of_the_json(self):
        self.assertIn("λ = 2^-6, Gram scale trace, 40 samples, 3 draws", self.table)
        self.assertEqual(parts(self.table, "layer", r"(.*) largest")[0].split(),
                         [str(h) for h in range(1, 5)])
        for number, layer in enumerate(self.said["layers"], 1):
            cells, mean, spread = parts(self.table, str(number), r"(.*[* ]) +(\S+) ± (\S+)$")
            largest = max(layer["heads"], key=lambda head: head["dof"])
            expected = [f"{h['dof']:.1f}{'*' if h is largest else ''}" for h in layer["heads"]]
            self.assertEqual(cells.split(), expected)
            self.shows(mean, largest["dof"], 1)
            self.shows(spread, largest["spread"], 1)

    def test_a_plan_shares_out_in_proportion(self):
        said = answer("plan", self.file, "--cost", 32, "--lambda", "2^-4")
        layers = [max(statistics.mean(self.of(s, h, 2**-4)) for h in range(4)) for s in range(5)]
        mean = statistics.mean(layers)
        for dims, dof in zip(said["dims"], layers, strict=True):
            self.assertAlmostEqual(dims, 32 * dof / mean, delta=1)
        self.assertEqual(said["mean"], statistics.mean(said["dims"]))

    def test_the_table_of_a_plan_has_the_numbers_of_the_json(self):
        for strategy in ("dof", "dof-head"):
            arguments = ["plan", self.file, "--cost", 12, "--strategy", strategy, "--bound",
                         "--delta", 0.2, "--t", 0.5]
            said, table = answer(*arguments), run(*arguments)[0]
            self.assertIn(f"strategy {strategy}, cost 12, λ = 2^-6", table)
            for s, layer in enumerate(self.said["layers"]):
                line = parts(table, str(s + 1),
                             r"\S+ +\S+ +(\d+) +((?:\d+ )*) *(\S+) ± (\S+)$")
                self.assertEqual(parts(table, str(s + 1), r"(\S+) +(\S+) "),
                                 tuple(f"{said['layer_costs'][s][what]:,.0f}"
                                       for what in ("bytes", "operations")))
                self.assertEqual(line[0], str(said["dims"][s]))
                if strategy == "dof-head":
                    self.assertEqual([int(m) for m in line[1].split()], said["heads"][s])
                    self.assertEqual(said["dims"][s], math.floor(statistics.mean(said["heads"][s]) + 0.5))
                self.shows(line[2], layer["dof"], 1)
                self.shows(line[3], layer["spread"], 1)
                bound = 16 * layer["dof"] * math.log(64 * layer["dof"] / (0.2 * 0.25))
                self.assertEqual(said["bound"][s], math.ceil(bound))
                of = said["bounds"][s]
                self.assertRegex(table, rf"(?m)^ +{s + 1}   {said['bound'][s]:,} +"
                                        rf"{of['kernel']:.3g} +{of['sums']:.3g}$")
                spectra = self.measured["layers"][s]["heads"][of["head"]]["spectra"]
                sums = [0.5 * (1 + 2**-6 / spectrum[0]) for spectrum in spectra]
                self.assertAlmostEqual(of["sums"], statistics.mean(sums))
                kernel = [math.sqrt(sum(spectrum) * (0.25 * spectrum[0] + 2**-6 * 0.5 * 6.5) /
                                    sum(value**2 for value in spectrum)) for spectrum in spectra]
                self.assertAlmostEqual(of["kernel"], statistics.mean(kernel))
            self.shows(parts(table, "mean", r"(\S+)")[0], said["mean"], 2)
            operations = sum(layer["operations"] for layer in said["layer_costs"])
            heads = said["model"]["heads"] * said["model"]["head_size"] * said["model"]["layers"]
            self.assertEqual(parts(table, "token", r"(\S+) operations.*softmax attention to (\S+)"),
                             (f"{operations:,.0f}", f"{operations / (4 * heads):.0f}"))

    def test_measured_errors_stand_beside_what_the_theorem_allows(self):
        file = new_path("errors.json")
        answer(*self.dof, "--errors", "--out", file)
        said, table = answer("plan", file, "--bound"), run("plan", file, "--bound")[0]
        table = table[table.index("Error of M features"):]
        self.assertEqual(parts(table, "layer", r"density(.*)largest score")[0].split(),
                         [str(m) for m in said["ladder"]])
        blocks = re.findall(r"(?m)^ +\d+   theorem(.*)\n +leverage(.*)\n +Gaussian(.*)$", table)
        for block, of, layer in zip(blocks, said["bounds"], self.said["layers"], strict=True):
            errors = of["errors"]
            shown = [of["theorem"], errors["leverage"],
                     errors["gaussian"] + [errors["largest_score"]]]
            for line, numbers in zip(block, shown, strict=True):
                self.assertEqual(line.split(), ["–" if n is None else f"{n:.3g}" for n in numbers])
            for t, features in zip(of["theorem"], said["ladder"], strict=True):
                needed = lambda t: 4 * layer["dof"] / t**2 * math.log(640 * layer["dof"] / t**2)
                if t is None:
                    self.assertGreater(needed(3), features)
                else:
                    self.assertAlmostEqual(needed(t) / features, 1)

    def test_the_page_of_a_report_has_them_too(self):
        plan, out = new_path("plan.json"), new_path("page.html")
        dims = answer("plan", self.file, "--cost", 12, "--out", plan)["dims"]
        said = answer("report", self.file, plan, "--out", out)
        page = out.read_text()
        self.assertEqual(said["bytes"], len(out.read_bytes()))
        self.assertIn(with_bytes_unit(said["bytes"]), run("report", self.file, plan, "--out", out)[0])
        heads = [h["dof"] for layer in self.said["layers"] for h in layer["heads"]]
        for fact, value in (("Largest head", f"{max(heads):.1f}<small>"),
                            ("Median head", f"{statistics.median(heads):.1f}</dd>"),
                            ("Layers × heads", "5 × 4</dd>"), ("λ", "2⁻⁶</dd>"),
                            ("Samples × draws", "40 × 3</dd>"), ("Cost C", "12</dd>"),
                            ("Mean M", f"{statistics.mean(dims):.4g}</dd>"),
                            ("Range of M", f"{min(dims)}–{max(dims)}</dd>")):
            self.assertIn(f"<dt>{fact}</dt><dd>{value}", page)


class Evaluate(Reported):
    def test_the_loss_is_transformers_own(self):
        expected = tensors(FIXTURES / "gpt2/expected.safetensors")
        _, (batch, tokens), flat = expected["input_ids"]
        rows = [list(flat[b * tokens:(b + 1) * tokens]) for b in range(batch)]
        arguments = ["evaluate", FIXTURES / "gpt2", "--ids", write("rows.json", json.dumps(rows))]
        said, table = answer(*arguments), run(*arguments)[0]
        self.assertAlmostEqual(said["loss"], expected["loss"][2][0], places=4)
        self.assertEqual(said["tokens"], batch * (tokens - 1))
        self.assertAlmostEqual(said["perplexity"], math.exp(said["loss"]), places=6)
        self.shows(parts(table, "loss", r"(\S+) nats a token")[0], said["loss"], 4)
        self.shows(parts(table, "perplexity", r"(\S+)")[0], said["perplexity"], 2)
        self.assertEqual(parts(table, "tokens", r"(\S+) predicted in (\d+) sequences"),
                         (f"{said['tokens']:,}", str(batch)))

    def test_beside_its_teacher_a_student_has_the_losses_that_both_have_alone(self):
        arguments = ["evaluate", self.student, "--teacher", MODEL, *self.text]
        said, table = answer(*arguments), run(*arguments)[0]
        own = answer("evaluate", self.student, *self.text)
        teacher = answer("evaluate", MODEL, *self.text)
        self.assertAlmostEqual(said["loss"], own["loss"], places=5)
        self.assertAlmostEqual(said["teacher_loss"], teacher["loss"], places=5)
        self.assertNotAlmostEqual(own["loss"], teacher["loss"], places=3)
        self.assertAlmostEqual(said["perplexity"], math.exp(said["loss"]), places=6)
        self.assertEqual(said["tokens"], own["tokens"])
        loss, of_teacher = parts(table, "loss", r"(\S+) nats a token, teacher (\S+)")
        self.shows(loss, said["loss"], 4)
        self.shows(of_teacher, said["teacher_loss"], 4)
        self.shows(parts(table, "perplexity", r"(\S+)")[0], said["perplexity"], 2)
        self.shows(parts(table, "KL", r"(\S+)")[0], said["kl"], 4)
        self.shows(parts(table, "agreement", r"(\S+) %")[0], 100 * said["same_top"], 1)
        errors = parts(table, "layer error", r"([\d. ]+) of")[0].split()
        self.assertEqual(errors, [f"{e:.3f}" for e in said["attention_error"]])
        self.assertEqual(parts(table, "tokens", r"(\S+)")[0], f"{said['tokens']:,}")

    def test_accuracies_have_the_standard_error_of_a_share(self):
        arguments = ["evaluate", MODEL, "--task", "piqa", "--task-data", task_folder()]
        said, table = answer(*arguments)["tasks"][0], run(*arguments)[0]
        count = said["questions"]
        self.assertEqual(count, 5)
        for measure in ("acc", "acc_norm"):
            share = said[measure]
            self.assertAlmostEqual(share * count, round(share * count), places=9)
            self.assertAlmostEqual(said[measure + "_stderr"],
                                   math.sqrt(share * (1 - share) / (count - 1)), places=12)
        expected = [f"{100 * said[m]:.1f} ± {100 * said[m + '_stderr']:.1f} %"
                    for m in ("acc", "acc_norm")]
        self.assertRegex(table, r"(?m)^piqa +validation +5 +" + " +".join(expected) + " +50 %$")

    def test_last_words_have_the_loss_that_their_tokens_add(self):
        texts = [("Once upon a", "time"), ("Tom went to the", "park"), ("She said", "hello")]
        lines = [json.dumps({"context": c, "continuation": w}) for c, w in texts]
        arguments = ["evaluate", MODEL, "--last-words", write("last.jsonl", "\n".join(lines))]
        said, table = answer(*arguments), run(*arguments)[0]

        def nats(text):
            ids = answer("tokenize", MODEL, "--text", text)["ids"][1:]  # without <s>
            return self.loss_of(ids) * (len(ids) - 1)
        losses = [nats(f"{c} {w}") - nats(c) for c, w in texts]
        self.assertAlmostEqual(said["loss"], sum(losses) / 3, places=4)
        self.assertAlmostEqual(said["perplexity"], math.exp(said["loss"]), places=9)
        self.assertAlmostEqual(said["acc"] * 3, round(said["acc"] * 3), places=9)
        self.shows(parts(table, "perplexity", r"(\S+)")[0], said["perplexity"], 2)
        self.assertEqual(parts(table, "words", r"(\S+)")[0], "3")

    def loss_of(self, ids):
        return answer("evaluate", MODEL, "--ids", write("ids.json", json.dumps([ids])))["loss"]

    def test_letters_are_counted_over_every_rotation(self):
        arguments = ["evaluate", MODEL, "--task", "arc_easy", "--task-data", task_folder(),
                     "--letters", "likelihood"]
        said, table = answer(*arguments)["tasks"][0], run(*arguments)[0]
        self.assertEqual((said["questions"], said["asked"], said["unanswered"]), (3, 9, 0))
        self.assertAlmostEqual(said["acc"] * 9, round(said["acc"] * 9), places=9)
        self.assertAlmostEqual(said["as_published"] * 3, round(said["as_published"] * 3), places=9)
        expected = [f"{100 * said[m]:.1f} ± {100 * said[m + '_stderr']:.1f} %"
                    for m in ("acc", "as_published")]
        expected += [f"{100 * said['same_option']:.1f} %", "0.0 %", "33 %"]
        self.assertRegex(table, r"(?m)^arc_easy +test +3 +" + " +".join(expected) + "$")


class Generate(Reported):
    def test_statistics_count_what_was_generated(self):
        arguments = ["generate", MODEL, "--prompt", "Once upon a time", "--max-tokens", 7]
        ids = answer("tokenize", MODEL, "--text", "Once upon a time")["ids"]
        said = answer(*arguments)
        remarks = run(*arguments)[1]
        found = re.search(r"(\d+) tokens, (\S+) tokens/s after a prompt of (\d+) in (\S+) s",
                          remarks)
        self.assertEqual((int(found[1]), int(found[3])), (len(said["ids"]), len(ids)))
        self.assertEqual(len(said["ids"]), 7)
        self.assertGreater(float(found[2]), 0)
        self.assertGreaterEqual(float(found[4]), 0)


if __name__ == "__main__":
    unittest.main()
