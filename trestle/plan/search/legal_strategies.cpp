#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/plan/search/search.h"

namespace trestle::plan {

void check(const PlanRequest& request) {
  if (request.devices < 1 || request.batch < 1 || request.top < 1)
    throw UsageError(text("a plan for ", request.devices, " devices, a batch of ", request.batch,
                          " and the best ", request.top),
                     {.hint = "Give numbers from 1."});
  if (request.devices > most_devices || request.batch > most_examples)
    throw UsageError(
        text("a plan for ", request.devices, " devices and a batch of ", request.batch),
        {.hint =
             text("Give at most ", most_devices, " devices and ", most_examples, " examples.")});
  if (!(request.memory >= 0))
    throw UsageError(text("a plan for ", request.memory, " bytes of memory of a device"),
                     {.hint = "Give a number from 1, or 0 for the machine's memory."});
  check(request.kept);
}

namespace {

std::vector<int> divisors_of(std::int64_t number) {
  std::vector<int> divisors;
  for (std::int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    divisors.push_back(static_cast<int>(i));
    if (i * i != number) divisors.push_back(static_cast<int>(number / i));
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

// A request whose degrees describe a run has one value for each of the other choices.
PlanRequest completed(PlanRequest request) {
  Kept& kept = request.kept;
  if (!describes_run(kept)) return request;
  const Strategy usual;
  kept.level = kept.level.value_or(usual.level);
  kept.schedule = kept.schedule.value_or(usual.schedule);
  kept.sequence_parallel = kept.sequence_parallel.value_or(usual.sequence_parallel);
  kept.replicate = kept.replicate.value_or(usual.replicate);
  kept.offload = kept.offload.value_or(usual.offload);
  kept.recompute_layers = kept.recompute_layers.value_or(usual.recompute_layers);
  kept.recompute_stages = kept.recompute_stages.value_or(usual.recompute_stages);
  return request;
}

template <class T>
std::vector<T> kept_or(const std::optional<T>& kept, std::vector<T> all) {
  return kept ? std::vector<T>{*kept} : std::move(all);
}

class Listing {
 public:
  enum class Until { All, First };

  Listing(const PlannedModel& model, const PlanRequest& request, std::vector<RuleCount>* rules,
          Until until = Until::All)
      : model_(model), request_(completed(request)), rules_(rules), until_(until) {
    check(request);
  }

  std::vector<Strategy> run() {
    const Kept& kept = request_.kept;
    const std::vector<int> all = divisors_of(request_.devices);
    for (const int tensor : kept_or(kept.tensor, all)) {
      if (!kept.tensor && request_.tensor_divides % tensor != 0) continue;
      if (request_.devices % tensor != 0) {
        refuse("devices",
               text(tensor, " tensor ranks do not divide ", request_.devices, " devices"));
        continue;
      }
      if (enough()) break;
      for (const int pipeline : kept_or(kept.pipeline, divisors_of(request_.devices / tensor)))
        add_degrees(tensor, pipeline);
    }
    return std::move(legal_);
  }

 private:
  bool enough() const { return until_ == Until::First && !legal_.empty(); }

  void refuse(const std::string& rule, const std::string& why) {
    if (rules_ == nullptr) return;
    for (RuleCount& known : *rules_)
      if (known.rule == rule) {
        ++known.strategies;
        return;
      }
    rules_->push_back({rule, why, 1});
  }

  void add_degrees(int tensor, int pipeline) {
    if (enough()) return;
    Strategy strategy{.tensor = tensor, .pipeline = pipeline};
    const int ranks = request_.devices / tensor;
    if (ranks % pipeline != 0)
      return refuse("devices", text(tensor, " x ", pipeline, " ranks of a replica do not divide ",
                                    request_.devices, " devices"));
    strategy.data = ranks / pipeline;
    if (request_.kept.data && *request_.kept.data != strategy.data)
      return refuse(
          "data", text("tensor ", tensor, " x pipeline ", pipeline, " leaves ", strategy.data,
                       " data ranks of ", request_.devices, " devices, not ", *request_.kept.data));
    if (pipeline > model_.layers())
      return refuse("layers", text(pipeline, " stages are more than ", model_.layers(), " layers"));
    if (!legal_by_model(strategy)) return;
    if (request_.batch % strategy.data != 0)
      return refuse("batch", text("a batch of ", request_.batch, " does not divide over ",
                                  strategy.data, " data ranks"));
    const std::int64_t share = request_.batch / strategy.data;
    for (const int size : kept_or(request_.kept.micro_batch, divisors_of(share))) {
      if (enough()) return;
      strategy.micro_batch = size;
      if (share % size != 0)
        refuse("micro-batch", text("a data rank's ", share, " of ", request_.batch,
                                   " examples are no multiple of ", size));
      else if (share / size * pipeline > most_cells)
        refuse("table", text(pipeline, " stages of ", share / size, " micro-batches are more than ",
                             most_cells, " cells of a table"));
      else if (passes(model_.rules_of_micro_batch(strategy)))
        add_variants(strategy);
    }
  }

  void add_variants(const Strategy& degrees) {
    const Kept& kept = request_.kept;
    for (const int level : kept_or(kept.level, {0, 1, 2, 3})) {
      if (level > 0 && degrees.data == 1) {
        if (kept.level) refuse("level", text("ZeRO-", level, " needs data ranks, and there is 1"));
        continue;
      }
      Strategy strategy = degrees;
      strategy.level = level;
      if (level > 0 && !legal_by_model(strategy)) continue;
      for (const int rows : kept_or(kept.replicate, divisors_of(degrees.data))) {
        if (!legal_rows(strategy, rows)) continue;
        strategy.replicate = rows;
        strategy.offload = false;
        if (rows > 1 && !legal_by_model(strategy)) continue;
        for (const bool offload : kept_or(kept.offload, {false, true})) {
          strategy.offload = offload;
          if (offload && !legal_offload(strategy)) continue;
          add_schedules(strategy);
        }
      }
    }
  }

  // `strategy` has its degrees and its state.
  void add_schedules(Strategy strategy) {
    const Kept& kept = request_.kept;
    const std::int64_t n = micro_batches_of(strategy, request_.batch);
    const std::vector<std::string> schedules = kept_or(kept.schedule, model_.schedules());
    strategy.chunks = kept.chunks.value_or(1);
    for (const std::string& schedule : schedules) {
      // On one stage all take the same time. The first that a model has is the one to take there.
      if (strategy.pipeline == 1 && schedule != schedules.front()) continue;
      strategy.schedule = schedule;
      strategy.precision = Precision::Own;
      strategy.recompute = BlockRecompute::None;
      strategy.sequence_parallel = false;
      if (!legal_chunks(strategy, schedule, strategy.chunks, n)) continue;
      const bool may_have_rules =
          strategy.chunks > 1 || kept.schedule || !has_plain_schedule(strategy);
      if (may_have_rules && !legal_by_model(strategy)) continue;
      for (const Precision precision : precisions()) {
        strategy.precision = precision;
        strategy.recompute = BlockRecompute::None;
        strategy.sequence_parallel = false;
        if (precision != Precision::Own && !legal_by_model(strategy)) continue;
        for (const BlockRecompute recompute : recomputations(strategy))
          for (const bool shards : kept_or(kept.sequence_parallel, {false, true})) {
            strategy.recompute = recompute;
            strategy.sequence_parallel = shards;
            if (!shards || legal_shards(strategy)) add_recomputation(strategy);
          }
      }
    }
  }

  // `strategy` has everything but the parts that it recomputes.
  void add_recomputation(const Strategy& strategy) {
    const Kept& kept = request_.kept;
    std::vector<int> layers = {0}, stages = {0};
    if (strategy.recompute != BlockRecompute::None) {
      for (const int part : model_.recompute_layers(strategy)) layers.push_back(part);
      for (const int part : model_.recompute_stages(strategy)) stages.push_back(part);
    }
    for (const int blocks : kept_or(kept.recompute_layers, layers))
      for (const int first : kept_or(kept.recompute_stages, stages)) {
        Strategy partial = strategy;
        partial.recompute_layers = blocks;
        partial.recompute_stages = first;
        if (blocks > 0 || first > 0) {
          const bool given = kept.recompute_layers || kept.recompute_stages;
          if (given && !legal_part(partial)) continue;
        }
        legal_.push_back(partial);
      }
  }

  // Those to list for `strategy`, which has everything before them. The model may say why it has
  // none of a kind.
  std::vector<BlockRecompute> recomputations(Strategy strategy) {
    std::vector<BlockRecompute> all = model_.recomputations();
    const auto& kept = request_.kept.recompute;
    if (!kept) return all;
    if (std::find(all.begin(), all.end(), *kept) != all.end()) return {*kept};
    strategy.recompute = *kept;
    if (legal_by_model(strategy))
      refuse("recompute", text("the model has no recomputation '", to_string(*kept), "'"));
    return {};
  }

  // The precisions to list. Numbers change with the precision: the model's own unless others are
  // kept.
  std::vector<Precision> precisions() {
    const std::vector<Precision> all = model_.precisions();
    const Kept& kept = request_.kept;
    std::vector<Precision> listed;
    for (const Precision precision : all) {
      const bool own = precision == all.front();
      if (kept.precision
              ? *kept.precision == precision || (own && *kept.precision == Precision::Own)
              : own || kept.any_precision)
        listed.push_back(own ? Precision::Own : precision);
    }
    if (listed.empty())
      refuse("precision", text("the model has no precision ",
                               to_string(kept.precision.value_or(all.front())), " here"));
    return listed;
  }

  bool legal_rows(const Strategy& strategy, int rows) {
    if (rows == 1) return true;
    const Kept& kept = request_.kept;
    std::string why;
    if (strategy.level == 0 && kept.level)
      why = "rows shard state: level 0 has none";
    else if (strategy.level == 0)
      return false;
    else if (strategy.data % rows != 0)
      why = text(rows, " rows do not divide ", strategy.data, " data ranks");
    else if (rows == strategy.data)
      why = text(rows, " rows of ", strategy.data, " data ranks leave one rank in each");
    if (!why.empty() && kept.replicate) refuse("replicate", why);
    return why.empty();
  }

  bool legal_offload(const Strategy& strategy) {
    const Kept& kept = request_.kept;
    if (!kept.offload && !model_.offloads()) return false;
    if (strategy.level > 0) return legal_by_model(strategy);
    if (kept.offload && kept.level) refuse("offload", "offload moves shards: level 0 has none");
    return false;
  }

  bool legal_part(const Strategy& strategy) {
    if (strategy.recompute == BlockRecompute::None) {
      if (request_.kept.recompute)
        refuse("recompute", "a part of what is recomputed: there is none");
      return false;
    }
    if (strategy.recompute_layers >= model_.layers() ||
        strategy.recompute_stages >= strategy.pipeline) {
      refuse("recompute", strategy.recompute_stages > 0
                              ? text(strategy.recompute_stages, " of ",
                                     counted(strategy.pipeline, "stage"), " are not a part of them")
                              : text(strategy.recompute_layers, " of ",
                                     counted(model_.layers(), "layer"), " are not a part of them"));
      return false;
    }
    return legal_by_model(strategy);
  }

  bool legal_by_model(const Strategy& strategy) { return passes(model_.broken_rules(strategy)); }

  bool passes(const std::vector<BrokenRule>& broken) {
    for (const BrokenRule& rule : broken) refuse(rule.rule, rule.why);
    return broken.empty();
  }

  bool legal_chunks(const Strategy& degrees, const std::string& schedule, int chunks,
                    std::int64_t n) {
    if (chunks == 1) return true;
    std::string why;
    if (schedule != "1f1b")
      why = text(schedule, " is not interleaved");
    else if (degrees.pipeline == 1)
      why = "one stage is not interleaved";
    else if (model_.layers() % (std::int64_t{degrees.pipeline} * chunks) != 0)
      why = text(model_.layers(), " layers do not divide over ", degrees.pipeline, " stages of ",
                 chunks, " chunks");
    else if (n % degrees.pipeline != 0)
      why = text(n, " micro-batches are no multiple of ", degrees.pipeline, " stages");
    if (!why.empty()) refuse("interleaved", why);
    return why.empty();
  }

  bool legal_shards(const Strategy& strategy) {
    if (strategy.tensor == 1 || !model_.splits_tokens()) {
      if (request_.kept.sequence_parallel)
        refuse("sequence_parallel", strategy.tensor == 1
                                        ? "token shards need tensor ranks"
                                        : "plans of this model do not split the tokens");
      return false;
    }
    return legal_by_model(strategy);
  }

  // The simulator takes seconds for such a table. A larger micro-batch has as small a bubble.
  static constexpr std::int64_t most_cells = 1 << 19;

  const PlannedModel& model_;
  PlanRequest request_;
  std::vector<RuleCount>* rules_;
  Until until_;
  std::vector<Strategy> legal_;
};

}  // namespace

std::vector<Strategy> legal_strategies(const PlannedModel& model, const PlanRequest& request,
                                       std::vector<RuleCount>* rules) {
  return Listing(model, request, rules).run();
}

bool has_legal_strategy(const PlannedModel& model, const PlanRequest& request) {
  return !Listing(model, request, nullptr, Listing::Until::First).run().empty();
}

}  // namespace trestle::plan
