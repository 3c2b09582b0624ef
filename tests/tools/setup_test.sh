#!/usr/bin/env bash
# tools/setup.sh on incomplete machines: it must exit with code 1, the reason and the fix. On a complete machine it must
# install nothing.
# shellcheck disable=SC2016  # the bodies of the fakes are expanded when the fakes run
set -euo pipefail
# shellcheck source=tests/tools/fake_machine.sh
. "$(dirname "${BASH_SOURCE[0]}")/fake_machine.sh"

run_setup() { run tools/setup.sh "$@"; }

name="everything there but libtorch"
new_machine
run_setup
expect_success "system packages: all installed" "installing torch==" ".venv"
expect_no_call "apt-get"
expect_no_call "cuda-toolkit"

name="second time"
: >"$machine/calls"
run_setup
expect_success "in the project's own virtual environment"
expect_no_call "pip install"

name="libtorch cut off half-way"
rm "$machine"/clone/.venv/lib/python3.11/site-packages/torch-*.dist-info/INSTALLER
run_setup
expect_success "installing torch=="
expect_call "pip install .*--force-reinstall"

name="a CUDA build of libtorch"
new_machine
fake_python "$(torch_package "'13.2'")"
run_setup
expect_success "it is a CUDA build" "cuda-toolkit[cudart,cupti]==13.2.2"
expect_call "pip install .*cuda-toolkit\[cudart,cupti\]==13.2.2"

name="with what the tests need"
new_machine
run_setup --tests
expect_success "installing numpy safetensors typing_extensions into .venv"
expect_call "pip install .*numpy safetensors typing_extensions"

name="packages that only the tests need"
new_machine
fake dpkg-query 'case "$*" in *libfaketime*) exit 1;; esac; echo installed'
run_setup
expect_success "system packages: all installed"
run_setup --tests
expect_success "system packages: installing libfaketime"

name="the tests' second time"
mkdir "$machine"/clone/.venv/lib/python3.11/site-packages/{numpy-1,safetensors-1,typing_extensions-1}.dist-info
: >"$machine/calls"
run_setup --tests
expect_success
expect_no_call "pip install"

name="the tests need Python's torch beside another libtorch"
new_machine
mkdir -p "$machine/libtorch/include/torch/csrc/api/include/torch"
touch "$machine/libtorch/include/torch/csrc/api/include/torch/torch.h"
settings=("LIBTORCH=$machine/libtorch")
run_setup --tests
expect_success "the environment variable LIBTORCH=" "installing torch=="
expect_call "pip install .*safetensors"

name="missing packages are installed"
new_machine
lacks ccache
fake dpkg-query 'case "$*" in *ccache*|*libgif-dev*) exit 1;; esac; echo installed'
run_setup
expect_success "installing ccache libgif-dev"
expect_call "apt-get install .* ccache libgif-dev"

name="with sudo when not root"
new_machine
fake dpkg-query 'case "$*" in *libgif-dev*) exit 1;; esac; echo installed'
fake id 'echo 1000'
fake sudo '"$@"'
run_setup
expect_success
expect_call "sudo env DEBIAN_FRONTEND=noninteractive apt-get install"

name="neither root nor sudo"
lacks sudo
run_setup
expect_failure "no permission" "apt-get install libgif-dev"

name="no apt"
new_machine
lacks apt-get
run_setup
expect_success "no apt-get" "libtomlplusplus-dev"

name="apt without a network"
new_machine
fake dpkg-query 'case "$*" in *libgif-dev*) exit 1;; esac; echo installed'
fake apt-get 'echo "E: Failed to fetch something  Could not resolve host" >&2; exit 100'
run_setup
expect_failure "installing system packages failed: no network" "Check the connection"

name="apt without fresh lists"
fake apt-get 'case "$1" in update) echo "W: Failed to fetch x  Temporary failure resolving y"; exit 100;; esac; echo "E: Unable to locate package libgif-dev"; exit 100'
run_setup
expect_failure "no network"

name="a system too old for the packages"
fake apt-get 'case "$1" in update) exit 0;; esac; echo "E: Unable to locate package libgif-dev"; exit 100'
run_setup
expect_failure "lack a package" "Debian 12"

name="apt is locked"
fake apt-get 'echo "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 12"; exit 100'
run_setup
expect_failure "another package manager is running"

name="no compiler"
new_machine
lacks g++
run_setup
expect_failure "no C++ compiler" "GCC 12"

name="an old compiler"
new_machine
fake g++ 'echo 11.4.0'
run_setup
expect_failure "too old" "11.4.0" "CXX=g++-12"

name="an old CMake"
new_machine
fake cmake 'echo cmake version 3.22.1'
run_setup
expect_failure "CMake is too old: version 3.22.1"

name="no disk"
new_machine
fake df 'printf "Filesystem 1M Used Available\nfake 9 9 900 99%% /\n"'
run_setup
expect_failure "900 MB are free" "4096 MB are needed" "Free some space"
expect_no_call "pip"

name="the disk fills up"
new_machine
fake_python 'echo "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"; exit 1'
run_setup
expect_failure "the disk is full"

name="pip without a network"
new_machine
fake_python 'echo "WARNING: Retrying (Retry(total=0)) after connection broken: Failed to establish a new connection"
  echo "ERROR: No matching distribution found for torch"; exit 1'
run_setup
expect_failure "installing libtorch with pip failed: no network" "run the same command again"

name="no wheel for this machine"
new_machine
fake_python 'echo "ERROR: No matching distribution found for torch"; exit 1'
run_setup
expect_failure "pip has no torch" "Python 3.11.2" "LIBTORCH"

name="no Python"
new_machine
lacks python3
run_setup
expect_failure "no Python" "LIBTORCH"

name="the folder may not be written"
new_machine
fake mkdir 'echo "mkdir: Permission denied" >&2; exit 1'
run_setup
expect_failure "no permission to write" "chown"

name="LIBTORCH"
new_machine
mkdir -p "$machine/libtorch/include/torch/csrc/api/include/torch"
touch "$machine/libtorch/include/torch/csrc/api/include/torch/torch.h"
settings=("LIBTORCH=$machine/libtorch")
run_setup
expect_success "the environment variable LIBTORCH="
expect_no_call "pip"

name="CMAKE_PREFIX_PATH comes before LIBTORCH, and may name other things"
settings=("LIBTORCH=$machine/nothing")
run_setup "-DCMAKE_PREFIX_PATH=$machine;$machine/libtorch"
expect_success "from CMAKE_PREFIX_PATH=$machine/libtorch"

name="Torch_DIR"
mkdir -p "$machine/libtorch/share/cmake/Torch"
run_setup "-DTorch_DIR=$machine/libtorch/share/cmake/Torch"
expect_success "from Torch_DIR="

name="a LIBTORCH that holds none"
settings=("LIBTORCH=$machine/nothing")
run_setup
expect_failure "contains no libtorch" "unset it"

name="a Torch_DIR that holds none"
run_setup "-DTorch_DIR=$machine/nothing"
expect_failure "contains no libtorch"

finish "setup.sh: every failure has its reason and fix"
