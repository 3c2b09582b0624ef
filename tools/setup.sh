#!/usr/bin/env bash
# Installs the system packages and the libtorch that trestle needs. Safe to run twice: it keeps what is installed.
#
#   tools/setup.sh [--tests] [-DTorch_DIR=... | -DCMAKE_PREFIX_PATH=...]
#
# libtorch is the first of: Torch_DIR, CMAKE_PREFIX_PATH (options or environment variables), the environment variable
# LIBTORCH, and the project's own virtual environment (.venv) with the pip package pinned below. cmake/FindLibtorch.cmake
# searches in the same order.
# --tests also installs packages that only the tests need. PYTHON names the Python that creates the virtual environment.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=tools/steps.sh
. "$root/tools/steps.sh"

torch_version=2.13.0  # the only place that pins the version
needed_gcc=12
needed_clang=15
needed_cmake=3.25
needed_disk_mb=4096
needed_disk_mb_again=1024  # if libtorch and a build exist

# Debian and Ubuntu packages; "package:program" counts as installed if the program exists, whatever its origin.
packages=(g++:g++ cmake:cmake ninja-build:ninja ccache:ccache git:git python3:python3 python3-venv zlib1g-dev
  libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libfmt-dev libjpeg-dev libpng-dev libgif-dev
  libfreetype-dev fonts-dejavu-core libzip-dev libgtest-dev libgmock-dev libbenchmark-dev libexpat1-dev libpcre2-dev
  libsentencepiece-dev libutf8proc-dev)
test_packages=(clang-format:clang-format clang-tidy:clang-tidy iproute2:tc nftables:nft libfaketime chromium:chromium)
# Compiles the tests in half of the time that GCC 12 takes. The first that the system has; without one, GCC compiles them.
clang_versions=(16 17 18 19 15)
# Packages of pip beside torch: the tests' Python peers write and read weights files with them.
test_python_packages=(numpy safetensors typing_extensions)

check_disk() {
  local need=$needed_disk_mb have
  if [ -d "$root/.venv" ] && [ -n "$(find "$root/build" -maxdepth 2 -name build.ninja 2>/dev/null)" ]; then
    need=$needed_disk_mb_again
  fi
  have=$(df -Pm "$root" 2>/dev/null | awk 'NR == 2 {print $4}') || have=
  [ -n "$have" ] || return 0
  [ "$have" -ge "$need" ] ||
    fail "not enough disk: $have MB are free at $root, $need MB are needed (libtorch 0.7 GB, the builds 3 GB)." \
      "Free some space there, or clone into a bigger file system."
}

package_is_there() {
  local package=${1%%:*} program=${1#*:}
  if [ "$program" != "$1" ] && command -v "$program" >/dev/null; then return 0; fi
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ]
}

install_packages() {
  local missing=() entry
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    step "system packages: no apt-get; continuing with the installed packages. Needed: ${packages[*]%%:*}"
    return 0
  fi
  for entry in "${packages[@]}"; do
    package_is_there "$entry" || missing+=("${entry%%:*}")
  done
  if [ "${#missing[@]}" -eq 0 ]; then
    step "system packages: all installed"
    return 0
  fi
  step "system packages: installing ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "no permission to install system packages (not root, and no sudo)." \
        "Have an administrator run: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  local by_hand="Install them by hand: apt-get install ${missing[*]}"
  run_quiet apt_update "${as_root[@]}" apt-get update -qq ||
    step "system packages: the package lists could not be refreshed; using the old ones"
  run_quiet apt_install "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" && return 0
  if grep -q 'Unable to locate package' "$logs/apt_install.log"; then
    # Without fresh lists no package is found: then report the reason of the failed update.
    grep -qiE 'could not resolve|temporary failure|unable to connect|timed out' "$logs/apt_update.log" &&
      explain apt_update "refreshing the package lists" "$by_hand"
    fail "this system's package lists lack a package that trestle needs (above)." \
      "Debian 12, Ubuntu 24.04 or newer have them all. $by_hand"
  fi
  explain apt_install "installing system packages" "$by_hand"
}

# The installed clang for the tests, such as clang++-16, or nothing.
clang_of_tests() {
  local version
  for version in "${clang_versions[@]}"; do
    if command -v "clang++-$version"; then return 0; fi
  done
}

# Links a test program in a tenth of the time that GNU ld takes.
install_mold() {
  if command -v mold >/dev/null || ! command -v apt-cache >/dev/null; then return 0; fi
  apt-cache show mold >/dev/null 2>&1 || return 0
  packages=(mold:mold)
  install_packages
}

# The names of its packages differ by system, so the lists must be there.
install_clang() {
  local version
  if [ -n "${CXX:-}" ] || [ -n "$(clang_of_tests)" ] || ! command -v apt-cache >/dev/null; then return 0; fi
  for version in "${clang_versions[@]}"; do
    apt-cache show "clang-$version" >/dev/null 2>&1 || continue
    packages=("clang-$version:clang++-$version" "libclang-rt-$version-dev")
    install_packages
    return 0
  done
}

# tests_compiler PRESET: the options of CMake for it and its linker. A build that exists keeps its compiler, and CXX names
# another one. Older versions of GCC do not know mold.
tests_compiler() {
  local clang
  if [ -n "${CXX:-}" ] || [ -f "$root/build/$1/CMakeCache.txt" ]; then return 0; fi
  clang=$(clang_of_tests)
  [ -n "$clang" ] || return 0
  printf '%s\n' "-DCMAKE_CXX_COMPILER=$clang"
  if command -v mold >/dev/null; then printf '%s\n' "-DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=mold${LDFLAGS:+ $LDFLAGS}"; fi
}

# version_at_least HAVE NEED
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

check_tools() {
  local compiler=${CXX:-g++} version need=$needed_gcc
  command -v "$compiler" >/dev/null ||
    fail "no C++ compiler: '$compiler' is not on the PATH." "Install GCC $needed_gcc or newer (apt-get install g++), or set CXX."
  version=$("$compiler" -dumpfullversion 2>/dev/null || "$compiler" -dumpversion 2>/dev/null || echo 0)
  if "$compiler" --version 2>/dev/null | grep -q clang; then need=$needed_clang; fi
  version_at_least "$version" "$need" ||
    fail "the C++ compiler is too old: '$compiler' is version $version, C++20 needs GCC $needed_gcc (clang $needed_clang)." \
      "Install a newer one (apt-get install g++-12) and set CXX=g++-12."
  command -v cmake >/dev/null || fail "no CMake." "Install CMake $needed_cmake or newer (apt-get install cmake)."
  command -v ninja >/dev/null || fail "no Ninja." "Install it (apt-get install ninja-build)."
  local cmake_version
  cmake_version=$(cmake --version | awk 'NR == 1 {print $3}')
  version_at_least "$cmake_version" "$needed_cmake" ||
    fail "CMake is too old: version $cmake_version, $needed_cmake is needed." "Install a newer one (pip install cmake)."
  step "tools: $compiler $version, CMake $cmake_version"
}

holds_libtorch() { [ -f "$1/include/torch/csrc/api/include/torch/torch.h" ]; }

# Prints which libtorch the options or the environment set; returns 1 if none.
given_libtorch() {
  local option prefix torch_dir=${Torch_DIR:-} prefixes=${CMAKE_PREFIX_PATH:-}
  prefixes=${prefixes//:/;}
  for option in "$@"; do
    case $option in
      -DTorch_DIR=* | -DTorch_DIR:*=*) torch_dir=${option#*=} ;;
      -DCMAKE_PREFIX_PATH=* | -DCMAKE_PREFIX_PATH:*=*) prefixes=${option#*=} ;;
    esac
  done
  if [ -n "$torch_dir" ]; then
    holds_libtorch "$torch_dir/../../.." ||
      fail "Torch_DIR=$torch_dir contains no libtorch." "Set it to the folder share/cmake/Torch of a libtorch with headers, or unset it."
    step "libtorch: from Torch_DIR=$torch_dir"
    return 0
  fi
  local list
  IFS=';' read -ra list <<<"$prefixes"
  for prefix in ${list[@]+"${list[@]}"}; do
    if holds_libtorch "$prefix" || holds_libtorch "$prefix/../.."; then
      step "libtorch: from CMAKE_PREFIX_PATH=$prefix"
      return 0
    fi
  done
  if [ -n "${LIBTORCH:-}" ]; then
    holds_libtorch "$LIBTORCH" ||
      fail "LIBTORCH=$LIBTORCH contains no libtorch." "Set it to a folder with include/ and lib/, or unset it."
    step "libtorch: from the environment variable LIBTORCH=$LIBTORCH"
    return 0
  fi
  return 1
}

# The project's own site-packages, or nothing.
site_packages() {
  local dir
  for dir in "$root"/.venv/lib/python3*/site-packages; do
    if [ -d "$dir" ]; then printf '%s\n' "$dir"; fi
  done | tail -n 1
}

# pip writes INSTALLER last: without it, the installation of a package was interrupted.
torch_is_there() {
  local site found
  site=$(site_packages)
  [ -n "$site" ] && [ -f "$site/torch/lib/libtorch_cpu.so" ] || return 1
  found=$(find "$site" -path "*/torch-$torch_version*.dist-info/INSTALLER" | head -n 1)
  [ -n "$found" ]
}

# The CPU half of a CUDA build links two CUDA run-time libraries. Prints the pip requirements for them, or nothing.
cuda_runtime_requirement() {
  local site metadata toolkit
  site=$(site_packages)
  grep -qE "^cuda(: [][A-Za-z]*)? = '" "$site/torch/version.py" || return 0
  if [ -n "$(find "$site/nvidia" -name 'libcudart.so*' 2>/dev/null | head -n 1)" ] &&
    [ -n "$(find "$site/nvidia" -name 'libcupti.so*' 2>/dev/null | head -n 1)" ]; then
    return 0
  fi
  metadata=$(find "$site" -path "*/torch-$torch_version*.dist-info/METADATA" | head -n 1)
  toolkit=$(sed -n 's/^Requires-Dist: cuda-toolkit\[[^]]*\] *\(==[0-9.]*\).*/\1/p' "$metadata" | head -n 1)
  if [ -n "$toolkit" ]; then
    printf 'cuda-toolkit[cudart,cupti]%s\n' "$toolkit"
  else
    sed -n 's/^Requires-Dist: \(nvidia-cuda-\(runtime\|cupti\)[a-z0-9-]*\) *(\{0,1\}\(==[0-9.]*\).*/\1\3/p' "$metadata"
  fi
}

make_virtual_environment() {
  [ -x "$root/.venv/bin/python" ] && "$root/.venv/bin/python" -m pip --version >/dev/null 2>&1 && return 0
  local python=${PYTHON:-python3}
  command -v "$python" >/dev/null ||
    fail "no Python: '$python' is not on the PATH; it is needed to download libtorch." "Install it (apt-get install python3-venv), or set LIBTORCH to a libtorch you have."
  run_quiet venv "$python" -m venv --clear "$root/.venv" && return 0
  # Another Python may lack the venv module; the system's Python has it.
  if [ -x /usr/bin/python3 ] && run_quiet venv /usr/bin/python3 -m venv --clear "$root/.venv"; then return 0; fi
  explain venv "creating the virtual environment .venv" "Install python3-venv, or set LIBTORCH to a libtorch you have."
}

install_libtorch() {
  if given_libtorch "$@"; then return 0; fi
  install_torch_package
}

install_torch_package() {
  local fix="Set LIBTORCH to a libtorch $torch_version you have, or install the pip package torch==$torch_version into .venv."
  if torch_is_there; then
    step "libtorch: torch $torch_version in the project's own virtual environment (.venv)"
  else
    step "libtorch: installing torch==$torch_version into the project's own virtual environment (.venv)"
    make_virtual_environment
    # --force-reinstall: an interrupted installation may have left files.
    run_quiet pip "$root/.venv/bin/python" -m pip install --no-input --no-deps --no-compile --force-reinstall \
      "torch==$torch_version" || explain_pip "$fix"
  fi
  local requirements
  mapfile -t requirements < <(cuda_runtime_requirement)
  if [ "${#requirements[@]}" -gt 0 ]; then
    step "libtorch: it is a CUDA build; installing its run-time libraries ${requirements[*]}"
    run_quiet pip "$root/.venv/bin/python" -m pip install --no-input --no-compile "${requirements[@]}" || explain_pip "$fix"
  fi
}

# Installs Python with torch into the project's own virtual environment, whatever the origin of libtorch.
install_test_python() {
  torch_is_there || install_torch_package
  local site package missing=()
  site=$(site_packages)
  for package in "${test_python_packages[@]}"; do
    [ -n "$(find "$site" -maxdepth 1 -name "$package-*.dist-info")" ] || missing+=("$package")
  done
  [ "${#missing[@]}" -gt 0 ] || return 0
  step "Python packages of the tests: installing ${missing[*]} into .venv"
  run_quiet pip "$root/.venv/bin/python" -m pip install --no-input --no-compile "${missing[@]}" ||
    explain pip "installing ${missing[*]} with pip" "Install these packages into .venv."
}

explain_pip() {
  if grep -q 'No matching distribution' "$logs/pip.log" && ! grep -qiE 'retry(ing)? ' "$logs/pip.log"; then
    fail "pip has no torch $torch_version for this Python ($("$root/.venv/bin/python" --version 2>&1)) and this machine ($(uname -m))." \
      "Remove .venv and set PYTHON to a CPython of 3.10 to 3.14 on Linux x86-64. $1"
  fi
  explain pip "installing libtorch with pip" "$1"
}

# setup [--tests] [-D...]
setup() {
  local with_tests=no
  if [ "${1:-}" = --tests ]; then
    with_tests=yes
    packages+=("${test_packages[@]}")
    shift
  fi
  make_logs_folder
  check_disk
  install_packages
  if [ "$with_tests" = yes ]; then install_clang; install_mold; fi
  check_tools
  install_libtorch "$@"
  if [ "$with_tests" = yes ]; then install_test_python; fi
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  case ${1:-} in
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" ;;
    *) setup "$@" ;;
  esac
fi
