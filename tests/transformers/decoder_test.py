#!/usr/bin/env python3
"""The Python files in a student's folder, without Transformers: they compute what dofla does.

usage: decoder_test.py WRITE_STUDENTS        exits with 77 where there is no torch
"""

import copy
import importlib
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import torch
except ImportError:
    # Debian's torch belongs to Debian's Python.
    debian = "/usr/bin/python3"
    if os.path.exists(debian) and not os.environ.get("DOFLA_TORCH_LOOKED_FOR"):
        os.execve(debian, [debian, *sys.argv], {**os.environ, "DOFLA_TORCH_LOOKED_FOR": "1"})
    print("skipped: no torch; install python3-torch")
    sys.exit(77)

from students import all_students

torch.set_num_threads(1)
REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = REPOSITORY / "dofla/linear/transformers"


def load_modules(folder):
    """The files of a folder as a package, the way Transformers imports them."""
    sys.path.insert(0, str(folder.parent))
    for name in [name for name in sys.modules if name.split(".")[0] == folder.name]:
        del sys.modules[name]
    try:
        return importlib.import_module(folder.name + ".decoder_dofla")
    finally:
        sys.path.pop(0)


class Students(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        subprocess.run([WRITE_STUDENTS, cls.scratch.name], check=True)
        cls.students = all_students(cls.scratch.name)
        cls.decoder = load_modules(cls.students[0].folder)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def models(self):
        for student in self.students:
            model = self.decoder.Decoder(student.config["teacher"], student.config["linear_attention"])
            model.load_state_dict(student.tensors, strict=True)
            yield student, model

    def test_every_folder_has_the_files_of_the_repository(self):
        for student in self.students:
            for source in SOURCES.glob("*.py"):
                self.assertEqual((student.folder / source.name).read_text(), source.read_text())
            self.assertEqual(student.config["model_type"], "dofla")
            self.assertEqual(student.config["architectures"], ["DoflaForCausalLM"])
            for file_and_class in student.config["auto_map"].values():
                module, name = file_and_class.split(".")
                self.assertIn(f"class {name}(", (student.folder / f"{module}.py").read_text())

    def test_logits_of_whole_texts(self):
        for student, model in self.models():
            with torch.no_grad():
                logits = model.logits(model.decode(student.expected["ids"]))
            student.require_near(logits, student.expected["logits"], "logits")

    def test_logits_in_parts_and_token_by_token(self):
        for student, model in self.models():
            ids = student.expected["ids"]
            for parts in ([7, 1, 5, 16, ids.shape[1] - 29], [1] * ids.shape[1]):
                states, past, rows = [None] * model.spec.layers, 0, []
                with torch.no_grad():
                    for count in parts:
                        rows.append(model.decode(ids[:, past : past + count], states, past))
                        past += count
                        states = copy.deepcopy(states)  # as those do who go on from one prompt twice
                    logits = model.logits(torch.cat(rows, dim=1))
                student.require_near(logits, student.expected["logits"], f"logits in {len(parts)} parts")

    def test_greedy_tokens_from_a_state_that_does_not_grow(self):
        for student, model in self.models():
            greedy = student.expected["greedy"]
            prompt = student.expected["ids"][:, : 43 - greedy.shape[1]]
            states, past, ids, found, sizes = [None] * model.spec.layers, 0, prompt, [], []
            with torch.no_grad():
                for _ in range(greedy.shape[1]):
                    x = model.decode(ids, states, past)
                    past, ids = past + ids.shape[1], model.logits(x[:, -1:]).argmax(-1)
                    found.append(ids)
                    sizes.append([sum(x.numel() for x in tensors_of(state)) for state in states])
            self.assertTrue(torch.equal(torch.cat(found, dim=1), greedy))
            for layer in range(model.spec.layers):
                own = [size[layer] for size in sizes]
                if model.exact[layer]:  # between two evictions it fills up again
                    self.assertLessEqual(max(own[4:]), max(own[:4]))
                elif model.linear_attention[layer].counts:
                    self.assertEqual(len(set(own)), 1)

    def test_gradients(self):
        for student, model in self.models():
            ids = student.expected["ids"]
            logits = model.logits(model.decode(ids))[:, :-1].flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten())
            student.require_near(loss, student.expected["loss"][0], "loss")
            loss.backward()
            student.require_gradients(model.named_parameters())


def tensors_of(state):
    if isinstance(state, torch.Tensor):
        yield state
    elif state is not None:
        for part in state:
            yield from tensors_of(part)


class Extremes(unittest.TestCase):
    """Features whose logarithms lie far outside the range of exp: beside a later, larger key of the same chunk
    everything that an earlier row sees would vanish."""

    def test_chunks_of_any_size(self):
        load_modules(SOURCES)
        attention = sys.modules["transformers.attention_dofla"]
        Features = sys.modules["transformers.features_dofla"].Features
        torch.manual_seed(1)
        q, k, v = 30 * torch.randn(1, 2, 23, 8), 30 * torch.randn(1, 2, 23, 8), torch.randn(1, 2, 23, 8)
        features = Features([5, 3], 2, 2, 8, untied=True, subtract_norm=True, coordinates=False)
        with torch.no_grad():
            features.z.mul_(20)
            features.u.mul_(20)
            exact = definition(q.double(), k.double(), v.double(), features.double())
            features.float()
            for chunk in (1, 4, 16, 23):
                out, _ = attention.linear_attention(q, k, v, features, chunk=chunk)
                self.assertTrue(torch.isfinite(out).all())
                largest = float(features.of_keys(k)[features.of_keys(k) > -float("inf")].abs().max())
                # A weight e^x is off by the rounding of x, relative to itself.
                tolerance = 8 * torch.finfo(torch.float32).eps * largest * float(v.abs().max())
                self.assertLessEqual(float((out - exact).abs().max()), tolerance)


def definition(q, k, v, features):
    """Linear attention by its formula: every pair by itself, in double precision."""
    log_q, log_k = features.of_queries(q)[:, :, 0], features.of_keys(k)  # [B, H, T, M]
    pairs = torch.logsumexp(log_q[..., :, None, :] + log_k[..., None, :, :], dim=-1)
    hidden = torch.ones(pairs.shape[-2:]).triu(1).bool()
    return torch.softmax(pairs.masked_fill(hidden, -float("inf")), dim=-1) @ v


if __name__ == "__main__":
    WRITE_STUDENTS = sys.argv.pop(1)
    unittest.main(verbosity=1)
