"""Opens the report page in headless Chromium: it must draw without a message on the console, show
values under the pointer and the focus, fit a phone and print.

Usage: browser_test.py WRITE_SAMPLE_PAGE. Exits with 77, skipped, where there is no Chromium.
"""

import base64
import re

import sample_pages


class ReportPage(sample_pages.SamplePages):
    SAMPLES = ("paper", "hostile", "large")

    def open(self, sample):
        self.browser.resize(1280, 900)
        self.browser.emulate()
        self.browser.move_pointer(0, 0)
        self.browser.open(self.pages[sample])

    def tip(self):
        """The text of the tip, None while it is hidden."""
        return self.browser.evaluate("tip.hidden ? null : tip.textContent")

    def centre(self, selector):
        """The middle of an element, scrolled into view."""
        return self.browser.evaluate(
            f"""(() => {{
              const element = document.querySelector('{selector}');
              element.scrollIntoView({{block: 'center'}});
              const box = element.getBoundingClientRect();
              return [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
            }})()"""
        )

    def test_draws_without_console_messages_and_without_the_network(self):
        for sample, page in self.pages.items():
            with self.subTest(sample):
                self.open(sample)
                self.assertEqual(self.browser.console_messages, [])
                asked = [url for url in self.browser.requests() if not url.startswith("data:")]
                self.assertEqual(asked, [page.as_uri()])
                sizes = self.browser.evaluate(
                    "[...document.querySelectorAll('.chart')].map(c => c.getBBox().height)"
                )
                # Only the hostile page has errors of layers to draw.
                self.assertEqual(len(sizes), 6 if sample == "hostile" else 5)
                self.assertGreater(min(sizes), 100)

    def test_hovering_a_cell_shows_its_value(self):
        self.open("paper")
        self.assertIsNone(self.tip())
        self.browser.move_pointer(*self.centre('.cell[data-row="1"][data-col="4"]'))
        self.assertEqual(
            self.tip(), "Layer 2, head 5: 173.8 ± 7 degrees of freedom, the largest of its layer"
        )
        self.browser.move_pointer(1, 1)
        self.assertIsNone(self.tip())

    def test_focusing_a_cell_shows_its_value(self):
        self.open("paper")
        self.browser.evaluate("document.querySelector('.cell').focus()")
        self.assertIn("Layer 1, head 1: 4.7", self.tip())
        for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
            self.browser.press(key)
        self.assertIn("Layer 2, head 3: 155.1", self.tip())
        self.browser.press("Escape")
        self.assertIsNone(self.tip())

    def test_the_tab_key_reaches_the_cells(self):
        self.open("paper")
        self.browser.press("Tab")
        self.assertIn("Layer 1, head 1: 4.7", self.tip())

    def test_every_cell_can_be_focused(self):
        self.open("paper")
        seen = self.browser.evaluate(
            """[...document.querySelectorAll('.cell')].filter(cell => {
              cell.focus();
              return tip.textContent === cell.getAttribute('aria-label') && !tip.hidden;
            }).length"""
        )
        self.assertEqual(seen, 144)

    def test_bars_show_their_value(self):
        self.open("paper")
        self.browser.move_pointer(*self.centre('.bar[data-row="1"] .fill'))
        self.assertEqual(self.tip(), "Layer 2: M = 182 ± 9.1")

    def test_curves_show_the_nearest_point(self):
        self.open("paper")
        self.browser.evaluate("document.querySelector('.by-lambda .series').focus()")
        for _ in range(8):
            self.browser.press("ArrowRight")
        # Eight steps from 2^-16: the degrees of freedom of layer 1 in the paper's table.
        self.assertEqual(self.tip(), "Layer 1: λ = 2⁻⁸, degrees of freedom 150")
        self.browser.press("ArrowDown")
        self.assertIn("Layer 2: λ =", self.tip())
        self.browser.evaluate("document.activeElement.blur()")
        x, y = self.browser.evaluate(
            """(() => {
              const svg = document.querySelector('.by-lambda');
              const [, x, y] = svg.querySelectorAll('.series')[1].getAttribute('d')
                                  .match(/L([\\d.]+) ([\\d.]+)$/);
              const at = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
              return [at.x, at.y];
            })()"""
        )
        self.browser.move_pointer(x + 2, y + 2)
        self.assertIn("λ = 2⁰, degrees of freedom", self.tip())

    def test_a_phone_needs_no_sideways_scrolling(self):
        for sample in self.pages:
            with self.subTest(sample):
                self.open(sample)
                self.browser.resize(390, 844, phone=True)
                self.browser.evaluate(
                    "document.querySelectorAll('details').forEach(d => d.open = true)"
                )
                self.assertLessEqual(
                    self.browser.evaluate("document.documentElement.scrollWidth"), 390
                )
                # The tip of the last column must not widen the page either.
                self.browser.evaluate("[...document.querySelectorAll('.cell')].pop().focus()")
                self.assertIsNotNone(self.tip())
                self.assertLessEqual(
                    self.browser.evaluate("document.documentElement.scrollWidth"), 390
                )

    def test_dark_and_light_differ_and_both_can_be_read(self):
        contrast = """(() => {
          const lightness = colour => {
            const [r, g, b] = colour.match(/[\\d.]+/g).map(v => (v / 255) ** 2.2);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const style = getComputedStyle(document.body);
          const [a, b] = [style.color, style.backgroundColor].map(lightness).sort((x, y) => y - x);
          return {ratio: (a + 0.05) / (b + 0.05), paper: style.backgroundColor};
        })()"""
        self.open("paper")
        light = self.browser.evaluate(contrast)
        self.browser.emulate(colours="dark")
        dark = self.browser.evaluate(contrast)
        self.assertNotEqual(light["paper"], dark["paper"])
        self.assertGreater(min(light["ratio"], dark["ratio"]), 7)  # WCAG AAA

    def test_prints_with_the_numbers_open(self):
        self.open("paper")
        self.browser.evaluate(
            """addEventListener('afterprint', () => { window.printed = true; });
               addEventListener('beforeprint', () => {
                 window.open_in_print = document.querySelectorAll('details[open]').length;
               });"""
        )
        pdf = base64.b64decode(self.browser.send("Page.printToPDF", printBackground=True)["data"])
        pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
        self.assertTrue(2 <= pages <= 8, pages)
        self.assertEqual(self.browser.evaluate("window.open_in_print"), 5)
        self.assertEqual(
            self.browser.evaluate("document.querySelectorAll('details[open]').length"), 0
        )
        # As wide as the paper, with every table open: nothing sticks out.
        self.browser.resize(794 - 106, 1000)
        self.browser.emulate(media="print")
        self.browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        self.assertLessEqual(
            self.browser.evaluate("document.documentElement.scrollWidth"), 794 - 106
        )


if __name__ == "__main__":
    sample_pages.main()
