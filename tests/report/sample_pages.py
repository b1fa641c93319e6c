"""Tests of sample pages in headless Chromium: what the tests of both pages have in common."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import chromium

write_sample_page = None  # the program that writes a sample page, from the command line


class SamplePages(unittest.TestCase):
    """Opens pages in one browser. A subclass names its SAMPLES; their files are in `pages`."""

    SAMPLES = ()

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.pages = {}
        for sample in cls.SAMPLES:
            cls.pages[sample] = pathlib.Path(cls.folder.name) / f"{sample}.html"
            with open(cls.pages[sample], "wb") as page:
                subprocess.run([write_sample_page, sample], stdout=page, check=True)
        cls.browser = chromium.Chromium(chromium.find())
        cls.addClassCleanup(cls.browser.__exit__)

    def tearDown(self):
        self.assertEqual(self.browser.console_messages, [])


def main():
    """Runs the tests of the program; exits with 77, skipped, where there is no Chromium."""
    global write_sample_page
    if chromium.find() is None:
        print("skipped: no chromium in PATH")
        sys.exit(77)
    write_sample_page = sys.argv.pop(1)
    unittest.main(verbosity=2)
