#include "trestle/checkpoint/files/foreign/deepspeed_pickles.h"

#include <cmath>

#include "trestle/base/text.h"
#include "trestle/checkpoint/files/pickle/pickle_writer.h"

namespace trestle::checkpoint {

namespace {

constexpr const char* deepspeed_version = "0.19.8";

void write_value(PickleWriter& out, const OptimizerValue& value) {
  if (const auto* const flag = std::get_if<bool>(&value)) out.boolean(*flag);
  if (const auto* const number = std::get_if<double>(&value)) out.real(*number);
  if (const auto* const pair = std::get_if<std::pair<double, double>>(&value))
    out.open_tuple().real(pair->first).real(pair->second).close_tuple();
}

// torch.optim's param_groups, whose parameters are numbered 0, 1, ... over all groups.
void write_groups(PickleWriter& out, const std::vector<DeepspeedGroup>& groups,
                  const std::vector<std::size_t>& parameters) {
  out.string("param_groups").open_list();
  std::int64_t number = 0;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    out.open_dict();
    for (const auto& [name, value] : groups[group].values) {
      out.string(name);
      write_value(out, value);
    }
    out.string("params").open_list();
    for (std::size_t i = 0; i < parameters[group]; ++i) out.integer(number++);
    out.close_list().close_dict();
  }
  out.close_list();
}

void write_config(PickleWriter& out, const DeepspeedPickle& about) {
  out.string("ds_config").open_dict();
  out.string("train_batch_size").integer(about.train_batch);
  out.string("zero_optimization").open_dict().string("stage").integer(about.stage).close_dict();
  if (about.bf16) out.string("bf16").open_dict().string("enabled").boolean(true).close_dict();
  out.close_dict().string("ds_version").string(deepspeed_version);
}

// The state of whole parameters, and the groups. `first` is the record of the first entry.
void write_whole_states(PickleWriter& out, const DeepspeedPickle& about,
                        const DeepspeedModel& model, std::size_t first) {
  out.string("state").open_dict();
  const std::vector<PickledEntry>& state = model.state;
  std::vector<std::size_t> counts;
  std::int64_t number = 0;
  std::size_t next = 0;
  for (const auto& group : model.groups) {
    counts.push_back(group.size());
    for (const std::size_t parameter : group) {
      const std::string prefix = model.parameters[parameter].entry.name + ".";
      const std::int64_t own = number++;
      if (next == state.size() || !state[next].name.starts_with(prefix)) continue;
      out.integer(own).open_dict();
      for (; next < state.size() && state[next].name.starts_with(prefix); ++next)
        out.string(state[next].name.substr(prefix.size()))
            .tensor(state[next].dtype, text(first + next), state[next].shape);
      out.close_dict();
    }
  }
  out.close_dict();
  write_groups(out, about.groups, counts);
}

void write_stage_0(PickleWriter& out, const DeepspeedPickle& about, const DeepspeedModel& model) {
  out.string("optimizer").open_dict();
  const std::size_t masters = model.parameters.size() + model.buffers.size();
  const std::size_t first = masters + model.masters.size();
  if (!about.bf16) {
    write_whole_states(out, about, model, first);
  } else {
    out.string("dynamic_loss_scale").boolean(false).string("cur_scale").real(1);
    out.string("cur_iter").integer(about.progress.steps);
    out.string("optimizer_state_dict").open_dict();
    write_whole_states(out, about, model, first);
    out.close_dict().string("fp32_groups").open_list();
    std::size_t next = 0;
    for (const auto& group : model.groups) {
      out.open_list();
      for (std::size_t i = 0; i < group.size(); ++i, ++next)
        out.tensor(model.masters[next].dtype, text(masters + next), model.masters[next].shape);
      out.close_list();
    }
    out.close_list();
  }
  out.close_dict();
  for (const char* const name :
       {"param_shapes", "frozen_param_shapes", "shared_params", "frozen_param_fragments"})
    out.string(name).none();
}

// The parameters that are not stepped. DeepSpeed 0.19.8 has neither entry at stage 1. At stage 2
// the second one has the tensors of `module`.
void write_frozen(PickleWriter& out, const DeepspeedPickle& about, const DeepspeedModel& model) {
  if (about.stage == 1) {
    out.string("frozen_param_shapes").none().string("frozen_param_fragments").none();
    return;
  }
  out.string("frozen_param_shapes").open_ordered_dict();
  for (const auto& parameter : model.parameters)
    if (!parameter.stepped) out.string(parameter.entry.name).shape(parameter.shape);
  out.close_dict().string("frozen_param_fragments").open_ordered_dict();
  if (about.stage == 2) {
    for (std::size_t i = 0; i < model.parameters.size(); ++i)
      if (const auto& [entry, shape, stepped] = model.parameters[i]; !stepped)
        out.string(entry.name).tensor(entry.dtype, text(i), entry.shape);
  } else {
    const std::size_t first = model.parameters.size() + model.buffers.size();
    for (std::size_t i = 0; i < model.shards.size(); ++i)
      out.string(model.shards[i].name)
          .tensor(model.shards[i].dtype, text(first + i), model.shards[i].shape);
  }
  out.close_dict();
}

void write_shapes(PickleWriter& out, const DeepspeedPickle& about, const DeepspeedModel& model) {
  out.string("optimizer").none().string("param_shapes").open_list();
  for (const auto& group : model.groups) {
    out.open_ordered_dict();
    for (const std::size_t i : group)
      out.string(model.parameters[i].entry.name).shape(model.parameters[i].shape);
    out.close_dict();
  }
  out.close_list().string("shared_params").open_dict();
  for (const auto& [name, parameter] : model.aliases)
    if (model.rank == 0) out.string(name).string(model.parameters[parameter].entry.name);
  out.close_dict();
  write_frozen(out, about, model);
}

void write_progress(PickleWriter& out, const DeepspeedPickle& about) {
  const DeepspeedProgress& progress = about.progress;
  out.string("lr_scheduler");
  if (progress.scheduler_iteration)
    out.open_dict()
        .string("last_batch_iteration")
        .integer(*progress.scheduler_iteration)
        .close_dict();
  else
    out.none();
  out.string("data_sampler").none().string("random_ltd").none();
  out.string("skipped_steps").integer(progress.skipped_steps);
  out.string("global_steps").integer(progress.steps);
  out.string("global_samples").integer(progress.samples);
  out.string("dp_world_size").integer(about.ranks).string("mp_world_size").integer(1);
  write_config(out, about);
  for (const auto& [name, value] : progress.client_state) {
    out.string(name);
    // Python's programs use such numbers as indexes.
    constexpr double most_exact = 9e15;
    if (value < most_exact && value > -most_exact && value == std::trunc(value))
      out.integer(static_cast<std::int64_t>(value));
    else
      out.real(value);
  }
}

}  // namespace

std::string format_deepspeed_model(const DeepspeedPickle& about, const DeepspeedModel& model) {
  PickleWriter out;
  out.open_dict().string("module").open_ordered_dict();
  std::size_t record = 0;
  const auto add = [&](const PickledEntry& entry) {
    out.string(entry.name).tensor(entry.dtype, text(record++), entry.shape);
  };
  for (const auto& parameter : model.parameters) add(parameter.entry);
  for (const auto& [name, parameter] : model.aliases) {
    const PickledEntry& entry = model.parameters[parameter].entry;
    out.string(name).tensor(entry.dtype, text(parameter), entry.shape);
  }
  for (const PickledEntry& buffer : model.buffers) add(buffer);
  out.close_dict().string("buffer_names").open_list();
  for (const PickledEntry& buffer : model.buffers) out.string(buffer.name);
  out.close_list();
  if (about.stage == 0)
    write_stage_0(out, about, model);
  else
    write_shapes(out, about, model);
  write_progress(out, about);
  return out.close_dict().finish();
}

std::string format_deepspeed_optimizer(const DeepspeedPickle& about,
                                       const std::vector<DeepspeedFlats>& flats) {
  const bool is_stage_3 = about.stage == 3;
  PickleWriter out;
  out.open_dict().string("optimizer_state_dict").open_dict();
  out.string("zero_stage").integer(about.stage);
  out.string("loss_scaler").open_object("deepspeed.runtime.fp16.loss_scaler", "LossScaler");
  out.string("cur_scale").real(1).string("dynamic").boolean(false).close_object();
  out.string("dynamic_loss_scale").boolean(false).string("overflow").boolean(false);
  if (!is_stage_3) out.string("clip_grad").real(about.clip_grad_norm);
  out.string(is_stage_3 ? "optimizer_state_dict" : "base_optimizer_state").open_dict();
  out.string("state").open_dict();
  std::vector<std::size_t> first = {0};  // record of each
  std::vector<std::size_t> counts(about.groups.size());
  for (std::size_t number = 0; number < flats.size(); ++number) {
    counts[flats[number].group] += 1;
    const std::vector<PickledEntry>& entries = flats[number].entries;
    if (entries.size() > 1) {
      out.integer(static_cast<std::int64_t>(number)).open_dict();
      for (std::size_t i = 1; i < entries.size(); ++i)
        out.string(entries[i].name)
            .tensor(entries[i].dtype, text(first.back() + i), entries[i].shape);
      out.close_dict();
    }
    first.push_back(first.back() + entries.size());
  }
  out.close_dict();
  write_groups(out, about.groups, counts);
  out.close_dict().string(is_stage_3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
  out.open_list();
  for (std::size_t number = 0; number < flats.size(); ++number) {
    const PickledEntry& weights = flats[number].entries[0];
    out.tensor(weights.dtype, text(first[number]), weights.shape);
  }
  out.close_list().string("partition_count");
  if (is_stage_3) {
    out.integer(about.ranks);
  } else {
    out.open_list();
    for (std::size_t number = 0; number < flats.size(); ++number) out.integer(about.ranks);
    out.close_list().string("group_paddings").open_list();
    for (const DeepspeedFlats& own : flats) out.integer(own.padding);
    out.close_list().string("ds_version").string(deepspeed_version);
  }
  out.close_dict();
  write_config(out, about);
  return out.close_dict().finish();
}

}  // namespace trestle::checkpoint
