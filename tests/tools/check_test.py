#!/usr/bin/env python3
"""tools/check_includes.py and tools/check_snippets.py on small projects with one fault each."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
ARCHITECTURE = """
<!-- includes:begin -->
| folder | may include | torch |
|---|---|---|
| `base` | | no |
| `schedule` | `base` | no |
| `nn` | `base` | yes |
<!-- includes:end -->
"""
PROJECT = {
    "ARCHITECTURE.md": ARCHITECTURE,
    "trestle/base/error.h": "#pragma once\n#include <string>\n",
    "trestle/schedule/action.h": '#pragma once\n#include "trestle/base/error.h"\n',
    "trestle/nn/layer.h": "#pragma once\n#include <ATen/core/Tensor.h>\n",
    "tests/nn/layer_test.cpp": '#include "trestle/nn/layer.h"\n',
}


def run(tool, files, *options):
    """Returns (exit code, output, files afterwards)."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        result = subprocess.run([sys.executable, TOOLS / tool, *options, folder], capture_output=True, text=True)
        after = {name: Path(folder, name).read_text(encoding="utf-8") for name in files}
        return result.returncode, result.stdout + result.stderr, after


class CheckIncludes(unittest.TestCase):
    def expect(self, finding, files):
        files = PROJECT | files
        code, said, _ = run("check_includes.py", files)
        self.assertEqual(code, 1, said)
        self.assertIn(finding, said)
        self.assertEqual(len(said.strip().splitlines()), 1, said)

    def test_accepts_project_in_order(self):
        code, said, _ = run("check_includes.py", PROJECT)
        self.assertEqual(code, 0, said)

    def test_refuses_include_outside_table(self):
        self.expect("trestle/schedule/a.cpp:1: schedule may not include nn",
                    files={"trestle/schedule/a.cpp": '#include "trestle/nn/layer.h"\n'})

    def test_refuses_torch_in_torch_free_half(self):
        self.expect("trestle/base/a.cpp:2: base is torch-free",
                    files={"trestle/base/a.cpp": "\n#include <torch/torch.h>\n"})

    def test_refuses_circle_of_three_folders(self):
        rows = "| `schedule` | `nn` | yes |\n| `nn` | `plan` | yes |\n| `plan` | `schedule` | yes |"
        table = ARCHITECTURE.replace("| `schedule` | `base` | no |\n| `nn` | `base` | yes |", rows)
        self.expect("a circle of allowed includes: nn -> plan -> schedule -> nn",
                    files={"ARCHITECTURE.md": table, "trestle/plan/a.h": "#pragma once\n",
                           "trestle/schedule/action.h": "#pragma once\n"})

    def test_refuses_one_name_in_two_unnamed_namespaces_of_a_folder(self):
        source = "namespace {\n\nint margin = 1;\n\n}  // namespace\n"
        self.expect("margin is declared in the unnamed namespace of trestle/schedule/a.cpp:3 too",
                    files={"trestle/schedule/a.cpp": source, "trestle/schedule/b.cpp": source, "trestle/nn/c.cpp": source})

    def test_refuses_threads_in_core(self):
        self.expect("trestle/base/a.cpp:1: the core has no threads (thread)",
                    files={"trestle/base/a.cpp": "#include <thread>\n", "trestle/nn/a.cpp": "#include <thread>\n"})

    def test_refuses_c10d_outside_comm(self):
        self.expect("only trestle/comm may include c10d",
                    files={"trestle/nn/a.cpp": "#include <torch/csrc/distributed/c10d/Store.hpp>\n"})
        self.expect("only trestle/comm may include c10d",
                    files={"tests/nn/a_test.cpp": "#include <torch/csrc/distributed/c10d/Store.hpp>\n"})

    def test_accepts_c10d_in_comparing_test(self):
        files = PROJECT | {"tests/nn/c10d_store_test.cpp": "#include <torch/csrc/distributed/c10d/Store.hpp>\n"}
        code, said, _ = run("check_includes.py", files)
        self.assertEqual(code, 0, said)

    def test_refuses_fmt_beside_torch(self):
        self.expect("in a file of the half that uses torch", files={"trestle/nn/a.cpp": "#include <fmt/format.h>\n"})
        self.expect("in a file of the half that uses torch",
                    files={"tests/a.cpp": "#include <fmt/format.h>\n#include <torch/torch.h>\n"})

    def test_refuses_fmt_in_public_header(self):
        self.expect("in a public header", files={"trestle/base/a.h": "#pragma once\n#include <fmt/format.h>\n"})

    def test_refuses_torch_h_in_public_header(self):
        self.expect("include the narrow header", files={"trestle/nn/a.h": "#pragma once\n#include <torch/torch.h>\n"})

    def test_refuses_folder_without_row(self):
        self.expect("trestle/mesh has no row", files={"trestle/mesh/a.cpp": "\n"})

    def test_refuses_row_without_folder(self):
        table = ARCHITECTURE.replace("| `nn`", "| `optim` | `base` | yes |\n| `nn`")
        self.expect("trestle/optim, which does not exist", files={"ARCHITECTURE.md": table})

    def test_refuses_circle_in_table(self):
        table = ARCHITECTURE.replace("| `base` | |", "| `base` | `schedule` |")
        code, said, _ = run("check_includes.py", PROJECT | {"ARCHITECTURE.md": table})
        self.assertEqual(code, 1)
        self.assertIn("a circle of allowed includes: base -> schedule -> base", said)

    def test_refuses_long_file(self):
        self.expect("601 lines", files={"trestle/nn/a.cpp": "\n" * 601})

    def test_refuses_machine_path_and_stub(self):
        self.expect("a path of one machine", files={"docs/a.md": "see /hom" + "e/ann/trestle\n"})
        self.expect("a stub", files={"trestle/nn/a.cpp": "// TO" + "DO\n"})

    def test_refuses_disabled_test(self):
        self.expect("switched off", files={"tests/nn/a.cpp": "TEST(A, DISABLE" + "D_b) {}\n"})


class CheckSnippets(unittest.TestCase):
    SOURCE = "int main() {\n  // [sum]\n  int a = 1;\n    ++a;\n  // [sum]\n}\n"

    def document(self, mark, code):
        return f"# Title\n\n<!-- snippet: {mark} -->\n```cpp\n{code}```\nafter\n"

    def run_on(self, mark, code, *options):
        return run("check_snippets.py", {"a.cpp": self.SOURCE, "README.md": self.document(mark, code)}, *options)

    def test_accepts_region_and_whole_file(self):
        self.assertEqual(self.run_on("a.cpp#sum", "int a = 1;\n  ++a;\n")[0], 0)
        self.assertEqual(self.run_on("a.cpp", "int main() {\n  int a = 1;\n    ++a;\n}\n")[0], 0)

    def test_reports_difference(self):
        code, said, _ = self.run_on("a.cpp#sum", "int a = 2;\n")
        self.assertEqual(code, 1)
        self.assertIn("README.md:3: differs from a.cpp", said)
        self.assertIn("-int a = 2;", said)

    def test_updates_document(self):
        code, said, after = self.run_on("a.cpp#sum", "int a = 2;\n", "--update")
        self.assertEqual(code, 0, said)
        self.assertEqual(after["README.md"], self.document("a.cpp#sum", "int a = 1;\n  ++a;\n"))

    def test_reports_missing_file_region_and_fence(self):
        self.assertIn("there is no file b.cpp", self.run_on("b.cpp", "")[1])
        self.assertIn("has 0 lines", self.run_on("a.cpp#product", "")[1])
        code, said, _ = run("check_snippets.py", {"a.cpp": "", "README.md": "<!-- snippet: a.cpp -->\ntext\n"})
        self.assertEqual(code, 1)
        self.assertIn("no fenced block", said)

    def test_ignores_mark_inside_fence(self):
        self.assertEqual(run("check_snippets.py", {"README.md": "```\n<!-- snippet: no.cpp -->\n```\n"})[0], 0)


class CheckHeaderExamples(unittest.TestCase):
    HEADER = """#pragma once
// Sums.
//
//   int a = sum(1, 2);{code}
//
//     1 + 2 = 3, which is no code
//
// - a list whose point goes on
//   in a second line
namespace trestle::base {{
int sum(int a, int b);
}}
"""

    def compile(self, code, preludes=""):
        files = PROJECT | {"trestle/base/error.h": self.HEADER.format(code=code),
                         "trestle/base/units.h": "#pragma once\nnamespace trestle::literals {}\n",
                         "tests/docs/header_preludes.h": preludes}
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            result = subprocess.run([sys.executable, TOOLS / "check_snippets.py", "--compile=core", folder, "--",
                                     "c++", "-std=c++20"], capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr

    def test_accepts_example_that_compiles(self):
        code, said = self.compile("")
        self.assertEqual(code, 0, said)
        self.assertIn("1 examples", said)

    def test_reports_broken_example_with_its_place(self):
        code, said = self.compile("\n//   int b = sum(a);")
        self.assertEqual(code, 1, said)
        self.assertIn("trestle/base/error.h:5", said)
        self.assertIn("too few arguments", said)

    def test_reports_comment_torn_by_formatter(self):
        self.assertEqual(self.compile("  // the sum of\n//   one and two")[0], 1)

    def test_uses_prelude_of_example(self):
        self.assertEqual(self.compile("\n//   a = sum(a, b);")[0], 1)
        code, said = self.compile("\n//   a = sum(a, b);", "// [trestle/base/error.h]\nextern int b;\n")
        self.assertEqual(code, 0, said)


if __name__ == "__main__":
    unittest.main()
