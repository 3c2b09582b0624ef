# trestle_add_library(<folder> [ROOMS reduce/ ...] [WITHOUT_TORCH rates/ buckets.cpp ...] HEADERS a.h ... DEPENDS base ...
#                     [PACKAGES targets] [PRIVATE_PACKAGES targets] [TORCH tensors|modules])
#
# One static library for each folder, named trestle_<folder>, exported as trestle::<folder>. Its sources are the .cpp files
# of the folder and of its ROOMS, which are sub-folders without a CMakeLists.txt. WITHOUT_TORCH names rooms and sources of
# a library with torch that include no torch: they are compiled without its precompiled header. DEPENDS names other
# folders; a folder that is not named here can be included but will not link. HEADERS are the public ones: what a user
# includes, and what those include. They are installed, and `all_verify_interface_header_sets` compiles each alone. TORCH
# is what trestle_use_torch() takes.
function(trestle_add_library folder)
  cmake_parse_arguments(ARG "" "TORCH" "ROOMS;WITHOUT_TORCH;HEADERS;DEPENDS;PACKAGES;PRIVATE_PACKAGES" ${ARGN})
  set(target trestle_${folder})
  trestle_glob_sources(sources ./ ${ARG_ROOMS})
  trestle_glob_sources(plain ${ARG_WITHOUT_TORCH})
  if(plain)
    list(REMOVE_ITEM sources ${plain})
    add_library(${target}_plain OBJECT ${plain})
    target_include_directories(${target}_plain PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${target}_plain PRIVATE trestle_settings ${ARG_PACKAGES} ${ARG_PRIVATE_PACKAGES})
    trestle_use_unity(${target}_plain)
    list(APPEND sources $<TARGET_OBJECTS:${target}_plain>)
  endif()
  add_library(${target} STATIC ${sources})
  add_library(trestle::${folder} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${folder})
  target_sources(
    ${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_HEADERS})
  target_include_directories(
    ${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:trestle_settings>)
  foreach(dependency ${ARG_DEPENDS})
    target_link_libraries(${target} PUBLIC trestle_${dependency})
  endforeach()
  target_link_libraries(${target} PUBLIC ${ARG_PACKAGES} PRIVATE ${ARG_PRIVATE_PACKAGES})
  trestle_use_unity(${target})
  if(ARG_TORCH)
    trestle_use_torch(${target} ${ARG_TORCH})
  endif()
  set_property(GLOBAL APPEND PROPERTY TRESTLE_LIBRARIES ${target})
endfunction()

# trestle_glob_sources(<variable> [room/ | source.cpp]...)
# The named sources and the .cpp files of the named sub-folders, as absolute paths.
function(trestle_glob_sources variable)
  set(found)
  foreach(entry ${ARGN})
    if(entry MATCHES "/$")
      file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${entry}*.cpp)
      list(APPEND found ${sources})
    else()
      list(APPEND found ${CMAKE_CURRENT_SOURCE_DIR}/${entry})
    endif()
  endforeach()
  list(TRANSFORM found REPLACE "/\\./" "/")
  list(SORT found)
  set(${variable} ${found} PARENT_SCOPE)
endfunction()

# trestle_use_unity(<target> [<sources a unit>])
# With TRESTLE_UNITY the target's sources are compiled several at a time: most of the time that a source takes is headers.
# A name in an unnamed namespace must therefore be unique within a folder.
function(trestle_use_unity target)
  set(size ${ARGN})
  if(NOT size)
    set(size 12)
  endif()
  if(TRESTLE_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      # GCC 12 takes a unit for a header: a type with a member of an unnamed namespace would be one that differs by source.
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
    endif()
  endif()
endfunction()

# trestle_use_torch(<target> <tensors|modules|all>)
# Links libtorch, limits how many such sources compile at once, and shares a precompiled header: of ATen, of
# torch::nn::Module too, or of the whole of torch/torch.h. Take the smallest that does: GCC 12 instantiates what a
# precompiled header left open in every source anew, which takes 1 s, 2 s or 4 s.
function(trestle_use_torch target headers)
  target_link_libraries(${target} PUBLIC Libtorch::Libtorch)
  set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE torch_compile TRESTLE_USES_TORCH ON)
  if(TRESTLE_PCH)
    target_precompile_headers(${target} REUSE_FROM trestle_pch_${headers})
    get_target_property(_type ${target} TYPE)
    if(_type STREQUAL "EXECUTABLE")
      target_compile_options(${target} PRIVATE -fPIC)  # CMake says -fPIE here; the header was compiled with -fPIC
    endif()
  endif()
endfunction()

# The precompiled headers that targets choose from.
function(trestle_add_precompiled_headers)
  file(CONFIGURE OUTPUT pch.cpp CONTENT "// holds a precompiled header that torch sources share\n")
  foreach(headers "tensors=ATen/ATen.h" "modules=torch/nn/module.h" "all=torch/torch.h")
    string(REGEX MATCH "^(.*)=(.*)$" _ ${headers})
    set(target trestle_pch_${CMAKE_MATCH_1})
    add_library(${target} OBJECT ${CMAKE_CURRENT_BINARY_DIR}/pch.cpp)
    target_link_libraries(${target} PRIVATE trestle_settings Libtorch::Libtorch)
    set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE torch_compile TRESTLE_USES_TORCH ON)
    target_precompile_headers(${target} PRIVATE <${CMAKE_MATCH_2}>)
  endforeach()
endfunction()

# at::parallel_for in these sources runs on several threads; without this it compiles too, and runs on one.
function(trestle_use_parallel_for)
  set_source_files_properties(
    ${ARGN} PROPERTIES COMPILE_OPTIONS $<$<CXX_COMPILER_ID:GNU>:-fopenmp> SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# trestle_add_test(<name> LABEL core|torch|ranks|slow SOURCES ... FOLDERS nn device ... [TORCH] [PACKAGES ...])
# One GoogleTest binary; every test in it becomes one ctest entry with a time-out. The target trestle_tests builds all of
# them. A build without torch leaves out the tests of the folders that it lacks. In a build with sanitizers the label is
# "sanitize", and of the tests that use torch only those named in TRESTLE_SANITIZED_TESTS ("all" for all) are built:
# libtorch makes such builds slow.
function(trestle_add_test name)
  cmake_parse_arguments(ARG "TORCH" "LABEL;TIMEOUT" "SOURCES;FOLDERS;PACKAGES" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  foreach(folder ${ARG_FOLDERS})
    if(NOT TRESTLE_TORCH AND NOT TARGET trestle_${folder})
      return()
    endif()
  endforeach()
  if(ARG_TORCH AND NOT TRESTLE_TORCH)
    return()
  endif()
  if(TRESTLE_SANITIZE)
    if(ARG_TORCH AND NOT TRESTLE_SANITIZED_TESTS STREQUAL "all" AND NOT name IN_LIST TRESTLE_SANITIZED_TESTS)
      return()
    endif()
    set(ARG_LABEL sanitize)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 5")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE TRESTLE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TRESTLE_BINARY_DIR="${PROJECT_BINARY_DIR}")
  foreach(folder ${ARG_FOLDERS})
    target_link_libraries(${name} PRIVATE trestle_${folder})
  endforeach()
  target_link_libraries(${name} PRIVATE $<BUILD_INTERFACE:trestle_settings> ${ARG_PACKAGES} GTest::gmock GTest::gtest_main)
  trestle_use_unity(${name} 8)
  if(ARG_TORCH)
    trestle_use_torch(${name} all)
  endif()
  add_dependencies(trestle_tests ${name})
  gtest_discover_tests(
    ${name}
    DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
endfunction()
