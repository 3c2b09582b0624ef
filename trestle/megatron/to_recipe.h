#pragma once

#include <string>
#include <string_view>

// A recipe from the flags of Megatron-LM's pretrain_gpt.py. Needs no torch.
namespace trestle::megatron {

// The recipe as TOML. Each key has a comment that names its flag; flags that change no number are
// listed in comments, each with what trestle does instead. docs/megatron.md has every flag.
//
// `flags` is text as in a shell script: lines that end in a backslash, quotes, comments,
// --flag value and --flag=value. `ranks` is Megatron-LM's world size. 0: torchrun's
// --nproc_per_node x --nnodes if they are among the flags, else tensor x pipeline ranks.
//
//   std::cout << megatron::to_recipe("--num-layers 24 --hidden-size 1024 ...", /*ranks=*/8);
//
// Throws UsageError with a line for every fault: unknown flags, each with the nearest known one,
// flags that trestle cannot obey, wrong or missing values, and sizes that do not divide, with those
// that would.
std::string to_recipe(std::string_view flags, int ranks = 0);

}  // namespace trestle::megatron
