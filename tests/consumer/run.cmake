# Installs the build folder BUILD under WORK, then configures, builds and runs PROJECT against that install.
# With TORCH the project uses trestle::trestle too, else trestle::core alone.
function(run)
  message(STATUS "${ARGN}")
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "exit code ${code}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/install)
# Moved, so that nothing can lead back to where it was made.
file(RENAME ${WORK}/install ${WORK}/elsewhere)
run(${CMAKE_COMMAND} -S ${PROJECT} -B ${WORK}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER}
    -DCMAKE_PREFIX_PATH=${WORK}/elsewhere -DCMAKE_BUILD_TYPE=None -DWITH_TORCH=${TORCH})
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/idle)
if(TORCH)
  run(${WORK}/build/train)
endif()
