#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trestle/base/units.h"

// A picture of a tensor split: which rank holds which rows or columns of a model's matrices, how
// the activations are laid out, and what the ranks send to one another.
//
//   using Picture = trestle::view::SplitPicture;
//   Picture picture{.title = "an MLP over 2 ranks", .ranks = 2};
//   picture.sections.push_back({.name = "mlp"});
//   picture.sections[0].steps.push_back(
//       {.name = "up",
//        .tensors = {{.name = "weight",
//                     .shape = {256, 64},
//                     .held = {{{0, 128}}, {{128, 128}}},  // rank 0 and rank 1
//                     .parts = {{.size = 256}}}},
//        .output = Picture::Layout::Features});
//   std::string file = to_svg_split(picture);
namespace trestle::view {

struct SplitPicture {
  // Consecutive indices of a dimension.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t size = 0;
    bool operator==(const Range&) const = default;
  };

  // A stretch of the dimension that the ranks share. A fused projection has several.
  struct Part {
    std::string name = {};  // "q"; may be empty where there is one part
    std::int64_t size = 0;
    std::int64_t heads = 0;  // that share the stretch evenly; 0 for a stretch without heads
    // By rank, the head that it reads where a rank holds less than a head and gathers it; else
    // empty.
    std::vector<std::int64_t> gathered_head = {};
  };

  struct Tensor {
    std::string name = {};                 // "weight"
    std::vector<std::int64_t> shape = {};  // of the whole tensor: rows, columns and more
    std::size_t dimension = 0;             // which of `shape` the ranks share
    // By rank, its range of each part, counted in the whole dimension. Empty: every rank holds the
    // whole tensor.
    std::vector<std::vector<Range>> held = {};
    std::vector<Part> parts = {};  // of `dimension`; needed where `held` is
    Bytes element_bytes = 4;
    std::string tied_to = {};  // the tensor whose memory this one shares; it is counted there
    // The rows of a vocabulary: they do not set the picture's scale, and are shortened to fit.
    bool is_table = false;
    std::string row_name = "rows", column_name = "columns";
  };

  // How the activations are laid out over the ranks.
  enum class Layout : std::uint8_t {
    Whole,     // the same on every rank
    Features,  // each rank has its features, channels or heads
    Tokens,    // each rank has its tokens
    Terms,     // each rank has a term of the sum
  };

  struct Message {
    enum class Kind : std::uint8_t { AllReduce, AllGather, ReduceScatter };
    Kind kind = Kind::AllReduce;
    std::string words = {};  // the numbers that it sends: "768 numbers per token"
  };

  // The messages of the ranks at one place of the model.
  struct Exchange {
    std::vector<Message> forward = {}, backward = {};
    bool empty() const { return forward.empty() && backward.empty(); }
  };

  // A module with parameters.
  struct Step {
    std::string name = {};  // "attention.qkv"
    std::string note = {};
    std::vector<Tensor> tensors = {};
    Exchange before = {};
    Layout input = Layout::Whole, output = Layout::Whole;  // between `before` and `after`
    Exchange after = {};
  };

  // Some modules that follow one another, such as a block.
  struct Section {
    std::string name = {};
    std::int64_t copies = 1;  // of which this one is drawn
    std::vector<Step> steps = {};
  };

  std::string title = {}, subtitle = {};
  int ranks = 1;
  std::vector<Section> sections = {};
};

inline constexpr int most_split_ranks = 64;

// Draws each step as a band. On the left the activations run down: one line where they are whole,
// a line for each rank where the ranks have slices, and a bar where the ranks exchange something.
// Beside it are the matrices, with rows and columns to one scale and each rank's slice in its
// colour, and the ranges as numbers. The parts of a fused matrix stand side by side. At the end is
// a table of the bytes that each rank holds. Above 12 ranks the tables leave out the middle ranks.
//
// Throws UsageError for fewer ranks than one and more than most_split_ranks, for a tensor without a
// shape, and where `held` does not have a range of each part for each rank.
std::string to_svg_split(const SplitPicture& picture);

// The same as text: a bar of digits for each part of a matrix, its ranges, messages, and the table
// of bytes. Lines are folded to `columns`, if that is above 0. Throws as to_svg_split().
std::string to_text_split(const SplitPicture& picture, int columns = 0);

// The bytes of `tensor` on a rank; 0 for a tied one.
Bytes bytes_on_rank(const SplitPicture::Tensor& tensor, int rank);

// "all-reduce", "all-gather", "reduce-scatter".
const char* to_string(SplitPicture::Message::Kind kind);

}  // namespace trestle::view
