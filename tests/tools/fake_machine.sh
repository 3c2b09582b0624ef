# shellcheck shell=bash
# Fakes a machine by programs on the PATH, for the tests of the scripts. Source it. It needs no network and changes nothing
# outside a temporary folder.
# shellcheck disable=SC2016  # the bodies of the fakes are expanded when the fakes run
source_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
failures=0
name=   # of the current case

# fake NAME BODY: adds a program to the PATH of the fake machine; it records every call.
fake() {
  rm -f "$machine/bin/$1"
  printf '#!/bin/bash\nprintf "%%s\\n" "%s $*" >>"%s"\n%s\n' "$1" "$machine/calls" "$2" >"$machine/bin/$1"
  chmod +x "$machine/bin/$1"
}

lacks() { rm -f "$machine/bin/$1"; }

# A fake Python: `python -m venv DIR` creates an environment with itself in it; `python -m pip install` unpacks a fake torch.
fake_python() {
  local package=$1
  fake python3 '
case "$*" in
  *" --version" | --version) echo "Python 3.11.2" ;;
  "-m venv"*) mkdir -p "${!#}/bin" "${!#}/lib/python3.11/site-packages"; cp "$0" "${!#}/bin/python" ;;
  "-m pip install"*torch==*) '"$package"' ;;
  "-m pip install"*) echo installed the runtime ;;
esac'
}

# The package as pip installs it; $1: the CUDA version its version.py names, a Python value.
torch_package() {
  printf 'site=$(dirname "$0")/../lib/python3.11/site-packages
  version=${!#}; version=${version#torch==}
  mkdir -p "$site/torch/lib" "$site/torch-$version.dist-info"
  touch "$site/torch/lib/libtorch_cpu.so" "$site/torch-$version.dist-info/INSTALLER"
  echo "cuda: Optional[str] = %s" >"$site/torch/version.py"
  echo "Requires-Dist: cuda-toolkit[cublas,cudart,cupti]==13.2.2; platform_system == \"Linux\"" >"$site/torch-$version.dist-info/METADATA"' "$1"
}

# A machine with everything except libtorch, and a clone of the scripts.
new_machine() {
  machine=$(mktemp -d "$temporary/machine.XXXX")
  mkdir -p "$machine/bin" "$machine/clone/tools"
  cp "$source_root/tools/setup.sh" "$source_root/tools/steps.sh" "$machine/clone/tools"
  cp "$source_root/quickstart" "$source_root/run_tests" "$machine/clone"
  local program
  for program in bash sh env mkdir tee tail head grep sed awk find sort dirname cat cp rm touch uname tr getconf chmod; do
    ln -s "$(command -v "$program")" "$machine/bin/$program"
  done
  fake df 'printf "Filesystem 1M Used Available\nfake 9 9 90000 1%% /\n"'
  fake id 'echo 0'
  fake dpkg-query 'echo installed'
  fake apt-get 'exit 0'
  fake g++ 'echo 12.2.0'
  fake cmake 'echo cmake version 3.25.1'
  fake ninja 'echo 1.11'
  fake git 'exit 0'
  fake ccache 'exit 0'
  fake_python "$(torch_package None)"
}

# run SCRIPT ARGUMENTS...: runs the script on the fake machine and sets `code` and `output`; $settings are environment variables for it.
run() {
  code=0
  output=$(cd "$machine/clone" && env -i PATH="$machine/bin" HOME="$machine" ${settings[@]+"${settings[@]}"} \
    "$machine/clone/$1" "${@:2}" 2>&1 </dev/null) || code=$?
  settings=()
}
settings=()

complain() {
  printf 'FAILED %s: %s\n%s\n\n' "$name" "$1" "$output"
  failures=$((failures + 1))
}

# expect_failure TEXT...: expects exit code 1 and all these texts.
expect_failure() {
  local text
  [ "$code" -eq 1 ] || complain "exit code $code, 1 expected"
  for text in "$@"; do
    case $output in *"$text"*) ;; *) complain "'$text' is not said" ;; esac
  done
  case $output in *trestle:*) ;; *) complain "no reason given" ;; esac
}

expect_success() {
  local text
  [ "$code" -eq 0 ] || complain "exit code $code, 0 expected"
  for text in "$@"; do
    case $output in *"$text"*) ;; *) complain "'$text' is not said" ;; esac
  done
}

expect_call() { grep -q -- "$1" "$machine/calls" || complain "'$1' was not called"; }
expect_no_call() { ! grep -q -- "$1" "$machine/calls" || complain "'$1' was called"; }

finish() {
  if [ "$failures" -gt 0 ]; then
    printf '%d failures\n' "$failures"
    exit 1
  fi
  echo "$1"
}
