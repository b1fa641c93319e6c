#!/usr/bin/env python3
"""What sensitivity and its plans report, recomputed from the file and from students that have only one
linear layer. reported_sensitivity_test.py BINARY"""

import json
import math
import unittest

from dofla import MODEL, answer, new_path, run
from reported import Reported, parts


def curve(ladder, added, features):
    """The loss that the curve has, by trying all lines between two points from below."""
    count = len(added)
    # Isotonic regression by its min-max formula.
    falling = [min(max(sum(added[a:b + 1]) / (b + 1 - a) for b in range(i, count))
                   for a in range(i + 1)) for i in range(count)]
    points = [(math.log(m), max(value, 0)) for m, value in zip(ladder, falling)]
    x = math.log(features)
    if x > points[-1][0]:
        # The hull's last line is the flattest that ends in the last point.
        before = max(points[:-1], key=lambda p: (points[-1][1] - p[1]) / (points[-1][0] - p[0]))
        if points[-1][1] == 0:
            return 0
        power = math.log(before[1] / points[-1][1]) / (points[-1][0] - before[0])
        return points[-1][1] * math.exp(-power * (x - points[-1][0]))
    if x < points[0][0]:
        slope = min((p[1] - points[0][1]) / (p[0] - points[0][0]) for p in points[1:])
        return points[0][1] + slope * (x - points[0][0])
    lines = [a[1] + (b[1] - a[1]) * (x - a[0]) / (b[0] - a[0])
             for a in points for b in points if a[0] <= x <= b[0] and a != b]
    return min(lines)


class Sensitivity(Reported):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.file = new_path("sensitivity.json")
        cls.command = ["sensitivity", MODEL, *cls.text, "--ladder", "2,6,12", "--steps", 3,
                       "--windows", 4, "--held-out", 3]
        cls.said = answer(*cls.command, "--out", cls.file)

    def test_the_teachers_loss_is_that_of_evaluate(self):
        mean = sum(window["loss"] for window in self.windows[:4]) / 4
        self.assertAlmostEqual(self.said["teacher_loss"], mean, places=5)

    def test_the_table_has_the_numbers_of_the_json(self):
        table = run(*self.command)[0]
        self.assertIn(f"above {self.said['teacher_loss']:.4f}, on 4 windows", table)
        self.assertEqual(parts(table, "layer", r"(.*) largest")[0].split(),
                         "M = 2 M = 6 M = 12".split())
        for number, layer in enumerate(self.said["layers"], 1):
            *added, head, last = parts(table, str(number), r"(\S+)\s+(\S+)\s+(\S+)\s+(\d+): (\S+)")
            for word, value in zip(added, layer["added"], strict=True):
                self.shows(word, value, 4)
            largest = max(range(4), key=lambda h: layer["heads"][h][-1])
            self.assertEqual(head, str(largest + 1))
            self.shows(last, layer["heads"][largest][-1], 4)

    def test_heads_add_up_to_their_layer(self):
        for layer in self.said["layers"]:
            for i, added in enumerate(layer["added"]):
                self.assertAlmostEqual(sum(head[i] for head in layer["heads"]), added, places=9)

    def test_what_a_plan_predicts_follows_from_the_file(self):
        for by, cost in (("layer", 5), ("head", 5), ("head", 40), ("layer", 1)):
            command = ["plan", self.file, "--cost", cost, "--by", by]
            plan, table = answer(*command), run(*command)[0]
            for s, layer in enumerate(self.said["layers"]):
                if by == "layer":
                    expected = curve(self.said["ladder"], layer["added"], plan["dims"][s])
                else:
                    expected = sum(curve(self.said["ladder"], head, m)
                                   for head, m in zip(layer["heads"], plan["heads"][s], strict=True))
                self.assertAlmostEqual(plan["predicted"][s], expected, places=9)
                self.shows(parts(table, str(s + 1), r".*\s(\S+)$")[0], expected, 4)
            self.shows(parts(table, "added", r"(\S+)")[0], sum(plan["predicted"]), 4)
            self.assertAlmostEqual(plan["mean"], cost)

    def test_distill_shows_what_the_layers_add_alone(self):
        out = new_path("student")
        command = ["distill", MODEL, *self.text, "--cost", 6, "--strategy", "sensitivity", "--by",
                   "layer", "--steps", 2, "--batch", 2, "--held-out", 3]
        said, table = answer(*command, "--out", out), run(*command, "--out", new_path("again"))[0]
        for label, values in (("loss added", said["added"]), ("predicted", said["predicted"])):
            for word, value in zip(parts(table, label, r"(.*)")[0].split(), values):
                self.shows(word, value, 3)
        # The same from a student whose other layers keep their softmax attention: one plan a layer.
        plan = json.loads((out / "plan.json").read_text())
        for s, m in enumerate(plan["dims"]):
            dims = [m if i == s else None for i in range(len(plan["dims"]))]
            file = new_path("plan.json")
            file.write_text(json.dumps({**plan, "dims": dims}))
            alone = answer("distill", MODEL, *self.text, "--plan", file, "--steps", 2, "--batch", 2,
                           "--held-out", 3, "--out", new_path("alone"))
            self.assertAlmostEqual(said["added"][s], alone["kl"], places=4)


if __name__ == "__main__":
    unittest.main()
