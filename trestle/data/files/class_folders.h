#pragma once

#include <filesystem>
#include <string>
#include <vector>

// Images sorted into classes by the folder that they lie in: "<folder>/<class>/<image>".
namespace trestle::data {

struct ClassifiedImage {
  std::filesystem::path path;
  int label = 0;  // number of its class
};

struct ClassFolders {
  std::vector<std::string> classes = {};     // sorted by name: class 0, 1, ...
  std::vector<ClassifiedImage> images = {};  // by class, then by name
};

// Hidden files and folders, and folders within a class, are skipped. With `classes`, that of
// another part of the same data, a class may lack images and none may be new. Throws UsageError when
// the folder does not exist, has fewer than two classes, or a class that is empty or not one of
// `classes`; FileError when it cannot be read.
ClassFolders list_class_folders(const std::filesystem::path& folder,
                                const std::vector<std::string>& classes = {});

}  // namespace trestle::data
