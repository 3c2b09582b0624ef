#include "trestle/plan/stage_costs.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::plan {
namespace {

void check_costs(const LayerProfile& profile, const std::vector<int>& balance,
                 const StageCostOptions& options) {
  plan::check(profile);
  const long layers = std::accumulate(balance.begin(), balance.end(), 0L);
  const bool empty = std::any_of(balance.begin(), balance.end(), [](int n) { return n < 1; });
  if (empty || layers != static_cast<long>(profile.layers.size()))
    throw UsageError(
        text("balance [", join(balance, ", "), "] does not cut ", profile.layers.size(), " layers"),
        {.hint = "Every entry counts the layers of one stage and is at least 1; "
                 "together they are all layers."});
  if (options.optimizer_states < 0 || options.whole_batch_loss_over < 0 ||
      !(options.bytes_per_second >= 0))
    throw UsageError(text("options of stage costs must not be negative: optimizer_states ",
                          options.optimizer_states, ", whole_batch_loss_over ",
                          options.whole_batch_loss_over, ", bytes_per_second ",
                          options.bytes_per_second));
}

// A value as one stage sees it.
struct Seen {
  Bytes bytes = 0;
  bool made = false;            // here
  bool output = false;          // goes on, to a later stage or to the model's caller
  bool model_output = false;    // to the caller, from here
  bool wants_gradient = false;  // unless it is an input of the model
  int from = -1;
  int start = 0;        // the layer from which on it is there
  int last_use = 0;     // the last layer of the stage that takes it, or that made it
  int first_saver = 0;  // of the stage; only where saved
  bool saved = false;
  int stages = 0;                // other ones that take it from here
  std::vector<int> takers = {};  // layers of the stage

  bool there(int layer) const { return start <= layer && (saved || output || layer <= last_use); }
  bool from_outside() const { return made && output && !model_output; }  // its gradient
};

// The layers [first, last) and what they see. Bytes "beyond" are those above what the micro-batch's
// graph keeps in the end, as StageCost counts them.
class StageWalk {
 public:
  StageWalk(const LayerProfile& profile, const std::vector<int>& stage_of_layer, int first,
            int last)
      : profile_(profile), stage_of_layer_(stage_of_layer), first_(first), last_(last) {
    for (const ValueCost& value : profile.values) see(value);
    for (int i = first; i < last; ++i) saved_ += layer(i).inner;
    for (const Seen& value : values_) {
      if (value.saved || value.model_output) saved_ += value.bytes;
      if (!value.made) inputs_ += value.bytes;
      if (value.model_output) model_outputs_ += value.bytes;
    }
  }

  Bytes saved() const { return saved_; }    // by a graph; with the model's outputs, for the loss
  Bytes inputs() const { return inputs_; }  // from other stages and of the model
  Bytes model_outputs() const { return model_outputs_; }

  Bytes parameters() const {
    Bytes sum = 0;
    for (int i = first_; i < last_; ++i) sum += layer(i).parameters;
    return sum;
  }

  Bytes buffers() const {
    Bytes sum = 0;
    for (int i = first_; i < last_; ++i) sum += layer(i).buffers;
    return sum;
  }

  // Beyond saved(), while F runs with its graph.
  Bytes forward() const {
    Bytes most = 0;
    Bytes inner = 0;
    for (int i = first_; i < last_; ++i) {
      inner += layer(i).inner;
      Bytes held = inner + layer(i).transient_forward;
      for (const Seen& value : values_) held += value.there(i) ? value.bytes : 0;
      most = std::max(most, held);
    }
    return std::max<Bytes>(0, most - saved_);
  }

  // Beyond inputs(), while F runs without one: for the first time, on copies of its inputs, since it
  // is not known yet which it writes to.
  Bytes forward_no_graph() const {
    Bytes most = 0;
    for (int i = first_; i < last_; ++i) {
      Bytes held = layer(i).inner + layer(i).transient_forward;
      for (const Seen& value : values_) {
        const bool used = i <= value.last_use || (value.made && value.output);
        if (value.start <= i && used) held += value.bytes;
      }
      most = std::max(most, held);
    }
    return most;
  }

  // Beyond saved(), while B goes back through the layers and lets go of the graph behind it. With
  // `new_gradients` those of the parameters come to be on the way; otherwise they are there.
  Bytes backward(bool new_gradients) const {
    Bytes inner = saved_;
    for (const Seen& value : values_)
      if (value.saved || value.model_output) inner -= value.bytes;  // what is left: of the layers
    Bytes parameters = 0;                                           // of the layers behind
    Bytes most = 0;
    for (int i = last_ - 1; i >= first_; --i) {
      Bytes held = inner + layer(i).transient + parameters;
      for (const Seen& value : values_) {
        if (value.saved && value.first_saver <= i) held += value.bytes;
        if (value.from_outside()) {
          if (value.from != i) held += value.bytes;  // its gradient came from outside, and stays
        } else if (value.wants_gradient && value.from < i && value.last_use > i) {
          held += value.bytes;  // its gradient waits for its maker, or for this layer's part of it
        }
      }
      most = std::max(most, held);
      inner -= layer(i).inner;
      if (new_gradients) parameters += layer(i).parameters;
    }
    // With the outputs' gradients, and the inputs', to be sent.
    Bytes end = parameters + behind_views();
    Bytes arrived = 0;
    Bytes adding = 0;  // those of one output, where several stages take it
    for (const Seen& value : values_) {
      if (value.from_outside() || (!value.made && value.wants_gradient)) end += value.bytes;
      if (value.from_outside()) arrived += value.bytes;
      if (value.stages > 1) adding = std::max(adding, 2 * value.bytes);
    }
    return std::max({Bytes{0}, most - saved_, end - saved_, arrived + adding});
  }

 private:
  // A layer like cat() hands parts of its own gradient back, and no memory of theirs. Those of the
  // stage's inputs are copied, to be sent, and the whole is there until they are.
  Bytes behind_views() const {
    Bytes sum = 0;
    for (int i = first_; i < last_; ++i) {
      Bytes results = 0;
      Bytes whole = 0;      // of these, what did not come from outside and is counted anyway
      Bytes gradients = 0;  // of what it takes
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

  void see(const ValueCost& value) {
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
    if (!seen.made && !taken) return;
    seen.stages = static_cast<int>(stages.size());
    for (const int saver : value.saved_by) {
      if (!here(saver)) continue;
      seen.saved = true;
      seen.first_saver = std::min(seen.first_saver, saver);
    }
    values_.push_back(seen);
  }

  const LayerProfile& profile_;
  const std::vector<int>& stage_of_layer_;  // the caller's too, behind the layers
  const int first_, last_;
  std::vector<Seen> values_;
  Bytes saved_ = 0;
  Bytes inputs_ = 0;
  Bytes model_outputs_ = 0;
};

simulate::StageCost cost_of(const LayerProfile& profile, const std::vector<int>& stage_of_layer,
                            int first, int last, const StageCostOptions& options) {
  const StageWalk walk(profile, stage_of_layer, first, last);
  simulate::StageCost cost;
  cost.forward = cost.backward = 0;
  for (int i = first; i < last; ++i) {
    cost.forward += profile.layers[static_cast<std::size_t>(i)].forward;
    cost.backward += profile.layers[static_cast<std::size_t>(i)].backward;
  }
  cost.recompute = cost.forward_no_graph = cost.forward;
  cost.input_grad = cost.weight_grad = cost.backward / 2;
  cost.gradients = walk.parameters();
  cost.persistent = walk.parameters() * (1 + options.optimizer_states) + walk.buffers();
  cost.saved = walk.saved();
  // With the buffers as F found them, and R works on copies.
  cost.kept_for_recompute = walk.inputs() + walk.buffers();
  cost.recompute_excess = 2 * walk.buffers();
  cost.transient_forward = cost.transient_recompute = walk.forward();
  cost.transient_no_graph = walk.forward_no_graph();
  cost.transient_backward = walk.backward(/*new_gradients=*/false);
  cost.transient_first_backward = walk.backward(/*new_gradients=*/true);
  const bool is_last = last == static_cast<int>(profile.layers.size());
  if (is_last && options.whole_batch_loss_over > 0) {
    cost.output_kept = walk.model_outputs();
    cost.loss_kept = options.whole_batch_loss_over * walk.model_outputs();
    cost.loss_transient = cost.loss_kept;  // all outputs as one tensor
  }
  return cost;
}

// What crosses from one stage to another, by maker and taker.
struct Crossing {
  bool main = false;
  Bytes bytes = 0;
  Bytes saved = 0;
};

}  // namespace

CutCosts costs_of_cut(const LayerProfile& profile, const std::vector<int>& balance,
                      const StageCostOptions& options) {
  check_costs(profile, balance, options);
  CutCosts result;
  result.costs.transport = simulate::Transport::Pull;
  std::vector<int> stage_of_layer;
  for (std::size_t s = 0; s < balance.size(); ++s)
    stage_of_layer.insert(stage_of_layer.end(), static_cast<std::size_t>(balance[s]),
                          static_cast<int>(s));
  stage_of_layer.push_back(static_cast<int>(balance.size()) - 1);  // the caller, behind the last
  const auto stage_of = [&](int layer) { return stage_of_layer[static_cast<std::size_t>(layer)]; };
  int first = 0;
  for (const int layers : balance) {
    result.costs.stages.push_back(cost_of(profile, stage_of_layer, first, first + layers, options));
    first += layers;
  }

  std::map<int, Crossing> main_lane;  // by the stage it leaves
  std::vector<std::pair<schedule::Route, Crossing>> skips;
  std::vector<const ValueCost*> values;
  for (const ValueCost& value : profile.values) values.push_back(&value);
  std::stable_sort(values.begin(), values.end(),
                   [](const auto* a, const auto* b) { return a->from < b->from; });
  for (const ValueCost* value : values) {
    if (value->from < 0) continue;  // the caller hands the model's inputs to whoever takes them
    const int from = stage_of(value->from);
    const bool saved = std::any_of(value->saved_by.begin(), value->saved_by.end(),
                                   [&](int layer) { return stage_of(layer) == from; });
    std::map<int, bool> takers;  // stages, and whether by the main lane: to the layer right behind
    for (const int to : value->to) {
      if (stage_of(to) <= from) continue;
      takers[stage_of(to)] |= stage_of(to) == from + 1 && to == value->from + 1;
    }
    for (const auto& [to, main] : takers) {
      if (!main) {
        const std::string& maker = profile.layers[static_cast<std::size_t>(value->from)].name;
        skips.push_back({{.from_stage = from, .to_stage = to, .skip = true, .name = maker}, {}});
      }
      Crossing& crossing = main ? main_lane[from] : skips.back().second;
      crossing.bytes += value->bytes;
      crossing.saved += saved ? value->bytes : 0;
    }
  }
  for (int stage = 0; stage + 1 < static_cast<int>(balance.size()); ++stage) {
    const bool crosses =
        std::any_of(profile.values.begin(), profile.values.end(), [&](const ValueCost& value) {
          return value.from >= 0 && stage_of(value.from) <= stage &&
                 std::any_of(value.to.begin(), value.to.end(),
                             [&](int to) { return stage_of(to) > stage; });
        });
    if (!crosses)
      throw UsageError(text("by the profile, nothing goes from stage ", stage, " to a later one"),
                       {.hint = "Its values are not whole: measure it again."});
  }
  const auto add = [&](schedule::Route route, const Crossing& crossing) {
    result.routes.push_back(std::move(route));
    const double seconds = options.bytes_per_second > 0
                               ? static_cast<double>(crossing.bytes) / options.bytes_per_second
                               : 0;
    result.costs.routes.push_back(
        {.seconds = seconds, .bytes = crossing.bytes, .saved = crossing.saved});
  };
  for (const auto& [from, crossing] : main_lane)
    add({.from_stage = from, .to_stage = from + 1, .skip = false, .name = "main"}, crossing);
  for (const auto& [route, crossing] : skips) add(route, crossing);
  return result;
}

}  // namespace trestle::plan
