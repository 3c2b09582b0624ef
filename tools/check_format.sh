#!/usr/bin/env bash
# Checks the format of every C++ file against .clang-format. `tools/check_format.sh --fix` formats them.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
if ! command -v clang-format >/dev/null; then
  printf 'trestle: no clang-format.\n         Install it (apt-get install clang-format).\n' >&2
  exit 1
fi
action=(--dry-run -Werror)
if [ "${1:-}" = --fix ]; then action=(-i); fi
folders=()
for folder in trestle apps tests examples benchmarks; do
  if [ -d "$folder" ]; then folders+=("$folder"); fi
done
find "${folders[@]}" \( -name '*.h' -o -name '*.cpp' \) -print0 |
  xargs -0 -r -n 64 -P "$(getconf _NPROCESSORS_ONLN)" clang-format --style=file "${action[@]}"
