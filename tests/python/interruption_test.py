#!/usr/bin/env python3
"""Ctrl-C in a program that computes with dofla: work ends in good order, with KeyboardInterrupt."""

import signal
import subprocess
import sys
import unittest

from support import FOLDER, TEXT, dofla, new_path, program

HEADING = f"import dofla, numpy\nfolder, text = {str(FOLDER)!r}, {str(TEXT)!r}\n"


def interrupt(script, signal_number=signal.SIGINT):
    """Runs a script, sends the signal once it has said something; returns its exit code and what it said."""
    process = subprocess.Popen([sys.executable, "-W", "always", "-c", HEADING + script], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    first = process.stdout.readline()
    process.send_signal(signal_number)
    rest, _ = process.communicate(timeout=120)
    return process.returncode, first + rest


DISTILL = """
def tell(update):
    if update.training: print("step", update.training.step, flush=True)
numpy.ones((300, 300)) @ numpy.ones((300, 300))  # numpy has threads of its own then
dofla.distill(folder, data=text, length=32, held_out=2, cost=8, strategy="fix", batch=2, steps={steps}, out={out!r},
              resume={resume}, progress=tell)
"""


class CtrlC(unittest.TestCase):
    def test_in_distill_keeps_the_run(self):
        out = new_path()
        code, said = interrupt(DISTILL.format(steps=100000, out=str(out), resume=False))
        self.assertEqual(code, -signal.SIGINT, said)  # as Python ends on KeyboardInterrupt
        self.assertRegex(said, "\nKeyboardInterrupt")
        self.assertIn("go on with the same command and --resume", said)
        self.assertFalse(out.exists())
        last = int(said.split("step ")[-1].split("\n")[0])
        code, said = interrupt(DISTILL.format(steps=100000, out=str(out), resume=True))
        self.assertGreaterEqual(int(said.split()[1]), last)  # it went on from there

    def test_is_an_exception_that_can_be_caught(self):
        code, said = interrupt("""
def tell(update): print("started", flush=True)
while True:
    try:
        dofla.evaluate(folder, data=[text] * 200, length=64, progress=tell)
    except KeyboardInterrupt:
        break
print(dofla.Model(folder).logits([1, 2]).shape)
""")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"\(2, 512\)\n$")

    def test_while_tokens_come(self):
        code, said = interrupt("""
model = dofla.Model(folder)
while True:
    for token in model.generate("The dog", ignore_end=True, max_tokens=400): print(token.id, flush=True)
""")
        self.assertEqual(code, -signal.SIGINT, said)
        self.assertRegex(said, "\nKeyboardInterrupt")

    def test_a_handler_of_the_users_own_runs(self):
        code, said = interrupt("""
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
def tell(update): print("started", flush=True)
while True: dofla.evaluate(folder, data=[text] * 200, length=64, progress=tell)
""", signal.SIGTERM)
        self.assertEqual(code, 7, said)

    def test_without_a_handler_a_signal_ends_the_process(self):
        code, said = interrupt("""
print("started", flush=True)
while True: dofla.Model(folder).logits([[1] * 512] * 16)
""", signal.SIGTERM)
        self.assertEqual(code, -signal.SIGTERM, said)


class End(unittest.TestCase):
    def test_of_a_process_whose_daemon_threads_compute(self):
        for progress in ("None", "lambda update: time.sleep(0)"):
            script = HEADING + f"""
import threading, time
def work():
    while True: dofla.evaluate(folder, data=[text] * 20, length=64, progress={progress})
def draw():
    while True: list(dofla.Model(folder).generate("The dog"))
threads = [threading.Thread(target=target, daemon=True) for target in (work, draw)]
for thread in threads: thread.start()
dofla.evaluate(folder, data=[text] * 20, length=64)
print("leaving")
"""
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "leaving\n", ""))


if __name__ == "__main__":
    unittest.main()
