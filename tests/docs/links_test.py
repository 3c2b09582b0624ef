#!/usr/bin/env python3
"""Checks that what the documents point at is there: links to files, and files named in backticks.

    tests/docs/links_test.py [ROOT]

A name in backticks is looked for from the project's folder, from trestle/, and from the document's own folder.
"""
import re
import sys
from pathlib import Path

LINK = re.compile(r"(?:\]\(|<img src=\")([^)#\s\"]+)")
NAME = re.compile(r"`([\w./*-]+/[\w.*-]+\.(?:h|cpp|py|toml|cmake|md|sh))`")


def wrong(root, document):
    fenced = False
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if fenced:
            continue
        where = f"{document.relative_to(root)}:{number}"
        for target in LINK.findall(line):
            if "://" not in target and not (document.parent / target).exists():
                yield f"{where}: the link leads to {target}, which does not exist"
        for name in NAME.findall(line):
            if name.split("/")[0] in ("ATen", "torch", "c10", "runs", "build"):
                continue
            if not any(list(folder.glob(name)) for folder in (root, root / "trestle", document.parent)):
                yield f"{where}: there is no file {name}"


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]).resolve()
    documents = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    findings = [finding for document in sorted(documents) for finding in wrong(root, document)]
    print("\n".join(findings) if findings else f"links and file names of {len(documents)} documents are true")
    return 1 if findings or not documents else 0


if __name__ == "__main__":
    sys.exit(main())
