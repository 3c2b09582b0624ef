# The program `all_examples`: the first argument names an example, the rest are its arguments. Each generated source holds
# eight examples, each in its own namespace and with a renamed main(). Headers are included before the namespaces
# begin, so that an example's own #include lines have no effect there.
list(LENGTH examples count)
set(sources)
set(declarations)
set(searches)
math(EXPR last "${count} - 1")
foreach(first RANGE 0 ${last} 8)
  list(SUBLIST examples ${first} 8 group)
  if(NOT group)
    break()
  endif()
  set(includes)
  set(bodies)
  set(entries)
  foreach(source ${group})
    trestle_example_name(name ${source})
    file(STRINGS ${source} lines REGEX "^#include")
    list(APPEND includes ${lines})
    string(APPEND bodies "namespace ${name} {\n#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n}\n")
    string(APPEND entries "  if (name == \"${name}\") return call(${name}::example_main, argc, argv);\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  endforeach()
  list(REMOVE_DUPLICATES includes)
  list(JOIN includes "\n" includes)
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/examples_${first}.cpp)
  file(
    CONFIGURE
    OUTPUT ${unit}
    CONTENT
      "#include <string_view>\n${includes}\n#define main example_main\n${bodies}#undef main
inline int call(int (*example)(), int, char**) { return example(); }
inline int call(int (*example)(int, char**), int argc, char** argv) { return example(argc, argv); }
int examples_${first}(std::string_view name, int argc, char** argv) {\n${entries}  return -1;\n}\n"
    @ONLY)
  list(APPEND sources ${unit})
  string(APPEND declarations "int examples_${first}(std::string_view name, int argc, char** argv);\n")
  string(APPEND searches "  if (const int code = examples_${first}(argv[1], argc - 1, argv + 1); code >= 0) return code;\n")
endforeach()
file(
  CONFIGURE
  OUTPUT all_examples.cpp
  CONTENT
    "#include <iostream>\n#include <string_view>\n${declarations}int main(int argc, char** argv) {
  if (argc < 2) return 2;\n${searches}  std::cerr << \"no example \" << argv[1] << \"\\n\";\n  return 2;\n}\n"
  @ONLY)
add_executable(all_examples ${sources} ${CMAKE_CURRENT_BINARY_DIR}/all_examples.cpp)
set_target_properties(all_examples PROPERTIES OUTPUT_NAME examples)
target_include_directories(all_examples PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(all_examples PRIVATE trestle_all $<BUILD_INTERFACE:trestle_settings>)
trestle_use_torch(all_examples all)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(all_examples PRIVATE -Wno-subobject-linkage)
endif()
