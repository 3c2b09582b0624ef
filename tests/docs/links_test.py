#!/usr/bin/env python3
"""Checks that links to files, and files and tests named in backticks, exist.

    tests/docs/links_test.py [ROOT]

A file in backticks is looked for from the project's folder, from trestle/, and from the document's own folder. A test in
backticks is `Suite.Name`, both beginning with a capital, as the TEST macros have them. A document whose table goes through
behaviours by number (`| T12 |`) must have each number once.
"""
import re
import sys
from pathlib import Path

LINK = re.compile(r"(?:\]\(|<img src=\")([^)#\s\"]*)(?:#([\w-]+))?")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
NAME = re.compile(r"`([\w./*-]+/[\w.*-]+\.(?:h|cpp|py|toml|cmake|md|sh))`")
TEST_NAME = re.compile(r"`([A-Z][A-Za-z0-9]*\.[A-Z]\w*)`")
TEST = re.compile(r"^\s*TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)
ROW = re.compile(r"^\| ([A-Z])(\d+) \|")


def tests_of(root):
    sources = sorted((root / "tests").rglob("*.cpp"))
    return {f"{suite}.{name}" for source in sources for suite, name in TEST.findall(source.read_text(encoding="utf-8"))}


def anchors_of(document):
    """The anchors that headings get on web sites: lower case, without punctuation, with a hyphen for each space."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


def wrong_rows(root, document):
    rows = [(match[1], int(match[2])) for line in document.read_text(encoding="utf-8").splitlines()
            if (match := ROW.match(line))]
    for letter in sorted({letter for letter, _ in rows}):
        numbers = [number for its, number in rows if its == letter]
        for number in range(1, max(numbers) + 1):
            if numbers.count(number) != 1:
                yield f"{document.relative_to(root)}: {letter}{number} has {numbers.count(number)} rows, it should have 1"


def wrong(root, document, tests):
    fenced = False
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if fenced:
            continue
        where = f"{document.relative_to(root)}:{number}"
        for target, anchor in LINK.findall(line):
            linked = document.parent / target if target else document
            if "://" in target:
                continue
            if not linked.exists():
                yield f"{where}: the link leads to {target}, which does not exist"
            elif anchor and linked.suffix == ".md" and anchor not in anchors_of(linked):
                yield f"{where}: the link leads to #{anchor}, and {target or 'this document'} has no such heading"
        for name in NAME.findall(line):
            if name.split("/")[0] in ("ATen", "torch", "c10", "runs", "build"):
                continue
            if not any(list(folder.glob(name)) for folder in (root, root / "trestle", document.parent)):
                yield f"{where}: there is no file {name}"
        for name in TEST_NAME.findall(line):
            if name not in tests:
                yield f"{where}: there is no test {name}"
    yield from wrong_rows(root, document)


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]).resolve()
    documents = [*root.glob("*.md"), *(root / "examples").glob("*.md"), *(root / "docs").rglob("*.md")]
    tests = tests_of(root)
    findings = [finding for document in sorted(documents) for finding in wrong(root, document, tests)]
    print("\n".join(findings) if findings else f"links, files and tests named in {len(documents)} documents are there")
    return 1 if findings or not documents else 0


if __name__ == "__main__":
    sys.exit(main())
