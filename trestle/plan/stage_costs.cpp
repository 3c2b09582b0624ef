#include "trestle/plan/stage_costs.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::plan {
namespace {

void check_costs(const LayerProfile& profile, const std::vector<int>& balance,
                 const StageCostOptions& options) {
  plan::check(profile);
  check_cut(balance, profile.layers.size());
  if (!options.units.empty() && options.units.size() != profile.layers.size())
    throw UsageError(text("options of stage costs have the units' memory of ", options.units.size(),
                          " layers; the profile has ", profile.layers.size()));
  if (options.optimizer_states < 0 || options.gradient_shards < 1 ||
      options.whole_batch_loss_over < 0 || !(options.bytes_per_second >= 0) ||
      !(options.additive_loss_memory >= 0))
    throw UsageError(text("options of stage costs must not be negative: optimizer_states ",
                          options.optimizer_states, ", gradient_shards ", options.gradient_shards,
                          " (at least 1), whole_batch_loss_over ", options.whole_batch_loss_over,
                          ", bytes_per_second ", options.bytes_per_second,
                          ", additive_loss_memory ", options.additive_loss_memory));
}

// A value as one stage uses it.
struct Seen {
  Bytes bytes = 0;
  bool made = false;            // by a layer of this stage
  bool output = false;          // goes to a later stage or out of the model
  bool model_output = false;    // leaves the model from this stage
  bool wants_gradient = false;  // every value but a model input
  int from = -1;
  int start = 0;        // the first layer during which it is in memory
  int last_use = 0;     // the stage's last layer that uses or produces it
  int first_saver = 0;  // the stage's first layer that saves it; only if `saved`
  bool saved = false;
  int stages = 0;                // the number of other stages that receive it
  std::vector<int> takers = {};  // the stage's layers that use it

  bool from_outside() const { return made && output && !model_output; }  // its gradient is received
};

// Memory of a value and of its views in the stage.
struct Held {
  Bytes bytes = 0;
  int start = 0, last_use = 0;
  int first_saver = 0;  // only if `saved`
  bool saved = false, output = false, model_output = false;
  bool sent = false;  // made here, and an output

  bool there(int layer) const { return start <= layer && (saved || output || layer <= last_use); }
};

Held joined(const Held& a, const Held& b) {
  Held held = a;
  held.bytes = std::max(a.bytes, b.bytes);
  held.start = std::min(a.start, b.start);
  held.last_use = std::max(a.last_use, b.last_use);
  held.first_saver = std::min(a.first_saver, b.first_saver);  // the end of the stage if not saved
  held.saved |= b.saved;
  held.output |= b.output;
  held.model_output |= b.model_output;
  held.sent |= b.sent;
  return held;
}

// [layer] whether its results have gradients: it trains parameters, or takes such a result.
std::vector<bool> layers_with_gradients(const LayerProfile& profile) {
  std::vector<bool> result;
  for (const LayerCost& layer : profile.layers) result.push_back(layer.trained() > 0);
  for (const TiedCost& tie : profile.ties)
    for (const int user : tie.users)
      if (tie.gradient() > 0) result[static_cast<std::size_t>(user)] = true;
  for (std::size_t i = 0; i < result.size(); ++i)  // in the order of the layers
    for (const ValueCost& value : profile.values)
      if (value.from == static_cast<int>(i) && result[i])
        for (const int to : value.to)
          if (to < std::ssize(result)) result[static_cast<std::size_t>(to)] = true;
  return result;
}

// Whether a backward allocates the parameter gradients, or adds to existing ones.
enum class Gradients { New, Existing };

// The layers [first, last) and the values that they use. "Beyond" means above what the
// micro-batch's graph keeps in the end, as StageCost counts bytes.
class StageWalk {
 public:
  StageWalk(const LayerProfile& profile, const std::vector<int>& stage_of_layer, int first,
            int last, const StageCostOptions& options)
      : profile_(profile),
        stage_of_layer_(stage_of_layer),
        first_(first),
        last_(last),
        options_(options) {
    const std::vector<int> memory = memory_of_values(profile);
    std::map<int, Held> held;
    for (std::size_t i = 0; i < profile.values.size(); ++i)
      if (const std::optional<Held> one = see(profile.values[i])) {
        const auto [known, added] = held.try_emplace(memory[i], *one);
        if (!added) known->second = joined(known->second, *one);
      }
    for (const auto& [number, one] : held) memory_.push_back(one);
    for (int i = first; i < last; ++i) saved_ += layer(i).inner;
    for (const Held& one : memory_) saved_ += one.saved || one.model_output ? one.bytes : 0;
    for (const Seen& value : values_) {
      if (!value.made) inputs_ += value.bytes;
      if (value.model_output) model_outputs_ += value.bytes;
    }
  }

  Bytes saved() const { return saved_; }    // by a graph, and the model's outputs for the loss
  Bytes inputs() const { return inputs_; }  // from other stages and model inputs
  Bytes model_outputs() const { return model_outputs_; }
  // The gradients of its outputs that later stages send.
  Bytes received_gradients() const {
    Bytes sum = 0;
    for (const Seen& value : values_) sum += value.from_outside() ? value.bytes : 0;
    return sum;
  }
  // Whether an earlier stage needs gradients of this one.
  bool sends_gradients() const {
    const std::vector<bool> trained = layers_with_gradients(profile_);
    return std::any_of(values_.begin(), values_.end(), [&](const Seen& value) {
      return !value.made && value.from >= 0 && trained[static_cast<std::size_t>(value.from)];
    });
  }

  Bytes parameters() const {
    Bytes sum = 0;
    for (int i = first_; i < last_; ++i) sum += layer(i).parameters;
    return sum;
  }

  // Those with gradients.
  Bytes trained() const {
    Bytes sum = 0;
    for (int i = first_; i < last_; ++i) sum += layer(i).trained();
    return sum;
  }

  // The copies of tied parameters that other stages own, and the copies' gradients.
  Bytes copies() const {
    Bytes sum = 0;
    for (const TiedCost* copy : copies_in(profile_, first_, last_)) sum += copy->bytes;
    return sum;
  }
  Bytes copied_gradients() const {
    Bytes sum = 0;
    for (const TiedCost* copy : copies_in(profile_, first_, last_)) sum += copy->gradient();
    return sum;
  }

  Bytes buffers() const {
    Bytes sum = 0;
    for (int i = first_; i < last_; ++i) sum += layer(i).buffers;
    return sum;
  }

  // The peak beyond saved() while F runs with a graph.
  Bytes forward() const {
    Bytes most = 0;
    Bytes inner = 0;
    for (int i = first_; i < last_; ++i) {
      inner += layer(i).inner;
      Bytes held = inner + layer(i).transient_forward + unit(i).forward;
      for (const Held& one : memory_) held += one.there(i) ? one.bytes : 0;
      most = std::max(most, held);
    }
    return std::max<Bytes>(0, most - saved_);
  }

  // The peak beyond inputs() while F runs without a graph. The first such F runs on copies of its
  // inputs, because the stage does not know yet which of them it writes to.
  Bytes forward_no_graph() const {
    Bytes most = 0;
    for (int i = first_; i < last_; ++i) {
      Bytes held = layer(i).inner + layer(i).transient_forward + unit(i).forward;
      for (const Held& one : memory_)
        held += one.start <= i && (i <= one.last_use || one.sent) ? one.bytes : 0;
      most = std::max(most, held);
    }
    return most;
  }

  // The peak beyond saved() while B walks back through the layers and frees their graphs.
  Bytes backward(Gradients gradients) const {
    Bytes inner = saved_;
    for (const Held& one : memory_)
      inner -= one.saved || one.model_output ? one.bytes : 0;  // leaves what layers keep inside
    Bytes parameters = 0;                                      // gradients of finished layers
    Bytes most = 0;
    for (int i = last_ - 1; i >= first_; --i) {
      Bytes held = inner + layer(i).transient + parameters + unit(i).backward;
      for (const Held& one : memory_) held += one.saved && one.first_saver <= i ? one.bytes : 0;
      for (const Seen& value : values_) {
        if (value.from_outside()) {
          if (value.from != i) held += value.bytes;  // its gradient was received and stays
        } else if (value.wants_gradient && value.from < i && value.last_use > i) {
          held += value.bytes;  // its gradient is being accumulated
        }
      }
      most = std::max(most, held);
      inner -= layer(i).inner;
      if (gradients == Gradients::New) parameters += new_gradients(i) / options_.gradient_shards;
    }
    // At the end: the gradients of the outputs, and those of the inputs, which will be sent.
    Bytes end = parameters + behind_views();
    Bytes arrived = 0;
    Bytes adding = 0;  // summing the gradients of an output that several stages use
    for (const Seen& value : values_) {
      if (value.from_outside() || (!value.made && value.wants_gradient)) end += value.bytes;
      if (value.from_outside()) arrived += value.bytes;
      if (value.stages > 1) adding = std::max(adding, 2 * value.bytes);
    }
    return std::max({Bytes{0}, most - saved_, end - saved_, arrived + adding});
  }

  // W's peak beyond what I left, layer by layer from the last, if every layer has a split. Nothing
  // is counted as freed before its end.
  Bytes weight_grad(Gradients gradients) const {
    Bytes most = 0;
    Bytes parameters = 0;  // gradients of finished layers
    for (int i = last_ - 1; i >= first_; --i) {
      most = std::max(most, parameters + layer(i).split->transient_weight_grad);
      if (gradients == Gradients::New) parameters += new_gradients(i);
    }
    return std::max(most, parameters);
  }

 private:
  // The gradients that this layer's backward allocates. The last layer of the stage that uses a
  // tied parameter makes its gradient; the earlier ones add to it.
  Bytes new_gradients(int i) const {
    Bytes bytes = layer(i).trained();
    for (const TiedCost& tie : profile_.ties) {
      int last_user = -1;
      for (const int user : tie.users)
        if (user >= first_ && user < last_) last_user = std::max(last_user, user);
      if (tie.owner >= first_ && tie.owner < last_) last_user = std::max(last_user, tie.owner);
      if (tie.owner == i) bytes -= tie.gradient();
      if (last_user == i) bytes += tie.gradient();
    }
    return bytes;
  }

  // A layer like cat() returns views of its output's gradient as the gradients of its inputs. The
  // stage copies those of its own inputs to send them, and the whole gradient stays until then.
  Bytes behind_views() const {
    Bytes sum = 0;
    for (int i = first_; i < last_; ++i) {
      Bytes results = 0;
      Bytes whole = 0;      // the results whose gradient was not received
      Bytes gradients = 0;  // of its inputs
      bool takes_input = false;
      for (const Seen& value : values_) {
        if (value.from == i) results += value.bytes;
        if (value.from == i && !value.from_outside()) whole += value.bytes;
        const bool takes = std::count(value.takers.begin(), value.takers.end(), i) > 0;
        if (!takes || !value.wants_gradient) continue;
        gradients += value.bytes;
        takes_input = takes_input || !value.made;
      }
      if (takes_input && layer(i).transient < results + gradients) sum += whole;
    }
    return sum;
  }

  const LayerCost& layer(int i) const { return profile_.layers[static_cast<std::size_t>(i)]; }
  UnitMemory unit(int i) const {
    return options_.units.empty() ? UnitMemory{} : options_.units[static_cast<std::size_t>(i)];
  }

  // Its memory, if a layer of the stage makes or takes it.
  std::optional<Held> see(const ValueCost& value) {
    const auto here = [&](int i) { return i >= first_ && i < last_; };
    Seen seen{.bytes = value.bytes,
              .made = here(value.from),
              .wants_gradient = value.from >= 0,
              .from = value.from,
              .start = here(value.from) ? value.from : first_,
              .last_use = here(value.from) ? value.from : first_,
              .first_saver = last_};
    bool taken = false;
    std::set<int> stages;
    const int caller = static_cast<int>(profile_.layers.size());
    for (const int to : value.to) {
      taken = taken || here(to) || (to == caller && last_ == caller);
      if (here(to)) {
        seen.last_use = std::max(seen.last_use, to);
        seen.takers.push_back(to);
      }
      if (seen.made && to >= last_) {
        seen.output = true;
        if (to != caller || last_ != caller)
          stages.insert(stage_of_layer_[static_cast<std::size_t>(to)]);
      }
      if (to == caller && last_ == caller) seen.output = seen.model_output = true;
    }
    if (!seen.made && !taken) return std::nullopt;
    seen.stages = static_cast<int>(stages.size());
    for (const int saver : value.saved_by) {
      if (!here(saver)) continue;
      seen.saved = true;
      seen.first_saver = std::min(seen.first_saver, saver);
    }
    values_.push_back(seen);
    return Held{.bytes = seen.bytes,
                .start = seen.start,
                .last_use = seen.last_use,
                .first_saver = seen.first_saver,
                .saved = seen.saved,
                .output = seen.output,
                .model_output = seen.model_output,
                .sent = seen.made && seen.output};
  }

  const LayerProfile& profile_;
  const std::vector<int>& stage_of_layer_;  // and, after the layers, that of the model's output
  const int first_, last_;
  const StageCostOptions& options_;
  std::vector<Seen> values_;
  std::vector<Held> memory_;
  Bytes saved_ = 0;
  Bytes inputs_ = 0;
  Bytes model_outputs_ = 0;
};

// I and W: as the layers were measured, or half of B each. Parameters that are gathered unit by
// unit have no W: I is the whole backward. A stage that sends no gradient, as the first, has no I:
// W is its whole backward, and needs all that F has kept.
void set_split(const LayerProfile& profile, int first, int last, const StageCostOptions& options,
               const StageWalk& walk, simulate::StageCost* cost) {
  const std::span layers(profile.layers.begin() + first, profile.layers.begin() + last);
  if (!options.units.empty()) {
    cost->input_grad = cost->backward;
    cost->weight_grad = 0;
    cost->kept_for_weights = cost->transient_weight_grad = 0;
    return;
  }
  if (!walk.sends_gradients()) {
    const Bytes received = walk.received_gradients();
    cost->input_grad = 0;
    cost->weight_grad = cost->backward;
    cost->kept_for_weights = walk.saved() + received;
    cost->transient_weight_grad = std::max<Bytes>(0, walk.backward(Gradients::Existing) - received);
    cost->transient_first_weight_grad =
        std::max<Bytes>(0, walk.backward(Gradients::New) - received);
    return;
  }
  if (!std::all_of(layers.begin(), layers.end(),
                   [](const LayerCost& layer) { return layer.split.has_value(); })) {
    cost->input_grad = cost->weight_grad = cost->backward / 2;
    return;
  }
  cost->input_grad = cost->weight_grad = 0;
  cost->kept_for_weights = 0;
  for (const LayerCost& layer : layers) {
    cost->input_grad += layer.split->input_grad;
    cost->weight_grad += layer.split->weight_grad;
    *cost->kept_for_weights += layer.split->kept_for_weights;
  }
  cost->transient_weight_grad = walk.weight_grad(Gradients::Existing);
  cost->transient_first_weight_grad = walk.weight_grad(Gradients::New);
}

simulate::StageCost cost_of(const LayerProfile& profile, const std::vector<int>& stage_of_layer,
                            int first, int last, const StageCostOptions& options) {
  const StageWalk walk(profile, stage_of_layer, first, last, options);
  simulate::StageCost cost;
  cost.forward = cost.backward = 0;
  for (int i = first; i < last; ++i) {
    cost.forward += profile.layers[static_cast<std::size_t>(i)].forward;
    cost.backward += profile.layers[static_cast<std::size_t>(i)].backward;
  }
  cost.recompute = cost.forward_no_graph = cost.forward;
  set_split(profile, first, last, options, walk, &cost);
  cost.gradients = walk.trained() + walk.copied_gradients();
  cost.persistent = walk.parameters() + walk.trained() * options.optimizer_states + walk.copies() +
                    walk.buffers();
  cost.saved = walk.saved();
  // F keeps the buffers' values from before it ran. The backward after R has three copies of them:
  // those that R left, those of now, and those of the latest F.
  cost.kept_for_recompute = walk.inputs() + walk.buffers();
  cost.recompute_excess = 3 * walk.buffers();
  cost.transient_forward = cost.transient_recompute = walk.forward();
  cost.transient_no_graph = walk.forward_no_graph();
  cost.transient_backward = walk.backward(Gradients::Existing);
  cost.transient_first_backward = walk.backward(Gradients::New);
  const bool is_last = last == static_cast<int>(profile.layers.size());
  if (is_last && options.whole_batch_loss_over == 0) {
    const auto loss = static_cast<Bytes>(options.additive_loss_memory *
                                         static_cast<double>(walk.model_outputs()));
    cost.transient_backward = std::max(cost.transient_backward, loss);
    cost.transient_first_backward = std::max(cost.transient_first_backward, loss);
  }
  if (is_last && options.whole_batch_loss_over > 0) {
    cost.output_kept = walk.model_outputs();
    cost.loss_kept = options.whole_batch_loss_over * walk.model_outputs();
    cost.loss_transient =
        static_cast<Bytes>(profile.loss_memory * static_cast<double>(cost.loss_kept));
  }
  return cost;
}

simulate::StageMessages messages_of(const LayerProfile& profile, int first, int last) {
  simulate::StageMessages messages;
  const auto layer = [&](int i) { return profile.layers[static_cast<std::size_t>(i)]; };
  const auto append = [](const std::vector<LayerMessage>& more, std::vector<LayerMessage>& all) {
    all.insert(all.end(), more.begin(), more.end());
  };
  for (int i = first; i < last; ++i) append(layer(i).forward_messages, messages.forward);
  for (int i = last - 1; i >= first; --i) append(layer(i).backward_messages, messages.backward);
  return messages;
}

// The values that one stage sends to another.
struct Crossing {
  Bytes bytes = 0;
  Bytes saved = 0;
};

// The stage of each layer, and after the layers that of the model's output.
std::vector<int> stages_of_layers(const std::vector<int>& balance) {
  std::vector<int> stages;
  for (std::size_t s = 0; s < balance.size(); ++s)
    stages.insert(stages.end(), static_cast<std::size_t>(balance[s]), static_cast<int>(s));
  stages.push_back(static_cast<int>(balance.size()) - 1);
  return stages;
}

// Finds the values that cross the cuts, as routes of the main lane and of skips.
class Crossings {
 public:
  Crossings(const LayerProfile& profile, const std::vector<int>& stage_of_layer)
      : profile_(profile), stage_of_layer_(stage_of_layer) {
    memory_ = memory_of_values(profile);
    std::vector<const ValueCost*> values;
    for (const ValueCost& value : profile.values) values.push_back(&value);
    std::stable_sort(values.begin(), values.end(),
                     [](const auto* a, const auto* b) { return a->from < b->from; });
    for (const ValueCost* value : values) {
      if (value->from >= 0) add(*value);  // the caller passes model inputs to each stage
    }
  }

  // Throws UsageError if no value crosses one of the cuts.
  void check_every_cut() const {
    for (int stage = 0; stage < stage_of_layer_.back(); ++stage) {
      const bool crosses =
          std::any_of(profile_.values.begin(), profile_.values.end(),
                      [&](const ValueCost& value) { return crosses_cut(value, stage); });
      if (!crosses)
        throw UsageError(
            text("the profile has no value that goes from stage ", stage, " to a later one"),
            {.hint = "The profile is incomplete. Measure it again."});
    }
  }

  void add_to(CutCosts& result, double bytes_per_second) const {
    const auto add = [&](schedule::Route route, const Crossing& crossing) {
      result.routes.push_back(std::move(route));
      const double seconds =
          bytes_per_second > 0 ? static_cast<double>(crossing.bytes) / bytes_per_second : 0;
      result.costs.routes.push_back(
          {.seconds = seconds, .bytes = crossing.bytes, .saved = crossing.saved});
    };
    for (const auto& [from, crossing] : main_lane_)
      add({.from_stage = from, .to_stage = from + 1, .skip = false, .name = "main"}, crossing);
    for (const auto& [route, crossing] : skips_) add(route, crossing);
  }

 private:
  int stage_of(int layer) const { return stage_of_layer_[static_cast<std::size_t>(layer)]; }

  // Whether the value goes from this stage or an earlier one to a later one.
  bool crosses_cut(const ValueCost& value, int stage) const {
    return value.from >= 0 && stage_of(value.from) <= stage &&
           std::any_of(value.to.begin(), value.to.end(),
                       [&](int to) { return stage_of(to) > stage; });
  }

  // Whether a graph of the stage keeps the value, or a view of the same memory.
  bool keeps_memory_of(const ValueCost& value, int stage) const {
    const int memory = memory_[static_cast<std::size_t>(&value - profile_.values.data())];
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (memory_[i] != memory) continue;
      for (const int layer : profile_.values[i].saved_by)
        if (stage_of(layer) == stage) return true;
    }
    return false;
  }

  void add(const ValueCost& value) {
    const int from = stage_of(value.from);
    const bool saved = keeps_memory_of(value, from);
    std::map<int, bool> takers;  // receiving stage -> whether it is the main lane's next layer
    for (const int to : value.to) {
      if (stage_of(to) <= from) continue;
      takers[stage_of(to)] |= stage_of(to) == from + 1 && to == value.from + 1;
    }
    for (const auto& [to, main] : takers) {
      if (!main) {
        const std::string& producer = profile_.layers[static_cast<std::size_t>(value.from)].name;
        skips_.push_back(
            {{.from_stage = from, .to_stage = to, .skip = true, .name = producer}, {}});
      }
      Crossing& crossing = main ? main_lane_[from] : skips_.back().second;
      crossing.bytes += value.bytes;
      crossing.saved += saved ? value.bytes : 0;
    }
  }

  const LayerProfile& profile_;
  const std::vector<int>& stage_of_layer_;
  std::vector<int> memory_;            // memory_of_values()
  std::map<int, Crossing> main_lane_;  // by the sending stage
  std::vector<std::pair<schedule::Route, Crossing>> skips_;
};

std::vector<simulate::TieCost> ties_of_cut(const LayerProfile& profile,
                                           const std::vector<int>& balance,
                                           const std::vector<int>& stage_of_layer,
                                           double bytes_per_second) {
  std::vector<simulate::TieCost> ties;
  int first = 0;
  for (std::size_t stage = 0; stage < balance.size(); ++stage) {
    for (const TiedCost* copy : copies_in(profile, first, first + balance[stage])) {
      ties.push_back({.owner = stage_of_layer[static_cast<std::size_t>(copy->owner)],
                      .copy = static_cast<int>(stage),
                      .bytes = copy->bytes,
                      .frozen = copy->frozen});
      if (bytes_per_second > 0)
        ties.back().seconds = static_cast<double>(copy->bytes) / bytes_per_second;
    }
    first += balance[stage];
  }
  return ties;
}

}  // namespace

void check_cut(const std::vector<int>& balance, std::size_t layers) {
  const long cut = std::accumulate(balance.begin(), balance.end(), 0L);
  const bool empty = std::any_of(balance.begin(), balance.end(), [](int n) { return n < 1; });
  if (!empty && cut == static_cast<long>(layers)) return;
  throw UsageError(text("balance [", join(balance, ", "), "] does not cut ",
                        counted(static_cast<std::int64_t>(layers), "layer")),
                   {.hint = "Each entry is the number of layers of a stage, at least 1; the sum is "
                            "the number of layers."});
}

CutCosts costs_of_cut(const LayerProfile& profile, const std::vector<int>& balance,
                      const StageCostOptions& options) {
  check_costs(profile, balance, options);
  CutCosts result;
  result.costs.transfer_mode = simulate::TransferMode::Pull;
  const std::vector<int> stage_of_layer = stages_of_layers(balance);
  const bool has_messages =
      std::any_of(profile.layers.begin(), profile.layers.end(), [](const LayerCost& layer) {
        return !layer.forward_messages.empty() || !layer.backward_messages.empty();
      });
  int first = 0;
  for (const int layers : balance) {
    result.costs.stages.push_back(cost_of(profile, stage_of_layer, first, first + layers, options));
    if (has_messages) result.costs.messages.push_back(messages_of(profile, first, first + layers));
    first += layers;
  }
  result.costs.ties = ties_of_cut(profile, balance, stage_of_layer, options.bytes_per_second);
  const Crossings crossings(profile, stage_of_layer);
  crossings.check_every_cut();
  crossings.add_to(result, options.bytes_per_second);
  return result;
}

}  // namespace trestle::plan
