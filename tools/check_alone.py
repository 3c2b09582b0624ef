#!/usr/bin/env python3
"""Compiles sources alone, without writing anything: a unity build hides an include that a source lacks.

    tools/check_alone.py [--all | --since COMMIT] [--most N] [SOURCE...]

Without arguments: the sources of trestle/ that changed since origin/main, or on main itself in the last 30 commits. A torch
source takes 3 to 6 s. --most N checks the N newest and says how many it left out. Uses the compile commands of preset
`single`, which it configures; it needs no build.
"""
import argparse
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def git(*words):
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False).stdout.strip()


def default_base():
    base = git("merge-base", "origin/main", "HEAD")
    if base and base != git("rev-parse", "HEAD"):
        return base
    return git("rev-list", "--max-count=1", "--skip=30", "HEAD") or git("rev-list", "--max-parents=0", "HEAD").split("\n")[-1]


def changed_since(base):
    """The newest first."""
    committed = git("log", "--name-only", "--format=", f"{base}..HEAD", "--", "trestle").split("\n")
    edited = git("diff", "--name-only", "HEAD", "--", "trestle").split("\n")
    return [name for name in dict.fromkeys(edited + committed) if name.endswith(".cpp") and (ROOT / name).is_file()]


def compile_commands():
    """{source, from the root: the words of its compile command}"""
    subprocess.run(["cmake", "-S", ROOT, "--preset", "single", "-DTRESTLE_TESTS=OFF", "-DTRESTLE_EXAMPLES=OFF"],
                   stdout=subprocess.DEVNULL, check=True)
    entries = json.loads((ROOT / "build/single/compile_commands.json").read_text(encoding="utf-8"))
    return {os.path.relpath(entry["file"], ROOT): shlex.split(entry["command"]) for entry in entries}


def without_output(words):
    """The command that only checks: no cache, no output. The text of the precompiled header counts as included."""
    compiler = next(i for i, word in enumerate(words) if Path(word).name.startswith(("c++", "g++", "clang++")))
    kept, skip = [], False
    for word in words[compiler:]:
        if skip:
            skip = False
        elif word in ("-o", "-MT", "-MF"):
            skip = True
        elif word not in ("-c", "-MD", "-Winvalid-pch"):
            kept.append(word)
    return [*kept, "-fsyntax-only"]


def check(source, words):
    done = subprocess.run(without_output(words), cwd=ROOT / "build/single", capture_output=True, text=True, check=False)
    return source, done.returncode, done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--since")
    parser.add_argument("--most", type=int)
    arguments = parser.parse_args()
    commands = compile_commands()
    sources = arguments.sources or (sorted(commands) if arguments.all else changed_since(arguments.since or default_base()))
    sources = [source for source in sources if source in commands]
    left_out = max(0, len(sources) - arguments.most) if arguments.most else 0
    sources = sources[: len(sources) - left_out]
    failed = 0
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        for source, code, errors in pool.map(lambda source: check(source, commands[source]), sources):
            if code:
                failed += 1
                print(f"{source} does not compile alone:\n{errors}")
    print(f"{len(sources)} sources compiled alone, {failed} failed" + (f"; {left_out} older ones left out" if left_out else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
