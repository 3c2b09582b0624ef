#include "trestle/pipeline/find_nonfinite.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/comm/gather.h"
#include "trestle/device/transfer.h"
#include "trestle/nn/buffer_keeper.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/run_key.h"
#include "trestle/pipeline/execute/micro_batch.h"
#include "trestle/pipeline/execute/normal_mode_guard.h"
#include "trestle/pipeline/pipeline_impl.h"

namespace trestle {

namespace {

using nn::ValueId;
using pipeline::StageExchange;

bool finite(const at::Tensor& tensor) {
  if (!tensor.defined() || !(tensor.is_floating_point() || tensor.is_complex())) return true;
  return tensor.numel() == 0 || at::isfinite(tensor).all().item<bool>();
}

// A value that is not finite. The one with the lowest place is reported.
struct Finding {
  int place = 0;
  std::string sentence;
};
using Found = std::optional<Finding>;

}  // namespace

// Over ranks each rank searches its own stages, and all ranks return the first finding.
class NonfiniteSearch {
 public:
  explicit NonfiniteSearch(Pipeline& pipeline)
      : impl_(*pipeline.impl_),
        parts_(impl_.partitioned()),
        graph_(parts_.graph),
        over_ranks_(impl_.over_ranks()) {}

  // An error on one rank ends the call on all ranks.
  template <class Call>
  static std::string run(Pipeline& pipeline, const Call& call) {
    return pipeline.impl_->together(call);
  }

  std::string search(const nn::Values& given, std::int64_t first_micro_batch) {
    const pipeline::NormalModeGuard normal_mode;
    const at::NoGradGuard no_grad;
    impl_.check_inputs(given);
    const PipelineOptions& options = impl_.options;
    const precision::Autocast autocast(options.numerics.precision);
    const nn::Values inputs = pipeline::in_memory_format(given, options.numerics.memory_format);
    const auto sizes = impl_.agree_on_sizes(
        {.call = pipeline::StepPlan::Call::FindNonfinite, .first_micro_batch = first_micro_batch},
        inputs);
    if (const Found found = first_of_all_ranks(search_inputs(given))) return found->sentence;
    if (const Found found = first_of_all_ranks(search_parameters())) return found->sentence;
    const auto micro_batches = pipeline::split_as(inputs, sizes);
    auto exchange = impl_.stage_exchange(micro_batches.size());
    std::string sentence = "the outputs of all layers are finite, and the loss is not";
    exchange.run([&] {
      std::int64_t earlier_examples = 0;
      for (std::size_t m = 0; m < micro_batches.size(); earlier_examples += sizes[m++]) {
        nn::RunKey key = impl_.keys.last_step(first_micro_batch + static_cast<std::int64_t>(m));
        key.example += earlier_examples;
        const Found found = search_outputs(micro_batches[m], key, static_cast<int>(m), exchange);
        if (!found) continue;
        sentence = text(found->sentence, " (micro-batch ", m, ")");
        return;
      }
    });
    return sentence;
  }

  std::string search_gradients() {
    const at::NoGradGuard no_grad;
    Found found;
    for (const auto& stage : parts_.stages) {
      for (int i = stage.plan().first_layer; i < stage.plan().last_layer; ++i) {
        each_parameter(i, [&](const std::string& name, const at::Tensor& parameter) {
          if ((found && found->place == -i) || finite(parameter.grad())) return;
          found = {-i, text("the gradient of '", name, "' ", in_stage(stage.index()),
                            " has values that are infinite or NaN")};
        });
      }
    }
    found = first_of_all_ranks(found);
    return found ? found->sentence : "";
  }

 private:
  std::string in_stage(int stage) const {
    if (!over_ranks_ && !impl_.is_split()) return text("in stage ", stage);
    return text(
        "(", over_ranks_ ? text("rank ", impl_.options.group.rank(), ", ") : "",
        impl_.is_split() ? text("tensor rank ", impl_.options.tensor.group.rank(), ", ") : "",
        "stage ", stage, ")");
  }

  // The ranks of the pipeline and those that split its layers resume or end the search together.
  Found first_of_all_ranks(Found found) const {
    if (over_ranks_) found = first_of(impl_.options.group, found);
    if (impl_.is_split()) found = first_of(impl_.options.tensor.group, found);
    return found;
  }

  static Found first_of(const comm::Group& group, const Found& own) {
    Found first;
    std::optional<std::pair<int, std::string>> sent;
    if (own) sent = {own->place, own->sentence};
    for (const auto& received : comm::all_gather_values(group, sent))
      if (received && (!first || received->first < first->place))
        first = {received->first, received->second};
    return first;
  }

  Found search_inputs(const nn::Values& inputs) const {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!finite(inputs[i]))
        return Finding{static_cast<int>(i),
                       text("input ", i, " has values that are infinite or NaN")};
    }
    return std::nullopt;
  }

  template <class See>
  void each_parameter(int layer, const See& see) const {
    const nn::Layer& own = graph_.layers[static_cast<std::size_t>(layer)];
    if (!own.module) return;
    for (const auto& item : own.module->named_parameters())
      see(text(own.name, ".", item.key()), item.value());
  }

  Found search_parameters() const {
    Found found;
    for (const auto& stage : parts_.stages) {
      for (int i = stage.plan().first_layer; i < stage.plan().last_layer; ++i) {
        each_parameter(i, [&](const std::string& name, const at::Tensor& parameter) {
          if (found || finite(parameter)) return;
          found = {i, text("parameter '", name, "' ", in_stage(stage.index()),
                           " has values that are infinite or NaN")};
        });
      }
    }
    return found;
  }

  using Known = std::map<ValueId, at::Tensor>;

  Found search_outputs(const nn::Values& micro_batch, const nn::RunKey& key, int number,
                       StageExchange& exchange) const {
    Known known;
    for (std::size_t i = 0; i < micro_batch.size(); ++i)
      known[{nn::model_input, static_cast<int>(i)}] = micro_batch[i];
    for (int s = 0; s < parts_.stages.count(); ++s) {
      exchange.carry(
          s, StageExchange::Way::Activation, number,
          [&](int, const ValueId& id) {
            return pipeline::StageValue{.value = to_device(known.at(id), at::kCPU)};
          },
          [&](const ValueId& id, const pipeline::StageValue& received) {
            known[id] = received.value;
          });
      Found found;
      if (parts_.stages.has(s)) found = search_stage(parts_.stages[s], key, known);
      found = first_of_all_ranks(found);
      if (found) return found;
    }
    return std::nullopt;
  }

  Found search_stage(const pipeline::Stage& stage, const nn::RunKey& key, Known& known) const {
    for (int i = stage.plan().first_layer; i < stage.plan().last_layer; ++i) {
      const nn::Layer& layer = graph_.layers[static_cast<std::size_t>(i)];
      const nn::BufferKeeper keep_buffers(layer.buffers());
      const nn::Values results = nn::run_layer(graph_, i, arguments(stage, i, known), &key);
      for (std::size_t r = 0; r < results.size(); ++r) {
        if (!finite(results[r]))
          return Finding{i, text("the output of layer '", layer.name, "' ", in_stage(stage.index()),
                                 " is the first that has values that are infinite or NaN")};
        known[{i, static_cast<int>(r)}] = results[r];
      }
    }
    return std::nullopt;
  }

  // Copies, because a layer may work in place.
  nn::Values arguments(const pipeline::Stage& stage, int layer, const Known& known) const {
    nn::Values result;
    for (const nn::Edge& edge : graph_.edges) {
      if (edge.to_layer != layer) continue;
      const auto argument = static_cast<std::size_t>(edge.to_argument);
      if (result.size() <= argument) result.resize(argument + 1);
      const auto value = known.find({edge.from_layer, edge.from_output});
      if (value != known.end() && value->second.defined())
        result[argument] = to_device(value->second, stage.device()).clone();
    }
    return result;
  }

  Pipeline::Impl& impl_;
  const pipeline::PartitionedModel& parts_;
  const nn::Graph& graph_;
  const bool over_ranks_;
};

std::string find_nonfinite(const nn::Values& inputs, Pipeline& pipeline,
                           std::int64_t first_micro_batch) {
  return NonfiniteSearch::run(
      pipeline, [&] { return NonfiniteSearch(pipeline).search(inputs, first_micro_batch); });
}

std::string find_nonfinite_gradient(Pipeline& pipeline) {
  return NonfiniteSearch::run(pipeline,
                              [&] { return NonfiniteSearch(pipeline).search_gradients(); });
}

}  // namespace trestle
