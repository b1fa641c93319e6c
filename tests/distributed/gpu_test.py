#!/usr/bin/env python3
"""Training on GPUs by ranks: what one process finds, by whichever way tensors go. gpu_test.py BINARY [TEST...]"""

import os
import subprocess
import sys
import unittest
from unittest import mock

import mpi
from dofla import BINARY, MODEL, sentences, text_file, write
from equality_test import Equality

COMMANDS = [
    ["distill", "--data", write("wiki.txt", sentences(60)), "--length", 48, "--sequences", 12, "--held-out", 3,
     "--steps", 4, "--cost", 8, "--strategy", "fix", "--batch", 5, "--device", "cuda"],
    ["finetune", MODEL, "--data", text_file(40), "--length", 32, "--held-out", 2, "--batch", 5, "--epochs", 2,
     "--device", "cuda"],
]


# Products on a GPU are of bf16, which keeps 2^-8 of a number, and those of fewer rows may add up in another order: gradients
# then differ by as much, and losses by a fraction of it.
OF_BF16 = 2.0**-8 / 8


def skip_without_gpu():
    alone = subprocess.run([BINARY, "evaluate", MODEL, "--data", text_file(40), "--device", "cuda"], capture_output=True,
                           text=True, check=False)
    if "GPU" in alone.stderr:
        print(f"skipped: {alone.stderr.strip()}")
        sys.exit(mpi.SKIPPED)


class OneRank(Equality):
    def test_as_one_of_several(self):
        for command in COMMANDS:
            alone = self.trained(1, *command)[2]
            with mock.patch.dict(os.environ, DOFLA_NCCL="always"):
                connected = self.trained(1, *command)[2]
            self.assertEqual((connected / "model.safetensors").read_bytes(), (alone / "model.safetensors").read_bytes())


@unittest.skipUnless(mpi.MPIRUN, "there is no mpirun (openmpi-bin)")
class Ranks(Equality):
    def test_two_find_what_one_finds(self):
        # They share a GPU where there is only one.
        for command in COMMANDS:
            self.equal_training(*command, ranks=(2,), tolerance=OF_BF16)

    def test_every_way_has_the_same_bits(self):
        for command in COMMANDS:
            found = [self.trained(2, *command, first=first)[2] for first in ("", "export DOFLA_NCCL=0")]
            models = [(out / "model.safetensors").read_bytes() for out in found]
            self.assertEqual(models[0], models[1])


if __name__ == "__main__":
    skip_without_gpu()
    unittest.main()
