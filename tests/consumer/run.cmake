cmake_minimum_required(VERSION 3.25)

# Installs the build folder BUILD under WORK, moves the install, then configures, builds and runs the projects beside this
# file against it: core (trestle::core alone) and, with TORCH, project (trestle::trestle).
function(run)
  message(STATUS "${ARGN}")
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${WORK} RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "exit code ${code}")
  endif()
endfunction()

# build(<project> [<its folder, from here>])
function(build project)
  run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/${ARGN}/${project} -B ${WORK}/${project} -G ${GENERATOR}
      -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${WORK}/elsewhere -DCMAKE_BUILD_TYPE=None
      -DCMAKE_EXE_LINKER_FLAGS=${LINKER_FLAGS})
  run(${CMAKE_COMMAND} --build ${WORK}/${project})
endfunction()

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/install)
# Moved, so that no path can lead back to the build.
file(RENAME ${WORK}/install ${WORK}/elsewhere)

file(GLOB_RECURSE headers RELATIVE ${WORK}/elsewhere/include ${WORK}/elsewhere/include/*.h)
foreach(inside trestle/view/chart/font.h trestle/view/chart/canvas.h trestle/schedule/rendezvous.h trestle/schedule/unit_times.h
               trestle/view/svg_writer.h trestle/pipeline/execute/stage.h trestle/base/text.h)
  if(inside IN_LIST headers)
    message(FATAL_ERROR "${inside} is not for users, but was installed")
  endif()
endforeach()

build(core)
run(${WORK}/core/idle)
if(TORCH)
  run(${WORK}/elsewhere/bin/trestle doctor)
  run(${WORK}/elsewhere/bin/trestle recipe smollm_finetune)  # the installed one
  build(project)
  run(${WORK}/project/train)
  run(${WORK}/project/loader)
  run(${WORK}/project/own_model train ${CMAKE_CURRENT_LIST_DIR}/project/own_model.toml)
  build(own_parts ../../examples)
  run(${WORK}/own_parts/own_parts train ${CMAKE_CURRENT_LIST_DIR}/../../examples/own_parts/spirals.toml --epochs 1)
endif()
