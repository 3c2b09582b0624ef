#!/usr/bin/env bash
# clang-tidy on the sources of the core, which needs no torch. It reads the units of a unity build, because most of the time
# that a source takes is headers: one by one the sources take four times as long.
#
#   tools/tidy.sh    configures build/tidy and checks all sources
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
if ! command -v clang-tidy >/dev/null; then
  printf 'trestle: no clang-tidy.\n         Install it (apt-get install clang-tidy).\n' >&2
  exit 1
fi
build=build/tidy
cmake --preset core -B "$build" -DTRESTLE_UNITY=ON -DTRESTLE_TESTS=OFF >/dev/null
# view/chart is not a part of the core: it needs FreeType, and preset core leaves it out.
# The units include .cpp files and are compiled with an option that only GCC knows.
find "$root/$build/trestle" -name 'unity_*.cxx' -print0 |
  xargs -0 -r -n 1 -P "$(getconf _NPROCESSORS_ONLN)" clang-tidy --quiet -p "$build" \
    --checks=-bugprone-suspicious-include --extra-arg=-Wno-unknown-warning-option \
    2> >(grep -v ' warnings\? generated' >&2)
