#!/usr/bin/env bash
# clang-tidy on the sources of the core, which needs no torch.
#
#   tools/tidy.sh [BUILD_FOLDER]     default build/core; any configured build folder will do
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
build=${1:-build/core}
if ! command -v clang-tidy >/dev/null; then
  printf 'trestle: no clang-tidy.\n         Install it (apt-get install clang-tidy).\n' >&2
  exit 1
fi
if [ ! -f "$build/compile_commands.json" ]; then
  printf "trestle: '%s' is not a configured build folder.\n         Run: cmake --preset core\n" "$build" >&2
  exit 1
fi
folders=()
for folder in base schedule simulate plan view launch mesh/layout; do
  if [ -d "trestle/$folder" ]; then folders+=("trestle/$folder"); fi
done
# view/chart is not a part of the core: it needs FreeType.
find "${folders[@]}" -name '*.cpp' -not -path 'trestle/view/chart/*' -print0 |
  xargs -0 -r -n 1 -P "$(getconf _NPROCESSORS_ONLN)" clang-tidy --quiet -p "$build" \
    2> >(grep -v ' warnings\? generated' >&2)
