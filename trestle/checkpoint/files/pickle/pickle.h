#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Parses a pickle of Python's torch.save without executing any of it. Torch-free, so that it is
// cheap to fuzz.
//
// A pickle is a program for a small stack machine, and Python's own reader calls any function that
// the program names. This parser accepts tensors, their storages, and dict, OrderedDict, list,
// tuple, torch.Size, str, int, float, bool and None; any other name is an error. A caller may list
// further classes: their instances become plain data.
//
//     https://docs.python.org/3/library/pickletools.html, the opcodes of protocol 2
namespace trestle::checkpoint {

// One storage of the archive, "data/<key>": a sequence of numbers. Tensors are views of it.
struct PickledStorage {
  std::string key;
  std::string dtype;  // as in safetensors_header.h: "F32", "I64", ...
  std::uint64_t elements = 0;
};

// A tensor within its storage, as checked by parse_pickle().
struct PickledTensor {
  std::size_t storage = 0;  // of Pickle::storages
  std::int64_t offset = 0;  // elements
  std::vector<std::int64_t> shape, strides;
  bool negated = false;  // its values are minus those of the storage (torch.imag of a conjugate)
};

// Containers are stored separately and referenced by number, so values that contain themselves or
// are a million levels deep need no special treatment.
struct PickledValue {
  enum class Kind : std::uint8_t {
    None,
    Bool,
    Integer,   // number
    Real,      // a float, see real(); an integer of more than 64 bits becomes 0
    String,    // text
    Sequence,  // a list or a tuple: number is its place in Pickle::sequences
    Dict,      // place in Pickle::dicts
    Storage,   // place in Pickle::storages
    Tensor,    // place in Pickle::tensors
    Function,  // one of the allowed functions
    Dtype,     // the type of a storage: text is "F32", ...
    Class,     // a class of PickleOptions, alone: text is its name
    Object     // an instance of one: place in Pickle::objects
  };
  Kind kind = Kind::None;
  std::int64_t number = 0;
  std::string_view text = {};  // refers to the parsed bytes

  std::size_t place() const { return static_cast<std::size_t>(number); }
  double real() const { return std::bit_cast<double>(number); }
};

// An instance of a listed class, as data: what its constructor and its state were given.
struct PickledObject {
  std::string_view type;  // "torch.distributed.checkpoint.metadata.Metadata"
  PickledValue arguments, state;
};

struct Pickle {
  using Dict = std::vector<std::pair<PickledValue, PickledValue>>;  // in the order of the file

  PickledValue root;
  std::deque<std::vector<PickledValue>> sequences;
  std::deque<Dict> dicts;
  std::deque<PickledStorage> storages;  // each key once
  std::deque<PickledTensor> tensors;
  std::deque<PickledObject> objects;
};

struct PickleOptions {
  // "module.Class": classes, and functions that are called like them, whose results become
  // PickledObject. They must outlive the result.
  std::span<const std::string_view> classes = {};
  int newest_protocol = 2;  // torch.save writes 2, and 4 is the newest that is supported
};

// Pickles longer than this, and those with more values, are rejected. A tensor takes about 100
// bytes and 30 values.
inline constexpr std::uint64_t longest_pickle = 64 << 20;
inline constexpr std::size_t most_values = 10'000'000;

// Parses `bytes`, which must outlive the result. Throws FormatError with the name of `file` for
// anything but one complete pickle with the above contents and every tensor within its storage.
Pickle parse_pickle(std::string_view bytes, const std::string& file,
                    const PickleOptions& options = {});

// A name from a file in a form safe for display: not too long, without control characters.
std::string shown(std::string_view name);

}  // namespace trestle::checkpoint
