#!/usr/bin/env python3
"""tools/check_english.py on sentences that it must find, and on sentences that it must not."""
import unittest
from pathlib import Path

from check_test import run

CONTRIBUTING = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
BEGIN, END = "<!-- glossary:begin -->", "<!-- glossary:end -->"
# The project's own glossary, so that its patterns are tested and not a copy of them.
GLOSSARY = BEGIN + CONTRIBUTING.partition(BEGIN)[2].partition(END)[0] + END + "\n"

WRONG = [  # (a sentence, the part of it that is found)
    ("It goes on from the last checkpoint.", "'goes on'"),
    ("Resumed runs had gone on elsewhere.", "'gone on'"),
    ("A refused value lets its history go.", "'lets its history go'"),
    ("It puts a unit's parameters together.", "'puts a unit's parameters together'"),
    ("Each rank keeps its part of the gradients.", "'its part of the gradients'"),
    ("Each rank reads its part of the batch.", "'part of the batch'"),
    ("Every piece is a micro-batch.", "'piece'"),
    ("Ranks that follow have no batches.", "'Ranks that follow'"),
    ("Blank lines are passed over.", "'passed over'"),
    ("It has as many layers as stages.", "'as many'"),
    ("The table shows what a step takes.", "'what a step takes'"),
    ("That is 26 ms a step.", "'26 ms a step'"),
    ("The bucket is made anew.", "'anew'"),
    ("A budget that was asked for is refused.", "'asked for'"),
    ("A rank has a stage.", "'rank has a stage'"),
    ("Messages under way are counted.", "'under way'"),
    ("It ended without a word.", "'without a word'"),
    ("Rank 0 gives its word.", "'its word'"),
    ("From here on the numbers are others.", "'are others'"),
    ("The weights are divided among four ranks.", "'divided among four ranks'"),
    ("The model is repeated on ranks.", "'repeated on ranks'"),
    ("It is an exit code of misuse.", "'misuse'"),
    ("The hooks are armed.", "'armed'"),
    ("It runs the forward again.", "'runs the forward again'"),
    ("It is brought to the first device.", "'brought to'"),
    ("Times are written down.", "'written down'"),
    ("Look at its memory.", "'Look at'"),
    ("The watcher waits for a sign of life.", "'sign of life'"),
    ("It is a program of one's own.", "'of one's own'"),
    ("Nobody reads it.", "'Nobody'"),
    ("One rank fails, the others end.", "'the others'"),
    ("Of two stages the first is slower.", "begins with 'Of'"),
    ("It is done. Where a rank fails, all end.", "begins with 'Where'"),
    ("Who calls finish() waits there.", "begins with 'Who'"),
    ("What one rank does.", "begins with 'What'"),
]
RIGHT = [
    "Place the stage that goes on a GPU first.",
    "It lets messages go through.",
    "One pass over the data is an epoch.",
    "Two passes over the file are enough.",
    "The path is drawn piece by piece.",
    "It is another way, and there are others in the table.",
    "Both widths are divided by 8. The width is 16 with a batch of 8.",
    "The arm64 build is not tested.",
    "Ask the library about it.",
    "Half as many ranks need at least as many cores. The other part of each batch is undefined.",
    "Of course it may fail.",
    "What does a step cost? Where is the time spent? It depends.",
    "Where in-flight messages are buffered",
    "Whoever, whatever, wherever, often.",
    "The rank whose step failed reports it. A share of the batch is 0 to 1.",
    "The key `go on` and the type `Piece` are code.",
]


class CheckEnglish(unittest.TestCase):
    def check(self, files):
        """The findings in `files`, one string for each."""
        code, said, _ = run("check_english.py", {"CONTRIBUTING.md": GLOSSARY} | files, "--root")
        findings = [line for line in said.splitlines() if not line.startswith("plain English in")]
        self.assertEqual(code, 1 if findings else 0, said)
        return findings

    def expect(self, finding, name, text):
        findings = self.check({name: text})
        self.assertEqual(len(findings), 1, findings)
        self.assertIn(finding, findings[0])

    def test_sentences_that_it_finds(self):
        findings = self.check({"docs/a.md": "\n\n".join(sentence for sentence, _ in WRONG)})
        self.assertEqual(len(findings), len(WRONG), "\n".join(findings))
        for i, (sentence, found) in enumerate(WRONG):
            with self.subTest(sentence):
                self.assertTrue(findings[i].startswith(f"docs/a.md:{2 * i + 1}: "), findings[i])
                self.assertIn(found, findings[i])

    def test_sentences_that_it_does_not_find(self):
        self.assertEqual(self.check({"docs/a.md": "\n\n".join(RIGHT)}), [])
        self.assertEqual(self.check({"trestle/nn/a.h": "\n\n".join("// " + sentence for sentence in RIGHT)}), [])

    def test_comments_of_cpp(self):
        self.expect("a.h:2: 'goes on'", "trestle/a.h", "#pragma once\n// It goes\n// on after that.\n")
        self.expect("a.cpp:1: 'anew'", "trestle/a.cpp", "int a;  // made anew\n")
        self.expect("a.cpp:1: a sentence that begins with 'Of'", "trestle/a.cpp", "int a;  // Of a stage\n")
        self.expect("a.cpp:2: 'nobody'", "trestle/a.cpp", "/* Read by\n * nobody. */\n")
        self.expect("a.cpp:2: 'anew'", "trestle/a.cpp", 'int a = b(R"(//)", \'"\');\n// anew\n')

    def test_comments_of_two_members_are_two_texts(self):
        self.assertEqual(self.check({"trestle/a.h": "int a;  // what it lets\nint b;  // go\n"}), [])

    def test_messages(self):
        self.expect("a.cpp:1: 'go on'", "trestle/a.cpp", 'fail("it cannot go "\n "on");\nfail("it cannot go " + on);\n')
        self.expect("a.cpp:2: 'go on'", "trestle/a.cpp", 'fail("it cannot "\n     "go on");\n')
        self.expect("a.cpp:2: 'anew'", "trestle/a.cpp", 'auto text = R"(made\nanew)";\n')
        self.assertEqual(self.check({"tests/a_test.cpp": 'expect("made anew");\n'}), [])  # a test quotes

    def test_names_of_tests(self):
        self.expect("a_test.cpp:1: a name that begins with 'What'", "tests/a_test.cpp", "TEST(Join, WhatARankKeeps) {\n")
        self.expect("a_test.cpp:1: 'goes on'", "tests/a_test.cpp", "TEST_F(Join, ARunGoesOnFromAnEpoch) {\n")
        self.expect("a_test.py:1: 'nobody'", "tests/a_test.py", "def test_a_key_nobody_knows(self):\n")
        self.assertEqual(self.check({"tests/a_test.cpp": "TEST(Join, WhateverIsGiven) {\n"}), [])

    def test_headings_may_begin_with_what(self):
        self.assertEqual(self.check({"docs/a.md": "# What works today\n\n| Where it is | what |\n|---|---|\n"}), [])

    def test_code_is_not_read(self):
        self.assertEqual(self.check({"docs/a.md": "See `go on`.\n\n```\ngo on\n```\n\n[a](go/on)\n"}), [])
        self.assertEqual(self.check({"trestle/a.h": "// An example:\n//\n//   int piece = 1;\n"}), [])
        self.assertEqual(self.check({"tools/a.py": "piece = 1  # a number\n"}), [])

    def test_comments_of_scripts(self):
        self.expect("a.sh:1: 'anew'", "tools/a.sh", "# It is made anew.\n")
        self.expect("a.py:2: 'anew'", "tools/a.py", '"""A script.\nMade anew."""\n')
        self.expect("a.toml:1: 'under way'", "recipes/a.toml", "width = 1  # what is under way\n")

    def test_comments_that_are_too_long(self):
        self.expect("a.cpp:1: a comment that ends in column 101", "trestle/a.cpp", "// " + "x" * 98 + "\n")
        self.assertEqual(self.check({"trestle/a.cpp": "// " + "\u00b5" * 97 + "\n"}), [])

    def test_a_pattern_without_a_row(self):
        broken = GLOSSARY.replace("| anew |", "| again |")
        code, said, _ = run("check_english.py", {"CONTRIBUTING.md": broken}, "--root")
        self.assertEqual(code, 1)
        self.assertIn("the pattern of 'anew' has no row", said)

    def test_the_glossary_has_at_most_thirty_rows(self):
        rows = [line for line in GLOSSARY.splitlines() if line.startswith("| ")]
        self.assertLessEqual(len(rows) - 1, 30)  # without the head


if __name__ == "__main__":
    unittest.main()
