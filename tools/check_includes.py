#!/usr/bin/env python3
"""Checks the rules of the project that a compiler does not: who includes whom, and what must not be in a file.

    tools/check_includes.py [ROOT]

The table of allowed includes is the one in ARCHITECTURE.md, between the marks `includes:begin` and `includes:end`.
Prints one line for each finding, `file:line: what is wrong`, and exits with 1 if there is one.
"""
import re
import sys
from pathlib import Path

TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
FMT = re.compile(r"(fmt|spdlog)/")
# The core has no threads, so that it needs no ThreadSanitizer.
THREADS = re.compile(r"(thread|mutex|shared_mutex|future|condition_variable|stop_token|semaphore|latch|barrier)$")
CORE = {"base", "schedule", "simulate", "plan", "view", "launch", "mesh/layout"}
SOURCES = {".h", ".cpp", ".cu"}
TEXTS = SOURCES | {".py", ".sh", ".md", ".toml", ".txt", ".cmake", ".json", ".in", ""}
LONGEST_FILE = 600
CODE_FOLDERS = ("trestle", "apps", "tests", "examples", "benchmarks")
# Written with brackets so that this file does not find itself.
FORBIDDEN = [
    (re.compile(r"(?<![\w.~])/(wor[k]|roo[t]|far[m]|hom[e]/[a-z]+)/"), "a path of one machine"),
    (re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b|not implemented ye[t]"), "a stub"),
    (re.compile(r"GTEST_SKI[P]|DISABLE[D]_"), "a test that is switched off"),
]


def read_table(root):
    """{folder: (the folders it may include, whether it may include torch)}; a folder is a path such as data/files"""
    path = root / "ARCHITECTURE.md"
    text = path.read_text(encoding="utf-8")
    match = re.search(r"<!-- includes:begin -->(.*?)<!-- includes:end -->", text, re.S)
    if not match:
        sys.exit(f"{path}: no table between <!-- includes:begin --> and <!-- includes:end -->")
    table = {}
    for line in match.group(1).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 3 or not re.fullmatch(r"`[\w/]+`", cells[0]):
            continue
        table[cells[0].strip("`")] = (set(re.findall(r"`([\w/]+)`", cells[1])), cells[2] == "yes")
    return table


def files_of(root, folders, suffixes):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix in suffixes and "__pycache__" not in path.parts:
                yield path


def includes_of(path):
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
        if match:
            yield number, match.group(1)


def folder_of(path, table):
    """The row that a file or an include path belongs to: trestle/data/files/idx.h to data/files, not to data."""
    parts = path.split("/")
    if parts[0] != "trestle" or len(parts) < 3:
        return None
    names = ["/".join(parts[1:end]) for end in range(len(parts) - 1, 1, -1)]
    return next((name for name in names if name in table), parts[1])


def check_table(root, table):
    folders = {folder_of(path.relative_to(root).as_posix(), table)
               for path in files_of(root, ["trestle"], SOURCES) if path.parent != root / "trestle"}
    for folder in sorted(folders - table.keys()):
        yield f"ARCHITECTURE.md: trestle/{folder} has no row in the table of allowed includes"
    for folder in sorted(table.keys() - folders):
        yield f"ARCHITECTURE.md: the table has a row for trestle/{folder}, which does not exist"
    for folder, (allowed, torch) in table.items():
        for other in sorted(allowed - table.keys()):
            yield f"ARCHITECTURE.md: the row of {folder} names {other}, which has no row"
        for other in sorted(allowed & table.keys()):
            if table[other][1] and not torch:
                yield f"ARCHITECTURE.md: {folder} is torch-free but may include {other}, which is not"
    circle = find_circle({folder: sorted(allowed & table.keys()) for folder, (allowed, _) in table.items()})
    if circle:
        yield f"ARCHITECTURE.md: a circle of allowed includes: {' -> '.join(circle)}"


def find_circle(graph):
    """A list of folders that begins and ends with the same one, each of which may include the next; None without circles."""
    done, path = set(), []

    def visit(folder):
        if folder in path:
            return [*path[path.index(folder):], folder]
        if folder in done:
            return None
        path.append(folder)
        for other in graph[folder]:
            circle = visit(other)
            if circle:
                return circle
        path.pop()
        done.add(folder)
        return None

    return next((circle for circle in map(visit, sorted(graph)) if circle), None)


def check_includes(root, table):
    for path in files_of(root, CODE_FOLDERS, SOURCES):
        name = path.relative_to(root)
        folder = folder_of(name.as_posix(), table)
        allowed, may_torch = table.get(folder, (set(), True))
        found = list(includes_of(path))
        has_torch = any(TORCH.match(include) for _, include in found)
        beside_c10d = name.parts[0] == "tests" and name.name.startswith("c10d_")  # compares ours with its
        public = name.parts[0] == "trestle" and path.suffix == ".h"
        for number, include in found:
            where = f"{name}:{number}"
            other = folder_of(include, table)
            if other and folder in table:
                if other != folder and other not in allowed:
                    yield f"{where}: {folder} may not include {other} (ARCHITECTURE.md)"
            if TORCH.match(include) and not may_torch:
                yield f"{where}: {folder} is torch-free but includes {include}"
            if THREADS.match(include) and folder in CORE:
                yield f"{where}: the core has no threads ({include})"
            if "c10d/" in include and (folder or "").split("/")[0] != "comm" and not beside_c10d:
                yield f"{where}: only trestle/comm may include c10d ({include})"
            if FMT.match(include) and (has_torch or may_torch and folder in table):
                yield f"{where}: {include} in a file of the half that uses torch; use trestle/base/text.h"
            elif FMT.match(include) and public:
                yield f"{where}: {include} in a public header"
            if include == "torch/torch.h" and public:
                yield f"{where}: torch/torch.h in a public header; include the narrow header"
            if include.startswith("CLI/") and name.parts[0] not in ("apps", "benchmarks") and folder != "cli":
                yield f"{where}: only programs parse a command line ({include})"
            if include.startswith(("../", "./")):
                yield f"{where}: write the include from the project's folder, not {include}"


def library_of(path):
    """The folder whose CMakeLists.txt compiles this source."""
    return next((folder for folder in path.parents if (folder / "CMakeLists.txt").is_file()), path.parent)


# The name that a line at the left margin of an unnamed namespace declares: the one before "(", "=", "{", ";" or "[".
DECLARED = re.compile(r"(?!using namespace|template|(?:public|private|protected):|TEST|INSTANTIATE|MATCHER|TYPED|[ }/#)])"
                      r"(?:.*?[\s&*])??(~?[A-Za-z_]\w*)\s*(?:\(|=|\{|;|\[|final\b|: )")


def unnamed_names(path):
    inside = False
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if re.match(r"namespace\s*\{", line):
            inside = True
        elif re.match(r"\}\s*// namespace\s*$", line):
            inside = False
        elif inside:
            match = DECLARED.match(line)
            if match and not re.match(r"using \w+(::\w+)+;|using \w+ = |namespace \w+ = ", line):
                yield number, match.group(1)


def check_unnamed_namespaces(root):
    """Sources of a library are compiled together: what their unnamed namespaces declare has names of its own."""
    seen = {}
    for path in files_of(root, ["trestle"], {".cpp"}):
        name = path.relative_to(root)
        for number, declared in unnamed_names(path):
            first = seen.setdefault((library_of(path), declared), (name, number))
            if first[0] != name:
                yield f"{name}:{number}: {declared} is declared in the unnamed namespace of {first[0]}:{first[1]} too"


def check_texts(root):
    here = [path for path in sorted(root.iterdir())
            if path.is_file() and path.suffix in TEXTS and path.name not in (".gitignore",)]
    folders = [folder for folder in (*CODE_FOLDERS, "cmake", "tools", "docs", "recipes", ".ci")
               if (root / folder).is_dir()]
    for path in [*here, *files_of(root, folders, TEXTS)]:
        name = path.relative_to(root)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # a fixture
        if path.suffix in SOURCES | {".py", ".sh", ""} and len(lines) > LONGEST_FILE:
            yield f"{name}: {len(lines)} lines, more than {LONGEST_FILE}: one idea per file"
        if path.suffix == ".h" and name.parts[0] == "trestle" and "#pragma once" not in lines:
            yield f"{name}: a header without #pragma once"
        for number, line in enumerate(lines, 1):
            for pattern, what in FORBIDDEN:
                if pattern.search(line):
                    yield f"{name}:{number}: {what}: {line.strip()[:100]}"


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    table = read_table(root)
    findings = [*check_table(root, table), *check_includes(root, table),
                *check_unnamed_namespaces(root), *check_texts(root)]
    print("\n".join(findings) if findings else "includes, sizes and texts keep the rules of ARCHITECTURE.md")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
