#!/usr/bin/env python3
"""dofla.Model against Transformers' logits and against the program, and what Python can do to it."""

import gc
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import unittest

from support import FOLDER, dofla, new_path, numpy as np, program


def task_count():
    return len(os.listdir("/proc/self/task"))


class Logits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = dofla.Model(FOLDER, device="cpu")
        cls.ids = np.array([[1, 403, 407, 261], [5, 6, 7, 8], [9, 10, 11, 12]])
        cls.expected = cls.model.logits(cls.ids)

    def test_equal_those_of_transformers(self):
        folders = [path.parent for path in program.FIXTURES.glob("*/expected.safetensors")]
        self.assertGreater(len(folders), 5)
        for folder in folders:
            with self.subTest(folder.name):
                tensors = program.tensors(folder / "expected.safetensors")
                ids, expected = (np.array(tensors[name][2]).reshape(tensors[name][1]) for name in ("input_ids", "logits"))
                model = dofla.Model(folder)
                found = model.logits(ids)
                config = model.config
                # As tests/model/transformer_test.cc has it: MLPs are four times as wide as the model.
                tolerance = 4 * np.finfo(np.float32).eps * np.sqrt(4 * config.width) * (4 * config.layers + 1) * \
                    np.abs(expected).max()
                self.assertEqual(found.shape, expected.shape)
                self.assertLessEqual(np.abs(found - expected).max(), tolerance)

    def test_shapes(self):
        self.assertEqual(self.expected.shape, (3, 4, 512))
        self.assertEqual(self.expected.dtype, np.float32)
        self.assertEqual(self.model.logits([7]).shape, (1, 512))
        np.testing.assert_allclose(self.model.logits(self.ids[1]), self.expected[1], rtol=1e-4, atol=1e-4)

    def test_any_whole_type_and_layout(self):
        wide = np.zeros((6, 8), dtype=np.int64)
        wide[::2, ::-2] = self.ids
        for ids in (self.ids.astype(np.int32), self.ids.astype(np.uint16), self.ids.astype(">i8"), self.ids.tolist(),
                    np.asfortranarray(self.ids), wide[::2, ::-2], tuple(map(tuple, self.ids))):
            np.testing.assert_array_equal(self.model.logits(ids), self.expected)
        read_only = self.ids.copy()
        read_only.flags.writeable = False
        np.testing.assert_array_equal(self.model.logits(read_only), self.expected)

    def test_outlive_their_model(self):
        model = dofla.Model(FOLDER)
        rows = model.logits(self.ids)[1:, ::2]
        del model
        gc.collect()
        [np.ones(10000) for _ in range(100)]
        np.testing.assert_array_equal(rows, self.expected[1:, ::2])
        rows += 1  # the memory is theirs

    def test_wrong_ids(self):
        for ids, words in (([], "found none"), (np.zeros((2, 0), int), "found none"), ([1.5], "float64"),
                           ([True], "bool"), ("text", "<U4"), (None, "object"), (3, "0 axes"), ([[[1]]], "3 axes"),
                           ([512], "id 512 is outside"), ([-1], "id -1 is outside"), ([1] * 513, "context of 512"),
                           (np.array([2**63 + 1], dtype=np.uint64), "outside"), ([[1], [2, 3]], "inhomogeneous")):
            with self.subTest(ids=str(ids)[:20]), self.assertRaisesRegex(ValueError, words):
                self.model.logits(ids)

    def test_other_threads_run_meanwhile(self):
        ids = np.ones((16, 512), dtype=int)
        running, moments = True, []

        def count():
            while running:
                moments.append(time.monotonic())
                time.sleep(0)

        thread = threading.Thread(target=count)
        thread.start()
        try:
            for _ in range(20):  # a busy machine may leave the other thread no time in one of them
                start = time.monotonic()
                self.model.logits(ids)
                quarter = (time.monotonic() - start) / 4
                if any(start + quarter < moment < start + 3 * quarter for moment in moments):
                    return
        finally:
            running = False
            thread.join()
        self.fail("no other thread ran while logits were computed")

    def test_threads(self):
        other = dofla.Model(FOLDER)
        found = {}

        def work(key, model):
            found[key] = [model.logits(self.ids) for _ in range(5)]

        threads = [threading.Thread(target=work, args=(i, model)) for i, model in
                   enumerate((self.model, self.model, other))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(found), [0, 1, 2])
        for logits in (one for several in found.values() for one in several):
            np.testing.assert_array_equal(logits, self.expected)


class Text(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = dofla.Model(FOLDER)

    def test_encode_and_decode(self):
        text = "Once upon a time, naïve 🐦"
        ids = self.model.encode(text)
        self.assertEqual(ids.tolist(), program.answer("tokenize", FOLDER, "--text", text)["ids"])
        self.assertEqual(self.model.decode(ids, skip_special=True), text)
        self.assertEqual(self.model.decode([]), "")
        self.assertEqual(self.model.encode("\ud800", False).tolist(), self.model.encode("\ufffd", False).tolist())
        with self.assertRaisesRegex(TypeError, "text: expected a text, found bytes"):
            self.model.encode(b"text")

    def test_config_is_what_inspect_prints(self):
        self.assertEqual(self.model.config.to_dict(), program.answer("inspect", FOLDER))

    def test_without_a_tokenizer(self):
        model = dofla.Model(program.FIXTURES / "gpt2")
        tokens = list(model.generate(ids=[1, 2], max_tokens=3))
        self.assertEqual([token.text for token in tokens], ["", "", ""])
        for call in (lambda: model.encode("x"), lambda: model.decode([1]), lambda: model.generate("x")):
            with self.assertRaisesRegex(dofla.Error, "tokenizer"):
                call()


class Generate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = dofla.Model(FOLDER)

    def test_the_same_as_the_program(self):
        for options in ({"seed": 3}, {"temperature": 0}, {"top_k": 5, "top_p": 0.5, "temperature": 1.5}):
            words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
            said = program.answer("generate", FOLDER, "--prompt", "The dog", "--max-tokens", 40, *words)
            tokens = list(self.model.generate("The dog", max_tokens=40, **options))
            self.assertEqual([token.id for token in tokens], said["ids"])
            self.assertEqual("".join(token.text for token in tokens), said["text"])

    def test_greedy_tokens_are_the_likeliest(self):
        ids = [1, 403, 407]
        drawn = [token.id for token in self.model.generate(ids=np.array(ids), max_tokens=8, temperature=0)]
        logits = self.model.logits(ids + drawn)
        self.assertEqual(drawn, logits[len(ids) - 1:-1].argmax(axis=1).tolist())

    def test_ends(self):
        generation = self.model.generate("The dog", max_tokens=2)
        self.assertIsNone(generation.stopped)
        self.assertEqual(len(list(generation)), 2)
        self.assertEqual(generation.stopped, "max-tokens")
        self.assertEqual(list(generation), [])
        full = self.model.generate(ids=[5] * 510, max_tokens=100, ignore_end=True)
        self.assertEqual(len(list(full)), 3)
        self.assertEqual(full.stopped, "context-full")

    def test_can_be_left(self):
        next(self.model.generate("The dog"))
        gc.collect()
        before = task_count()
        for _ in range(50):
            for token in self.model.generate("The dog"):
                break
        self.assertEqual(task_count(), before)

    def test_keeps_its_model(self):
        model = dofla.Model(FOLDER)
        expected = [token.id for token in model.generate("The dog", max_tokens=5)]
        generation = model.generate("The dog", max_tokens=5)
        first = next(generation).id
        del model
        gc.collect()
        self.assertEqual([first, *(token.id for token in generation)], expected)

    def test_wrong_arguments(self):
        for arguments, error, words in (({"temperature": -1}, ValueError, "--temperature: expected a number"),
                                        ({"temperature": float("nan")}, ValueError, "--temperature: expected"),
                                        ({"top_p": 2}, ValueError, "--top-p: expected"),
                                        ({"seed": -1}, ValueError, "--seed: expected a whole number"),
                                        ({"max_tokens": 0}, ValueError, "--max-tokens: expected"),
                                        ({"max_tokens": [1]}, TypeError, "max_tokens: expected a number"),
                                        ({"ignore_end": 1}, TypeError, "ignore_end: expected True or False"),
                                        ({"ids": [1]}, ValueError, "--ids excludes --prompt"),
                                        ({"steps": 1}, TypeError, "unexpected keyword")):
            with self.subTest(arguments), self.assertRaisesRegex(error, words):
                self.model.generate("The dog", **arguments)
        with self.assertRaisesRegex(TypeError, "prompt: expected a text, found list"):
            self.model.generate([1, 2])
        with self.assertRaisesRegex(ValueError, "id 512 is outside"):
            next(self.model.generate(ids=[512]))
        with self.assertRaisesRegex(ValueError, "one sequence"):
            self.model.generate(ids=[[1, 2]])
        with self.assertRaisesRegex(dofla.Error, "prompt has 600 tokens"):
            self.model.generate(ids=[1] * 600)


class Folders(unittest.TestCase):
    def test_errors_have_the_words_of_the_program(self):
        with self.assertRaises(dofla.Error) as failure:
            dofla.Model("/nowhere")
        self.assertIn(str(failure.exception), program.run("inspect", "/nowhere", code=1)[1])
        self.assertEqual(dofla.Error.__module__, "dofla")
        with self.assertRaisesRegex(ValueError, "no device is called tpu; expected cpu, cuda or auto"):
            dofla.Model(FOLDER, device="tpu")

    def test_left_out_is_the_built_in_one(self):
        self.assertEqual(dofla.Model().config, dofla.inspect())
        self.assertEqual(dofla.Model().config.to_dict(), program.answer("inspect"))

    def test_a_model_that_was_overwritten_is_not_believed(self):
        folder = new_path("copy")
        shutil.copytree(FOLDER, folder)
        model = dofla.Model(folder)
        with open(folder / "model.safetensors", "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"\0\0\0\0")
        for call in (lambda: model.logits([1, 2]), lambda: list(model.generate("The dog", max_tokens=1))):
            with self.assertRaisesRegex(dofla.Error, "model.safetensors"):
                call()

    def test_pickles_name_the_folder(self):
        model = dofla.Model(FOLDER)
        data = pickle.dumps(model)
        self.assertLess(len(data), 1000)
        np.testing.assert_array_equal(pickle.loads(data).logits([1, 2]), model.logits([1, 2]))
        with self.assertRaisesRegex(TypeError, "cannot pickle"):
            pickle.dumps(model.generate("The dog"))

    def test_a_forked_process_is_told_what_to_do(self):
        script = f"""
import os, dofla
model = dofla.Model({str(FOLDER)!r})
model.logits([1, 2])
if os.fork() == 0:
    try:
        model.logits([1, 2])
    except dofla.Error as error:
        print(error, flush=True)
    os._exit(3)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
        self.assertRegex(said.stdout, '^dofla has computed in the process .*"spawn".*\n3\n$')


if __name__ == "__main__":
    unittest.main()
