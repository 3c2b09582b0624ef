# shellcheck shell=bash
# Shared by quickstart, run_tests and setup.sh, which source it: prints each step, and on failure the reason and the fix.
# Needs `root`, the project's folder.

: "${root:?the folder of the project}"
logs=$root/build/logs

step() { printf '==> %s\n' "$*"; }

# time_of NAME: the seconds since the last call count as NAME ("installed", "built" ...). print_times prints all, in order.
time_names=()
declare -A time_seconds=()
time_last=$SECONDS
time_of() {
  [ -n "${time_seconds[$1]:-}" ] || time_names+=("$1")
  time_seconds[$1]=$((${time_seconds[$1]:-0} + SECONDS - time_last))
  time_last=$SECONDS
}
print_times() {
  local name line=
  for name in ${time_names[@]+"${time_names[@]}"}; do line+="${line:+, }$name in ${time_seconds[$name]} s"; done
  [ -z "$line" ] || step "$line"
}

# fail REASON FIX: both on stderr, exit code 1.
fail() {
  printf 'trestle: %s\n         %s\n' "$1" "$2" >&2
  exit 1
}

processors() { getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2; }

make_logs_folder() {
  mkdir -p "$logs" 2>/dev/null ||
    fail "no permission to write in $root." "Take ownership of the folder (chown -R \$USER .), or clone where you may write."
}

# run_step NAME COMMAND...: runs COMMAND, with its output on the screen and in build/logs/NAME.log. Returns its exit code.
run_step() {
  local log=$logs/$1.log
  shift
  local code=0
  "$@" </dev/null 2>&1 | tee "$log" || code=$?
  return "$code"
}

# run_quiet NAME COMMAND...: the same, with the output only in the log; shows the end of the log if COMMAND fails.
run_quiet() {
  local log=$logs/$1.log
  shift
  local code=0
  "$@" </dev/null >"$log" 2>&1 || code=$?
  [ "$code" -eq 0 ] || tail -n 15 "$log" >&2
  return "$code"
}

# explain NAME WHAT FIX: stops with the reason found in the log of step NAME, or with "WHAT failed" and FIX.
explain() {
  local log=$logs/$1.log
  if grep -qiE 'no space left|not enough free space|disk quota exceeded' "$log"; then
    fail "$2 failed: the disk is full." "Free some space (df -h .), then run the same command again: it continues where it stopped."
  elif grep -qiE 'could not resolve|temporary failure|name resolution|name or service not known|network is unreachable|failed to establish a new connection|unable to connect|connection (refused|timed out)|timed out|max retries exceeded|proxy ?error' "$log"; then
    fail "$2 failed: no network." "Check the connection and any proxy settings (https_proxy), then run the same command again."
  elif grep -qiE 'could not get lock|unable to acquire the dpkg' "$log"; then
    fail "$2 failed: another package manager is running." "Wait until it is done, then run the same command again."
  elif grep -qiE 'permission denied|are you root|a password is required|a terminal is required|not in the sudoers|read-only file system' "$log"; then
    fail "$2 failed: no permission." "$3"
  elif grep -qiE 'signal terminated program cc1plus|unable to execute command: killed|fatal error: killed|internal compiler error: killed|cannot allocate memory' "$log"; then
    fail "$2 failed: the compiler ran out of memory." "A unit of sources that use torch needs up to 2 GB: close other programs, or set CMAKE_BUILD_PARALLEL_LEVEL=1."
  fi
  fail "$2 failed; the reason is above and in ${log#"$root"/}." "$3"
}

# configure PRESET [CMAKE OPTIONS]
configure() {
  local preset=$1
  shift
  step "configure $preset (build/$preset)"
  run_step "configure_$preset" cmake -S "$root" --preset "$preset" "$@" ||
    explain "configure_$preset" "configuring preset $preset" "If a package is named above, install it; then run the same command again."
}

# build PRESET TARGETS...
build() {
  local preset=$1
  shift
  step "build $preset: $*"
  run_step "build_$preset" cmake --build "$root/build/$preset" --target "$@" ||
    explain "build_$preset" "building $* of preset $preset" "If you changed a source, fix the errors above. Otherwise remove build/$preset and run again."
}
