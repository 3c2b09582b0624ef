#include "trestle/sharding/model_checks.h"

#include <ATen/Functions.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include <sstream>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/sharding/buckets.h"
#include "trestle/sharding/gradient_hooks.h"

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
                rest(b).substr(rest(b).starts_with("is ") && name(a) == name(b) ? 3 : 0),
                " on rank ", other_rank);
  return text("rank ", first_rank, " has ", name(a), " where rank ", other_rank, " has ", name(b));
}

std::string description(const ShardOptions& options) {
  std::string lines;
  const auto add = [&lines](const char* name, const auto& value) {
    lines += text("ShardOptions::", name, "\tis ", value, "\n");
  };
  const auto add_type = [&add](const char* name, const std::optional<at::ScalarType>& type) {
    add(name, type ? toString(*type) : "not set");
  };
  add("level", to_string(options.level));
  add("replicate", options.replicate);
  add("shard", options.shard);
  add("bucket", options.bucket);
  add("first_bucket", options.first_bucket);
  add("hook", options.hook.make ? text("'", options.hook.name, "'") : "not set");
  add("unit", options.unit);
  add("units", join(options.units, " "));
  const Reshard reshard = options.reshard_after_forward;
  add("reshard_after_forward", reshard.to_all()       ? std::string("true")
                               : reshard.ranks() == 1 ? std::string("false")
                                                      : text(reshard.ranks()));
  constexpr const char* unused[] = {"Refuse", "Find", "Static"};
  add("unused_parameters", unused[static_cast<int>(options.unused_parameters)]);
  add("broadcast_at_start", options.broadcast_at_start);
  add("broadcast_buffers", options.broadcast_buffers);
  add_type("precision.parameters", options.precision.parameters);
  add_type("precision.reduce", options.precision.reduce);
  add_type("precision.output", options.precision.output);
  add("precision.cast_inputs", options.precision.cast_inputs);
  const auto& keep = options.precision.keep;
  add("precision.keep", keep.empty() ? "nothing" : join(keep, " "));
  add("device", options.device ? DeviceTypeName(options.device->type(), true) : "not set");
  add("shards_on_cpu", options.shards_on_cpu);
  add("reproducible.pieces", options.reproducible.pieces);
  add("reproducible.threads", options.reproducible.threads);
  add("seed", options.seed);
  return lines;
}

// A tensor whose dimensions are expanded, without their repetitions.
at::Tensor without_repeats(at::Tensor tensor) {
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) tensor = tensor.narrow(dim, 0, 1);
  return tensor;
}

void check_alone(const NamedTensors& parameters, const NamedTensors& others) {
  for (const auto& [name, tensor] : parameters) {
    for (const auto& [other, second] : others) {
      if (tensor.is_same(second) || !tensor.is_alias_of(second)) continue;
      const auto overlap = at::get_overlap_status(tensor, second);
      if (overlap != at::MemOverlapStatus::Full && overlap != at::MemOverlapStatus::Partial)
        continue;
      throw UsageError(text("parameter '", name, "' shares its memory with '", other, "'"),
                       {.hint = "Register the same tensor twice, or tie() layers: above level None "
                                "parameters are moved, and would come apart."});
    }
  }
}

}  // namespace

int kind_of(const at::Tensor& tensor) {
  return (static_cast<int>(tensor.scalar_type()) * 64 + static_cast<int>(tensor.device().type())) *
             256 +
         tensor.device().index() + 1;
}

void check_can_be_sharded(const NamedTensors& parameters, const NamedTensors& buffers,
                          ShardLevel level) {
  const auto check = [](const std::string& name, const at::Tensor& tensor) {
    if (tensor.layout() != at::kStrided)
      throw UsageError(text("'", name, "' is a sparse tensor"),
                       {.hint = "What a model is made of must be dense to be shared by ranks."});
    if (tensor.numel() > 0 &&
        !tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get())
      throw UsageError(
          text("'", name, "' was divided over ranks by a Sharded that is gone"),
          {.hint = "Destroy a Sharded while an unshard() lives to go on with the model."});
  };
  for (const auto& [name, tensor] : buffers) check(name, tensor);
  for (const auto& [name, tensor] : parameters) {
    check(name, tensor);
    if (GradientHooks::watched(tensor))
      throw UsageError(text("parameter '", name, "' is trained by another Sharded already"),
                       {.hint = "One Sharded has all dimensions of the mesh: HSDP needs no data "
                                "parallelism around it."});
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
      throw UsageError(text("parameter '", name, "' overlaps itself: it is an expanded tensor"),
                       {.hint = "Expand it in forward(), and register what is expanded."});
  }
  if (level == ShardLevel::None) return;
  check_alone(parameters, parameters);
  check_alone(parameters, buffers);
}

void check_same_options(const comm::Group& group, const ShardOptions& options) {
  const auto all = group.all_gather_bytes(description(options));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw UsageError(text(difference(all[0], group.ranks()[0], all[rank], group.ranks().at(rank)),
                          ": the ranks shard the model differently"),
                     {.hint = "Give all ranks the same options."});
  }
}

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

void broadcast(const comm::Group& group, const std::vector<at::Tensor>& tensors, int from) {
  if (group.size() == 1 || tensors.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<BucketItem> items;
  std::vector<std::size_t> order;
  for (const at::Tensor& tensor : tensors) {
    order.push_back(order.size());
    items.push_back({.bytes = static_cast<Bytes>(tensor.nbytes()), .kind = kind_of(tensor)});
  }
  constexpr Bytes most = Bytes{4} << 20;  // each is there once more while it is sent
  for (const auto& bucket : assign_buckets(items, order, most, most)) {
    std::vector<at::Tensor> pieces;
    for (const std::size_t i : bucket)
      pieces.push_back(without_repeats(tensors[i].detach()).reshape(-1));
    const at::Tensor flat = at::cat(pieces);
    group.broadcast(flat, from).wait();
    if (group.rank() == from) continue;
    std::int64_t begin = 0;
    for (const std::size_t i : bucket) {
      const at::Tensor tensor = without_repeats(tensors[i].variable_data());
      tensor.copy_(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }
}

}  // namespace trestle::sharding
