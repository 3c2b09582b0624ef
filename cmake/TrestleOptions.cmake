# Compiler, cache, sanitizer and build-type settings shared by every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

find_program(TRESTLE_CCACHE ccache)
if(TRESTLE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # A precompiled header defeats ccache unless it may ignore its time stamp and its macros.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${TRESTLE_CCACHE})
endif()

# A unit of torch sources takes up to 1.6 GB (a source of the tests 1.7 GB). Never more at once than memory holds.
cmake_host_system_information(RESULT _memory_mb QUERY TOTAL_PHYSICAL_MEMORY)
cmake_host_system_information(RESULT _cores QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR _jobs "${_memory_mb} / 1800")
if(_jobs LESS 1)
  set(_jobs 1)
elseif(_jobs GREATER _cores)
  set(_jobs ${_cores})
endif()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS torch_compile=${_jobs})

add_library(trestle_settings INTERFACE)
target_compile_options(trestle_settings INTERFACE -Wall -Wextra -Wno-unused-parameter)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # Optimised, GCC 12 sees overlapping memory in "text" + std::string where there is none (its bug 105651).
  target_compile_options(trestle_settings INTERFACE $<$<CONFIG:Release,RelWithDebInfo>:-Wno-restrict>)
endif()
if(TRESTLE_WERROR)
  target_compile_options(trestle_settings INTERFACE -Werror)
endif()
if(TRESTLE_SANITIZE)
  # Instrumented, GCC sees uninitialised values in libtorch's headers that are not there.
  target_compile_options(
    trestle_settings INTERFACE -fsanitize=${TRESTLE_SANITIZE} -fno-omit-frame-pointer -g1
                               $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(trestle_settings INTERFACE -fsanitize=${TRESTLE_SANITIZE})
  if(TRESTLE_SANITIZE MATCHES "undefined")
    # A third of the time that sources with torch take to compile. A null pointer ends a test without them too.
    target_compile_options(
      trestle_settings INTERFACE $<$<BOOL:$<TARGET_PROPERTY:TRESTLE_USES_TORCH>>:-fno-sanitize=null,alignment>)
  endif()
endif()
