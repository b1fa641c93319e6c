#!/usr/bin/env python3
"""The functions against the program: the same options, defaults and results; progress, remarks and errors."""

import inspect
import json
import os
import pickle
import re
import threading
import unittest
import warnings

from support import DISTILL, FOLDER, SCRATCH, SHORT, TEXT, dofla, new_path, numpy as np, program

FUNCTIONS = ("inspect", "dof", "plan", "sensitivity", "distill", "finetune", "compare", "evaluate", "quantize",
             "estimate", "teach")
TIMES = ("seconds", "tokens_per_second", "prefill", "decode", "prefill_seconds", "decode_seconds")


def words_of(options):
    for name, value in options.items():
        yield "--" + name.rstrip("_").replace("_", "-")
        if value is not True:
            yield ",".join(map(str, value)) if isinstance(value, list) else value


def without_times(value):
    if isinstance(value, dict):
        return {name: without_times(field) for name, field in value.items()
                if name not in TIMES and "cost" not in name}
    return [without_times(one) for one in value] if isinstance(value, list) else value


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.student = new_path("student")
        cls.distilled = dofla.distill(FOLDER, **DISTILL, out=cls.student)

    def same(self, name, *folders, **options):
        """What the function returns, after it was compared with what the program prints."""
        result = getattr(dofla, name)(*folders, **options)
        if "out" in options:
            options["out"] = new_path()
        said = program.answer(name, *folders, *words_of(options))
        self.assertEqual(without_times(result.to_dict()), without_times(said))
        declared = {"format", "version"}.union(*(vars(kind).get("__annotations__", ()) for kind in type(result).mro()))
        self.assertLessEqual({dofla._results.python_name(field) for field in said}, declared)
        return result

    def test_dof_and_plan(self):
        file = new_path("dof.json")
        table = self.same("dof", FOLDER, data=TEXT, length=64, samples=64, draws=2, lambda_="2^-3", out=file)
        self.assertEqual(table.lambda_, 0.125)
        plan = self.same("plan", file, cost=16, strategy="dof", bound=True, t=0.5)
        self.assertEqual(len(plan.dims), len(table.layers))

    def test_sensitivity_plan_and_distill_without_files(self):
        table = self.same("sensitivity", FOLDER, **SHORT, steps=1, windows=1, memory="60kB")
        plan = dofla.plan(table, memory="60kB")
        self.assertLessEqual(plan.state_bytes, 60000)
        student = dofla.distill(dofla.Model(FOLDER), **SHORT, plan=plan, steps=1, out=new_path())
        self.assertEqual(student.dims, plan.dims)

    def test_distill(self):
        result = self.same("distill", FOLDER, **DISTILL, out=new_path())
        self.assertEqual(without_times(result.to_dict()), without_times(self.distilled.to_dict()))
        with open(self.student / "config.json", encoding="utf-8") as file:
            line = json.load(file)["linear_attention"]["command"]
        self.assertRegex(line, f"^dofla distill {FOLDER} --data {TEXT} .*--steps 3.*--json$")

    def test_evaluate(self):
        self.same("evaluate", FOLDER, data=TEXT, length=64)
        self.same("evaluate", self.student, data=TEXT, length=32, teacher=FOLDER)
        ids = np.arange(24).reshape(2, 12)
        by_array, by_file = dofla.evaluate(FOLDER, ids=ids), self.same("evaluate", FOLDER, ids=program.write(
            "rows.json", json.dumps(ids.tolist())))
        self.assertEqual(by_array, by_file)
        self.assertEqual(dofla.evaluate(FOLDER, ids=ids[0]).tokens, 11)
        self.assertEqual(dofla.evaluate(FOLDER, ids=[ids[0], [np.int32(1), 2]]).tokens, 12)
        self.assertEqual(dofla.evaluate(dofla.Model(FOLDER, device="cpu"), ids=ids), by_file)

    def test_tasks(self):
        folder = program.task_folder()
        result = dofla.evaluate(FOLDER, task=["piqa", "wsc"], task_data=folder)
        said = program.answer("evaluate", FOLDER, "--task", "piqa", "--task", "wsc", "--task-data", folder)
        self.assertEqual(result.to_dict(), said)
        self.assertEqual([task.task for task in result.tasks], ["piqa", "wsc"])

    def test_finetune(self):
        tuned = self.same("finetune", self.student, **SHORT, teacher=FOLDER, epochs=1, out=new_path())
        self.assertEqual(len(tuned.epochs), 1)

    def test_teach(self):
        said = self.same("teach", FOLDER, data=TEXT, length=32, top=16, out=new_path())
        self.assertEqual(said.top, 16)

    def test_quantize(self):
        rounded = self.same("quantize", FOLDER, data=TEXT, length=32, out=new_path())
        self.assertLess(rounded.bytes, rounded.bytes_before)

    def test_estimate(self):
        stages = self.same("estimate", FOLDER, gpus=2, device_memory="1kB").stages
        self.assertFalse(any(stage.fits for stage in stages))

    def test_compare(self):
        report = self.same("compare", FOLDER, self.student, texts=TEXT, length=32, windows=2)
        self.assertEqual(report.students[0].path, str(self.student))
        with self.assertRaisesRegex(ValueError, "given twice"):
            dofla.compare(FOLDER, [self.student, self.student])

    def test_every_option_is_an_argument_with_its_default(self):
        for name in FUNCTIONS:
            parameters = inspect.signature(getattr(dofla, name)).parameters
            text = program.run(name, "--help")[0]
            options = dict(re.findall(r"^  --([a-z-]+)[^ ]*(?: [^=\n]*?)?(?: = (\S+))?(?: {2,}.*)?$", text, re.M))
            self.assertGreater(len(options), 0)
            for option, default in options.items():
                if option in ("json", "help"):
                    continue
                parameter = parameters[dofla._results.python_name(option)]
                if default and not default.startswith("["):
                    self.assertEqual(str(parameter.default), default, f"{name} --{option}")
            self.assertIn(">>>", getattr(dofla, name).__doc__)
            for parameter in parameters:
                self.assertIn(f"    {parameter}: ", getattr(dofla, name).__doc__)

    def test_the_types_are_those_of_the_functions(self):
        with open(os.path.join(os.path.dirname(dofla.__file__), "_functions.pyi"), encoding="utf-8") as file:
            stub = file.read()
        compile(stub, "_functions.pyi", "exec")
        self.assertIn("    steps: Optional[int] = None,", stub)
        self.assertIn("    strategy: Optional[Literal['fix', 'dof',", stub)
        for name in FUNCTIONS:
            listed = re.search(rf"^def {name}\((.*?)^\)", stub, re.M | re.S)[1]
            self.assertEqual(re.findall(r"^    (\w+):", listed, re.M),
                             list(inspect.signature(getattr(dofla, name)).parameters))


class Arguments(unittest.TestCase):
    def test_wrong_ones(self):
        for call, error, words in (
                (lambda: dofla.dof(FOLDER, steps=3), TypeError, r"dof\(\) got an unexpected keyword argument 'steps'"),
                (lambda: dofla.distill(FOLDER), TypeError, r"distill\(\) missing a required argument: 'out'"),
                (lambda: dofla.dof(FOLDER, samples=0), ValueError, "--samples: expected a whole number from 1 up"),
                (lambda: dofla.dof(FOLDER, samples=1.5), ValueError, "--samples: expected a whole number"),
                (lambda: dofla.dof(FOLDER, samples=True), TypeError, "samples: expected a number"),
                (lambda: dofla.dof(FOLDER, samples=np.ones(2)), TypeError, "samples: expected a number"),
                (lambda: dofla.dof(FOLDER, seed=-1), ValueError, "--seed: expected a whole number"),
                (lambda: dofla.dof(FOLDER, lambda_="2^x"), ValueError, "--lambda: expected a positive number"),
                (lambda: dofla.dof(FOLDER, coordinates="polar"), ValueError, "--coordinates: polar not in"),
                (lambda: dofla.dof(FOLDER, data=[]), ValueError, "data: expected at least one"),
                (lambda: dofla.dof(FOLDER, data=""), dofla.Error, ""),
                (lambda: dofla.dof(FOLDER, progress=3), TypeError, "progress: expected a function"),
                (lambda: dofla.evaluate(FOLDER, recall=1), TypeError, "recall: expected True or False"),
                (lambda: dofla.evaluate(FOLDER, sinks=2), ValueError, "give --keys"),
                (lambda: dofla.evaluate(FOLDER, ids=[[1, 600]]), dofla.Error, "expected an id from 0 to 511"),
                (lambda: dofla.evaluate(FOLDER, ids=[]), dofla.Error, "ids.json"),
                (lambda: dofla.plan(SCRATCH / "none.json"), dofla.Error, "none.json"),
                (lambda: dofla.plan("x", cost=3, memory="3MB"), ValueError, "--cost excludes --memory"),
                (lambda: dofla.evaluate("-no-option"), dofla.Error, "-no-option: not a folder"),
                (lambda: dofla.evaluate(f"{FOLDER}\0more"), ValueError, "model: a null character"),
                (lambda: dofla.Model(f"{FOLDER}\0more"), ValueError, "path: a null character"),
                (lambda: dofla.compare(FOLDER, []), ValueError, "student: expected at least one"),
                (lambda: dofla.evaluate(FOLDER, ids=3), TypeError, "not iterable"),
                (lambda: dofla.evaluate(""), dofla.Error, "MODEL is an empty name"),
                (lambda: dofla.evaluate("\udcff"), dofla.Error, "not a folder")):
            with self.assertRaisesRegex(error, words):
                call()

    def test_places_that_are_taken(self):
        taken = new_path("taken")
        taken.mkdir()
        with self.assertRaisesRegex(dofla.Error, "exists already"):
            dofla.distill(FOLDER, **DISTILL, out=taken)

    def test_remarks_are_warnings(self):
        file = program.write("bad.jsonl", json.dumps({"text": program.sentences(40)}) + "\nno JSON\n")
        with self.assertWarnsRegex(UserWarning, "left out 1 bad line") as warned:
            dofla.evaluate(FOLDER, data=file, length=64, skip_bad_lines=True)
        self.assertEqual(warned.filename, __file__)


class Progress(unittest.TestCase):
    def test_of_training(self):
        updates = []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dofla.distill(FOLDER, **DISTILL, out=new_path(), progress=updates.append)
        steps = [update.training for update in updates if update.training is not None]
        self.assertEqual([step.step for step in steps], [1, 2, 3])
        self.assertTrue(all(step.loss > 0 for step in steps))
        for update in updates:
            self.assertIsInstance(update, dofla.Progress)
            self.assertTrue(update.stage and update.unit and update.done >= 0)

    def test_what_it_raises_stops_the_work_and_the_run_goes_on_later(self):
        out = new_path()
        whole = dofla.distill(FOLDER, **DISTILL, out=new_path())

        def stop(update):
            if update.training is not None and update.training.step == 2:
                raise KeyError("enough")

        with self.assertRaisesRegex(KeyError, "enough"), self.assertWarnsRegex(UserWarning, "--resume"):
            dofla.distill(FOLDER, **DISTILL, out=out, progress=stop)
        self.assertFalse(out.exists())
        resumed = dofla.distill(FOLDER, **DISTILL, out=out, resume=True)
        self.assertEqual(resumed.student_loss, whole.student_loss)
        for call in (lambda fail: dofla.dof(FOLDER, data=TEXT, length=64, progress=fail),
                     lambda fail: dofla.evaluate(FOLDER, data=TEXT, length=64, progress=fail)):
            with self.assertRaises(ZeroDivisionError):
                call(lambda update: 1 / 0)

    def test_of_two_threads_at_once(self):
        expected = dofla.evaluate(FOLDER, data=TEXT, length=64)
        barrier, found = threading.Barrier(2, timeout=60), {}

        def work(name, fail):
            def tell(update):
                if name not in met:
                    met.add(name)
                    barrier.wait()  # both are in the middle of their work now
                    if fail:
                        raise RuntimeError(name)
            try:
                found[name] = dofla.evaluate(FOLDER, data=TEXT, length=64, threads=1, progress=tell)
            except RuntimeError as error:
                found[name] = str(error)

        met = set()
        threads = [threading.Thread(target=work, args=(name, name == "fails")) for name in ("works", "fails")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found["fails"], "fails")
        self.assertEqual(found["works"].tokens, expected.tokens)
        self.assertAlmostEqual(found["works"].loss, expected.loss, places=5)


class Results(unittest.TestCase):
    def test_are_plain_objects(self):
        fields = {"loss": 1.5, "missing": None, "lambda": 2, "rows": [{"a": 1}, {"b": "x"}], "dims": [1, 2]}
        result = dofla.Result(fields)
        self.assertEqual((result.loss, result.missing, result.lambda_, result.rows[1].b), (1.5, None, 2, "x"))
        self.assertEqual(result.to_dict(), fields)
        result.to_dict()["dims"].append(3)
        self.assertEqual(result.to_dict()["dims"], [1, 2])
        self.assertEqual(pickle.loads(pickle.dumps(result)), result)
        self.assertEqual(repr(result), "Result(loss=1.5, missing=None, lambda=2, rows=[2 …], dims=[1, 2])")
        with self.assertRaises(AttributeError):
            result.nothing

    def test_tables_are_escaped(self):
        bad = "<script>alert('&')</script>"
        page = dofla.Result({bad: bad, "rows": [{bad: bad}, {"n": 1.0}], "list": [bad], "deep": [[bad]],
                             "many": list(range(150))})._repr_html_()
        self.assertNotIn("<script", page)
        self.assertEqual(page.count("&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;"), 6)
        self.assertIn("… 50 more", page)
        self.assertEqual(page.count("<table>"), page.count("</table>"))


if __name__ == "__main__":
    unittest.main()
