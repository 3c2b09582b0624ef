# Finds libtorch (a pip wheel or the zip, CPU or CUDA build) and defines Libtorch::Libtorch.
#
# torch's own CMake package stops with an error when a CUDA build of it meets a machine without a CUDA toolkit; this
# module links the CPU half of any build, and the CUDA half too with TRESTLE_CUDA.
#
# It searches, in this order: Torch_DIR, CMAKE_PREFIX_PATH (variables or environment variables), the environment variable
# LIBTORCH, the project's own virtual environment (.venv, made by tools/setup.sh), Libtorch_BUILT_WITH (set by an
# installed trestle). Sets Libtorch_ROOT_DIR, Libtorch_VERSION and Libtorch_FROM (which of these it took).
include(FindPackageHandleStandardArgs)

set(_candidates "")
set(_named "")  # what was named for libtorch alone: an error if it holds none
if(NOT Torch_DIR)
  set(Torch_DIR "$ENV{Torch_DIR}")
endif()
if(Torch_DIR)
  cmake_path(SET _root NORMALIZE "${Torch_DIR}/../../..")
  list(APPEND _candidates "Torch_DIR|${_root}")
  list(APPEND _named "Torch_DIR|${_root}")
endif()
set(_environment_prefixes "$ENV{CMAKE_PREFIX_PATH}")
string(REPLACE ":" ";" _environment_prefixes "${_environment_prefixes}")
foreach(_prefix ${CMAKE_PREFIX_PATH} ${_environment_prefixes})
  cmake_path(SET _up NORMALIZE "${_prefix}/../..")
  list(APPEND _candidates "CMAKE_PREFIX_PATH|${_prefix}" "CMAKE_PREFIX_PATH|${_up}")
endforeach()
if(DEFINED ENV{LIBTORCH})
  list(APPEND _candidates "LIBTORCH|$ENV{LIBTORCH}")
  list(APPEND _named "LIBTORCH|$ENV{LIBTORCH}")
endif()
file(GLOB _venv LIST_DIRECTORIES true ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
foreach(_dir ${_venv})
  list(APPEND _candidates "the project's virtual environment|${_dir}")
endforeach()
if(Libtorch_BUILT_WITH)
  list(APPEND _candidates "what trestle was built with|${Libtorch_BUILT_WITH}")
endif()

unset(Libtorch_ROOT_DIR)
foreach(_candidate ${_candidates})
  string(REGEX MATCH "^([^|]*)\\|(.*)$" _ "${_candidate}")
  set(_from "${CMAKE_MATCH_1}")  # the next line forgets it
  string(REGEX REPLACE "/$" "" _dir "${CMAKE_MATCH_2}")
  if(NOT Libtorch_ROOT_DIR AND EXISTS "${_dir}/include/torch/csrc/api/include/torch/torch.h")
    set(Libtorch_FROM "${_from}")
    set(Libtorch_ROOT_DIR "${_dir}")
  endif()
endforeach()

foreach(_candidate ${_named})
  string(REGEX MATCH "^([^|]*)\\|(.*)$" _ "${_candidate}")
  if(NOT EXISTS "${CMAKE_MATCH_2}/include/torch/csrc/api/include/torch/torch.h")
    message(FATAL_ERROR "${CMAKE_MATCH_1} names ${CMAKE_MATCH_2}, which holds no libtorch with its headers. "
                        "Correct it, or leave it out.")
  endif()
endforeach()

if(Libtorch_ROOT_DIR)
  find_library(_libtorch_cpu torch_cpu PATHS ${Libtorch_ROOT_DIR}/lib NO_DEFAULT_PATH NO_CACHE)
  find_library(_libtorch_c10 c10 PATHS ${Libtorch_ROOT_DIR}/lib NO_DEFAULT_PATH NO_CACHE)
  file(STRINGS ${Libtorch_ROOT_DIR}/include/torch/headeronly/version.h _version
       REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
  string(REGEX REPLACE "[^;0-9]" "" _version "${_version}")
  list(JOIN _version "." Libtorch_VERSION)
  set(_definitions "")
  if(EXISTS ${Libtorch_ROOT_DIR}/share/cmake/Caffe2/Caffe2Targets.cmake)
    file(READ ${Libtorch_ROOT_DIR}/share/cmake/Caffe2/Caffe2Targets.cmake _targets)
    if(_targets MATCHES
       "set_target_properties\\(torch_cpu PROPERTIES[\r\n ]+INTERFACE_COMPILE_DEFINITIONS \"([^\"]*)\"")
      set(_definitions "${CMAKE_MATCH_1}")
    endif()
  endif()
endif()

find_package_handle_standard_args(
  Libtorch
  REQUIRED_VARS Libtorch_ROOT_DIR _libtorch_cpu _libtorch_c10
  VERSION_VAR Libtorch_VERSION
  REASON_FAILURE_MESSAGE
    "No libtorch found. Run tools/setup.sh, or give -DTorch_DIR=..., CMAKE_PREFIX_PATH, or the environment variable LIBTORCH.")

if(Libtorch_FOUND AND NOT TARGET Libtorch::Libtorch)
  message(STATUS "libtorch ${Libtorch_VERSION} from ${Libtorch_FROM}: ${Libtorch_ROOT_DIR}")
  find_package(Threads REQUIRED)
  add_library(Libtorch::c10 SHARED IMPORTED)
  set_target_properties(Libtorch::c10 PROPERTIES IMPORTED_LOCATION ${_libtorch_c10} IMPORTED_SONAME libc10.so)
  add_library(Libtorch::Libtorch SHARED IMPORTED)
  set_target_properties(
    Libtorch::Libtorch
    PROPERTIES IMPORTED_LOCATION ${_libtorch_cpu}
               IMPORTED_SONAME libtorch_cpu.so
               INTERFACE_INCLUDE_DIRECTORIES
               "${Libtorch_ROOT_DIR}/include;${Libtorch_ROOT_DIR}/include/torch/csrc/api/include"
               INTERFACE_COMPILE_DEFINITIONS "${_definitions}"
               INTERFACE_LINK_LIBRARIES "Libtorch::c10;Threads::Threads")
  # For at::parallel_for, which is a loop on one thread where -fopenmp is not given. The OpenMP that this libtorch runs on:
  # a second one in the process would have threads of its own.
  file(GLOB _libgomp ${Libtorch_ROOT_DIR}/lib/libgomp*.so*)
  if(_libgomp)
    list(GET _libgomp 0 _libgomp)
    target_link_libraries(Libtorch::Libtorch INTERFACE ${_libgomp})
  else()
    find_package(OpenMP REQUIRED COMPONENTS CXX)
    target_link_libraries(Libtorch::Libtorch INTERFACE OpenMP::OpenMP_CXX)
  endif()
  # A CUDA build's CPU half still needs the CUDA run-time libraries, which its wheel's own dependencies bring.
  file(GLOB _cuda_runtime ${Libtorch_ROOT_DIR}/../nvidia/*/lib ${Libtorch_ROOT_DIR}/../nvidia/*/*/lib)
  foreach(_dir ${_cuda_runtime})
    target_link_options(Libtorch::Libtorch INTERFACE "LINKER:-rpath-link,${_dir}" "LINKER:-rpath,${_dir}")
  endforeach()
  if(TRESTLE_CUDA)
    # Its kernels register themselves when the library is loaded, so it is linked although nothing calls it. No CUDA
    # header is used: neither a toolkit nor a compiler for CUDA is needed.
    find_library(_libtorch_cuda torch_cuda PATHS ${Libtorch_ROOT_DIR}/lib NO_DEFAULT_PATH NO_CACHE)
    if(NOT _libtorch_cuda)
      message(FATAL_ERROR "TRESTLE_CUDA: ${Libtorch_ROOT_DIR} is a libtorch for the CPU alone. "
                          "Name a CUDA build of it with -DTorch_DIR or LIBTORCH, or leave TRESTLE_CUDA off.")
    endif()
    target_link_libraries(Libtorch::Libtorch INTERFACE "-Wl,--no-as-needed,${_libtorch_cuda},--as-needed")
  endif()
endif()
