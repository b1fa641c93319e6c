#!/usr/bin/env python3
"""tools/install_packages.sh asks for what is missing and leaves nothing behind, least of all a file that another user
could have put in the way: it runs as root. No package is installed here: dpkg-query, apt-get and id are made up."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "install_packages.sh"


class InstallPackages(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.commands, self.temporary = Path(scratch.name, "bin"), Path(scratch.name, "tmp")
        self.commands.mkdir()
        self.temporary.mkdir()
        self.command("dpkg-query", "exit 1")  # nothing is there
        self.command("id", "echo 0")

    def command(self, name, script):
        path = self.commands / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run_script(self, *sets):
        return subprocess.run(["sh", SCRIPT, *sets], capture_output=True, text=True, env={
            **os.environ, "PATH": f"{self.commands}:{os.environ['PATH']}", "TMPDIR": str(self.temporary)})

    def test_what_is_there_is_not_asked_for(self):
        self.command("dpkg-query", "echo 'install ok installed'")
        self.command("apt-get", "echo it was called; exit 1")
        done = self.run_script()
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_what_is_missing_is_installed(self):
        self.command("apt-get", f"echo \"$@\" >> {self.commands}/asked; ls {self.temporary} >> {self.commands}/logs")
        done = self.run_script("torch")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("python3-torch", done.stdout)
        self.assertEqual((self.commands / "asked").read_text(),
                         "update\ninstall -y --no-install-recommends python3-torch\n")
        self.assertEqual(list(self.temporary.iterdir()), [])

    def test_its_log_has_a_name_that_nobody_can_foresee(self):
        self.command("apt-get", f"ls {self.temporary} >> {self.commands}/logs")
        for _ in range(2):
            self.run_script("torch")
        names = set((self.commands / "logs").read_text().split())
        self.assertEqual(len(names), 2)

    def test_a_failure_is_shown(self):
        self.command("apt-get", "echo no network; exit 1")
        done = self.run_script("torch")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no network", done.stderr)
        self.assertEqual(list(self.temporary.iterdir()), [])

    def test_without_root_the_command_is_told(self):
        self.command("id", "echo 1000")
        self.command("apt-get", "echo it was called; exit 1")
        done = self.run_script("torch")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("sudo sh -c 'apt-get update && apt-get install", done.stderr)

    def test_sets_are_known_by_name(self):
        done = self.run_script("everything")
        self.assertEqual(done.returncode, 2)
        self.assertIn("everything is not a set", done.stderr)


if __name__ == "__main__":
    unittest.main()
