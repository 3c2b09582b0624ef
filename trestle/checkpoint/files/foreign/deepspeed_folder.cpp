// The folder of one tag of DeepSpeed's save_checkpoint(), as version 0.19.8 writes it.
//
//     stages 1, 2   the fp32 weights of a parameter group, end to end, cut over the ranks
//     stage 3       each parameter cut over the ranks, and a rank's shards end to end, by sub-group
//     stage 0       whole tensors; the optimizer's state in the order of the parameters
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/utf8.h"
#include "trestle/checkpoint/files/file_bytes.h"
#include "trestle/checkpoint/files/foreign/deepspeed_slots.h"
#include "trestle/checkpoint/files/foreign/foreign_folder.h"
#include "trestle/checkpoint/files/foreign/foreign_index.h"
#include "trestle/checkpoint/files/pickle/tensor_archive.h"
#include "trestle/checkpoint/files/safetensors_header.h"
#include "trestle/checkpoint/files/train_state.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;
using Kind = PickledValue::Kind;

constexpr std::array<std::string_view, 5> deepspeed_classes = {
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
    "torch.Tensor",
};

// The entries of a file of weights that are DeepSpeed's own; all others are the program's.
constexpr std::array<std::string_view, 20> deepspeed_keys = {
    "module",         "buffer_names",        "optimizer",     "param_shapes",
    "shared_params",  "frozen_param_shapes", "lr_scheduler",  "frozen_param_fragments",
    "data_sampler",   "random_ltd",          "skipped_steps", "global_steps",
    "global_samples", "dp_world_size",       "mp_world_size", "checkpoint_parallel_dimensions",
    "ds_config",      "ds_version",          "num_experts",   "sparse_tensor_module_names",
};

constexpr int most_ranks = 100'000;

class DeepspeedFile {
 public:
  DeepspeedFile(const fs::path& folder, std::string name)
      : file_name(std::move(name)),
        bytes_(existing(folder / file_name)),
        archive(bytes_, {.classes = deepspeed_classes}) {}

  const PickledValue& root() const { return archive.pickle().root; }
  // The tensor of a value, for the index.
  ElementsOfFile elements(const PickledValue& value, const std::string& what) const {
    return {file_name, archive.elements(tensor(value, what), what)};
  }
  const PickledTensor& tensor(const PickledValue& value, const std::string& what) const {
    if (value.kind != Kind::Tensor) archive.fail(text(what, " is not a tensor"));
    return archive.pickle().tensors[value.place()];
  }

  std::string file_name;

 private:
  static const fs::path& existing(const fs::path& path) {
    std::error_code none;
    if (!fs::is_regular_file(path, none))
      throw FormatError("this file of the checkpoint is missing", {.file = path.string()});
    return path;
  }
  FileBytes bytes_;

 public:
  TensorArchive archive;
};

struct Parameter {
  std::string name;
  Sizes shape;

  std::int64_t elements() const { return elements_of(shape); }
};

// A range of a rank's flat buffer.
struct Flat {
  const DeepspeedFile* file = nullptr;
  ElementsOfFile stored;
  std::int64_t count = 0;
};

std::string named(std::string_view name) { return text("tensor '", shown(name), "'"); }

class DeepspeedReader {
 public:
  explicit DeepspeedReader(const fs::path& folder)
      : folder_(folder), index_(FolderKind::Deepspeed, folder.string()) {
    std::error_code none;
    const bool one_model = fs::is_regular_file(folder / deepspeed_model_file(0, 0), none);
    model_ = std::make_unique<DeepspeedFile>(folder, deepspeed_model_file(one_model ? 0 : 3, 0));
  }

  CheckpointIndex read() {
    const TensorArchive& in = model_->archive;
    refuse_other_parallelism();
    ranks_ = static_cast<int>(std::min<std::int64_t>(
        in.count(in.at(model_->root(), "dp_world_size"), "'dp_world_size'"), most_ranks + 1));
    if (ranks_ < 1 || ranks_ > most_ranks) in.fail(text("it is of ", ranks_, " ranks"));
    read_names();
    if (const PickledValue* own = in.find(model_->root(), "optimizer");
        own && own->kind == Kind::Dict) {
      read_stage_0(*own);
    } else {
      open_optimizer_files();
      const PickledValue& state = in_optimizer(0);
      if (optimizer_[0]->archive.find(state, "fp32_flat_groups"))
        read_stage_3();
      else
        read_stages_1_and_2();
    }
    return index_.finish(format_state(state()));
  }

 private:
  void refuse_other_parallelism() const {
    const TensorArchive& in = model_->archive;
    const PickledValue* const model = in.find(model_->root(), "mp_world_size");
    if (model && in.count(*model, "'mp_world_size'") > 1)
      throw FormatError(
          "is of a model with tensor parallelism (mp_world_size)",
          {.file = in.name(), .hint = "Save a state_dict of the whole model in Python."});
  }

  void read_names() {
    const TensorArchive& in = model_->archive;
    if (const PickledValue* const names = in.find(model_->root(), "buffer_names"))
      for (const PickledValue& name : in.sequence(*names, "'buffer_names'"))
        buffers_.insert(std::string(word(in, name, "a buffer's name")));
    if (const PickledValue* const groups = in.find(model_->root(), "param_shapes");
        groups && groups->kind != Kind::None)
      for (const PickledValue& group : in.sequence(*groups, "'param_shapes'")) {
        groups_.emplace_back();
        for (const auto& [name, shape] : in.dict(group, "a group of 'param_shapes'")) {
          const std::string own(word(in, name, "a parameter's name"));
          if (!stepped_.insert(own).second) in.fail(text(named(own), " is there twice"));
          groups_.back().push_back({own, in.shape(shape, text("the shape of ", named(own)))});
        }
      }
  }

  static std::string_view word(const TensorArchive& in, const PickledValue& value,
                               const std::string& what) {
    if (value.kind != Kind::String) in.fail(text(what, " is not a string"));
    return value.text;
  }

  // Weights of the model's file that no optimizer steps: buffers and frozen parameters.
  void add_others() {
    const TensorArchive& in = model_->archive;
    std::set<std::string> frozen;
    if (const PickledValue* const shapes = in.find(model_->root(), "frozen_param_shapes");
        shapes && shapes->kind == Kind::Dict)
      for (const auto& [name, shape] : in.dict(*shapes, "'frozen_param_shapes'"))
        frozen.insert(std::string(word(in, name, "a parameter's name")));
    std::set<std::string> shared;
    if (const PickledValue* const names = in.find(model_->root(), "shared_params");
        names && names->kind == Kind::Dict)
      for (const auto& [name, other] : in.dict(*names, "'shared_params'"))
        shared.insert(std::string(word(in, name, "a parameter's name")));
    const bool is_stage_3 = model_->file_name == deepspeed_model_file(3, 0);
    for (const auto& [key, value] : in.dict(in.at(model_->root(), "module"), "'module'")) {
      const std::string name(word(in, key, "a tensor's name"));
      if (stepped_.contains(name) || shared.contains(name) || value.kind == Kind::None) continue;
      const bool is_buffer = buffers_.contains(name);
      if (!is_buffer && is_stage_3) continue;  // an empty placeholder
      const PickledTensor& tensor = model_->tensor(value, named(name));
      index_.add_box("weights", name, tensor.shape, whole_box(tensor.shape),
                     model_->elements(value, named(name)));
    }
    if (is_stage_3 && !frozen.empty()) add_frozen_of_stage_3();
  }

  // Rank r has elements [r, r + 1) * ceil(elements / ranks) of each.
  void add_frozen_of_stage_3() {
    const TensorArchive& in = model_->archive;
    std::vector<Parameter> frozen;
    for (const auto& [name, shape] :
         in.dict(in.at(model_->root(), "frozen_param_shapes"), "'frozen_param_shapes'"))
      frozen.push_back({std::string(name.text), in.shape(shape, named(name.text))});
    for (int rank = 0; rank < ranks_; ++rank) {
      const DeepspeedFile file(folder_, deepspeed_model_file(3, rank));
      const PickledValue& shards = file.archive.at(file.root(), "frozen_param_fragments");
      for (const Parameter& parameter : frozen) {
        const Flat shard =
            flat(file, file.archive.at(shards, parameter.name), named(parameter.name));
        const std::int64_t all = parameter.elements(), each = (all + ranks_ - 1) / ranks_;
        const std::int64_t begin = std::min(rank * each, all);
        const std::int64_t count = std::min(each, all - begin);
        if (all == 0 && rank == 0)
          index_.add_box("weights", parameter.name, parameter.shape, whole_box(parameter.shape),
                         shard.stored);
        if (count > 0) add_flat("weights", parameter.name, parameter.shape, begin, count, shard, 0);
      }
    }
  }

  void open_optimizer_files() {
    std::error_code none;
    const bool bf16 = fs::is_regular_file(folder_ / deepspeed_optimizer_file(true, 0), none);
    for (int rank = 0; rank < ranks_; ++rank)
      optimizer_.push_back(
          std::make_unique<DeepspeedFile>(folder_, deepspeed_optimizer_file(bf16, rank)));
  }
  const PickledValue& in_optimizer(std::size_t rank) const {
    return optimizer_[rank]->archive.at(optimizer_[rank]->root(), "optimizer_state_dict");
  }

  // A flat buffer, checked to have one dimension.
  Flat flat(const DeepspeedFile& file, const PickledValue& value, const std::string& what) const {
    const PickledTensor& tensor = file.tensor(value, what);
    if (tensor.shape.size() != 1) file.archive.fail(text(what, " is not flat"));
    return {&file, file.elements(value, what), tensor.shape[0]};
  }

  // The state of group number `group`, by field: a flat tensor or a number of steps.
  std::map<std::string, PickledValue> fields(const TensorArchive& in, const PickledValue& states,
                                             std::size_t group) const {
    std::map<std::string, PickledValue> out;
    const PickledValue* state = nullptr;
    if (states.kind == Kind::Sequence) {  // elastic_checkpoint
      const auto& all = in.sequence(states, "the optimizer's state");
      if (group < all.size()) state = &all[group];
    } else {
      for (const auto& [number, value] : in.dict(in.at(states, "state"), "the optimizer's state"))
        if (number.kind == Kind::Integer && number.place() == group) state = &value;
    }
    if (!state) return out;
    for (const auto& [name, value] : in.dict(*state, "the optimizer's state"))
      if (value.kind != Kind::None)
        out[std::string(word(in, name, "a field of the optimizer"))] = value;
    return out;
  }

  void add_steps(const TensorArchive& in, const std::vector<Parameter>& parameters,
                 const std::string& field, const PickledValue& value) {
    const double steps = in.number(value, text("the optimizer's '", field, "'"));
    for (const Parameter& parameter : parameters)
      index_.add_count("optimizer", text(parameter.name, ".", field), steps);
  }

  void read_stages_1_and_2() {
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      std::vector<Flat> weights;
      std::map<std::string, std::vector<Flat>> states;
      for (std::size_t rank = 0; rank < optimizer_.size(); ++rank) {
        const DeepspeedFile& file = *optimizer_[rank];
        const TensorArchive& in = file.archive;
        const PickledValue& state = in_optimizer(rank);
        refuse_aligned(in, state);
        const auto& flats = in.sequence(in.at(state, "single_partition_of_fp32_groups"),
                                        "'single_partition_of_fp32_groups'");
        if (flats.size() != groups_.size())
          in.fail(text("it has ", flats.size(), " groups of weights, but ", model_->file_name,
                       " has ", groups_.size()));
        weights.push_back(flat(file, flats[group], "a rank's weights"));
        for (const auto& [field, value] : fields(in, in.at(state, "base_optimizer_state"), group)) {
          if (is_count_of_steps(in, value)) {
            if (rank == 0) add_steps(in, groups_[group], field, value);
            continue;
          }
          states[field].push_back(flat(file, value, text("the optimizer's '", field, "'")));
        }
      }
      add_end_to_end("weights", groups_[group], "", weights, weights);
      for (const auto& [field, flats] : states) {
        if (flats.size() != weights.size())
          model_->archive.fail(text("not all ranks have the optimizer's '", field, "'"));
        add_end_to_end("optimizer", groups_[group], "." + field, flats, weights);
      }
    }
    add_others();
  }

  static bool is_count_of_steps(const TensorArchive& in, const PickledValue& value) {
    return value.kind != Kind::Tensor || in.pickle().tensors[value.place()].shape.empty();
  }

  static void refuse_aligned(const TensorArchive& in, const PickledValue& state) {
    const PickledValue* const all = in.find(state, "param_alignment_paddings");
    if (!all || all->kind == Kind::None) return;
    for (const PickledValue& group : in.sequence(*all, "'param_alignment_paddings'"))
      for (const PickledValue& padding : in.sequence(group, "'param_alignment_paddings'"))
        if (padding.kind != Kind::Integer || padding.number != 0)
          throw FormatError("has gaps between its parameters",
                            {.file = in.name(),
                             .hint = "Save it without zero_optimization.parameter_alignment."});
  }

  // The parameters of a group, end to end over the ranks. A rank's share of every field is that of
  // the weights, which are saved without padding; fields may have padding behind it.
  void add_end_to_end(const std::string& to, const std::vector<Parameter>& parameters,
                      const std::string& suffix, const std::vector<Flat>& flats,
                      const std::vector<Flat>& weights) {
    std::size_t rank = 0;
    std::int64_t used = 0;  // of the rank's share
    for (const Parameter& parameter : parameters) {
      const std::string name = parameter.name + suffix;
      std::int64_t done = 0;
      const std::int64_t all = parameter.elements();
      if (all == 0) continue;
      while (done < all) {
        while (rank < flats.size() && used == weights[rank].count) {
          ++rank;
          used = 0;
        }
        if (rank == flats.size())
          throw FormatError(text(named(name), " lacks ", all - done, " of its ", all, " elements"),
                            {.file = folder_.string(),
                             .hint = "A rank's file is from another save, or was cut short."});
        const std::int64_t count = std::min(all - done, weights[rank].count - used);
        add_flat(to, name, parameter.shape, done, count, flats[rank], used);
        used += count;
        done += count;
      }
    }
  }

  // Elements [from, from + count) of a flat buffer.
  void add_flat(const std::string& to, const std::string& name, const Sizes& shape,
                std::int64_t begin, std::int64_t count, const Flat& flat, std::int64_t from) {
    if (from + count > flat.count)
      flat.file->archive.fail(
          text(named(name), " needs ", from + count, " elements of a flat buffer of ", flat.count));
    ElementsOfFile stored = flat.stored;
    stored.elements.begin += static_cast<std::uint64_t>(from) *
                             static_cast<std::uint64_t>(dtype_bytes(stored.elements.dtype));
    index_.add_range(to, name, shape, begin, count, stored);
  }

  void read_stage_3() {
    std::vector<Parameter> parameters;
    for (const auto& group : groups_)
      parameters.insert(parameters.end(), group.begin(), group.end());
    for (std::size_t rank = 0; rank < optimizer_.size(); ++rank) {
      const DeepspeedFile& file = *optimizer_[rank];
      const TensorArchive& in = file.archive;
      const PickledValue& state = in_optimizer(rank);
      std::vector<Flat> weights;
      std::map<std::string, std::vector<Flat>> states;
      const auto& flats = in.sequence(in.at(state, "fp32_flat_groups"), "'fp32_flat_groups'");
      if (flats.size() != groups_.size())
        in.fail(text("it has ", flats.size(), " groups of weights, but ", model_->file_name,
                     " has ", groups_.size()));
      for (std::size_t group = 0; group < flats.size(); ++group) {
        weights.push_back(flat(file, flats[group], "a rank's weights"));
        for (const auto& [field, value] : fields(in, in.at(state, "optimizer_state_dict"), group)) {
          if (!is_count_of_steps(in, value))
            states[field].push_back(flat(file, value, text("the optimizer's '", field, "'")));
          else if (rank == 0)
            add_steps(in, groups_[group], field, value);
        }
      }
      add_shards("weights", parameters, "", weights, rank);
      for (const auto& [field, parts] : states) {
        if (parts.size() != weights.size())
          in.fail(text("not all of its groups have the optimizer's '", field, "'"));
        add_shards("optimizer", parameters, "." + field, parts, rank);
      }
    }
    add_others();
  }

  // A rank's shards of all parameters, end to end over its buffers.
  void add_shards(const std::string& to, const std::vector<Parameter>& parameters,
                  const std::string& suffix, const std::vector<Flat>& flats, std::size_t rank) {
    std::size_t buffer = 0;
    std::int64_t used = 0;
    for (const Parameter& parameter : parameters) {
      const std::string name = parameter.name + suffix;
      const std::int64_t all = parameter.elements();
      const std::int64_t each = (all + ranks_ - 1) / ranks_;  // with the last rank's padding
      if (each == 0) continue;
      while (buffer < flats.size() && used == flats[buffer].count) {
        ++buffer;
        used = 0;
      }
      if (buffer == flats.size() || used + each > flats[buffer].count)
        optimizer_[rank]->archive.fail(
            text(named(name), " needs ", each, " more elements than its flat buffers have"));
      const std::int64_t begin = std::min(static_cast<std::int64_t>(rank) * each, all);
      const std::int64_t count = std::min(each, all - begin);
      if (count > 0) add_flat(to, name, parameter.shape, begin, count, flats[buffer], used);
      used += each;
    }
  }

  // Whole tensors. With 16 bits the fp32 weights are the optimizer's.
  void read_stage_0(const PickledValue& optimizer) {
    const TensorArchive& in = model_->archive;
    std::vector<const PickledValue*> weights;
    const std::vector<Parameter> parameters = parameters_of_module(weights);
    const PickledValue* const inner = in.find(optimizer, "optimizer_state_dict");
    const PickledValue& states = inner ? *inner : optimizer;
    std::vector<OptimizerSlot> slots = slots_of(states);
    std::vector<const PickledValue*> masters;
    if (inner) masters = masters_of(in.at(optimizer, "fp32_groups"), slots);
    std::vector<Sizes> shapes;
    for (const Parameter& parameter : parameters) shapes.push_back(parameter.shape);
    const SlotMatch match = match_slots(slots, shapes);
    if (!match.problem.empty())
      throw FormatError(match.problem, {.file = in.name(),
                                        .hint = "Save with ZeRO stage 1, whose files have names."});
    for (std::size_t i = 0; i < masters.size(); ++i)
      weights[match.parameters[i].value()] = masters[i];
    for (std::size_t i = 0; i < parameters.size(); ++i)
      index_.add_box("weights", parameters[i].name, parameters[i].shape,
                     whole_box(parameters[i].shape),
                     model_->elements(*weights[i], named(parameters[i].name)));
    for (const auto& [number, state] : in.dict(in.at(states, "state"), "the optimizer's state"))
      if (const auto& place = match.parameters[number.place()])
        add_whole_state(parameters[*place], state);
    add_others();
  }

  // The parameters in the model's order, each once, and their values. Those that share their
  // elements with an earlier one are left out.
  std::vector<Parameter> parameters_of_module(std::vector<const PickledValue*>& values) {
    const TensorArchive& in = model_->archive;
    std::vector<Parameter> parameters;
    std::set<std::pair<std::size_t, std::int64_t>> seen;  // storage and offset
    for (const auto& [key, value] : in.dict(in.at(model_->root(), "module"), "'module'")) {
      const std::string name(word(in, key, "a tensor's name"));
      if (buffers_.contains(name) || value.kind == Kind::None) continue;
      const PickledTensor& tensor = model_->tensor(value, named(name));
      stepped_.insert(name);
      if (elements_of(tensor.shape) > 0 && !seen.emplace(tensor.storage, tensor.offset).second)
        continue;
      parameters.push_back({name, tensor.shape});
      values.push_back(&value);
    }
    return parameters;
  }

  // The parameters of the optimizer, with the shapes of their states.
  std::vector<OptimizerSlot> slots_of(const PickledValue& states) const {
    const TensorArchive& in = model_->archive;
    std::vector<OptimizerSlot> slots;
    std::size_t group = 0;
    for (const PickledValue& values :
         in.sequence(in.at(states, "param_groups"), "'param_groups'")) {
      for (const PickledValue& number : in.sequence(in.at(values, "params"), "'params'")) {
        if (in.count(number, "a number of 'params'") != static_cast<std::int64_t>(slots.size()))
          in.fail("the optimizer's parameters are not numbered 0, 1, ...");
        slots.push_back({.group = group});
      }
      ++group;
    }
    for (const auto& [number, state] : in.dict(in.at(states, "state"), "the optimizer's state")) {
      const std::int64_t i = in.count(number, "the number of a parameter");
      if (i >= static_cast<std::int64_t>(slots.size()))
        in.fail(text("the optimizer's state has parameter ", i, " of ", slots.size()));
      for (const auto& [field, value] : in.dict(state, "the optimizer's state"))
        if (value.kind == Kind::Tensor && field.text != "step")
          slots[number.place()].shape = in.pickle().tensors[value.place()].shape;
    }
    return slots;
  }

  void add_whole_state(const Parameter& parameter, const PickledValue& state) {
    const TensorArchive& in = model_->archive;
    for (const auto& [key, value] : in.dict(state, "the optimizer's state")) {
      const std::string field(word(in, key, "a field of the optimizer"));
      if (value.kind == Kind::None) continue;
      if (field == "step") {
        add_steps(in, {parameter}, field, value);
        continue;
      }
      const std::string name = text(parameter.name, ".", field);
      if (model_->tensor(value, named(name)).shape != parameter.shape)
        in.fail(text(named(name), " has another shape than the parameter"));
      index_.add_box("optimizer", name, parameter.shape, whole_box(parameter.shape),
                     model_->elements(value, named(name)));
    }
  }

  // The weights that the optimizer steps, whose shapes become those of its slots.
  std::vector<const PickledValue*> masters_of(const PickledValue& groups,
                                              std::vector<OptimizerSlot>& slots) const {
    const TensorArchive& in = model_->archive;
    std::vector<const PickledValue*> all;
    std::size_t number = 0;
    for (const PickledValue& group : in.sequence(groups, "'fp32_groups'")) {
      for (const PickledValue& weight : in.sequence(group, "'fp32_groups'")) {
        if (all.size() == slots.size() || slots[all.size()].group != number)
          in.fail("'fp32_groups' has other groups than the optimizer");
        slots[all.size()].shape = model_->tensor(weight, "a weight in fp32").shape;
        all.push_back(&weight);
      }
      ++number;
    }
    if (all.size() != slots.size()) in.fail("'fp32_groups' has other groups than the optimizer");
    return all;
  }

  TrainState state() const {
    const TensorArchive& in = model_->archive;
    TrainState out;
    const auto number = [&](const char* key) {
      const PickledValue* const found = in.find(model_->root(), key);
      return found ? in.count(*found, text("'", key, "'")) : 0;
    };
    out.step = number("global_steps");
    out.numbers["deepspeed.skipped_steps"] = static_cast<double>(number("skipped_steps"));
    for (const auto& [key, value] : in.dict(model_->root(), "the file")) {
      if (key.kind != Kind::String ||
          std::find(deepspeed_keys.begin(), deepspeed_keys.end(), key.text) != deepspeed_keys.end())
        continue;
      if (!is_utf8(key.text))
        in.fail(text("the name '", shown(key.text), "' of its client_state is not UTF-8"));
      if (value.kind == Kind::Integer || value.kind == Kind::Real || value.kind == Kind::Bool)
        out.numbers[text("client.", key.text)] = in.number(value, "a number of the program");
    }
    add_loss_scale(out);
    return out;
  }

  void add_loss_scale(TrainState& out) const {
    if (optimizer_.empty()) return;
    const TensorArchive& in = optimizer_[0]->archive;
    const PickledValue* const scaler = in.find(in_optimizer(0), "loss_scaler");
    if (!scaler || scaler->kind != Kind::Object) return;
    const PickledValue& state = in.pickle().objects[scaler->place()].state;
    if (state.kind != Kind::Dict) return;
    if (const PickledValue* const scale = in.find(state, "cur_scale"))
      out.numbers["deepspeed.loss_scale"] = in.number(*scale, "'cur_scale'");
  }

  fs::path folder_;
  ForeignIndex index_;
  std::unique_ptr<DeepspeedFile> model_;
  std::vector<std::unique_ptr<DeepspeedFile>> optimizer_;  // of each rank
  int ranks_ = 1;
  std::vector<std::vector<Parameter>> groups_;
  std::set<std::string> buffers_, stepped_;
};

}  // namespace

CheckpointIndex read_deepspeed_index(const fs::path& folder) {
  return DeepspeedReader(folder).read();
}

}  // namespace trestle::checkpoint
