#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

// TensorBoard's event file: scalars by name and step. "tensorboard --logdir runs" shows them.
//
//     EventFile events("runs/mine", 0);
//     events.add(1, {{"loss/training", 0.61}, {"learning_rate", 0.001}});
//
// The format (tensorflow/core/util/event.proto in the records of tensorflow/core/lib/io) needs four
// fields of a protocol buffer and two checksums, so it is written here without a library.
namespace trestle::train {

class EventFile {
 public:
  using Scalars = std::vector<std::pair<std::string, double>>;

  // Creates a file in `folder` with a unique name. TensorBoard then drops the steps after `step` of
  // earlier files, which were lost in a crash. Throws FileError.
  EventFile(const std::filesystem::path& folder, std::int64_t step);

  // Written at once. Throws FileError.
  void add(std::int64_t step, const Scalars& scalars);

  const std::filesystem::path& path() const { return path_; }

 private:
  void append(const std::string& event);
  std::filesystem::path path_;
};

}  // namespace trestle::train
