// A pipeline whose stages are on several ranks: what they agree on when it is made.
#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <sstream>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/pipeline/options.h"
#include "trestle/pipeline/pipeline_impl.h"
#include "trestle/pipeline/rank_timeline.h"
#include "trestle/schedule/csv.h"

namespace trestle {
namespace {

// What must be the same on all ranks, a line each.
std::string description(const PipelineOptions& options, const nn::Graph& graph,
                        const schedule::Schedule& table) {
  std::vector<std::string> layers, modes;
  for (const auto& layer : graph.layers) layers.push_back(layer.name);
  std::vector<std::string> edges;
  for (const auto& edge : graph.edges)
    edges.push_back(
        text(edge.from_layer, ".", edge.from_output, ">", edge.to_layer, ".", edge.to_argument));
  for (const auto mode : options.recompute_per_stage) modes.emplace_back(schedule::to_string(mode));
  std::string rows = schedule::to_csv(table);
  std::replace(rows.begin(), rows.end(), '\n', ';');
  return text(
      "layers ", join(layers, " "), "\n", "connections ", join(edges, " "), "\n", "balance [",
      join(options.balance, ", "), "]\n", "micro_batches ", options.micro_batches, "\n",
      "split_size ", options.split_size, "\n", "schedule ", options.schedule, "\n", "recompute ",
      modes.empty() ? std::string(schedule::to_string(options.recompute)) : join(modes, "-"), "\n",
      "batch_norm ", static_cast<int>(options.batch_norm), "\n", "seed ", options.seed, "\n",
      "memory_format ", options.memory_format, "\n", "precision ",
      static_cast<int>(options.precision), "\n", "table ", rows, "\n");
}

std::string shortened(const std::string& line) {
  constexpr std::size_t most = 160;
  return line.size() <= most ? line : line.substr(0, most) + "...";
}

void compare(const std::string& own, const std::string& theirs, int rank, int first) {
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

void Pipeline::Impl::join_ranks() {
  const auto& table = tables_.at({options.micro_batches, options.schedule, true});
  const auto all = options.group.all_gather_bytes(description(options, parts_->graph, table));
  // Every rank compares all with the first, so that all say the same.
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank)
    compare(all[rank], all[first_rank()], rank, first_rank());
  link_ = std::make_shared<pipeline::RankLink>(options.group, table.rank_of_stage.front(),
                                               table.rank_of_stage.back());
}

std::vector<int> Pipeline::Impl::share_balance(std::vector<int> balance) {
  std::istringstream numbers(options.group.broadcast_bytes(join(balance, " "), first_rank()));
  balance.clear();
  for (int count = 0; numbers >> count;) balance.push_back(count);
  return balance;
}

// In the order of the stages, so that the total has the bits that one process gives it.
std::vector<optim::GradientNorm> Pipeline::Impl::all_gradient_norms(double p) const {
  std::vector<double> own;
  for (const auto& stage : parts().stages) {
    for (const auto& one : optim::gradient_norms(stage.parameters(), p))
      own.insert(own.end(),
                 {static_cast<double>(stage.index()), static_cast<double>(one.dtype), one.value});
  }
  const at::Tensor rows = at::tensor(own, at::kDouble).reshape({-1, 3});
  const at::Tensor all = at::cat(options.group.all_gather_uneven(rows));
  std::vector<std::array<double, 3>> sorted(static_cast<std::size_t>(all.size(0)));
  std::memcpy(sorted.data(), all.const_data_ptr(), sorted.size() * sizeof(sorted[0]));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a[0] < b[0]; });
  std::vector<optim::GradientNorm> norms;
  for (const auto& [stage, dtype, value] : sorted)
    norms.push_back(
        {.value = value, .dtype = static_cast<at::ScalarType>(static_cast<int>(dtype))});
  return norms;
}

// All ranks scale by the same norm and throw the same error, so nobody has to be told.
double Pipeline::Impl::clip_grad_norm(double max_norm, const optim::ClipGradNormOptions& norm) {
  optim::check_clipping(max_norm, norm);
  std::vector<at::Tensor> parameters;
  for (const auto& stage : parts().stages) {
    for (auto& parameter : stage.parameters()) parameters.push_back(std::move(parameter));
  }
  return optim::clip_by(parameters, all_gradient_norms(norm.p), max_norm, norm);
}

double Pipeline::Impl::grad_norm(double p) const {
  optim::check_clipping(0, {.p = p});
  return optim::total_norm(all_gradient_norms(p), p);
}

schedule::Timeline Pipeline::Impl::gather_timeline() const {
  const auto [own, begin] = parts().timeline_and_begin();
  return pipeline::gather_timeline(options.group, own, begin,
                                   [this] { return parts_->clock.now(); });
}

}  // namespace trestle
