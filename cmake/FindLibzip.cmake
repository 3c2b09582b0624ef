# Finds libzip and defines Libzip::Libzip.
#
# libzip's own CMake package wants its command-line tools too, which Debian has in packages of their own.
include(FindPackageHandleStandardArgs)
find_path(Libzip_INCLUDE_DIR zip.h)
find_library(Libzip_LIBRARY zip)
mark_as_advanced(Libzip_INCLUDE_DIR Libzip_LIBRARY)
find_package_handle_standard_args(
  Libzip
  REQUIRED_VARS Libzip_LIBRARY Libzip_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "Install libzip (Debian: libzip-dev), or run tools/setup.sh.")
if(Libzip_FOUND AND NOT TARGET Libzip::Libzip)
  add_library(Libzip::Libzip UNKNOWN IMPORTED)
  set_target_properties(Libzip::Libzip PROPERTIES IMPORTED_LOCATION ${Libzip_LIBRARY}
                                                  INTERFACE_INCLUDE_DIRECTORIES ${Libzip_INCLUDE_DIR})
endif()
