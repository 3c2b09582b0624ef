#include "trestle/checkpoint/write_deepspeed_folder.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/dtypes.h"
#include "trestle/checkpoint/files/box.h"
#include "trestle/checkpoint/files/foreign/foreign_folder.h"
#include "trestle/checkpoint/files/replace_folder.h"
#include "trestle/checkpoint/flat_shard.h"
#include "trestle/checkpoint/write_archive.h"

namespace trestle::checkpoint {

namespace {

namespace fs = std::filesystem;

// A range of a parameter and its place in a rank's flat buffer.
struct FlatRange {
  const StoredTensor* parameter = nullptr;
  std::int64_t begin = 0, count = 0, place = 0;
};

std::int64_t elements_in(const StoredTensor& tensor) { return elements_of(tensor.shape); }

class DeepspeedWriter {
 public:
  DeepspeedWriter(const CheckpointFolder& from, const DeepspeedPickle& about)
      : from_(from), about_(about) {
    std::map<std::string, const StoredTensor*> known;
    for (const StoredTensor& tensor : from.tensors("weights")) known[tensor.name] = &tensor;
    std::map<std::string, std::size_t> numbers;
    for (const auto& [name, frozen, same_as] : about.parameters) {
      if (!same_as.empty()) {
        aliases_.push_back({name, numbers.at(same_as)});
        continue;
      }
      numbers[name] = parameters_.size();
      const auto found = known.find(name);
      if (found == known.end())
        throw UsageError(text("the checkpoint has no parameter '", name, "'"));
      const StoredTensor& tensor = *found->second;
      // DeepSpeed's optimizer has no parameter without elements.
      const bool stepped = !frozen && elements_in(tensor) > 0;
      if (stepped && tensor.type != at::kFloat)
        throw UsageError(text("'", name, "' is ", c10::toString(tensor.type),
                              ", but DeepSpeed steps weights in fp32"));
      parameters_.push_back({&tensor, stepped});
      known.erase(found);
    }
    for (const StoredTensor& tensor : from.tensors("weights"))
      if (known.contains(tensor.name)) buffers_.push_back(&tensor);
    make_groups(numbers);
    read_state();
  }

  void write(const fs::path& folder, int rank) const {
    if (about_.stage == 3 || rank == 0)
      write_model(folder / deepspeed_model_file(about_.stage, rank), rank);
    if (about_.stage > 0)
      write_optimizer(folder / deepspeed_optimizer_file(about_.bf16, rank), rank);
  }

 private:
  // At stage 0 in fp32 DeepSpeed's optimizer is the program's own: one for model.parameters() has
  // the frozen ones too.
  void make_groups(const std::map<std::string, std::size_t>& numbers) {
    const bool has_all = about_.stage == 0 && !about_.bf16;
    const bool is_single = about_.groups.size() == 1;
    groups_.resize(about_.groups.size());
    std::set<std::size_t> named;
    for (std::size_t group = 0; group < groups_.size(); ++group)
      for (const std::string& name : about_.groups[group].parameters) {
        const std::size_t number = numbers.at(name);
        if (named.insert(number).second && !is_single && parameters_[number].stepped)
          groups_[group].push_back(number);
      }
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const auto& [stored, stepped] = parameters_[i];
      if (stepped && !named.empty() && !named.contains(i))
        throw UsageError(text("'", stored->name, "' is in no group of the optimizer"),
                         {.hint = "Freeze it before initialize(), or save in trestle's own form."});
      if (is_single && (has_all || stepped)) groups_[0].push_back(i);
      if (!is_single && has_all && !stepped)
        throw UsageError(text("at stage 0 in fp32 DeepSpeed's form of several groups of parameters "
                              "has no place for the frozen parameter '",
                              stored->name, "'"),
                         {.hint = "Save in trestle's own form instead."});
    }
    for (const auto& group : groups_)
      if (group.empty())
        throw UsageError("a group of parameters has none that DeepSpeed's optimizer would step",
                         {.hint = "Save in trestle's own form instead."});
    for (std::size_t i = 0; i < groups_.size(); ++i) group_of_.push_back(i);
    if (about_.stage == 3) divide_groups();
  }

  // A sub-group ends with the parameter that fills it.
  void divide_groups() {
    const auto groups = std::exchange(groups_, {});
    group_of_.clear();
    for (std::size_t group = 0; group < groups.size(); ++group) {
      std::int64_t all = 0, elements = 0;
      for (const std::size_t i : groups[group]) all += elements_each(*parameters_[i].stored);
      std::vector<std::size_t> sub_group;
      for (const std::size_t i : groups[group]) {
        sub_group.push_back(i);
        elements += elements_each(*parameters_[i].stored);
        const bool is_full = about_.sub_group < all && elements >= about_.sub_group;
        if (!is_full && i != groups[group].back()) continue;
        groups_.push_back(std::exchange(sub_group, {}));
        group_of_.push_back(group);
        elements = 0;
      }
    }
  }

  void read_state() {
    std::set<std::string> fields;
    std::vector<std::string> counts;
    for (const StoredTensor& tensor : from_.tensors("optimizer")) {
      const std::size_t dot = tensor.name.rfind('.');
      const std::string field = tensor.name.substr(dot + 1);
      states_[tensor.name] = &tensor;
      if (field == "step")
        counts.push_back(tensor.name);
      else
        fields.insert(field);
    }
    fields_.assign(fields.begin(), fields.end());
    const NamedTensors all = from_.read("optimizer", counts);
    for (const auto& [name, steps] : all) {
      const auto count = steps.item<std::int64_t>();
      if (has_steps_ && count != steps_)
        throw UsageError(text("'", all[0].first, "' is ", steps_, ", but '", name, "' is ", count,
                              ": DeepSpeed has one number of steps for all parameters"),
                         {.hint = "Save in trestle's own form instead."});
      steps_ = count;
      has_steps_ = true;
    }
  }

  at::ScalarType computed() const { return about_.bf16 ? at::kBFloat16 : at::kFloat; }

  PickledEntry entry(const StoredTensor& tensor, at::ScalarType type) const {
    return {tensor.name, dtype_name(tensor.name, type), tensor.shape};
  }
  at::ScalarType module_type(const StoredTensor& tensor) const {
    return at::isFloatingType(tensor.type) ? computed() : tensor.type;
  }

  at::Tensor value(const std::string& group, const StoredTensor& tensor) const {
    return from_.read(group, std::vector<std::string>{tensor.name})[0].second;
  }

  // Tensors that are written one after another.
  using Tensors = std::vector<std::function<at::Tensor()>>;

  // Weights, buffers, at stage 0 the masters of 16 bits and the optimizer's state, at stage 3 the
  // rank's shards of frozen parameters.
  void write_model(const fs::path& path, int rank) const {
    DeepspeedModel model{.rank = rank, .aliases = aliases_, .groups = groups_};
    Tensors tensors;
    for (const auto& [parameter, stepped] : parameters_) {
      const at::ScalarType type = module_type(*parameter);
      model.parameters.push_back({entry(*parameter, type), parameter->shape, stepped});
      if (about_.stage == 3) {
        model.parameters.back().entry.shape = {0};
        tensors.push_back([type] { return at::empty({0}, at::dtype(type)); });
      } else {
        tensors.push_back(
            [this, parameter, type] { return value("weights", *parameter).to(type); });
      }
    }
    for (const StoredTensor* const buffer : buffers_) {
      model.buffers.push_back(entry(*buffer, module_type(*buffer)));
      tensors.push_back(
          [this, buffer] { return value("weights", *buffer).to(module_type(*buffer)); });
    }
    if (about_.stage == 0) add_stage_0(model, tensors);
    if (about_.stage == 3) add_shards(model, tensors, rank);
    const std::string pickle = format_deepspeed_model(about_, model);
    write_file(path, [&](std::ostream& out) {
      write_archive(out, pickle, tensors.size(), [&](std::size_t i) { return tensors[i](); });
    });
  }

  void add_stage_0(DeepspeedModel& model, Tensors& tensors) const {
    std::vector<const StoredTensor*> numbered;
    for (const auto& group : groups_)
      for (const std::size_t i : group) numbered.push_back(parameters_[i].stored);
    if (about_.bf16)
      for (const StoredTensor* const parameter : numbered) {
        model.masters.push_back(entry(*parameter, at::kFloat));
        tensors.push_back([this, parameter] { return value("weights", *parameter); });
      }
    for (const StoredTensor* const parameter : numbered) {
      bool has_state = false;
      for (const std::string& field : fields_) {
        const auto found = states_.find(text(parameter->name, ".", field));
        if (found == states_.end()) continue;
        has_state = true;
        model.state.push_back(entry(*found->second, at::kFloat));
        tensors.push_back(
            [this, stored = found->second] { return value("optimizer", *stored).to(at::kFloat); });
      }
      if (!has_state || !has_steps_) continue;
      model.state.push_back({text(parameter->name, ".step"), "F32", {}});
      tensors.push_back([this] { return steps(); });
    }
  }

  void add_shards(DeepspeedModel& model, Tensors& tensors, int rank) const {
    for (const auto& [parameter, stepped] : parameters_) {
      if (stepped) continue;
      const FlatRange range = shard_of(*parameter, rank, 0);
      model.shards.push_back({parameter->name,
                              dtype_name(parameter->name, module_type(*parameter)),
                              {elements_each(*parameter)}});
      tensors.push_back([this, range] {
        const StoredTensor& from = *range.parameter;
        return flat("weights", "", elements_each(from), {range}, from.type).to(module_type(from));
      });
    }
  }

  at::Tensor steps() const {
    return at::full({}, static_cast<double>(steps_), at::dtype(at::kFloat));
  }

  // Stage 3: the elements of a parameter that each rank holds, with the last ones' padding.
  std::int64_t elements_each(const StoredTensor& parameter) const {
    return (elements_in(parameter) + about_.ranks - 1) / about_.ranks;
  }
  FlatRange shard_of(const StoredTensor& parameter, int rank, std::int64_t place) const {
    const std::int64_t count = elements_in(parameter), each = elements_each(parameter);
    const std::int64_t begin = std::min(rank * each, count);
    return {&parameter, begin, std::min(each, count - begin), place};
  }

  // The elements of a rank's buffer of a group with padding, and what is in it.
  std::int64_t lay_out(const std::vector<std::size_t>& group, int rank,
                       std::vector<FlatRange>& ranges, std::int64_t& padding) const {
    std::int64_t all = 0;
    padding = 0;
    if (about_.stage == 3) {
      for (const std::size_t i : group) {
        const StoredTensor& parameter = *parameters_[i].stored;
        ranges.push_back(shard_of(parameter, rank, all));
        all += elements_each(parameter);
      }
      return all;
    }
    for (const std::size_t i : group) all += elements_in(*parameters_[i].stored);
    const std::int64_t step = 2 * static_cast<std::int64_t>(about_.ranks);
    const std::int64_t padded = (all + step - 1) / step * step, each = padded / about_.ranks;
    padding = std::clamp((rank + 1) * each - all, std::int64_t{0}, each);
    std::int64_t begin = 0;  // of the parameter in the flat buffer of all ranks
    for (const std::size_t i : group) {
      const StoredTensor& parameter = *parameters_[i].stored;
      const std::int64_t count = elements_in(parameter);
      const std::int64_t from = std::max(begin, rank * each);
      const std::int64_t to = std::min(begin + count, (rank + 1) * each);
      if (from < to) ranges.push_back({&parameter, from - begin, to - from, from - rank * each});
      begin += count;
    }
    return each;
  }

  // A buffer of `elements` with these ranges of stored tensors of type `type`, and zeros.
  at::Tensor flat(const std::string& group, const std::string& suffix, std::int64_t elements,
                  const std::vector<FlatRange>& ranges, at::ScalarType type = at::kFloat) const {
    const at::Tensor buffer = at::zeros({elements}, at::dtype(type));
    std::vector<CheckpointFolder::Wanted> wanted;
    for (const FlatRange& range : ranges) {
      const std::string name = range.parameter->name + suffix;
      if (range.count == 0 || (group == "optimizer" && !states_.contains(name))) continue;
      const Sizes& shape = range.parameter->shape;
      std::vector<std::int64_t> strides(shape.size(), 1);
      for (std::size_t i = shape.size(); i > 1; --i) strides[i - 2] = strides[i - 1] * shape[i - 1];
      for (const TensorShard& box : boxes_of(
               {name, buffer.narrow(0, range.place, range.count), range.begin, shape, strides}))
        wanted.push_back({name, box.tensor, box.offset});
    }
    from_.read(group, wanted);
    return buffer;
  }

  void write_optimizer(const fs::path& path, int rank) const {
    std::vector<DeepspeedFlats> all;
    Tensors tensors;
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      std::vector<FlatRange> ranges;
      std::int64_t padding = 0;
      const std::int64_t elements = lay_out(groups_[group], rank, ranges, padding);
      DeepspeedFlats flats{.group = group_of_[group],
                           .entries = {{"", "F32", {elements - padding}}},
                           .padding = padding};
      tensors.push_back([=, this] {
        return flat("weights", "", elements, ranges).narrow(0, 0, elements - padding);
      });
      if (has_steps_ && !fields_.empty()) {
        flats.entries.push_back({"step", "F32", {}});
        tensors.push_back([this] { return steps(); });
      }
      for (const std::string& field : fields_) {
        flats.entries.push_back({field, "F32", {elements}});
        tensors.push_back([=, this] { return flat("optimizer", "." + field, elements, ranges); });
      }
      all.push_back(std::move(flats));
    }
    const std::string pickle = format_deepspeed_optimizer(about_, all);
    write_file(path, [&](std::ostream& out) {
      write_archive(out, pickle, tensors.size(), [&](std::size_t i) { return tensors[i](); });
    });
  }

  struct Parameter {
    const StoredTensor* stored = nullptr;
    bool stepped = true;
  };

  const CheckpointFolder& from_;
  const DeepspeedPickle& about_;
  std::vector<Parameter> parameters_;
  std::vector<DeepspeedModel::Alias> aliases_;
  std::vector<std::vector<std::size_t>> groups_;  // numbers of parameters; stage 3: of sub-groups
  std::vector<std::size_t> group_of_;             // the optimizer's group of each
  std::vector<const StoredTensor*> buffers_;
  std::map<std::string, const StoredTensor*> states_;
  std::vector<std::string> fields_;  // of the optimizer, without the number of steps
  bool has_steps_ = false;
  std::int64_t steps_ = 0;
};

// Runs `work` on each rank; the first error is thrown on all.
template <class Work>
void on_all_ranks(const SaveRanks& ranks, Work work) {
  std::string message;
  std::exception_ptr error;
  try {
    work();
  } catch (const std::exception& failed) {
    message = failed.what();
    error = std::current_exception();
  }
  if (ranks.size > 1) {
    const std::vector<std::string> all = ranks.all_gather(message);
    for (std::size_t rank = 0; rank < all.size() && !error; ++rank)
      if (!all[rank].empty())
        throw FileError(text("rank ", rank, " could not write DeepSpeed's folder: ", all[rank]));
  }
  if (error) std::rethrow_exception(error);
}

void refuse_other_folder(const fs::path& folder) {
  std::error_code none;
  if (!fs::exists(folder) || fs::is_empty(folder, none)) return;
  const auto found = find_foreign_folder(folder);
  if (!found || found->kind != FolderKind::Deepspeed)
    throw UsageError(text(folder.string(), ": exists already and is not a checkpoint of ",
                          "DeepSpeed's, so it is not replaced"),
                     {.hint = "Give the checkpoint another tag or folder."});
}

}  // namespace

void write_deepspeed_folder(const CheckpointFolder& from, const fs::path& root,
                            const std::string& tag, const DeepspeedPickle& about,
                            const SaveRanks& ranks) {
  const fs::path folder = root / tag, fresh = fresh_folder(folder);
  on_all_ranks(ranks, [&] {
    if (ranks.rank != 0) return;
    refuse_other_folder(folder);
    fs::remove_all(fresh);
    fs::create_directories(fresh);
  });
  try {
    on_all_ranks(ranks, [&] {
      const DeepspeedWriter writer(from, about);
      for (int rank = ranks.rank; rank < about.ranks; rank += ranks.size) writer.write(fresh, rank);
    });
  } catch (...) {
    if (ranks.rank == 0) drop_fresh(folder);
    throw;
  }
  on_all_ranks(ranks, [&] {
    if (ranks.rank != 0) return;
    swap_in(folder);
    write_file(root / deepspeed_latest_name, tag);
  });
}

}  // namespace trestle::checkpoint
