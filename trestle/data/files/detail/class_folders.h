#pragma once

#include <filesystem>
#include <string>
#include <vector>

// Images sorted into one folder for each class: "<folder>/<class>/<image>".
namespace trestle::data {

struct ClassifiedImage {
  std::filesystem::path path;
  int label = 0;  // number of its class
};

struct ClassFolders {
  std::vector<std::string> classes = {};     // sorted by name: class 0, 1, ...
  std::vector<ClassifiedImage> images = {};  // by class, then by name
};

// Hidden files and folders, and folders within a class, are skipped. If `classes` of another part
// of the same data are given, a class may lack images but none may be new. Throws UsageError for a
// folder that does not exist or has fewer than two classes, and for a class that is empty or not
// one of `classes`; FileError if the folder cannot be read.
ClassFolders list_class_folders(const std::filesystem::path& folder,
                                const std::vector<std::string>& classes = {});

// The same for a check: adds the messages of empty and unknown classes to `problems`, and leaves
// these classes out.
ClassFolders check_class_folders(const std::filesystem::path& folder,
                                 const std::vector<std::string>& classes,
                                 std::vector<std::string>& problems);

}  // namespace trestle::data
