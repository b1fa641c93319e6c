#!/usr/bin/env python3
"""What becomes of several ranks when something goes wrong: one line that names who, nothing that waits for ever, and
what was kept can be gone on with. failure_test.py BINARY [TEST...]"""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
import unittest

import mpi
from dofla import BINARY, MODEL, SCRATCH, answer, new_path, run, text_file

TEXT = ["--data", text_file(60), "--length", 32, "--held-out", 2]
SOON = 30  # seconds in which all must be over


class Failure(unittest.TestCase):
    def expect(self, ranks, *command, words, code=1, first=""):
        """One line that has these words, and nothing on standard output."""
        out, errors = mpi.run(ranks, *command, code=code, first=first)
        self.assertEqual(out, "")
        self.assertEqual(len(mpi.said(errors)), 1, errors)
        for word in words:
            self.assertIn(word, mpi.said(errors)[0])

    def differing(self, name, contents):
        """Folders rank0, rank1, … with a file of this name that differs in the last one; a shell's way there."""
        folder = new_path("differing")
        for rank in range(2):
            (folder / f"rank{rank}").mkdir(parents=True)
            (folder / f"rank{rank}" / name).write_bytes(contents[rank])
        return f"cd {folder}/rank$RANK"


class Refused(Failure):
    def test_commands_of_one_process(self):
        for command in (["generate", MODEL, "--prompt", "a"], ["inspect", MODEL], ["teach", MODEL, "--out", "top"]):
            self.expect(2, *command, words=["by one process, and 2 were started", "leave mpirun out"], code=2)
        self.assertIn("parameters", mpi.run(1, "inspect", MODEL)[0])  # one rank may

    def test_wrong_usage(self):
        self.expect(2, "evaluate", "--nothing", words=["--nothing: no such option"], code=2)
        self.expect(3, "evaluate", MODEL, "--length", "x", words=["--length"], code=2)

    def test_help_comes_once(self):
        self.assertEqual(mpi.run(3, "distill", "--help")[0], run("distill", "--help")[0])
        self.assertEqual(mpi.run(2, "--version")[0], run("--version")[0])

    def test_a_missing_model(self):
        self.expect(2, "evaluate", SCRATCH / "none", *TEXT[:4], words=["rank 0", "none"])

    def test_the_environment(self):
        for environment, words in (
                ({"RANK": "1", "WORLD_SIZE": "4"}, "start them with mpirun -n 4"),
                ({"SLURM_STEP_NUM_TASKS": "3"}, "srun --mpi=pmix"),
                ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "another MPI"),
                ({"DOFLA_NCCL": "yes"}, "DOFLA_NCCL is yes: expected 0")):
            done = subprocess.run([BINARY, "inspect", MODEL], env={**os.environ, **environment}, capture_output=True,
                                  text=True, check=False)
            self.assertEqual(done.returncode, 1, environment)
            self.assertIn(words, done.stderr)
            self.assertEqual(done.stdout, "")


class Differences(Failure):
    def test_text(self):
        text = text_file(60).read_bytes()
        there = self.differing("text.txt", [text, text.replace(b"birds", b"foxes", 1)])
        short = self.differing("text.txt", [text, text[:len(text) // 2]])
        for command in (["distill", MODEL, "--cost", 4, "--out", "out"], ["finetune", MODEL, "--out", "out"],
                        ["sensitivity", MODEL], ["evaluate", MODEL], ["dof", MODEL]):
            for first in (there, short) if command[0] != "dof" else (there,):  # which reads the beginning alone
                self.expect(2, *command, "--data", "text.txt", "--length", 32, first=first,
                            words=["rank 1 differs from rank 0"])

    def test_questions(self):
        lines = [json.dumps({"context": f"Lily saw {i}", "continuation": "birds"}) + "\n" for i in range(4)]
        there = self.differing("words.jsonl", ["".join(lines).encode(), "".join(lines[:3]).encode()])
        self.expect(2, "evaluate", MODEL, "--last-words", "words.jsonl", first=there,
                    words=["rank 1 differs from rank 0", "questions"])
        text = text_file(60).read_bytes()
        there = self.differing("text.txt", [text, text.replace(b"birds", b"foxes", 1)])
        self.expect(2, "compare", MODEL, MODEL, "--texts", "text.txt", "--length", 32, first=there,
                    words=["rank 1 differs from rank 0", "text"])
        self.expect(2, "evaluate", MODEL, "--recall", "--distances", 30, "--questions", 2, "--data", "text.txt",
                    first=there, words=["rank 1 differs from rank 0", "prompts"])

    def test_weights(self):
        weights = bytearray((MODEL / "model.safetensors").read_bytes())
        weights[-1000] ^= 1
        there = self.differing("model.safetensors", [(MODEL / "model.safetensors").read_bytes(), bytes(weights)])
        copy = "; ".join([there, f"cp {MODEL}/config.json {MODEL}/tokenizer.json ."])
        for command in (["distill", ".", *TEXT, "--cost", 4, "--out", "out"], ["finetune", ".", *TEXT, "--out", "out"],
                        ["finetune", MODEL, "--teacher", ".", *TEXT, "--out", "out"],
                        ["evaluate", ".", *TEXT[:4]], ["dof", ".", *TEXT[:4]],
                        ["compare", MODEL, ".", "--texts", TEXT[1], "--length", 32]):
            self.expect(2, *command, first=copy, words=["rank 1 differs from rank 0", "weights"])

    def test_command_line(self):
        self.expect(2, "evaluate", MODEL, *TEXT[:4], first='[ $RANK = 0 ] || set -- "$@" --sequences 3',
                    words=["rank 1 differs from rank 0", "command line"])


class Disks(Failure):
    def test_no_place_for_the_model(self):
        out = new_path()
        out.mkdir()
        self.expect(2, "distill", MODEL, *TEXT, "--cost", 4, "--out", out, words=["rank 0", "exists already"])

    def test_a_full_disk(self):
        for command in (["finetune", MODEL], ["distill", MODEL, "--cost", 64, "--strategy", "fix"]):
            out = new_path()
            self.expect(2, *command, *TEXT, "--out", out, first="ulimit -f 64; trap '' XFSZ", words=["rank 0", ".training"])
            self.assertFalse(out.exists())

    def test_a_rank_that_fails_alone(self):
        # The text is not there for one of them.
        folder = new_path("differing")
        for rank in range(3):
            (folder / f"rank{rank}").mkdir(parents=True)
            if rank != 1:
                shutil.copy(text_file(60), folder / f"rank{rank}" / "text.txt")
        begin = time.monotonic()
        self.expect(3, "evaluate", MODEL, "--data", "text.txt", first=f"cd {folder}/rank$RANK",
                    words=["rank 1: ", "text.txt"])
        self.assertLess(time.monotonic() - begin, SOON)


class Interrupted(Failure):
    """A run that is cut short while it trains."""


    def cut(self, ranks, out, act, kind="distill"):
        """Begins a run and acts on it, given mpirun's process and the ranks' numbers, once a checkpoint is there."""
        folder = new_path("pids")
        folder.mkdir()
        begun = mpi.start(ranks, *self.command(kind, out), first=f"trap '' XFSZ; echo $$ > {folder}/$RANK")
        training = out.with_name(out.name + ".training")
        while not training.exists() or training.stat().st_size < 20000:
            self.assertIsNone(begun.poll(), begun.poll() is not None and begun.stderr.read())
            time.sleep(0.01)
        act(begun, [int((folder / str(rank)).read_text()) for rank in range(ranks)])
        errors = begun.communicate(timeout=SOON)[1]
        self.assertNotEqual(begun.returncode, 0)
        self.assertFalse(out.exists())
        self.assertTrue(training.exists())
        return begun.returncode, errors

    def command(self, kind, out):
        more = {"distill": ["--cost", 4, "--strategy", "fix", "--steps", 60],
                "finetune": ["--epochs", 3]}[kind]
        return [kind, MODEL, *TEXT, "--batch", 3, "--checkpoint-every", 2, *more, "--out", out]

    def test_a_killed_rank(self):
        out = new_path()
        _, errors = self.cut(2, out, lambda _, pids: os.kill(pids[1], signal.SIGKILL))
        self.assertRegex(errors, r"rank 1 .*signal 9")
        # The first rank writes: without it, too, the last checkpoint stands.
        again = new_path()
        self.cut(3, again, lambda _, pids: os.kill(pids[0], signal.SIGKILL))
        # And any number of ranks goes on from it.
        command = self.command("distill", out)
        mpi.run(3, *command, "--resume")
        whole = new_path()
        run(*self.command("distill", whole))
        text = ["--data", text_file(60), "--length", 32]
        loss, expected = answer("evaluate", out, *text)["loss"], answer("evaluate", whole, *text)["loss"]
        self.assertAlmostEqual(loss, expected, delta=1e-2 * expected)

    def test_a_signal_to_one_rank_stops_all(self):
        for kind in ("distill", "finetune"):
            whole, out = new_path(), new_path()
            mpi.run(2, *self.command(kind, whole))
            code, errors = self.cut(2, out, lambda _, pids: os.kill(pids[1], signal.SIGTERM), kind)
            self.assertNotEqual(code, 0)
            self.assertEqual(errors.count("go on with the same command and --resume"), 1, errors)
            # The same number of ranks ends in the same bits.
            mpi.run(2, *self.command(kind, out), "--resume")
            self.assertEqual((out / "model.safetensors").read_bytes(), (whole / "model.safetensors").read_bytes())

    def test_a_disk_that_fills_up(self):
        # Of the rank that writes, after a good checkpoint: no file may grow any more.
        def fill(_, pids):
            resource.prlimit(pids[0], resource.RLIMIT_FSIZE, (4096, 4096))

        whole = new_path()
        mpi.run(2, *self.command("finetune", whole))
        out = new_path()
        _, errors = self.cut(2, out, fill, "finetune")
        self.assertEqual(len(mpi.said(errors)), 1, errors)
        self.assertRegex(mpi.said(errors)[0], r"rank 0: .*\.training")
        self.assertEqual([path.name for path in out.parent.glob(out.name + "*")], [out.name + ".training"])
        mpi.run(2, *self.command("finetune", out), "--resume")
        self.assertEqual((out / "model.safetensors").read_bytes(), (whole / "model.safetensors").read_bytes())

    def test_another_number_of_ranks_goes_on(self):
        # Each holds the moments of its share alone: they are put together for the file, and shared out anew.
        losses = []
        for before, after in ((3, 1), (1, 3), (2, 3)):
            out = new_path()
            self.cut(before, out, lambda begun, pids: os.kill(pids[0], signal.SIGTERM), "finetune")
            log = new_path("log.jsonl")
            mpi.run(after, *self.command("finetune", out), "--resume", "--log", log)
            losses.append([json.loads(line)["loss"] for line in log.read_text().splitlines()])
        log = new_path("log.jsonl")
        run(*self.command("finetune", new_path()), "--log", log)
        expected = [json.loads(line)["loss"] for line in log.read_text().splitlines()]
        for found in losses:
            self.assertGreater(len(found), 1)
            for one, other in zip(found, expected[-len(found):]):
                self.assertAlmostEqual(one, other, delta=1e-5 * other)

    def test_what_schedulers_send(self):
        out = new_path()
        code, errors = self.cut(3, out, lambda begun, _: begun.send_signal(signal.SIGUSR1))
        self.assertEqual(code, 128 + signal.SIGUSR1)
        self.assertEqual(errors.count("go on with the same command and --resume"), 1, errors)
        run(*self.command("distill", out), "--resume")  # on one
        self.assertTrue(out.exists())


if __name__ == "__main__":
    mpi.skip_without_mpi()
    unittest.main()
