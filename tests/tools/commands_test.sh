#!/usr/bin/env bash
# ./quickstart and ./run_tests on a fake machine: the commands they run, the message when a step fails, and run_tests' last line.
# shellcheck disable=SC2016  # the bodies of the fakes are expanded when the fakes run
set -euo pipefail
# shellcheck source=tests/tools/fake_machine.sh
. "$(dirname "${BASH_SOURCE[0]}")/fake_machine.sh"

# A fake ctest that reports the given numbers of tests, failures and skipped tests.
fake_ctest() {
  fake ctest 'while [ "$1" != --output-junit ]; do shift; done
{
  echo "<testsuite>"
  for ((i = 0; i < '"$1"'; i++)); do
    status=run
    if [ "$i" -lt '"$2"' ]; then status=fail; elif [ "$i" -lt '"$(($2 + $3))"' ]; then status=notrun; fi
    printf "<testcase name=\"entry%d\" time=\"0.1\" status=\"%s\"/>\n" "$i" "$status"
  done
  echo "</testsuite>"
} >"$2"'
}

# The project's own counting of tests, by the real Python.
real_count() {
  printf '#!/bin/bash\nexec "%s" "%s/tools/count_tests.py" "$@"\n' "$(python3 -c "import sys; print(sys.executable)")" "$source_root" \
    >"$machine/clone/tools/count_tests.py"
  chmod +x "$machine/clone/tools/count_tests.py"
}

expect_last_line() {
  [ "${output##*$'\n'}" = "$1" ] || complain "the last line is '${output##*$'\n'}', '$1' expected"
}

name="quickstart trains"
new_machine
mkdir -p "$machine/clone/build/release/apps/trestle"
printf '#!/bin/bash\necho "trestle called with: $*"\n' >"$machine/clone/build/release/apps/trestle/trestle"
chmod +x "$machine/clone/build/release/apps/trestle/trestle"
run quickstart -DX=1 --epochs 2
expect_success "trestle called with: train recipes/unet_quick.toml --epochs 2"
expect_call "cmake .*--preset release -DX=1"
expect_call "cmake --build .*/build/release --target trestle_program"

name="quickstart without a compiler"
lacks g++
run quickstart
expect_failure "no C++ compiler"

name="configuring fails"
new_machine
fake cmake 'case "$*" in *--preset*) echo "CMake Error: Could not find GIF"; exit 1;; esac; echo cmake version 3.25.1'
run quickstart
expect_failure "Could not find GIF" "configuring preset release failed" "build/logs/configure_release.log"

name="the disk fills up while building"
new_machine
fake cmake 'case "$*" in *--build*) echo "fatal error: error writing: No space left on device"; exit 1;; esac; echo cmake version 3.25.1'
run quickstart
expect_failure "building trestle_program of preset release failed: the disk is full"

name="the memory is too small for the compiler"
fake cmake 'case "$*" in *--build*) echo "c++: fatal error: Killed signal terminated program cc1plus"; exit 1;; esac; echo cmake version 3.25.1'
run quickstart
expect_failure "ran out of memory" "CMAKE_BUILD_PARALLEL_LEVEL=1"

name="all tests pass"
new_machine
fake clang-format 'exit 0'
fake clang-tidy 'exit 0'
real_count
fake_ctest 7 0 0
run run_tests --quick
expect_success
expect_last_line "7 passed, 0 failed"
expect_call "cmake --build .*/build/dev --target all"
expect_call "ctest --preset dev .*-L .(core|tools|torch|ranks)"
expect_no_call "asan"

name="a test fails, and another skips itself"
fake_ctest 7 1 1
run run_tests --quick
[ "$code" -eq 1 ] || complain "exit code $code, 1 expected"
expect_last_line "5 passed, 2 failed"
case $output in *"failed: entry0 (dev)"*"failed: entry1 (dev)"*) ;; *) complain "the failed tests are not named" ;; esac

name="the sums of all runs"
fake_ctest 7 0 0
for tool in tidy.sh check_alone.py slowest.py; do
  printf '#!/bin/bash\nexit 0\n' >"$machine/clone/tools/$tool"
  chmod +x "$machine/clone/tools/$tool"
done
run run_tests
expect_success "==> installed in " " s, built in " " s, tested in " " s, checked in "
expect_last_line "17 passed, 0 failed"

name="ctest reports nothing"
fake ctest 'exit 8'
run run_tests --quick
[ "$code" -eq 1 ] || complain "exit code $code, 1 expected"
expect_last_line "0 passed, 1 failed"

name="a build that fails is a failure"
fake cmake 'case "$*" in *--build*) echo "error: expected ;"; exit 1;; esac; echo cmake version 3.25.1'
run run_tests --quick
expect_failure "expected ;" "building all of preset dev failed"
expect_last_line "0 passed, 1 failed"

name="an unknown option"
run run_tests --fast
[ "$code" -eq 2 ] || complain "exit code $code, 2 expected"
case $output in *"unknown option '--fast'"*) ;; *) complain "the option is not named" ;; esac

name="--help"
run run_tests --help
expect_success "--quick"
run quickstart --help
expect_success "Safe to run twice"

finish "quickstart and run_tests: every failure has its reason and fix"
