#include "trestle/parallel/tensor_stages.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/fnv1a.h"
#include "trestle/base/text.h"
#include "trestle/comm/fail_on_error.h"
#include "trestle/comm/gather.h"
#include "trestle/comm/line_difference.h"
#include "trestle/comm/purpose.h"
#include "trestle/device/transfer.h"
#include "trestle/nn/layer.h"
#include "trestle/nn/layers.h"
#include "trestle/pipeline/rank_agreement.h"
#include "trestle/tensor_parallel/plan_agreement.h"

namespace trestle::parallel {

namespace {

// A line for each parameter of this rank's stages.
std::string describe_parameters(const Pipeline& pipeline, const nn::ParameterSlices& slices) {
  std::string lines;
  for (const auto& [name, tensor] : pipeline.named_parameters()) {
    const auto found = slices.find(name);
    const auto shape = found == slices.end() ? tensor.sizes().vec() : found->second.whole;
    lines += text(name, " ", c10::toString(tensor.scalar_type()), " [", join(shape, ", "), "]",
                  found == slices.end() ? std::string(" whole")
                                        : text(" split along ", found->second.dimension),
                  tensor.requires_grad() ? "" : " frozen", "\n");
  }
  return lines;
}

std::uint64_t hash_of(const at::Tensor& tensor) {
  const at::Tensor bytes = to_device(tensor.detach(), at::kCPU).contiguous();
  return fnv1a(std::string_view(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()));
}

using Range = std::pair<std::int64_t, std::int64_t>;  // its begin and its size

std::vector<std::pair<std::string, Range>> ranges_of(const nn::ParameterSlices& slices) {
  std::vector<std::pair<std::string, Range>> all;
  for (const auto& [name, slice] : slices)
    for (const nn::IndexRange& range : slice.ranges)
      all.push_back({name, {range.begin, range.size}});
  return all;
}

// The tensor ranks' slices of a parameter must be all of it, each index once: layers that were made
// for other ranks hold other slices.
void refuse_gaps(const nn::ParameterSlices& slices, const tensor_parallel::TensorRanks& ranks) {
  std::map<std::string, std::vector<Range>> all;
  for (const auto& own : comm::all_gather_values(ranks.group(), ranges_of(slices)))
    for (const auto& [name, range] : own) all[name].push_back(range);
  for (auto& [name, ranges] : all) {
    std::sort(ranges.begin(), ranges.end());
    const nn::ParameterSlice& slice = slices.at(name);
    const std::int64_t whole = slice.whole[static_cast<std::size_t>(slice.dimension)];
    std::int64_t next = 0;
    for (const auto& [begin, size] : ranges) {
      if (begin != next) break;
      next += size;
    }
    if (next == whole) continue;
    throw UsageError(
        text("the slices of '", name, "' on the ", ranks.size(),
             " tensor ranks are not all of its ", whole, " indices along dimension ",
             slice.dimension, ", each once"),
        {.hint = "Make the layers for the TensorRanks of the mesh that the pipeline runs on."});
  }
}

void refuse_whole_models(const nn::ParameterSlices& slices, const comm::Group& stages,
                         const tensor_parallel::TensorRanks& ranks) {
  at::Tensor any = at::full({1}, slices.empty() ? 0 : 1, at::kLong);
  if (stages.valid()) stages.all_reduce(any, comm::Reduce::Max).wait();
  if (any.item<std::int64_t>() > 0) return;
  throw UsageError(
      text("no parameter of the model is split over the ", ranks.size(), " tensor ranks"),
      {.hint = "Give the model's layers the TensorRanks, or leave out the mesh's dimension for "
               "them."});
}

}  // namespace

TensorOptions tensor_options(const tensor_parallel::TensorRanks& ranks) {
  if (ranks.alone() || !ranks.exist()) return {};
  return {.group = ranks.group(),
          .alone =
              [ranks] { return std::make_shared<tensor_parallel::TensorRanks::AloneScope>(ranks); },
          .log = ranks.log()};
}

gradient_norm::SlicedParameters agree_on_slices(Pipeline& pipeline, const comm::Group& stages,
                                                const tensor_parallel::TensorRanks& ranks) {
  const nn::ParameterSlices slices = pipeline.parameter_slices();
  const PipelineOptions& options = pipeline.options();
  tensor_parallel::refuse_different_plans(
      ranks,
      describe_parameters(pipeline, slices) +
          pipeline::describe_pipeline(options, pipeline.model().graph(),
                                      pipeline.schedule(options.micro_batches)),
      "split different models");
  comm::with_purpose([] { return "while the tensor ranks compared their slices"; },
                     [&] {
                       if (!ranks.alone()) refuse_gaps(slices, ranks);
                       if (!ranks.alone()) refuse_whole_models(slices, stages, ranks);
                     });
  gradient_norm::SlicedParameters sliced{.group = ranks.group()};
  for (const auto& [name, slice] : slices) sliced.names.insert(name);
  return sliced;
}

void refuse_different_calls(const tensor_parallel::TensorRanks& ranks, const std::string& call,
                            const nn::Values& batch) {
  std::string lines = call;
  for (const auto& tensor : batch) lines += nn::describe({tensor}) + "\n";
  for (const auto& tensor : batch)
    if (tensor.defined())
      lines += text("values of ", nn::describe({tensor}), " with hash ", hash_of(tensor), "\n");
  comm::fail_on_error(ranks.group(), [&] {
    const auto difference =
        comm::with_purpose([] { return "while the tensor ranks compared their batches"; },
                           [&] { return comm::find_line_difference(ranks.group(), lines); });
    if (!difference) return;
    throw UsageError(
        text("the tensor ranks make different calls of their pipelines: '", difference->first,
             "' on tensor rank 0, '", difference->other, "' on tensor rank ", difference->rank),
        {.hint = "All ranks that split the layers of a pipeline take the same batches: choose a "
                 "rank's batch by Parallel::replica(), not by its rank in the world."});
  });
}

}  // namespace trestle::parallel
