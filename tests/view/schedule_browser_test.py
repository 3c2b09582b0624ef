#!/usr/bin/env python3
"""Pages of `trestle view --out page.html` in headless Chromium.

    schedule_browser_test.py WRITER FOLDER [--pictures]

WRITER is the program write_schedule_pages, and FOLDER is a scratch folder. --pictures leaves screenshots there.
"""
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from browser.chromium import Chromium, Screen  # noqa: E402

PHONE = dict(width=390, height=844, touch=True, scale=2)
FACTS = "document.getElementById('facts').textContent"
RANGE = "[Number(document.getElementById('drawing').dataset.begin), Number(document.getElementById('drawing').dataset.end)]"
# The words of all panels, with the pixels that they take.
WORDS = """(() => {
  const words = [], pen = CanvasRenderingContext2D.prototype, draw = pen.fillText;
  const canvases = [...document.querySelectorAll('canvas')];
  pen.fillText = function (word, x, y) {
    const wide = this.measureText(word).width, begin = this.textAlign === 'center' ? x - wide / 2 : x;
    words.push({ word: String(word), begin, end: begin + wide, y, canvas: canvases.indexOf(this.canvas),
                 width: this.canvas.clientWidth });
    return draw.call(this, word, x, y);
  };
  document.getElementById('whole').click();
  pen.fillText = draw;
  return words;
})()"""
# The first panel's picture.
PIXELS = "document.querySelector('canvas').toDataURL()"


class PagesOfSchedules(unittest.TestCase):
    writer = folder = browser = None

    def open(self, name, **screen):
        page = self.browser.open(self.folder / f"{name}.html", Screen(**screen))
        self.addCleanup(page.close)
        return page

    def focused(self):
        page = self.open("schedules")
        page.run("document.getElementById('drawing').focus()")
        return page

    def test_loads_without_errors_and_without_other_files(self):
        for name in ("schedules", "hostile"):
            for screen in ({}, PHONE):
                with self.subTest(page=name, screen=screen):
                    page = self.open(name, **screen)
                    self.assertEqual(page.errors(), [])
                    words = page.run("document.body.innerText")
                    for wrong in ("undefined", "NaN", "[object"):
                        self.assertNotIn(wrong, words)
                    self.assertEqual([url for url in page.requests() if not url.startswith(("file:", "data:"))], [])
                    self.assertLessEqual(page.run("document.documentElement.scrollWidth"),
                                         page.run("window.innerWidth"), "nothing is wider than the screen")

    def test_names_are_text(self):
        page = self.open("hostile")
        self.assertIsNone(page.run("window.broken"))
        self.assertEqual(page.run("document.querySelectorAll('img').length"), 0)
        page = self.open("schedules")
        self.assertIn("long <b>skip", page.run("document.getElementById('skip').textContent"))

    def test_the_keyboard_alone_reads_zooms_and_follows(self):
        page = self.focused()
        page.press("ArrowRight")
        self.assertIn("zbv · rank 0 · forward of micro-batch 0 of stage 0 · 0 slots to", page.run(FACTS))
        page.press("ArrowRight")
        self.assertIn("forward of micro-batch 1 of stage 0", page.run(FACTS))
        page.press("ArrowDown")
        self.assertIn("rank 1", page.run(FACTS))
        whole = page.run(RANGE)
        page.press("+")
        begin, end = page.run(RANGE)
        self.assertAlmostEqual(end - begin, (whole[1] - whole[0]) / 2)
        page.press("0")
        self.assertEqual(page.run(RANGE), whole)
        before = page.run(PIXELS)
        page.press("f")
        self.assertNotEqual(page.run("document.getElementById('drawing').dataset.batch"), "")
        self.assertNotEqual(page.run(PIXELS), before, "what is followed stands out")
        page.press("Escape")
        self.assertEqual(page.run("document.getElementById('drawing').dataset.batch"), "")
        for _ in range(4):
            page.press("ArrowDown")
        self.assertIn("1f1b", page.run(FACTS), "the arrow leads to the next panel")
        self.assertEqual(page.errors(), [])

    # Without bytes the page counts live activations, as the SVG does.
    def test_ranks_show_what_they_keep(self):
        counted = [one["word"] for one in self.open("counted").run(WORDS)]
        self.assertEqual([word for word in counted if word.endswith("live")],
                         ["peak 4 live", "peak 3 live", "peak 2 live", "peak 1 live"])
        self.assertNotIn("0 B", counted)
        self.assertIn("4.0 MiB", [one["word"] for one in self.open("schedules").run(WORDS)])

    def test_words_are_apart_and_inside_the_picture(self):
        for width in (390, 600, 900, 1600):
            page = self.open("schedules", width=width)
            rows = {}
            for one in page.run(WORDS):
                rows.setdefault((one["canvas"], one["y"]), []).append(one)
                self.assertLessEqual(one["end"], one["width"], f"{one} at {width}")
            for row in rows.values():
                row.sort(key=lambda one: one["begin"])
                for left, right in zip(row, row[1:]):
                    self.assertGreaterEqual(right["begin"] - left["end"], 4, f"{left} and {right} at {width}")

    def test_the_pointer_shows_facts(self):
        page = self.open("schedules")
        page.run("(() => { const box = document.querySelector('canvas').getBoundingClientRect();"
                 "document.getElementById('drawing').dispatchEvent(new PointerEvent('pointermove', {bubbles: true,"
                 "clientX: box.left + 99, clientY: box.top + 30})); })()")
        self.assertIn("rank 0 · forward of micro-batch 0 of stage 0", page.run(FACTS))

    def test_buttons_zoom_and_choices_follow_and_switch(self):
        page = self.open("schedules")
        whole = page.run(RANGE)
        page.click("#in")
        self.assertLess(page.run(RANGE)[1] - page.run(RANGE)[0], whole[1])
        page.click("#whole")
        self.assertEqual(page.run(RANGE), whole)
        before = page.run(PIXELS)
        for element, value in (("skip", "0"), ("batch", "3")):
            page.run(f"(() => {{ const e = document.getElementById('{element}'); e.value = '{value}';"
                     "e.dispatchEvent(new Event(e.tagName === 'SELECT' ? 'change' : 'input')); })()")
            after = page.run(PIXELS)
            self.assertNotEqual(after, before, element)
            before = after
        page.run("(() => { const e = document.getElementById('shown'); e.value = '1';"
                 "e.dispatchEvent(new Event('change')); })()")
        self.assertEqual(page.run("[...document.querySelectorAll('.panel')].map(panel => panel.hidden)"),
                         [True, False, True])
        self.assertEqual(page.errors(), [])


def main():
    writer, folder, *flags = sys.argv[1:]
    PagesOfSchedules.folder = Path(folder).resolve()
    subprocess.run([writer, folder], check=True)
    with Chromium(PagesOfSchedules.folder) as browser:
        PagesOfSchedules.browser = browser
        if "--pictures" in flags:
            for name, screen in (("light", {}), ("phone", PHONE), ("dark", dict(dark=True))):
                page = browser.open(PagesOfSchedules.folder / "schedules.html", Screen(**screen))
                page.run("(() => { const e = document.getElementById('batch'); e.value = '2';"
                         "e.dispatchEvent(new Event('input')); })()")
                page.picture(PagesOfSchedules.folder / f"{name}.png", whole=True)
                page.close()
            return 0
        result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(PagesOfSchedules))
        return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
