# Lists the tests of a GoogleTest program and writes the file that CTest reads: one entry for each suite, named
# <program>.<suite>. libtorch takes 0.2 to 0.4 s to load, more than most tests. A suite in SEPARATE has one entry for each
# test instead, <program>.<suite>.<test>. A suite in SLOW has the label slow, and one in ALONE
# runs beside no other. Each entry writes a report that tools/count_tests.py reads.
#
#   cmake -DPROGRAM=<file> -DNAME=<program> -DOUTPUT=<file> -DREPORTS=<folder> -DLABEL=<label> -DTIMEOUT=<seconds>
#         -DSEPARATE=<suites, separated by |> -DSLOW=<the same> -DALONE=<the same> -P TrestleDiscoverTests.cmake
cmake_minimum_required(VERSION 3.25)
execute_process(
  COMMAND ${PROGRAM} --gtest_list_tests
  OUTPUT_VARIABLE listed
  RESULT_VARIABLE result
  TIMEOUT 60)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} cannot list its tests (${result}):\n${listed}")
endif()

set(script "")
# add_entry(<suite> <suite or test> <filter> <number of tests>)
function(add_entry of name filter count)
  set(label ${LABEL})
  if(of IN_LIST SLOW)
    set(label slow)
  endif()
  set(alone "")
  if(of IN_LIST ALONE)
    set(alone " RUN_SERIAL TRUE")
  endif()
  string(REPLACE "/" "_" report ${NAME}.${name})
  string(APPEND script "add_test([==[${NAME}.${name}]==] [==[${PROGRAM}]==] [==[--gtest_filter=${filter}]==] "
                       "[==[--gtest_output=xml:${REPORTS}/${report}.xml]==])\n"
                       "set_tests_properties([==[${NAME}.${name}]==] PROPERTIES LABELS ${label} TIMEOUT ${TIMEOUT} COST ${count}${alone})\n")
  set(script "${script}" PARENT_SCOPE)
endfunction()

string(REPLACE "|" ";" SEPARATE "${SEPARATE}")
string(REPLACE "|" ";" SLOW "${SLOW}")
string(REPLACE "|" ";" ALONE "${ALONE}")
string(REGEX REPLACE " *#[^\n]*" "" listed "${listed}")  # the values of parameters
string(REGEX REPLACE "^.*gtest_main\\.cc\n" "" listed "${listed}")
string(REPLACE "\n" ";" lines "${listed}")
set(suite "")
set(count 0)
foreach(line ${lines} "end.")
  if(line MATCHES "^  (.+)$")
    math(EXPR count "${count} + 1")
    if(suite IN_LIST SEPARATE)
      add_entry(${suite} ${suite}.${CMAKE_MATCH_1} ${suite}.${CMAKE_MATCH_1} 1)
    endif()
  elseif(line MATCHES "^(.+)\\.$")
    set(next ${CMAKE_MATCH_1})
    if(count GREATER 0 AND NOT suite IN_LIST SEPARATE)
      add_entry(${suite} ${suite} ${suite}.* ${count})
    endif()
    set(suite ${next})
    set(count 0)
  endif()
endforeach()
file(WRITE ${OUTPUT} "${script}")
