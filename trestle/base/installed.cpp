#include "trestle/base/installed.h"

#include <system_error>

namespace trestle {

std::vector<std::filesystem::path> folders_of_installed(const std::filesystem::path& name,
                                                        const std::filesystem::path& from_program) {
  std::vector<std::filesystem::path> folders = {".", name};
  std::error_code none;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", none);
  if (program.has_parent_path())
    folders.push_back((program.parent_path() / from_program).lexically_normal());
  return folders;
}

}  // namespace trestle
