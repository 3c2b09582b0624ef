#pragma once

#include <string>
#include <vector>

#include "trestle/view/split_picture.h"

// The numbers of a picture of a split, for SVG and text. Not installed.
namespace trestle::view {

struct SplitTable {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;  // by rank
};

// Throws as to_svg_split().
void check_split(const SplitPicture& picture);

// The ranges that each rank holds of a step's split tensors, and its bytes of all of them. Empty
// for a step without a split tensor.
SplitTable ranges_of(const SplitPicture& picture, const SplitPicture::Step& step);

// The bytes that each rank holds of each section with all its copies, and of the whole model.
SplitTable bytes_of(const SplitPicture& picture);

// "weight 2,304 x 768, bias 2,304"
std::string shapes_of(const SplitPicture::Step& step);

// The words of a step without a split tensor, in place of a table: "whole on every rank · 3.0 KiB".
std::string whole_words(const SplitPicture& picture, const SplitPicture::Step& step);

// "blocks.0, one of 12 alike"
std::string heading_of(const SplitPicture::Section& section);

// The ranks whose rows a table shows; -1 stands for the ranks that are left out.
std::vector<int> shown_ranks(int ranks);

// For each head that ranks gather, "head 0: ranks 0 and 1".
std::vector<std::string> sharing_of(const SplitPicture::Part& part);

// "all-reduce of 768 numbers per token"
std::string words_of(const SplitPicture::Message& message);

// The first index of each part in its dimension.
std::vector<std::int64_t> part_begins(const SplitPicture::Tensor& tensor);

}  // namespace trestle::view
