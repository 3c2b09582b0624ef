#include "trestle/sharding/options/option_checks.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"
#include "trestle/comm/purpose.h"
#include "trestle/sharding/options/first_difference.h"
#include "trestle/sharding/options/reproducible.h"

namespace trestle::sharding {
namespace {

void check_hook(const ShardOptions& options) {
  if (!options.buckets.hook.make) return;
  if (options.reproducible.micro_batches > 0)
    throw UsageError(text("the communication hook '", options.buckets.hook.name,
                          "' with ShardOptions::reproducible, which adds up in its own order"),
                     {.hint = "Leave one of them out."});
  if (options.level != ShardLevel::Parameters ||
      options.unused_parameters == UnusedParameters::Refuse)
    return;
  throw UsageError(
      text("the communication hook '", options.buckets.hook.name,
           "' at level Parameters with UnusedParameters::",
           options.unused_parameters == UnusedParameters::Find ? "Find" : "Static",
           ": a rank that waits in a hook while another one skips a unit would wait for ever"),
      {.hint = "Take level Gradients (trestle::zero2()), or train all parameters in each step."});
}

std::string describe_options(const ShardOptions& options) {
  std::string lines;
  const auto add = [&lines](const char* name, const auto& value) {
    lines += text("ShardOptions::", name, "\tis ", value, "\n");
  };
  const auto add_type = [&add](const char* name, const std::optional<at::ScalarType>& type) {
    add(name, type ? toString(*type) : "not set");
  };
  add("level", to_string(options.level));
  add("mesh.replicate", options.mesh.replicate);
  add("mesh.shard", options.mesh.shard);
  add("buckets.size", options.buckets.size);
  add("buckets.first", options.buckets.first);
  add("buckets.hook",
      options.buckets.hook.make ? text("'", options.buckets.hook.name, "'") : "not set");
  add("units.bytes", options.units.bytes);
  add("units.names", join(options.units.names, " "));
  const Reshard reshard = options.reshard_after_forward;
  add("reshard_after_forward", reshard.to_all()       ? std::string("true")
                               : reshard.ranks() == 1 ? std::string("false")
                                                      : text(reshard.ranks()));
  constexpr const char* unused[] = {"Refuse", "Find", "Static"};
  add("unused_parameters", unused[static_cast<int>(options.unused_parameters)]);
  add("broadcast.at_start", options.broadcast.at_start);
  add("broadcast.buffers", options.broadcast.buffers);
  add_type("precision.parameters", options.precision.parameters);
  add_type("precision.reduce", options.precision.reduce);
  add_type("precision.output", options.precision.output);
  add("precision.cast_inputs", options.precision.cast_inputs);
  const auto& keep = options.precision.keep;
  add("precision.keep", keep.empty() ? "nothing" : join(keep, " "));
  add("device", options.device ? DeviceTypeName(options.device->type(), true) : "not set");
  add("shards_on_cpu", options.shards_on_cpu);
  add("reproducible.micro_batches", options.reproducible.micro_batches);
  add("reproducible.threads", options.reproducible.threads);
  add("checkpoint_segments", options.checkpoint_segments);
  add("wrap_layers", options.wrap_layers ? "set" : "not set");
  add("seed", options.seed);
  return lines;
}

}  // namespace

void check_options(const ShardOptions& options, const RankGroups& ranks) {
  check_reproducible(options, ranks);
  if (!options.units.names.empty() && options.units.bytes > 0)
    throw UsageError("both ShardOptions::units.names and units.bytes",
                     {.hint = "Set only one of them."});
  if (options.level == ShardLevel::None && options.precision.parameters) {
    throw UsageError("precision.parameters at level None, where parameters have no master copy",
                     {.hint = "Take another level, or autocast (trestle/precision/autocast.h)."});
  }
  if (options.level == ShardLevel::None && options.shards_on_cpu)
    throw UsageError("shards_on_cpu at level None, where nothing is sharded");
  if (options.checkpoint_segments < 0)
    throw UsageError(text("ShardOptions::checkpoint_segments = ", options.checkpoint_segments),
                     {.hint = "Give a number of segments, or 0 for none."});
  check_hook(options);
  for (const auto& type :
       {options.precision.parameters, options.precision.reduce, options.precision.output})
    if (type && !at::isFloatingType(*type))
      throw UsageError(text("ShardPrecision with ", toString(*type)),
                       {.hint = "Set a floating-point type: at::kBFloat16, at::kHalf, ..."});
}

void need_no_layers(const ShardOptions& options, const char* model) {
  if (options.checkpoint_segments == 0 && !options.wrap_layers) return;
  throw UsageError(
      text("ShardOptions::", options.wrap_layers ? "wrap_layers" : "checkpoint_segments", " with ",
           model),
      {.hint = "They are for Sharded of nn::Layers. Call nn::checkpoint() inside the module, or "
               "set PipelineOptions of the same names."});
}

void check_same_options(const comm::Group& group, const ShardOptions& options) {
  const auto differs =
      comm::with_purpose([] { return "while the ranks compared their options of sharding"; },
                         [&] { return comm::find_difference(group, describe_options(options)); });
  if (!differs) return;
  throw UsageError(text(first_difference(differs->first, group.ranks().at(0), differs->other,
                                         group.ranks().at(static_cast<std::size_t>(differs->rank))),
                        ": the ranks shard the model differently"),
                   {.hint = "Give all ranks the same options."});
}

}  // namespace trestle::sharding
