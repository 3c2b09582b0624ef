#!/usr/bin/env python3
"""Checks the mechanical half of "Plain English" (CONTRIBUTING.md) over comments, messages, documents and test names.

    tools/check_english.py [--root FOLDER] [PATH...]

PATH is a file or a folder of the project; without one, the whole project is checked. Prints one line for each finding,
`file:line: what was found: what to write`, and exits with 1 if there is one. It finds

- the phrases of the glossary, which is read from CONTRIBUTING.md (the table between the marks `glossary:begin` and
  `glossary:end`, and the regular expressions in the comment below it);
- sentences that begin with a bare Of, Where, Who or What (questions and headings may);
- comments of C++ files that end behind column 100.

Code is not read: code blocks of documents, code examples in headers, anything in backticks.
"""
import argparse
import bisect
import re
import sys
from pathlib import Path

from check_includes import CODE_FOLDERS
from header_examples import examples_of

CPP = {".h", ".cpp", ".cu"}
HASH = {".py", ".sh", ".toml", ".cmake", ".txt"}
FOLDERS = (*CODE_FOLDERS, "cmake", "tools", "docs", "recipes", ".ci")
LIBRARY = ("trestle", "apps", "examples", "benchmarks")  # what prints to users: string literals are read there
COLUMNS = 100

# One token of C++: a comment, a string, a character, a space, a word, or a run of other characters.
TOKEN = re.compile(r"""(?P<line>//[^\n]*)|(?P<block>/\*.*?\*/)
                     |(?:u8|[uUL])?R"(?P<mark>[^\s()\\]{0,16})\((?P<raw>.*?)\)(?P=mark)"
                     |"(?P<string>(?:\\.|[^"\\\n])*)"
                     |(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'
                     |(?P<space>\s+)|(?P<include>^[ ]*\#[ ]*include[^\n]*)|\w+|[^\w\s"'/#]+|.""", re.S | re.X | re.M)
TEST = re.compile(r"^\s*(?:TYPED_)?TEST(?:_F|_P)?\((\w+),\s*(\w+)\)|^\s*def (test_\w+)\(", re.MULTILINE)
BULLET = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
CODE = re.compile(r"``.*?``|`[^`]*`|https?://\S+", re.S)
BARE = re.compile(r"(?:^|(?<=[.!?] )|(?<=[.!?][\")] ))\(?(Of|Where|Who|What) (?!course\b)(?=[a-z`])")
SENTENCE_END = re.compile(r"[.!?](?=[\s\")]|$)")


class Text:
    """A paragraph put on one line, which remembers the line of the file that each of its characters stands in."""

    def __init__(self, kind):
        self.kind, self.text, self.starts, self.lines = kind, "", [], []

    def add(self, text, line):
        self.starts.append(len(self.text))
        self.lines.append(line)
        self.text += text

    def line_of(self, offset):
        return self.lines[bisect.bisect_right(self.starts, offset) - 1]


def paragraphs(lines, kind):
    """[(number, text)] as one Text a paragraph or point of a list; an empty line ends one."""
    current = None
    for number, line in lines:
        bullet = BULLET.match(line)
        if not line.strip() or bullet or current is None:
            if current is not None and current.text:
                yield current
            current = Text(kind)
        if line.strip():
            current.add((line[bullet.end():] if bullet else line).strip() + " ", number)
    if current is not None and current.text:
        yield current


def texts_of_cpp(source, with_strings):
    """The comments, and with `with_strings` the string literals (neighbours joined as the compiler does), as Texts."""
    code_lines = {number + i for number, code in examples_of(source.splitlines()) for i in range(len(code))}
    comments, strings, current, line, column = [], [], None, 1, 0
    last_comment = (0, -1)  # line, column
    for token in TOKEN.finditer(source):
        if token["line"] is not None:
            trailing = source[source.rfind("\n", 0, token.start()) + 1:token.start()].strip() != ""
            if trailing or last_comment != (line - 1, column):
                comments.append([])
            text = token["line"].lstrip("/").removeprefix("<")
            indented = re.match(r" {6}", text) is not None
            comments[-1].append((line, "" if line in code_lines or indented else text))
            last_comment = (line, column)
        elif token["block"] is not None:
            body = [re.sub(r"^\s*\*(?!\w)", "", text) for text in token["block"][2:-2].split("\n")]
            comments.append([(line + i, text) for i, text in enumerate(body)])
        string = token["string"] if token["string"] is not None else token["raw"]
        if with_strings and string is not None:
            if current is None:
                current = Text("message")
                strings.append(current)
            pieces = string.split("\n") if token["raw"] is not None else [re.sub(r"\\.", " ", string)]
            for i, text in enumerate(pieces):
                current.add(text + ("\n" if i + 1 < len(pieces) else ""), line + i)
        elif token["space"] is None and token["line"] is None:
            current = None
        newlines = token[0].count("\n")
        column = len(token[0]) - token[0].rfind("\n") - 1 if newlines else column + len(token[0])
        line += newlines
    for comment in comments:
        yield from paragraphs(comment, "comment")
    yield from strings


def texts_of_hash(source):
    """Comments that begin with '#' on a line of their own or behind two spaces, and Python's docstrings."""
    found, previous = [], (0, -1)
    for number, line in enumerate(source.splitlines(), 1):
        match = re.match(r"(\s*)#(?!!)(.*)$", line) or re.match(r"([^#\"']*\S  )#( .*)$", line)
        if not match:
            continue
        column, own = len(match[1]), not match[1].strip()
        if not own or previous != (number - 1, column):
            found.append([])
        found[-1].append((number, match[2]))
        previous = (number, column)
    for match in re.finditer(r'^[ ]*"""(.*?)"""', source, re.S | re.M):
        first = source.count("\n", 0, match.start(1)) + 1
        body = match[1].split("\n")
        found.append([(first + i, "" if i and text.startswith("    " * 2) else text) for i, text in enumerate(body)])
    for comment in found:
        yield from paragraphs(comment, "comment")


def texts_of_document(source):
    """Paragraphs, points, headings and table cells; without code blocks, the glossary and comments."""
    lines, fence, hidden = [], None, None
    for number, line in enumerate(source.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and (fence is None or line.strip() == fence):
            fence = mark[1] if fence is None else None
            lines.append((number, ""))
            continue
        if hidden is None and "<!--" in line:
            hidden = "<!-- glossary:end -->" if "glossary:begin" in line else "-->"
        ends, skipped = hidden is not None and hidden in line, fence is not None or hidden is not None
        hidden = None if ends else hidden
        if skipped:
            lines.append((number, ""))
        elif re.match(r"\s*\|", line):
            cells = [] if re.fullmatch(r"[\s|:-]+", line) else re.split(r"(?<!\\)\|", CODE.sub("``", line))
            for cell in cells:
                yield from paragraphs([(number, cell)], "label")
            lines.append((number, ""))
        elif line.startswith("#"):
            yield from paragraphs([(number, line.lstrip("#"))], "label")
            lines.append((number, ""))
        else:
            lines.append((number, re.sub(r"\]\([^)]*\)|<[^>]*>", "]", line)))
    yield from paragraphs(lines, "text")


def texts_of_tests(source):
    """TEST(Join, RanksWithoutBatches) as the text "Ranks without batches"."""
    for match in TEST.finditer(source):
        name = match[2] or match[3].removeprefix("test_").capitalize()
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_", " ", name)
        text = Text("test name")
        text.add(words[0].upper() + words[1:].lower(), source.count("\n", 0, match.start(match.lastindex)) + 1)
        yield text


def read_glossary(root):
    """[(the banned phrase, its regular expression, what to write)] from CONTRIBUTING.md"""
    path = root / "CONTRIBUTING.md"
    match = re.search(r"<!-- glossary:begin -->(.*?)<!-- glossary:end -->", path.read_text(encoding="utf-8"), re.S)
    if not match:
        sys.exit(f"{path}: no table between <!-- glossary:begin --> and <!-- glossary:end -->")
    table, _, patterns = match[1].partition("<!-- patterns")
    rows = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 2 and not re.fullmatch(r"-*", cells[0]):
            rows[cells[0]] = cells[1]
    glossary = []
    for line in patterns.partition("-->")[0].splitlines():
        phrase, separator, pattern = line.partition(" = ")
        if not separator:
            continue
        if phrase not in rows:
            sys.exit(f"{path}: the pattern of '{phrase}' has no row in the glossary")
        glossary.append((phrase, re.compile(pattern), rows[phrase]))
    return glossary


def check_text(text, glossary):
    """(line, what was found: what to write)"""
    plain = CODE.sub(lambda match: "`" + "_" * (len(match[0]) - 2) + "`", text.text)
    for phrase, pattern, instead in glossary:
        for match in pattern.finditer(plain):
            yield text.line_of(match.start()), f"'{match[0].strip()}': write {instead}"
    if text.kind == "label":
        return
    for match in BARE.finditer(re.sub(r"[*_]", " ", plain) if text.kind == "text" else plain):
        if text.kind == "test name":
            if match.start() == 0:
                yield text.line_of(0), f"a name that begins with '{match[1]}': name what is true"
            continue
        end = SENTENCE_END.search(plain, match.end())
        is_label = end is None and match[1] in ("Where", "What")  # "Where messages are buffered": says what a name is
        if not is_label and (end is None or end[0] != "?"):
            yield text.line_of(match.start(1)), f"a sentence that begins with '{match[1]}': begin with its subject"


def long_comments(lines):
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS and re.search(r"(?:^|\s)//", line) and "://" not in line:
            yield number, f"a comment that ends in column {len(line)}, behind {COLUMNS}"


def check_file(path, name, glossary):
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return  # a fixture
    findings, texts = [], []
    if path.suffix in CPP:
        texts += texts_of_cpp(source, with_strings=name.parts[0] in LIBRARY)
        findings += long_comments(source.splitlines())
    elif path.suffix == ".md":
        texts += texts_of_document(source)
    elif path.suffix in HASH or source.startswith("#!"):
        texts += texts_of_hash(source)
    if name.parts[0] == "tests":
        texts += texts_of_tests(source)
    findings += [finding for text in texts for finding in check_text(text, glossary)]
    for line, what in sorted(set(findings)):
        yield f"{name}:{line}: {what}"


def files_to_check(root, paths):
    chosen = paths or [path for path in sorted(root.iterdir())
                       if path.is_file() and (path.suffix in {".md", *HASH} or not path.suffix)
                       or path.is_dir() and path.name in FOLDERS]
    for path in chosen:
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            parts = file.relative_to(root).parts
            if file.is_file() and "__pycache__" not in parts and parts[:2] != ("tests", "golden"):
                yield file


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent, help="the project's folder")
    parser.add_argument("paths", nargs="*", help="files and folders to check, from the project's folder")
    options = parser.parse_args()
    root = options.root.resolve()
    paths = [root / path for path in options.paths]
    missing = [path for path in paths if not path.exists()]
    if missing:
        parser.error(f"there is no {missing[0]}")
    glossary = read_glossary(root)
    files = list(files_to_check(root, paths))
    findings = [finding for file in files for finding in check_file(file, file.relative_to(root), glossary)]
    print("\n".join(findings) if findings else f"plain English in {len(files)} files")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
