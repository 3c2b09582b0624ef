# The programs of survey/ print the losses of the Python programs beside them, which tests/golden/survey has
# (tools/golden/make_survey_goldens.py): within 1e-5 in fp32, within 1e-2 in 16 bits.
set(python ${PROJECT_SOURCE_DIR}/.venv/bin/python)

# trestle_add_survey_test(<test> <golden> <tolerance> <command>...)
function(trestle_add_survey_test test golden tolerance)
  add_test(NAME survey.${test}
           COMMAND ${python} ${CMAKE_CURRENT_SOURCE_DIR}/survey/compare.py --tolerance ${tolerance}
                   ${PROJECT_SOURCE_DIR}/tests/golden/survey/${golden}.txt -- ${ARGN})
  set_tests_properties(survey.${test} PROPERTIES LABELS ranks TIMEOUT 120)
endfunction()

foreach(program survey_convnet survey_data_parallel survey_ddp survey_checkpoint survey_resnet50 hsdp)
  string(REPLACE survey_ "" name ${program})
  trestle_example_command(command ${program})
  set(out)
  if(name STREQUAL "data_parallel")
    set(out --out ${CMAKE_CURRENT_BINARY_DIR})
  endif()
  trestle_add_survey_test(${name} ${name} 1e-5 ${command} ${out})
  foreach(precision bf16 fp16)
    if(name STREQUAL "resnet50" AND precision STREQUAL "fp16")
      continue()  # a minute on a CPU without instructions for fp16
    endif()
    if(name STREQUAL "data_parallel")
      set(out --out ${CMAKE_CURRENT_BINARY_DIR}/${precision})
      file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${precision})
    endif()
    trestle_add_survey_test(${name}_${precision} ${name}_${precision} 1e-2 ${command} --precision ${precision} ${out})
  endforeach()
endforeach()

# Python opens the file that survey.data_parallel wrote.
trestle_add_survey_test(
  data_parallel_opened_by_python data_parallel_opened 1e-5 ${python} ${CMAKE_CURRENT_SOURCE_DIR}/survey/data_parallel.py --open
  ${CMAKE_CURRENT_BINARY_DIR}/example_model.pth)
set_tests_properties(survey.data_parallel PROPERTIES FIXTURES_SETUP survey_example_model)
set_tests_properties(survey.data_parallel_opened_by_python PROPERTIES FIXTURES_REQUIRED survey_example_model)

# The DDP program under launchers.
trestle_example_command(command survey_ddp)
trestle_add_survey_test(ddp_under_trestle_launch ddp 1e-5 $<TARGET_FILE:trestle_program> launch -n 2 -- ${command})
trestle_add_survey_test(ddp_under_torchrun ddp 1e-5 ${PROJECT_SOURCE_DIR}/.venv/bin/torchrun --standalone --no-python
                        --nproc-per-node 2 ${command})

# DeepSpeed's JSON as it is printed, and in other precisions.
trestle_example_command(command survey_deepspeed)
trestle_add_survey_test(deepspeed_fp16 deepspeed_fp16 1e-2 ${command})
trestle_add_survey_test(deepspeed_fp32 deepspeed_fp32 1e-5 ${command} ${CMAKE_CURRENT_SOURCE_DIR}/survey/deepspeed_fp32.json)
trestle_add_survey_test(deepspeed_bf16 deepspeed_bf16 1e-2 ${command} ${CMAKE_CURRENT_SOURCE_DIR}/survey/deepspeed_bf16.json)
