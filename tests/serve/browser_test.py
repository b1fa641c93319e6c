"""The page of dofla serve in headless Chromium: two models answer side by side, their disagreement is coloured,
everything comes from the server, hostile text stays text, and it fits a phone.

Usage: browser_test.py DOFLA. Exits with 77, skipped, where there is no Chromium."""

import json
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))

import chromium
from server import MODEL, Server

binary = None
PATIENCE_S = 60
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>&lt;b&gt;"


class ServePage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(binary, MODEL, MODEL, "--alias", "teacher", "student", "--chat-template", "zephyr")
        cls.addClassCleanup(cls.server.__exit__)
        cls.browser = chromium.Chromium(chromium.find())
        cls.addClassCleanup(cls.browser.__exit__)

    def setUp(self):
        self.browser.resize(1280, 900)
        self.browser.emulate()
        self.browser.open_address(self.server.url + "/")
        self.until("models.length === 2")

    def tearDown(self):
        self.assertEqual(self.browser.console_messages, [])

    def until(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while not self.browser.evaluate(condition):
            self.assertLess(time.monotonic(), deadline, condition + "; " + str(
                self.browser.evaluate("document.getElementById('problem').textContent")))
            time.sleep(0.02)

    def ask(self, prompt, **options):
        for name, value in {"prompt": prompt, "max_tokens": 12, "temperature": 0, **options}.items():
            self.browser.evaluate(f"document.getElementById('{name}').value = {json.dumps(str(value))}")
        self.browser.evaluate("document.getElementById('go').click()")
        self.until("document.getElementById('go').disabled === false")

    def texts(self):
        return self.browser.evaluate("[...document.querySelectorAll('.text')].map(box => box.textContent)")

    def test_everything_comes_from_the_server(self):
        self.ask("Once upon a time")
        self.assertTrue(all(url.startswith((self.server.url, "data:")) for url in self.browser.requests()))

    def test_two_models_side_by_side(self):
        self.ask("Once upon a time")
        wanted = self.server.answer("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 12,
                                                        "temperature": 0})["choices"][0]["text"]
        self.assertEqual(self.texts(), ["Once upon a time" + wanted] * 2)
        facts = self.browser.evaluate("[...document.querySelectorAll('.facts')].map(one => one.textContent)")
        for fact in facts:
            self.assertRegex(fact, r"12 tokens, [\d.]+ tokens/s, .* memory [\d.]+ [kM]B; apart by 0\.00 nats a token")
        # The two are the same model: no token is coloured.
        levels = self.browser.evaluate("[...document.querySelectorAll('.token')].map(one => one.className)")
        self.assertEqual(set(levels), {"token d0"})
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('#memory .curve').length"), 2)
        self.browser.evaluate("document.querySelector('.token').click()")
        self.assertRegex(self.browser.evaluate("document.getElementById('detail').textContent"),
                         r"teacher gives [\d.e+]+ %, likeliest .*student gives")

    def test_disagreement_is_coloured(self):
        levels = self.browser.evaluate("[0, 0.04, 0.5, 1.5, 3, 20].map(level)")
        self.assertEqual(levels[0], 0)
        self.assertEqual(levels, sorted(levels))
        self.assertEqual(levels[-2:], [7, 7])
        shades = self.browser.evaluate("""[0, 2, 4, 7].map(i => {
          const token = document.createElement('span');
          token.className = 'token d' + i;
          document.body.append(token);
          return getComputedStyle(token).backgroundColor;
        })""")
        self.assertEqual(len(set(shades)), 4)

    def test_a_conversation(self):
        self.browser.evaluate("document.getElementById('chat-mode').click()")
        self.ask("Hello")
        self.assertEqual(self.browser.evaluate("document.getElementById('problem').textContent"), "")
        first = self.texts()
        self.ask("And then?")
        messages = self.browser.evaluate("messagesFor(0)")
        self.assertEqual([message["role"] for message in messages], ["user", "assistant"] * 2)
        self.assertEqual(messages[1]["content"].strip(), first[0].strip())

    def test_hostile_text_stays_text(self):
        self.ask(HOSTILE)
        self.assertTrue(self.texts()[0].startswith(HOSTILE))
        self.assertEqual(self.browser.evaluate("document.querySelectorAll('main img, main script').length"), 0)

    def test_what_goes_wrong_is_shown(self):
        self.ask("word " * 2000)
        self.assertIn("shorten it", self.browser.evaluate("document.getElementById('problem').textContent"))
        self.assertEqual(len(self.browser.console_messages), 2)  # Chromium's own note of each 400
        self.browser.console_messages.clear()

    def test_an_answer_can_be_stopped(self):
        self.browser.evaluate("document.getElementById('max_tokens').value = 400")
        self.browser.evaluate("document.getElementById('go').click(); document.getElementById('stop').click()")
        self.until("document.getElementById('go').disabled === false")
        self.assertEqual(self.browser.evaluate("document.getElementById('problem').textContent"), "")

    def test_fits_a_phone_in_both_modes(self):
        self.ask("Once upon a time")
        for width in (400, 320, 1280):
            self.browser.resize(width, 844, phone=width < 1000)
            self.assertLessEqual(self.browser.evaluate("document.documentElement.scrollWidth"), width)

    def test_dark_and_light_can_be_read(self):
        contrast = """(() => {
          const lightness = colour => {
            const [r, g, b] = colour.match(/[\\d.]+/g).map(v => (v / 255) ** 2.2);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const paper = getComputedStyle(document.body).backgroundColor;
          const ratio = colour => {
            const [a, b] = [colour, paper].map(lightness).sort((x, y) => y - x);
            return (a + 0.05) / (b + 0.05);
          };
          return [paper, ratio(getComputedStyle(document.body).color),
                  ratio(getComputedStyle(document.getElementById('legend')).color)];
        })()"""
        light = self.browser.evaluate(contrast)
        self.browser.emulate(colours="dark")
        dark = self.browser.evaluate(contrast)
        self.assertNotEqual(light[0], dark[0])
        self.assertGreater(min(light[1], dark[1]), 7)
        self.assertGreater(min(light[2], dark[2]), 4.5)


if __name__ == "__main__":
    if chromium.find() is None:
        print("skipped: no chromium in PATH")
        sys.exit(77)
    binary = sys.argv.pop(1)
    unittest.main(verbosity=2)
