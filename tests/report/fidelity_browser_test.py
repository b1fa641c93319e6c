"""Opens the page of dofla compare in headless Chromium: it draws without console messages and without the
network, can be read on a wide screen and on a phone, dark and light, and nothing in it comes alive.

Usage: fidelity_browser_test.py WRITE_SAMPLE_PAGE. Exits with 77, skipped, without Chromium."""

import sample_pages

CONTRAST = """(() => {
  const lightness = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(v => (v / 255) ** 2.2);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [a, b] = [one, other].map(lightness).sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const paper = getComputedStyle(document.body).backgroundColor;
  const badges = [...document.querySelectorAll('.badge')].map(getComputedStyle);
  return {paper, text: ratio(getComputedStyle(document.body).color, paper),
          badges: Math.min(...badges.map(s => ratio(s.color, s.backgroundColor)))};
})()"""


class FidelityPage(sample_pages.SamplePages):
    SAMPLES = ("fidelity", "fidelity-hostile")

    def open(self, sample, width=1400, colours="light"):
        self.browser.resize(width, 900, phone=width < 500)
        self.browser.emulate(colours=colours)
        self.browser.open(self.pages[sample])

    def test_draws_without_the_network(self):
        for sample, page in self.pages.items():
            with self.subTest(sample):
                self.open(sample)
                asked = [url for url in self.browser.requests() if not url.startswith("data:")]
                self.assertEqual(asked, [page.as_uri()])
                heights = self.browser.evaluate(
                    "[...document.querySelectorAll('.chart')].map(c => c.getBBox().height)")
                self.assertEqual(len(heights), 8)  # six, and the heads of both students
                self.assertGreater(min(heights), 60)

    def test_the_verdict_is_seen_first(self):
        self.open("fidelity")
        cards = self.browser.evaluate(
            """[...document.querySelectorAll('.card')].map(card => [
                 card.querySelector('.badge').textContent, card.getBoundingClientRect().top])""")
        # The hybrid is equal on the first text and close on the second, but recalls half as much.
        self.assertEqual([grade for grade, _ in cards], ["far", "far"])
        self.assertLess(max(top for _, top in cards), 300)
        self.assertEqual(self.browser.evaluate(
            "[...document.querySelectorAll('.card')].pop().querySelector('.findings .equal b')"
            ".textContent"), "wiki")

    def test_fits_wide_screens_and_phones(self):
        for sample in self.pages:
            for width in (1400, 400):
                with self.subTest(sample=sample, width=width):
                    self.open(sample, width)
                    self.browser.evaluate(
                        "document.querySelectorAll('details').forEach(d => d.open = true)")
                    self.assertLessEqual(
                        self.browser.evaluate("document.documentElement.scrollWidth"), width)

    def test_charts_and_tables_can_be_read_on_a_phone(self):
        self.open("fidelity", 400)
        smallest = self.browser.evaluate(
            """Math.min(...[...document.querySelectorAll('.chart text')].map(text => {
                 const {a, b} = text.getScreenCTM();
                 return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b);
               }))""")
        self.assertGreater(smallest, 8.5)
        # A title of an axis does not stand on the numbers beside it.
        self.assertEqual(self.browser.evaluate(
            """[...document.querySelectorAll('.chart')].filter(chart => {
                 const boxes = of => [...chart.querySelectorAll(of)].map(t => t.getBoundingClientRect());
                 return boxes('.axis-title').some(a => boxes('.tick-label').some(b =>
                   a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom));
               }).length"""), 0)
        # The baselines: the number is seen without scrolling.
        right = self.browser.evaluate(
            """[...document.querySelectorAll('td')].find(c => c.textContent == '+0.0600')
                 .getBoundingClientRect().right""")
        self.assertLessEqual(right, 400)

    def test_dark_and_light_can_both_be_read(self):
        self.open("fidelity")
        light = self.browser.evaluate(CONTRAST)
        self.open("fidelity", colours="dark")
        dark = self.browser.evaluate(CONTRAST)
        self.assertNotEqual(light["paper"], dark["paper"])
        self.assertGreater(min(light["text"], dark["text"]), 7)
        self.assertGreater(min(light["badges"], dark["badges"]), 4.5)

    def test_hostile_names_and_texts_stay_text(self):
        self.open("fidelity-hostile")
        alive = self.browser.evaluate(
            "[document.querySelectorAll('main script, img').length,"
            " document.querySelectorAll('[onerror]').length]")
        self.assertEqual(alive, [0, 0])
        self.assertIn("<script>alert(1)</script>", self.browser.evaluate(
            "document.querySelector('.context').textContent"))

    def test_a_dot_shows_its_value(self):
        self.open("fidelity")
        self.browser.evaluate("document.querySelector('.overview .dot').focus()")
        self.assertEqual(
            self.browser.evaluate("tip.textContent"),
            "linear, wiki: KL 0.4, 60 % of the likeliest tokens the same")


if __name__ == "__main__":
    sample_pages.main()
