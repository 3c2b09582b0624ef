"""Tables that CMake generates (trestle_generate_table): a new file in the folder is a new entry.

    table_test.py BUILD_FOLDER
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path()

PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(tables LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
include({root}/cmake/TrestleTargets.cmake)
trestle_glob_sources(sources entries/)
add_library(words STATIC ${{sources}})
target_include_directories(words PUBLIC {root} ${{CMAKE_CURRENT_SOURCE_DIR}})
trestle_generate_table(words FOLDER entries HEADER words.h NAMESPACE words TYPE Word SUFFIX _word TABLE all_words
                       EXCEPT shared.cpp)
add_executable(print_words print_words.cpp)
target_link_libraries(print_words PRIVATE words)
"""
HEADER = """#pragma once
#include <string>
#include <vector>
namespace words {
struct Word { std::string name; };
const std::vector<Word>& all_words();
}
"""
PROGRAM = """#include <iostream>
#include "words.h"
int main() { for (const auto& word : words::all_words()) std::cout << word.name << "\\n"; }
"""


def calls():
    """Every call of trestle_generate_table in trestle/: its folder and its arguments."""
    for path in ROOT.glob("trestle/**/CMakeLists.txt"):
        for call in re.findall(r"trestle_generate_table\(([^)]*)\)", path.read_text()):
            words = call.split()
            arguments = {key: words[words.index(key) + 1] for key in ("FOLDER", "TABLE", "SUFFIX")}
            excepted = words[words.index("EXCEPT") + 1:] if "EXCEPT" in words else []
            yield path.parent, arguments, excepted


class GeneratedTables(unittest.TestCase):
    def test_the_table_names_every_file_of_its_folder(self):
        tables = 0
        for folder, arguments, excepted in calls():
            generated = BUILD / folder.relative_to(ROOT) / (arguments["TABLE"] + ".cpp")
            if not generated.exists():  # a build without torch
                continue
            tables += 1
            files = {path.stem for path in (folder / arguments["FOLDER"]).glob("*.cpp") if path.name not in excepted}
            code = generated.read_text()
            declared = re.findall(rf"^\w+ (\w+){arguments['SUFFIX']}\(\);$", code, re.MULTILINE)
            self.assertEqual(sorted(declared), sorted(files))
            for name in files:
                uses = re.findall(rf"\b{name}{arguments['SUFFIX']}\(\)", code)
                self.assertEqual(len(uses), 2, f"{name}: declared once and called once")
        self.assertGreater(tables, 0)

    def test_a_new_file_is_a_new_entry(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "entries").mkdir()

            def write(path, text):
                (folder / path).write_text(text)

            def add_entry(file, word):
                write(f"entries/{file}.cpp",
                      f'#include "words.h"\nnamespace words {{\nWord {file}_word() {{ return {{"{word}"}}; }}\n}}\n')

            def words():
                subprocess.run(["cmake", "--build", folder / "build"], check=True, capture_output=True)
                return subprocess.run([folder / "build" / "print_words"], check=True, capture_output=True,
                                      text=True).stdout.split()

            write("CMakeLists.txt", PROJECT.format(root=ROOT))
            write("words.h", HEADER)
            write("print_words.cpp", PROGRAM)
            write("entries/shared.cpp", "int shared_by_entries() { return 0; }\n")
            add_entry("a", "pear")
            add_entry("b", "apple")
            subprocess.run(["cmake", "-S", folder, "-B", folder / "build"], check=True, capture_output=True)
            self.assertEqual(words(), ["apple", "pear"])
            add_entry("c", "fig")
            self.assertEqual(words(), ["apple", "fig", "pear"])
            (folder / "entries" / "b.cpp").unlink()
            self.assertEqual(words(), ["fig", "pear"])


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1))
    unittest.main()
