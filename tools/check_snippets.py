#!/usr/bin/env python3
"""Checks that the code shown in the documents is the code that the tests compile and run, and that the examples in
headers compile.

    tools/check_snippets.py [--update] [ROOT]
    tools/check_snippets.py --compile=HALF [ROOT] -- COMPILER FLAGS...

A line in a document such as

    <!-- snippet: examples/two_devices.cpp#train -->

is followed by a fenced block. The block must equal that file or, with `#name`, the lines between two lines `// [name]`
(`# [name]` in TOML and shell), without indentation. --update rewrites the blocks. Exits with 1 on a difference.

--compile compiles the examples in the headers of one half, `core` (folders without torch) or `torch`
(tools/header_examples.py defines examples). Exits with 1 if one does not compile.
"""
import difflib
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from check_includes import files_of, folder_of, read_table
from header_examples import unit

MARK = re.compile(r"<!-- snippet: (?P<path>[^\s#]+)(?:#(?P<region>[\w-]+))? -->")
FENCE = re.compile(r"\s*(```+|~~~+)(\S*)\s*$")
REGION_MARK = re.compile(r"\s*(?://|#) \[[\w-]+\]\s*$")


def snippet(root, path, region):
    """The expected lines of the document. Raises ValueError with the reason."""
    source = root / path
    if not source.is_file():
        raise ValueError(f"there is no file {path}")
    lines = source.read_text(encoding="utf-8").splitlines()
    if region:
        marks = [i for i, line in enumerate(lines) if re.fullmatch(rf"\s*(//|#) \[{region}\]\s*", line)]
        if len(marks) != 2:
            raise ValueError(f"{path} has {len(marks)} lines '// [{region}]', it should have 2")
        lines = lines[marks[0] + 1:marks[1]]
    lines = [line for line in lines if not REGION_MARK.match(line)]
    return textwrap.dedent("\n".join(lines)).strip("\n").splitlines()


def check(root, document, update):
    """Yields the differences; with `update` rewrites the document instead."""
    lines = document.read_text(encoding="utf-8").splitlines()
    name = document.relative_to(root)
    out, i, in_fence = [], 0, None
    while i < len(lines):
        out.append(lines[i])
        fence = FENCE.match(lines[i])
        if fence and (in_fence is None or (fence[1] == in_fence and not fence[2])):
            in_fence = fence[1] if in_fence is None else None
        match = MARK.search(lines[i]) if in_fence is None else None
        i += 1
        if not match:
            continue
        where = f"{name}:{i}"
        opening = FENCE.match(lines[i]) if i < len(lines) else None
        close = next((j for j in range(i + 1, len(lines)) if opening and lines[j].strip() == opening[1]), None)
        if close is None:
            yield f"{where}: no fenced block follows the snippet mark"
            continue
        try:
            wanted = snippet(root, match["path"], match["region"])
        except ValueError as error:
            yield f"{where}: {error}"
            wanted = lines[i + 1:close]
        shown = lines[i + 1:close]
        if shown != wanted and not update:
            difference = difflib.unified_diff(shown, wanted, str(name), match["path"], lineterm="", n=1)
            yield f"{where}: differs from {match['path']}; run tools/check_snippets.py --update\n" + "\n".join(difference)
        out += [lines[i], *wanted, lines[close]]
        i = close + 1
    if update and out != lines:
        document.write_text("\n".join(out) + "\n", encoding="utf-8")
        print(f"{name}: updated")


def headers_of(root, half):
    """The headers of the folders that use torch, or of all others (the table of ARCHITECTURE.md)."""
    table = read_table(root)
    for header in files_of(root, ("trestle", "apps"), {".h"}):
        _, torch = table.get(folder_of(header.relative_to(root).as_posix(), table), (set(), True))
        if torch == (half == "torch"):
            yield header


def compile_examples(root, half, command):
    source, count = unit(root, headers_of(root, half))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "header_examples.cpp")
        path.write_text(source, encoding="utf-8")
        result = subprocess.run([*command, f"-I{root}", "-fsyntax-only", str(path)], capture_output=True, text=True)
    if result.returncode:
        print(f"an example in a header does not compile\n{result.stderr}")
        return 1
    print(f"{count} examples in headers of the {half} half compile")
    return 0


def main():
    own, command = sys.argv[1:], []
    if "--" in own:
        own, command = own[:own.index("--")], own[own.index("--") + 1:]
    update = "--update" in own
    halves = [word.split("=", 1)[1] for word in own if word.startswith("--compile=")]
    paths = [word for word in own if not word.startswith("--")]
    root = Path(paths[0] if paths else Path(__file__).parent.parent).resolve()
    if halves:
        if halves[0] not in ("core", "torch") or not command:
            sys.exit("--compile=core or --compile=torch, and a compiler after --")
        return compile_examples(root, halves[0], command)
    documents = [path for path in (root / "README.md", root / "ARCHITECTURE.md", root / "CONTRIBUTING.md",
                                   *sorted((root / "docs").glob("*.md"))) if path.is_file()]
    findings = [finding for document in documents for finding in check(root, document, update)]
    print("\n".join(findings) if findings else f"snippets of {len(documents)} documents are true")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
