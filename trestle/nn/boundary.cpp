#include "trestle/nn/boundary.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/torch_versions.h"
#include "trestle/nn/copies.h"

namespace trestle::nn {
namespace {

struct SinkBackward : torch::autograd::Node {
  std::shared_ptr<Values> gradients;
  std::size_t input = 0;

  torch::autograd::variable_list apply(torch::autograd::variable_list&& arrived) override {
    at::Tensor& sum = gradients->at(input);
    at::Tensor& gradient = arrived.at(0);
    if (gradient.defined()) sum = sum.defined() ? sum + gradient : std::move(gradient);
    return {};
  }
  std::string name() const override { return "StageInputBackward"; }
};

}  // namespace

Boundary::Boundary(std::string consumer, std::vector<std::string> names)
    : consumer_(std::move(consumer)), names_(std::move(names)) {}

Boundary::Handed Boundary::hand_over(const Values& values, const std::vector<bool>& owned,
                                     std::uint64_t mode) {
  std::vector<Access> access;
  {
    const std::lock_guard lock(mutex_);
    access = access_[mode];
  }
  access.resize(values.size(), Access::Unknown);
  Handed handed{.values = values, .counters = {}, .versions = {}, .may_write = {}, .mode = mode};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool copy = values[i].defined() && !owned.at(i) && access[i] != Access::Read;
    if (copy) handed.values[i] = clone_with_strides(values[i]);
    handed.may_write.push_back(copy || owned[i]);
    const at::Tensor& value = handed.values[i];
    handed.counters.push_back(value.defined() ? value.unsafeGetTensorImpl()->version_counter()
                                              : c10::VariableVersion());
    handed.versions.push_back(version_of(value));
  }
  return handed;
}

void Boundary::take_back(const Handed& handed) {
  const std::lock_guard lock(mutex_);
  auto& access = access_[handed.mode];
  access.resize(handed.counters.size(), Access::Unknown);
  for (std::size_t i = 0; i < handed.counters.size(); ++i) {
    if (!handed.counters[i].enabled()) continue;
    if (handed.counters[i].current_version() == handed.versions[i]) {
      if (access[i] == Access::Unknown) access[i] = Access::Read;
      continue;
    }
    access[i] = Access::Written;
    if (handed.may_write[i]) continue;
    throw StateError(text(consumer_, " changed ", names_.at(i),
                          " in place, which it did not do in any run before"),
                     {.hint = "Make it work in place always or never: the value that it changed is "
                              "needed elsewhere too."});
  }
}

std::uint32_t version_of(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.is_inference() ? 0 : tensor._version();
}

Bytes memory_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return 0;
  return static_cast<Bytes>(tensor.storage().nbytes());
}

bool is_part_of_more(const at::Tensor& tensor) {
  return tensor.defined() && memory_of(tensor) > static_cast<Bytes>(tensor.nbytes());
}

bool may_share_memory(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || !a.has_storage() || !b.has_storage()) return false;
  const bool one_storage = a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
  return one_storage && Extent::of(a).may_meet(Extent::of(b));
}

Extent Extent::of(const at::Tensor& tensor) {
  const std::int64_t begin = tensor.storage_offset() * tensor.element_size();
  return {.begin = begin,
          .end = begin + static_cast<std::int64_t>(tensor.nbytes()),
          .dense = tensor.is_non_overlapping_and_dense()};
}

bool Extent::may_meet(const Extent& other) const {
  if (!dense || !other.dense) return true;
  return begin < other.end && other.begin < end;
}

GradientSink::GradientSink(std::size_t inputs)
    : gradients_(std::make_shared<Values>(inputs)), edges_(inputs) {}

at::Tensor GradientSink::begin(std::size_t input, const at::Tensor& value) {
  auto node = make_node<SinkBackward>();
  node->gradients = gradients_;
  node->input = input;
  edges_.at(input) = {node, 0};
  at::Tensor inside = value.detach();
  torch::autograd::create_gradient_edge(inside, std::move(node));
  return inside;
}

}  // namespace trestle::nn
