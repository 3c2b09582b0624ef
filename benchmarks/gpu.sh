#!/usr/bin/env bash
# Builds trestle with CUDA, runs its tests on this machine's GPUs, measures training steps there, and writes one report.
#
#   benchmarks/gpu.sh [--python PYTHON] [--out FILE] [--build DIR]
#
# PYTHON (default: python3) has a CUDA build of torch, which is used as libtorch and as the peer. No CUDA toolkit is needed.
# FILE (default: build/gpu_report.md) is the report, in Markdown. DIR (default: build/gpu) is the build folder.
# The exit code is 0 if all tests and measurements succeed, 1 if not, 2 for an unknown option.
set -euo pipefail
# shellcheck source=tools/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/../tools/setup.sh"

python=python3
out=$root/build/gpu_report.md
build_folder=$root/build/gpu

usage_error() {
  printf 'trestle: %s\n         %s\n' "$1" "benchmarks/gpu.sh --help lists the options." >&2
  exit 2
}

parse() {
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help)
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
      --python | --out | --build) [ $# -ge 2 ] || usage_error "$1 needs a value." ;;
      *) usage_error "unknown option '$1'." ;;
    esac
    case $1 in
      --python) python=$2 ;;
      --out) out=$(realpath -m "$2") ;;
      --build) build_folder=$(realpath -m "$2") ;;
    esac
    shift 2
  done
}

check_gpu() {
  command -v nvidia-smi >/dev/null ||
    fail "no NVIDIA driver: nvidia-smi is not on the PATH." "Run this on a machine with an NVIDIA GPU and its driver."
  # nvidia-smi may print nothing or an error, and still exit with 0.
  local gpus
  gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ') ||
    fail "no NVIDIA GPU: nvidia-smi finds none." "Run this on a machine with an NVIDIA GPU; 'nvidia-smi -L' lists them."
  step "GPUs: $gpus"
}

# Sets torch_folder, or stops if this Python's torch cannot use the GPU.
check_torch() {
  command -v "$python" >/dev/null ||
    fail "no Python: '$python' is not on the PATH." "Set one with a CUDA build of torch: --python PYTHON."
  local needed version cuda seen answer
  needed=$(sed -n 's/.*find_package(Libtorch \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
  answer=$("$python" -c 'import torch
print(torch.__version__.split("+")[0], torch.version.cuda or "none", torch.cuda.is_available(), torch.__path__[0])' 2>/dev/null |
    tail -n 1) ||
    fail "'$python' has no torch." "Install a CUDA build of torch $needed or newer there, or name another Python with --python."
  read -r version cuda seen torch_folder <<<"$answer"
  [ "$cuda" != none ] ||
    fail "torch $version of '$python' is a CPU-only build." \
      "Install a CUDA build of torch there, or name another Python with --python."
  version_at_least "$version" "$needed" ||
    fail "torch $version of '$python' is too old: $needed or newer is needed." "Install a newer one, or name another Python with --python."
  [ "$seen" = True ] ||
    fail "torch $version, built for CUDA $cuda, sees no GPU (torch.cuda.is_available() is false)." \
      "The driver may be too old for CUDA $cuda, or CUDA_VISIBLE_DEVICES may hide the GPUs; nvidia-smi shows the driver."
  step "torch: $version for CUDA $cuda, in $torch_folder"
}

build_all() {
  step "configure ($build_folder)"
  run_step configure_gpu cmake -S "$root" -B "$build_folder" -G Ninja -DTRESTLE_CUDA=ON -DCMAKE_BUILD_TYPE=Release \
    -DTRESTLE_BENCHMARKS=ON "-DTorch_DIR=$torch_folder/share/cmake/Torch" ||
    explain configure_gpu "configuring $build_folder" "If a package is named above, install it (tools/setup.sh names them all)."
  step "build cuda_test trestle_program trestle_benchmarks"
  run_step build_gpu cmake --build "$build_folder" --target cuda_test trestle_program trestle_benchmarks ||
    explain build_gpu "building" "Remove $build_folder and run again; if that does not help, it is an error in trestle."
}

main() {
  parse "$@"
  check_gpu
  check_torch
  make_logs_folder
  mkdir -p "$(dirname "$out")" "$build_folder" 2>/dev/null ||
    fail "no permission to write $out or $build_folder." "Name other places with --out and --build."
  build_all
  step "trestle doctor"
  run_step doctor "$build_folder/apps/trestle/trestle" doctor ||
    explain doctor "trestle doctor" "The program was built but does not run: see above."
  step "tests on the GPUs"
  local code=0
  rm -f "$build_folder/cuda_tests.xml"
  run_step cuda_tests ctest --test-dir "$build_folder" -L '^cuda$' --no-tests=error --output-on-failure \
    --output-junit "$build_folder/cuda_tests.xml" || code=1
  step "benchmarks"
  "$python" "$root/benchmarks/gpu_report.py" --build "$build_folder" --python "$python" --doctor "$logs/doctor.log" \
    --tests "$build_folder/cuda_tests.xml" --out "$out" || code=1
  step "report: $out"
  [ "$code" -eq 0 ] || fail "a test or a measurement failed: see the report." "Logs are in $logs."
}

main "$@"
