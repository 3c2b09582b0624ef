// What each rank of a sharded model writes into a checkpoint.
#include <ATen/Functions.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <map>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/flat_shard.h"
#include "trestle/optim/state.h"
#include "trestle/sharding/save.h"

namespace trestle::sharding {
namespace {

using checkpoint::TensorShard;

std::int64_t elements_of_whole(const OwnPart& part) {
  std::int64_t count = 1;
  for (const std::int64_t size : part.shape) count *= size;
  return count;
}

// Of ranks that have the same parts, each writes some of them: always the one with the fewest bytes so far. All of them have
// the same list and come to the same end.
std::vector<bool> choose_mine(const std::vector<OwnPart>& parts, int rank) {
  std::map<std::pair<bool, int>, std::vector<std::int64_t>> bytes_of;  // by kind of part
  std::vector<bool> mine;
  for (const OwnPart& part : parts) {
    if (elements_of_whole(part) == 0) {  // nobody's part has an element
      mine.push_back(rank == 0);
      continue;
    }
    auto& bytes = bytes_of[{part.is_whole, part.copies}];
    bytes.resize(static_cast<std::size_t>(part.copies));
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += static_cast<std::int64_t>(part.tensor.nbytes());
    mine.push_back(least - bytes.begin() == part.copy);
  }
  return mine;
}

class Groups {
 public:
  explicit Groups(const OwnParts& own)
      : own_(own), mine_(choose_mine(own.parameters, own.ranks.rank())) {
    for (std::size_t i = 0; i < own.parameters.size(); ++i) number_of_[own.parameters[i].name] = i;
  }

  void add_weights() {
    auto& weights = all["weights"];
    for (std::size_t i = 0; i < own_.parameters.size(); ++i)
      add(weights, i, own_.parameters[i].name, own_.parameters[i].tensor.detach());
    for (const auto& [name, tensor] : own_.buffers)
      if (own_.ranks.rank() == 0) weights.push_back({name, tensor});
  }

  // A number, or a tensor that lies as the parameter's part does.
  void add_state(const std::string& parameter, const std::string& name, const at::Tensor& value) {
    const std::size_t i = number_of_.at(parameter);
    const OwnPart& part = own_.parameters[i];
    auto& state = all["optimizer"];
    if (value.dim() > 0 || value.scalar_type() != at::kLong) return add(state, i, name, value);
    const bool has_first = part.begin == 0 && part.tensor.numel() > 0;
    if (mine_[i] && (part.is_whole || has_first || elements_of_whole(part) == 0))
      state.push_back({name, value});
  }

  void add_gradients() {
    auto& gradients = all["gradients"];
    for (std::size_t i = 0; i < own_.parameters.size(); ++i)
      if (const at::Tensor& gradient = own_.parameters[i].tensor.grad(); gradient.defined())
        add(gradients, i, own_.parameters[i].name, gradient);
  }

  checkpoint::TensorGroups all;

 private:
  void add(std::vector<TensorShard>& to, std::size_t i, const std::string& name,
           const at::Tensor& tensor) const {
    if (!mine_[i]) return;
    const OwnPart& part = own_.parameters[i];
    if (part.is_whole || elements_of_whole(part) == 0) {
      to.push_back({name, tensor.view(part.shape)});
      return;
    }
    for (TensorShard& box :
         checkpoint::boxes_of({name, tensor, part.begin, part.shape, part.strides}))
      to.push_back(std::move(box));
  }

  const OwnParts& own_;
  std::vector<bool> mine_;
  std::map<std::string, std::size_t> number_of_;
};

}  // namespace

checkpoint::TensorGroups groups_to_save(const Sharded& sharded,
                                        const torch::optim::Optimizer* optimizer,
                                        const SaveOptions& options) {
  const OwnParts own = sharded.own_parts();
  if (own.has_unreduced_gradients)
    throw StateError("gradients of no_sync(), or of some pieces of a batch, wait to be reduced",
                     {.hint = "Save after the backward that reduces them."});
  Groups groups(own);
  groups.add_weights();
  if (optimizer) {
    const auto names = optim::names_in(*optimizer, sharded.named_parameters());
    for (const auto& [name, value] : optim::optimizer_state(*optimizer, names))
      groups.add_state(name.substr(0, name.rfind('.')), name, value);
  }
  if (options.gradients) groups.add_gradients();
  return std::move(groups.all);
}

}  // namespace trestle::sharding
