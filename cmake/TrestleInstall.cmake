# Install rules: find_package(trestle) gives trestle::core (no torch) and trestle::trestle.
include(CMakePackageConfigHelpers)
get_property(_libraries GLOBAL PROPERTY TRESTLE_LIBRARIES)
install(
  TARGETS ${_libraries}
  EXPORT trestleTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS trestle_core_all EXPORT trestleTargets)
# All that `cmake --install` copies and no more: ./quickstart builds it.
add_custom_target(trestle_to_install)
add_dependencies(trestle_to_install ${_libraries})
if(TRESTLE_TORCH)
  install(
    TARGETS trestle_all
    EXPORT trestleTargets
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  # libtorch stays where it is: the program finds it there, wherever its own prefix is moved to.
  set_target_properties(trestle_program PROPERTIES INSTALL_RPATH ${Libtorch_ROOT_DIR}/lib)
  add_dependencies(trestle_to_install trestle_program)
  install(TARGETS trestle_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # recipe_folders() and machine_folders() find them from the program's place.
  install(DIRECTORY recipes/ DESTINATION ${CMAKE_INSTALL_DATADIR}/trestle/recipes FILES_MATCHING PATTERN "*.toml" PATTERN "*.jsonl")
  install(DIRECTORY machines/ DESTINATION ${CMAKE_INSTALL_DATADIR}/trestle/machines FILES_MATCHING PATTERN "*.toml")
endif()
set(_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/trestle)
install(EXPORT trestleTargets NAMESPACE trestle:: DESTINATION ${_config_dir})
configure_package_config_file(cmake/trestleConfig.cmake.in trestleConfig.cmake INSTALL_DESTINATION ${_config_dir})
write_basic_package_version_file(trestleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/trestleConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/trestleConfigVersion.cmake DESTINATION ${_config_dir})
if(TRESTLE_TORCH)
  install(FILES cmake/FindLibtorch.cmake cmake/FindLibzip.cmake cmake/FindPcre2.cmake cmake/FindSentencePiece.cmake
                cmake/FindUtf8proc.cmake DESTINATION ${_config_dir})
endif()
