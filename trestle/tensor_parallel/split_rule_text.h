#pragma once

#include <string>

#include "trestle/tensor_parallel/split_plan.h"

namespace trestle::tensor_parallel {

// A rule of a plan as one line, for recipes and flags: the layer's name, a word for the split, and
// the options of SplitRule where they are needed:
//
//   parse_split_rule("net1 columns");
//   parse_split_rule("blocks.*.qkv columns parts=64+64+64 heads=4");
//
// The words are columns, columns_gathered, rows, vocabulary and channels. Throws UsageError that
// names the wrong word for any other text.
SplitRule parse_split_rule(const std::string& words);

// The line that parse_split_rule() reads as this rule.
std::string to_text(const SplitRule& rule);

}  // namespace trestle::tensor_parallel
