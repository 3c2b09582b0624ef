#include "trestle/sharding/replicas.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <sstream>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/sharding/buckets.h"

namespace trestle::sharding {
namespace {

// A line each: "parameter 'in.weight' is [4, 3] Float".
std::string description(const NamedTensors& parameters, const NamedTensors& buffers) {
  std::string lines;
  const auto add = [&lines](const char* what, const std::string& name, const at::Tensor& tensor) {
    lines += text(what, " '", name, "'\tis ", "[", join(tensor.sizes(), ", "), "] ",
                  toString(tensor.scalar_type()), tensor.requires_grad() ? "" : ", not trained",
                  tensor.is_contiguous() ? "" : text(", strides ", tensor.strides()), "\n");
  };
  for (const auto& [name, tensor] : parameters) add("parameter", name, tensor);
  for (const auto& [name, tensor] : buffers) add("buffer", name, tensor);
  return lines;
}

// "parameter 'a.weight' is [2, 3] Float on rank 0 and [2, 4] Float on rank 1".
std::string difference(const std::string& first, int first_rank, const std::string& other,
                       int other_rank) {
  std::istringstream mine(first), theirs(other);
  std::string a, b;
  do {
    std::getline(mine, a);
    std::getline(theirs, b);
    if (!mine && a.empty()) a = "\tis not there";
    if (!theirs && b.empty()) b = "\tis not there";
  } while (a == b);
  const auto name = [](const std::string& line) { return line.substr(0, line.find('\t')); };
  const auto rest = [](const std::string& line) { return line.substr(line.find('\t') + 1); };
  if (name(a).empty() || name(b).empty() || name(a) == name(b))
    return text(name(a).empty() ? name(b) : name(a), " ", rest(a), " on rank ", first_rank, " and ",
                rest(b).substr(name(a) == name(b) ? 3 : 0), " on rank ", other_rank);
  return text("rank ", first_rank, " has ", name(a), " where rank ", other_rank, " has ", name(b));
}

}  // namespace

void check_same_model(const comm::Group& group, const NamedTensors& parameters,
                      const NamedTensors& buffers) {
  const std::string own = description(parameters, buffers);
  const auto brief = group.all_gather_bytes(text(own.size(), " ", std::hash<std::string>()(own)));
  for (std::size_t rank = 1; rank < brief.size(); ++rank) {
    if (brief[rank] == brief[0]) continue;
    const auto all = group.all_gather_bytes(own);  // all ranks come here: they see the same
    const auto number = [&](std::size_t r) { return group.ranks().at(r); };
    throw UsageError(text(difference(all[0], number(0), all[rank], number(rank)),
                          ": the ranks built different models"),
                     {.rank = number(rank), .hint = "Build the same model on all ranks."});
  }
}

void broadcast(const comm::Group& group, const std::vector<at::Tensor>& tensors) {
  if (group.size() == 1 || tensors.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<BucketItem> items;
  std::vector<std::size_t> order;
  for (const at::Tensor& tensor : tensors) {
    order.push_back(order.size());
    items.push_back({.bytes = static_cast<Bytes>(tensor.nbytes()),
                     .kind = static_cast<int>(tensor.scalar_type())});
  }
  constexpr Bytes most = Bytes{64} << 20;
  for (const auto& bucket : assign_buckets(items, order, most, most)) {
    std::vector<at::Tensor> pieces;
    for (const std::size_t i : bucket) pieces.push_back(tensors[i].detach().reshape(-1));
    const at::Tensor flat = at::cat(pieces);
    group.broadcast(flat, 0).wait();
    if (group.rank() == 0) continue;
    std::int64_t begin = 0;
    for (const std::size_t i : bucket) {
      const at::Tensor& tensor = tensors[i];
      tensor.variable_data().copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }
}

}  // namespace trestle::sharding
