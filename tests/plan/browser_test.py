#!/usr/bin/env python3
"""Pages of `trestle plan --html` in headless Chromium.

    browser_test.py WRITER FOLDER [--pictures]

WRITER is the program write_plan_pages, and FOLDER is a scratch folder. --pictures leaves screenshots there.
"""
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from browser.chromium import Chromium, Screen  # noqa: E402

PHONE = dict(width=390, height=844, touch=True, scale=2)
NAMES = ["plans", "large", "nothing", "hostile"]
ROWS = "[...document.querySelectorAll('#table tr.plan')].filter(row => !row.hidden)"


def heading(words):
    return (f"[...document.querySelectorAll('#table th')].find(head => head.querySelector('button').textContent === "
            f"'{words}')")


def column(words):
    """The sorted values of a column in the order of the rows, from the page's own data."""
    return (f"(() => {{ const data = JSON.parse(document.getElementById('data').textContent); "
            f"const i = data.columns.findIndex(column => column.heading === '{words}'); return {ROWS}.map(row => "
            f"data.plans[row.dataset.plan - 1].cells[i]).map(cell => Array.isArray(cell) ? cell[1] : cell); }})()")


# The ratio of contrast of WCAG 2 between an element's text and the first background behind it.
CONTRAST = """(selector => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => { const part = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b); };
  return Math.min(...[...document.querySelectorAll(selector)].filter(e => e.offsetParent !== null).map(element => {
    let behind = element, back = [0, 0, 0, 0];
    while (behind && (back = numbers(getComputedStyle(behind).backgroundColor))[3] === 0) behind = behind.parentElement;
    const a = light(numbers(getComputedStyle(element).color)), b = light(back);
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
})"""


class PagesOfPlans(unittest.TestCase):
    writer = folder = browser = None

    def open(self, name, **screen):
        page = self.browser.open(self.folder / f"{name}.html", Screen(**screen))
        self.addCleanup(page.close)
        return page

    def open_all(self, name):
        """With all rows of the table, which shows 25 first."""
        page = self.open(name)
        page.click("#all")
        return page

    def test_a_long_table_begins_short(self):
        page = self.open("plans")
        self.assertEqual(page.run(f"{ROWS}.length"), 25)
        page.run("document.getElementById('all').focus()")
        page.press("Enter")
        every = page.run(f"{ROWS}.length")
        self.assertEqual(page.run("document.getElementById('count').textContent"), f"{every} of {every} plans")
        self.assertTrue(page.run("document.getElementById('all').hidden"))
        self.assertEqual(page.run("document.activeElement.textContent"), "26", "the focus is on the first new plan")

    def test_loads_without_errors_and_without_other_files(self):
        for name in NAMES:
            for screen in ({}, PHONE):
                with self.subTest(page=name, screen=screen):
                    page = self.open(name, **screen)
                    self.assertEqual(page.errors(), [])
                    words = page.run("document.body.innerText")
                    for wrong in ("undefined", "NaN", "[object"):
                        self.assertNotIn(wrong, words)
                    others = [url for url in page.requests() if not url.startswith(("file:", "data:"))]
                    self.assertEqual(others, [])
                    self.assertEqual(len([url for url in page.requests() if url.startswith("file:")]), 1)

    def test_names_are_text(self):
        page = self.open("hostile")
        self.assertIsNone(page.run("window.broken"))
        self.assertEqual(page.run("document.querySelectorAll('img').length"), 0)
        self.assertIn("</script></title><script>", page.run("document.querySelector('h1').textContent"))
        self.assertIn("<img src=x", page.run("document.getElementById('figures').textContent"))

    def test_a_click_on_a_heading_sorts(self):
        page = self.open_all("plans")
        for words in ("peak", "step", "recompute"):
            page.run(f"{heading(words)}.querySelector('button').id = 'wanted'")
            page.click("#wanted")
            values = page.run(column(words))
            self.assertGreater(len(set(map(str, values))), 1)
            self.assertEqual(values, sorted(values), words)
            self.assertEqual(page.run(f"{heading(words)}.getAttribute('aria-sort')"), "ascending")
            page.click("#wanted")
            self.assertEqual(page.run(column(words)), sorted(values, reverse=True), words)
            self.assertEqual(page.run(f"{heading(words)}.getAttribute('aria-sort')"), "descending")
            sorts = page.run("[...document.querySelectorAll('th[aria-sort]')].map(head => head.ariaSort)")
            self.assertEqual(sorts.count("none"), len(sorts) - 1)
            page.run("document.getElementById('wanted').removeAttribute('id')")
        self.assertEqual(page.errors(), [])

    def test_the_keyboard_alone_sorts_filters_and_opens(self):
        page = self.open("plans")
        page.run(f"{heading('plan')}.querySelector('button').focus()")
        page.press("Tab")
        self.assertEqual(page.run("document.activeElement.textContent"), "step")
        outline = page.run("getComputedStyle(document.activeElement).outlineStyle")
        self.assertEqual(outline, "solid", "the focus is visible")
        page.press("Enter")
        page.press("Enter")
        steps = page.run(column("step"))
        self.assertEqual(steps, sorted(steps, reverse=True))
        page.run(f"{ROWS}[0].querySelector('.open-plan').focus()")
        page.press("Enter")
        self.assertEqual(page.run("document.activeElement.getAttribute('aria-expanded')"), "true")
        opened = page.run("document.getElementById(document.activeElement.getAttribute('aria-controls')).textContent")
        self.assertIn("Compared with the best", opened)
        page.press("Enter")
        self.assertEqual(page.run("document.activeElement.getAttribute('aria-expanded')"), "false")
        page.run("document.querySelector('#filters input').focus()")
        page.type("zero-3 recompute all")
        names = page.run(f"{ROWS}.map(row => row.querySelector('.open-plan').ariaLabel)")
        self.assertGreater(len(names), 0)
        for name in names:
            self.assertIn("ZeRO-3", name)
            self.assertIn("recompute all", name)
        page.run("document.querySelector('.map .front').focus()")
        page.press("Enter")
        self.assertIn("Plan ", page.run("document.activeElement.getAttribute('aria-label')"))
        self.assertEqual(page.run("document.activeElement.getAttribute('aria-expanded')"), "true")
        self.assertEqual(page.errors(), [])

    def test_choices_filter(self):
        page = self.open_all("plans")
        every = page.run(f"{ROWS}.length")
        for words, value in (("level", "3"), ("tensor", "8"), ("recompute", "all")):
            page.run(f"(() => {{ const field = [...document.querySelectorAll('#filters label')].find(label => "
                     f"label.firstChild.textContent === '{words}').querySelector('select'); field.value = '{value}'; "
                     "field.dispatchEvent(new Event('change')); })()")
            values = {str(cell) for cell in page.run(column(words))}
            self.assertEqual(values, {value}, words)
        some = page.run(f"{ROWS}.length")
        self.assertLess(some, every)
        self.assertEqual(page.run("document.getElementById('count').textContent"), f"{some} of {every} plans")
        page.run("document.querySelector('#filters input').value = 'no such plan'")
        page.run("document.querySelector('#filters input').dispatchEvent(new Event('input'))")
        self.assertIn("No plan matches", page.run("document.getElementById('count').textContent"))
        page.click("#filters button")
        self.assertEqual(page.run(f"{ROWS}.length"), every)

    def test_a_plan_shows_its_bytes_and_its_timeline(self):
        page = self.open("plans")
        self.assertGreater(page.run("document.querySelectorAll('#plan-1 .timeline rect.cell').length"), 0)
        page.click("#table tr[data-plan='2'] .open-plan")
        self.assertIn("Compared with the best, it ", page.run("document.getElementById('plan-2').textContent"))
        stages = page.run("document.querySelectorAll('#plan-2 .stage').length")
        self.assertGreater(stages, 0)
        self.assertEqual(page.run("document.querySelectorAll('#plan-2 .stage .bar').length"), stages)
        # The bars' widths are those of their bytes.
        widths = page.run("[...document.querySelector('#plan-2 .bar').children].map(part => "
                          "part.getBoundingClientRect().width)")
        self.assertGreater(min(widths), 0)
        page.click("#table tr[data-plan='2'] .open-plan")
        self.assertTrue(page.run("document.getElementById('plan-2').hidden"))

    def test_a_telephone_needs_no_sideways_scrolling(self):
        for name in NAMES:
            with self.subTest(page=name):
                page = self.open(name, **PHONE)
                page.run("document.querySelectorAll('.open-plan').forEach((button, i) => i > 0 && i < 6 && button.click())")
                wide = page.run("[...document.querySelectorAll('body *')].filter(e => e.offsetParent !== null && "
                                "e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll, .skip')).length")
                self.assertEqual(wide, 0)
                self.assertLessEqual(page.run("document.documentElement.scrollWidth"), 390)
                self.assertEqual(page.run("[...document.querySelectorAll('#table, #table tr, #table td, .detail *')].filter(e => "
                                          "e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0).length"), 0)
        page = self.open("plans", **PHONE)
        row = page.run("document.querySelector('#table tr.plan').getBoundingClientRect().width")
        self.assertLessEqual(row, 390)
        self.assertEqual(page.run("getComputedStyle(document.querySelector('#table td:nth-child(3)'), '::before')"
                                  ".content"), '"step"')

    def test_colours_have_contrast_in_light_and_in_dark(self):
        papers = []
        for dark in (False, True):
            page = self.open("plans", dark=dark)
            papers.append(page.run("getComputedStyle(document.body).backgroundColor"))
            for selector in ("h1", "p", "td", "th button", ".tag", "dd", "label", ".stage .lines", "li"):
                self.assertGreater(page.run(f"{CONTRAST}('{selector}')"), 4.5, f"{selector} dark={dark}")
        self.assertEqual(papers, ["rgb(255, 255, 255)", "rgb(18, 23, 29)"])

    def test_paper_is_light_and_has_no_filters(self):
        page = self.open("plans", dark=True, print_media=True)
        self.assertEqual(page.run("getComputedStyle(document.body).backgroundColor"), "rgb(255, 255, 255)")
        self.assertEqual(page.run("getComputedStyle(document.getElementById('filters')).display"), "none")


def take_pictures(browser, folder):
    """Windows of each page: its begin, an opened plan, the map and what is missing."""
    for name in NAMES[:3]:
        for kind, screen in (("wide", {}), ("phone", PHONE), ("dark", dict(dark=True))):
            page = browser.open(folder / f"{name}.html", Screen(**screen))
            for part, selector in (("begin", "h1"), ("plan", "#plan-1"), ("map", "#map"), ("missing", "#missing")):
                if page.run(f"(document.querySelector('{selector}') || document.body).scrollIntoView() || "
                            f"!!document.querySelector('{selector}')"):
                    page.picture(folder / f"{name}_{kind}_{part}.png")
            page.close()
    page = browser.open(folder / "plans.html")
    page.paper(folder / "plans.pdf")


if __name__ == "__main__":
    PagesOfPlans.writer, PagesOfPlans.folder = sys.argv[1], Path(sys.argv[2])
    subprocess.run([PagesOfPlans.writer, str(PagesOfPlans.folder)], check=True)
    with Chromium(PagesOfPlans.folder) as PagesOfPlans.browser:
        if "--pictures" in sys.argv:
            take_pictures(PagesOfPlans.browser, PagesOfPlans.folder)
        else:
            result = unittest.main(argv=sys.argv[:1], exit=False, verbosity=2).result
            sys.exit(not result.wasSuccessful())
