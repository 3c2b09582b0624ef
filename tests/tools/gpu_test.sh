#!/usr/bin/env bash
# benchmarks/gpu.sh on fake machines: without a GPU, with a torch that cannot use it, and with everything it needs.
# shellcheck disable=SC2016  # the bodies of the fakes are expanded when the fakes run
set -euo pipefail
# shellcheck source=tests/tools/fake_machine.sh
. "$(dirname "${BASH_SOURCE[0]}")/fake_machine.sh"

# gpu_machine VERSION CUDA SEEN: two GPUs, and a Python whose torch reports these values. The fake report writer prints
# `wrote` and exits with $report_code.
gpu_machine() {
  new_machine
  mkdir -p "$machine/clone/benchmarks" "$machine/clone/build/gpu/apps/trestle"
  cp "$source_root/benchmarks/gpu.sh" "$machine/clone/benchmarks"
  cp "$source_root/CMakeLists.txt" "$machine/clone"
  : >"$machine/calls"
  local program
  for program in realpath wc; do ln -s "$(command -v "$program")" "$machine/bin/$program"; done
  fake nvidia-smi 'printf "GPU 0: Fake (UUID: 1)\nGPU 1: Fake (UUID: 2)\n"'
  fake python3 'case "$1" in -c) echo "'"$1 $2 $3"' /opt/a folder/torch" ;; *) echo wrote; exit '"${report_code:-0}"' ;; esac'
  fake ctest 'exit '"${tests_code:-0}"
  printf '#!/bin/bash\necho "called: trestle $*"\n' >"$machine/clone/build/gpu/apps/trestle/trestle"
  chmod +x "$machine/clone/build/gpu/apps/trestle/trestle"
}

run_gpu() { run benchmarks/gpu.sh "$@"; }

name="all there"
gpu_machine 99.1.0 13.0 True
run_gpu
expect_success "GPUs: 2" "torch: 99.1.0 for CUDA 13.0, in /opt/a folder/torch" "called: trestle doctor" "wrote" "gpu_report.md"
expect_call "cmake -S .* -DTRESTLE_CUDA=ON .*-DTorch_DIR=/opt/a folder/torch/share/cmake/Torch"
expect_call "cmake --build .*/build/gpu --target cuda_test trestle_program trestle_benchmarks"
expect_call "ctest --test-dir .*/build/gpu -L .cuda"

name="a test fails: the report is written all the same"
tests_code=8
gpu_machine 99.1.0 13.0 True
tests_code=0
run_gpu
expect_failure "wrote" "a test or a measurement failed"

name="something could not be measured"
report_code=1
gpu_machine 99.1.0 13.0 True
report_code=0
run_gpu
expect_failure "a measurement failed"

name="no driver"
gpu_machine 99.1.0 13.0 True
lacks nvidia-smi
run_gpu
expect_failure "nvidia-smi is not on the PATH"
expect_no_call "cmake"

name="a driver without a device"
fake nvidia-smi 'echo "No devices found."'
run_gpu
expect_failure "nvidia-smi finds none"
fake nvidia-smi 'echo "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver." >&2; exit 9'
run_gpu
expect_failure "nvidia-smi finds none"

name="torch for the CPU alone"
gpu_machine 99.1.0 none False
run_gpu
expect_failure "is a CPU-only build" "Install a CUDA build"

name="torch that sees no GPU"
gpu_machine 99.1.0 13.0 False
run_gpu
expect_failure "sees no GPU" "driver may be too old"

name="a torch that is too old"
gpu_machine 1.13.1 11.7 True
run_gpu
expect_failure "too old"

name="a Python without torch, and none"
fake python3 'echo "ModuleNotFoundError: No module named torch" >&2; exit 1'
run_gpu
expect_failure "'python3' has no torch"
run_gpu --python nothing_like_it
expect_failure "'nothing_like_it' is not on the PATH"

name="an unknown option"
run_gpu --gpus 2
[ "$code" -eq 2 ] || complain "exit code $code, 2 expected"
run_gpu --out
[ "$code" -eq 2 ] || complain "exit code $code, 2 expected"

name="building fails"
gpu_machine 99.1.0 13.0 True
fake cmake 'case "$*" in *--build*) echo "error: expected ;"; exit 1;; esac'
run_gpu
expect_failure "expected ;" "building failed"
expect_no_call "ctest"

finish "gpu.sh: all cases passed"
