// A pipeline whose stages are on several ranks: what they agree on when it is made.
#include <ATen/Functions.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <map>
#include <numeric>
#include <random>
#include <sstream>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/rank_error.h"
#include "trestle/pipeline/options.h"
#include "trestle/pipeline/pipeline_impl.h"
#include "trestle/pipeline/rank_timeline.h"
#include "trestle/schedule/csv.h"

namespace trestle {
namespace {

// What must be the same on all ranks, a line each.
std::string description(const PipelineOptions& options, const nn::Graph& graph,
                        const schedule::Schedule& table) {
  std::vector<std::string> layers, seeds, modes;
  for (const auto& layer : graph.layers) {
    layers.push_back(layer.name);
    if (!layer.module) continue;
    const std::string seed = text(layer.module.seed());
    if (seeds.empty() || seeds.back() != seed) seeds.push_back(seed);
  }
  std::vector<std::string> edges;
  for (const auto& edge : graph.edges)
    edges.push_back(
        text(edge.from_layer, ".", edge.from_output, ">", edge.to_layer, ".", edge.to_argument));
  for (const auto mode : options.recompute_per_stage) modes.emplace_back(schedule::to_string(mode));
  std::string rows = schedule::to_csv(table);
  std::replace(rows.begin(), rows.end(), '\n', ';');
  return text(
      "libtorch ", TORCH_VERSION, "\nlayers ", join(layers, " "), "\n", "model's seed ",
      join(seeds, " "), "\n", "connections ", join(edges, " "), "\n", "balance [",
      join(options.balance, ", "), "]\n", "micro_batches ", options.micro_batches, "\n",
      "split_size ", options.split_size, "\n", "schedule ", options.schedule, "\n", "recompute ",
      modes.empty() ? std::string(schedule::to_string(options.recompute)) : join(modes, "-"), "\n",
      "batch_norm ", static_cast<int>(options.batch_norm), "\n", "seed ", options.seed, "\n",
      "memory_format ", options.memory_format, "\n", "precision ",
      static_cast<int>(options.precision), "\n", "optimizer ", options.optimizer ? "yes" : "no",
      "\n", "clip_grad_norm ", options.clip_grad_norm, "\n", "clip_p ", options.clip_p, "\n",
      "table ", rows, "\n");
}

std::string shortened(const std::string& line) {
  constexpr std::size_t most = 160;
  return line.size() <= most ? line : line.substr(0, most) + "...";
}

void compare_pipelines(const std::string& own, const std::string& theirs, int rank, int first) {
  std::istringstream mine(own), other(theirs);
  std::vector<std::string> differences;
  for (std::string line, there; std::getline(mine, line);) {
    std::getline(other, there);
    if (line != there)
      differences.push_back(text("'", shortened(line), "' on rank ", rank, ", '", shortened(there),
                                 "' on rank ", first));
  }
  if (differences.empty()) return;
  throw UsageError(text("the ranks made different pipelines: ", join(differences, "; ")),
                   {.rank = rank, .hint = "Give all ranks the same model and options."});
}

// Thread ranks on one device would wait for each other in its backward thread.
void refuse_shared_devices(const comm::Group& group, const pipeline::StageList& stages) {
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  std::vector<std::string> own;
  for (const auto& stage : stages)
    if (!stage.device().is_cpu())
      own.push_back(text(host.data(), " ", getpid(), "\n", device_name(stage.device())));
  std::map<std::string, std::size_t> owners;
  const auto all = group.all_gather_bytes(join(own, "\t"));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const std::string& device : split(all[rank], '\t')) {
      const auto owner = owners.try_emplace(device, rank).first->second;
      if (device.empty() || owner == rank) continue;
      throw UsageError(
          text("ranks ", owner, " and ", rank, " of the pipeline both use ",
               device.substr(device.find('\n') + 1)),
          {.rank = group.rank(), .hint = "Give each rank that is a thread devices of its own."});
    }
  }
}

}  // namespace

int Pipeline::Impl::first_rank() const {
  return options.table ? options.table->rank_of_stage.at(0) : 0;
}

// Before anything is made: are there ranks enough and stages enough?
void Pipeline::Impl::check_ranks() const {
  const int ranks = options.group.size();
  const int stages = pipeline::stage_count(options);
  const int used = options.table ? options.table->rank_count() : stages;
  if (used == ranks) return;
  throw UsageError(
      text("the pipeline has ", stages, " stages on ", used, used == 1 ? " rank" : " ranks",
           ", and the group has ", ranks, ranks == 1 ? " rank" : " ranks",
           used < ranks ? ": some would have nothing to do" : ""),
      {.hint = "Without a table of your own there is one stage a rank: choose a balance of as many "
               "stages as ranks, or start as many ranks as stages."});
}

// The world does not end by it: who finds the same everywhere may try something else.
void Pipeline::Impl::each_checks(const std::function<void()>& check) const {
  if (!over_ranks()) return check();
  std::string reason;
  std::exception_ptr own;
  try {
    check();
  } catch (const std::exception& error) {
    own = std::current_exception();
    reason = error.what();
  }
  const auto reasons = options.group.all_gather_bytes(reason);
  if (own) std::rethrow_exception(own);
  for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
    if (!reasons[rank].empty())
      throw RankError(text("rank ", rank, " cannot make the pipeline: ", reasons[rank]));
  }
}

void Pipeline::Impl::join_ranks() {
  const auto& table = tables_.at({options.micro_batches, options.schedule, true, false});
  // Behind what is compared stands a number, of which the first rank's is taken.
  auto all = options.group.all_gather_bytes(
      text(description(options, parts_->graph, table), std::random_device()()));
  std::uint32_t number = 0;
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    const std::size_t end = all[rank].rfind('\n') + 1;
    if (rank == first_rank())
      number = static_cast<std::uint32_t>(std::stoul(all[rank].substr(end)));
    all[rank].resize(end);
  }
  // Every rank compares all with the first, so that all say the same.
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank)
    compare_pipelines(all[rank], all[first_rank()], rank, first_rank());
  refuse_shared_devices(options.group, parts_->stages);
  link_ = std::make_shared<pipeline::RankLink>(options.group, table.rank_of_stage.front(),
                                               table.rank_of_stage.back(), number);
}

// A target alone would say how many samples there are, and the first layer that it has none.
void Pipeline::Impl::check_first_input(const nn::Values& batch) const {
  const int inputs = parts_->graph.inputs;
  if (inputs == 0 || given_inputs(batch) != 0 || inputs > 64) return;
  throw UsageError(
      text("rank ", options.group.rank(), ", the first of the pipeline, has no input: ",
           inputs == 1 ? "it is None" : text("all ", inputs, " are None")),
      {.rank = options.group.rank(),
       .hint = "The model's inputs are read on the first rank, and where else a stage "
               "takes one; elsewhere they may be None."});
}

// A None on a rank is an argument left out there, which for an optional one would go unnoticed.
void Pipeline::Impl::check_given(const nn::Values& batch, std::uint64_t given) const {
  int begin = 0;
  for (int stage = 0; stage < static_cast<int>(options.balance.size()); ++stage) {
    const int end = begin + options.balance[static_cast<std::size_t>(stage)];
    for (const auto& edge : parts_->graph.edges) {
      const auto input = static_cast<std::size_t>(edge.from_output);
      if (edge.from_layer != nn::model_input || edge.to_layer < begin || edge.to_layer >= end ||
          !parts_->stages.has(stage) || input >= 64 || batch[input].defined())
        continue;
      if ((given >> input & 1U) == 0) continue;
      throw UsageError(
          text("input ", input, " is None on rank ", options.group.rank(), ", whose stage ", stage,
               " takes it, and a tensor on rank ", first_rank()),
          {.layer = parts_->graph.layers[static_cast<std::size_t>(edge.to_layer)].name,
           .rank = options.group.rank(),
           .hint = "The model's inputs are read on all ranks whose stages take them."});
    }
    begin = end;
  }
}

std::uint64_t Pipeline::Impl::given_inputs(const nn::Values& batch) const {
  std::uint64_t given = 0;
  for (int i = 0; i < std::min(parts_->graph.inputs, 64); ++i) {
    if (batch[static_cast<std::size_t>(i)].defined()) given |= std::uint64_t{1} << i;
  }
  return given;
}

// Of what the stages of other ranks may hold.
void Pipeline::Impl::share_budgets() {
  if (!over_ranks()) return;
  std::vector<std::string> own;
  for (const auto& stage : parts_->stages)
    own.push_back(text(stage.index(), " ", memory_usage(stage.device()).budget));
  std::vector<Bytes> budgets(options.balance.size(), 0);
  for (const auto& rows : options.group.all_gather_bytes(join(own, " "))) {
    std::istringstream numbers(rows);
    std::size_t stage = 0;
    for (Bytes budget = 0; numbers >> stage >> budget;) budgets.at(stage) = budget;
  }
  const std::lock_guard lock(mutex_);
  budgets_ = std::move(budgets);
}

// In the order of the stages, so that the total has the bits that one process gives it. Before them
// stands what each rank asks for: ranks that differ in it would scale by different numbers.
std::vector<optim::GradientNorm> Pipeline::Impl::all_gradient_norms(
    double max_norm, const optim::ClipGradNormOptions& norm) {
  using Row = std::array<double, 3>;
  const std::array<Row, 2> asked = {Row{-2, norm.p, max_norm},
                                    Row{-1, norm.error_if_nonfinite ? 1.0 : 0.0, 0}};
  std::vector<Row> own(asked.begin(), asked.end());
  together([&] {
    optim::check_clipping(max_norm, norm);
    for (const auto& stage : parts().stages) {
      for (const auto& one : optim::gradient_norms(stage.parameters(), norm.p))
        own.push_back(
            {static_cast<double>(stage.index()), static_cast<double>(one.dtype), one.value});
    }
  });
  const at::Tensor rows = at::empty({static_cast<std::int64_t>(own.size()), 3}, at::kDouble);
  std::memcpy(rows.mutable_data_ptr(), own.data(), own.size() * sizeof(Row));
  const at::Tensor all = at::cat(options.group.all_gather_uneven(rows));
  std::vector<Row> sorted(static_cast<std::size_t>(all.size(0)));
  std::memcpy(sorted.data(), all.const_data_ptr(), sorted.size() * sizeof(Row));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a[0] < b[0]; });
  const auto ranks = static_cast<std::size_t>(options.group.size());
  for (std::size_t i = 0; i < 2 * ranks; ++i) {
    if (sorted[i] != sorted[i < ranks ? 0 : ranks])
      throw UsageError("the ranks of a pipeline clip or measure its gradients in different ways",
                       {.rank = options.group.rank(),
                        .hint = "Give all ranks the same maximum, p and options."});
  }
  std::vector<optim::GradientNorm> norms;
  for (std::size_t i = 2 * ranks; i < sorted.size(); ++i)
    norms.push_back({.value = sorted[i][2],
                     .dtype = static_cast<at::ScalarType>(static_cast<int>(sorted[i][1]))});
  return norms;
}

// All ranks scale by the same norm and throw the same error, so nobody has to be told.
double Pipeline::Impl::clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& norm) {
  const auto norms = all_gradient_norms(max_norm, norm);
  std::vector<at::Tensor> parameters;
  for (const auto& stage : parts().stages) {
    for (auto& parameter : stage.parameters()) parameters.push_back(std::move(parameter));
  }
  return optim::clip_by(parameters, norms, max_norm, norm);
}

double Pipeline::Impl::grad_norm(double p) {
  return optim::total_norm(all_gradient_norms(0, {.p = p}), p);
}

schedule::Timeline Pipeline::Impl::gather_timeline() const {
  const auto [own, begin] = parts().timeline_and_begin();
  return pipeline::gather_timeline(options.group, own, begin,
                                   [this] { return parts_->clock.now(); });
}

}  // namespace trestle
