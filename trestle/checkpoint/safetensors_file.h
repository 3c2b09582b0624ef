#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/checkpoint/weights_file.h"

// Internal to trestle/checkpoint.
namespace trestle::checkpoint {

class SafetensorsFile : public WeightsFile {
 public:
  // Throws FileError where it cannot be read, FormatError where it is no such file.
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile() override;

  NamedTensors read() const override;
  void read(std::vector<Read> reads) const override;

  // Elements in a row of tensor number `tensor`, from `first` on: as many as `into` has, which lies
  // on the CPU, is contiguous and of the tensor's type. The caller has checked that they are there.
  struct Elements {
    std::size_t tensor = 0;
    std::int64_t first = 0;
    at::Tensor into;
  };
  void read_elements(const std::vector<Elements>& wanted) const;

 private:
  // Bytes of the file that belong at a place in memory.
  struct Piece {
    std::uint64_t begin = 0;
    char* to = nullptr;
    std::uint64_t bytes = 0;
  };
  void read_header(std::uint64_t size);
  Piece piece_of(std::size_t tensor, const at::Tensor& into) const;
  void read_piece(Piece piece) const;
  void read_pieces(const std::vector<Piece>& whole) const;

  std::string path_;
  int descriptor_ = -1;
  std::vector<std::uint64_t> begins_;  // of each tensor's bytes in the file
};

// write_tensors(), with `seen` called for each tensor's number and bytes as they are written.
void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata,
                   const std::function<void(std::size_t, std::string_view)>& seen);

}  // namespace trestle::checkpoint
