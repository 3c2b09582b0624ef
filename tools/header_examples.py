"""The code examples in the comments of headers, as one source that a compiler checks. For tools/check_snippets.py.

An example is a block of comment lines indented by three spaces. It follows an empty comment line or a line that ends with
":", or starts the comment:

    // Reads a file.
    //
    //   std::string bytes = read_file("a.txt");

Text that is not C++ (a table, JSON, another language) is indented by five. tests/docs/header_preludes.h declares, under the
header's name, the variables that an example uses (a `net`, a `loader`).
"""
import re

COMMENT = re.compile(r"\s*//(?P<text>.*)$")
CODE = re.compile(r"   \S")
NAMESPACE = re.compile(r"namespace (?P<name>trestle(?:::\w+)*) \{")
PRELUDES = "tests/docs/header_preludes.h"
PRELUDE_MARK = re.compile(r"// \[(?P<header>[\w/.]+)\]\s*$")


def examples_of(lines):
    """[(number of the first line, [lines])], without the comment signs and the indentation."""
    found, before, inside = [], None, False
    for number, line in enumerate(lines, 1):
        comment = COMMENT.match(line)
        text = comment["text"] if comment else None
        new_block = before is not None and before.strip() == ""
        if inside and text is not None and (text.strip() == "" or
                                            text.startswith("   ") and not (new_block and text.startswith("     "))):
            found[-1][1].append(text[3:])
        elif text is not None and CODE.match(text) and (before is None or before.strip() == "" or before.endswith(":")):
            found.append((number, [text[3:]]))
            inside = True
        else:
            inside = False
        before = text
    return found


def read_preludes(root):
    """{header: the lines of its prelude}"""
    preludes, current = {}, None
    path = root / PRELUDES
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        mark = PRELUDE_MARK.match(line)
        if mark:
            current = preludes.setdefault(mark["header"], [])
        elif current is not None:
            current.append(line)
    return preludes


def unit(root, headers):
    """(a C++ source with every example of `headers`, their number); #line directs compiler messages to the headers."""
    includes, bodies, preludes = [], [], read_preludes(root)
    for header in headers:
        name = header.relative_to(root).as_posix()
        lines = header.read_text(encoding="utf-8").splitlines()
        namespace = next((match["name"] for match in map(NAMESPACE.match, lines) if match), "trestle")
        for number, code in examples_of(lines):
            given = preludes.get(name, [])
            includes += [f'#include "{name}"', *(line for line in [*given, *code] if line.startswith("#include"))]
            code = ["" if line.startswith("#include") else line for line in code]
            whole = any(line.startswith("int main(") for line in code)  # a program, not the inside of a function
            bodies += [f"namespace {namespace}::example_{len(bodies)} {{", "using namespace trestle::literals;",
                       f'#line 1 "{PRELUDES}: {name}"',
                       *(line for line in given if not line.startswith("#include")),
                       "" if whole else "void example() {", f'#line {number} "{name}"', *code,
                       "" if whole else "}", "}"]
    count = sum(line.startswith("namespace ") and "::example_" in line for line in bodies)
    return "\n".join([*dict.fromkeys(includes), "namespace trestle::literals {}", *bodies]) + "\n", count
