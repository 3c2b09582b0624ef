#pragma once

#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trestle::nn {

struct CheckpointOptions {
  // The second run ends as soon as all that the backward needs is there again.
  bool early_stop = true;
  // The second run draws the same random numbers. Without it dropout has another mask in the backward
  // than it had in the forward: for functions that draw none, or where that is meant.
  bool keep_random = true;
  // The function gets copies of its tensors, and may write to them. Without it a function that writes
  // to what it is given is refused, since it could not be run again from it.
  bool copy_inputs = false;
  // Modules that the function uses. Their buffers and modes (train or eval, what is trained) are for
  // the second run what they were for the first, their parameters are checked by name. A module that is
  // itself the function need not be named. Without any, tensors that the function is seen to change in
  // place, such as the statistics of a batch norm, are still changed once only, and are for the second
  // run what they were; watching for them costs a little for each operator.
  std::vector<std::shared_ptr<torch::nn::Module>> modules = {};
};

}  // namespace trestle::nn
