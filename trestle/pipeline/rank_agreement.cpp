#include "trestle/pipeline/rank_agreement.h"

#include <torch/version.h>

#include <cstdint>
#include <exception>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/fnv1a.h"
#include "trestle/base/text.h"
#include "trestle/comm/fail_on_error.h"
#include "trestle/comm/gather.h"
#include "trestle/comm/purpose.h"
#include "trestle/comm/rank_error.h"
#include "trestle/comm/shared_devices.h"
#include "trestle/pipeline/options.h"
#include "trestle/schedule/csv.h"

namespace trestle::pipeline {
namespace {

std::string describe_layers(const nn::Graph& graph) {
  std::vector<std::string> layers, seeds, edges;
  for (const auto& layer : graph.layers) {
    layers.push_back(layer.name);
    if (!layer.module) continue;
    const std::string seed = text(layer.module.seed());
    if (seeds.empty() || seeds.back() != seed) seeds.push_back(seed);
  }
  for (const auto& edge : graph.edges)
    edges.push_back(
        text(edge.from_layer, ".", edge.from_output, ">", edge.to_layer, ".", edge.to_argument));
  std::vector<std::string> ties;
  for (const auto& tie : graph.ties)
    ties.push_back(text(tie.layer, ".", tie.parameter, "=", tie.owner, ".", tie.owner_parameter));
  return text("layers ", join(layers, " "), "\nmodel's seed ", join(seeds, " "), "\nconnections ",
              join(edges, " "), "\nties ", join(ties, " "), "\n");
}

std::string describe_options(const PipelineOptions& options) {
  std::vector<std::string> modes;
  for (const auto mode : options.plan.recompute_per_stage)
    modes.emplace_back(schedule::to_string(mode));
  if (modes.empty()) modes.emplace_back(schedule::to_string(options.recompute));
  return text("balance [", join(options.balance, ", "), "]\nmicro_batches ", options.micro_batches,
              "\nsplit_size ", options.plan.split_size, "\nschedule ", options.schedule,
              "\nstages_per_rank ", options.stages_per_rank, "\nrecompute ", join(modes, "-"),
              "\ncheckpoint_segments ", options.checkpoint_segments, "\nbatch_norm ",
              static_cast<int>(options.numerics.batch_norm), "\nseed ", options.numerics.seed,
              "\nmemory_format ", options.numerics.memory_format, "\nprecision ",
              static_cast<int>(options.numerics.precision), "\noptimizer ",
              options.optimizer.make ? "yes" : "no", "\nclip_grad_norm ",
              options.optimizer.clip_grad_norm, "\nclip_p ", options.optimizer.clip_p, "\n");
}

std::string shorten_line(const std::string& line) {
  constexpr std::size_t most = 160;
  return line.size() <= most ? line : line.substr(0, most) + "...";
}

void compare_pipelines(const std::string& own, const std::string& firsts, int rank, int first) {
  std::istringstream own_lines(own), first_lines(firsts);
  std::vector<std::string> differences;
  for (std::string line, expected; std::getline(own_lines, line);) {
    std::getline(first_lines, expected);
    if (line != expected)
      differences.push_back(text("'", shorten_line(line), "' on rank ", rank, ", '",
                                 shorten_line(expected), "' on rank ", first));
  }
  if (differences.empty()) return;
  throw UsageError(text("the ranks made different pipelines: ", join(differences, "; ")),
                   {.rank = rank, .hint = "Give all ranks the same model and options."});
}

}  // namespace

std::string describe_pipeline(const PipelineOptions& options, const nn::Graph& graph,
                              const schedule::Schedule& table) {
  std::size_t actions = 0;
  for (const auto& row : table.ranks) actions += row.size();
  // The table itself may have millions of actions.
  return text("libtorch ", TORCH_VERSION, "\n", describe_layers(graph), describe_options(options),
              "table of ", actions, " actions with hash ", std::hex, fnv1a(schedule::to_csv(table)),
              "\n");
}

int first_rank(const PipelineOptions& options) { return ranks_of_stages(options).at(0); }

void check_group_size(const PipelineOptions& options) {
  const int ranks = options.group.size();
  const int stages = stage_count(options);
  const int used = rank_count(options);
  if (used == ranks) return;
  throw UsageError(
      text("the pipeline has ", stages, " stages on ", used, used == 1 ? " rank" : " ranks",
           ", and the group has ", ranks, ranks == 1 ? " rank" : " ranks",
           used < ranks ? ": some ranks would have nothing to do" : ""),
      {.hint = text("Without plan.table each rank has ", stages_per_rank(options),
                    " stage(s): give a balance with that many entries a rank, or start another "
                    "number of ranks.")});
}

void check_on_all_ranks(const comm::Group& group, const std::function<void()>& check) {
  if (!group.valid()) return check();
  std::string reason;
  std::exception_ptr own;
  try {
    check();
  } catch (const std::exception&) {
    own = std::current_exception();
    reason = comm::error_message(own);
  }
  const auto reasons = comm::with_purpose([] { return "while the ranks made a pipeline"; },
                                          [&] { return group.all_gather_bytes(reason); });
  if (own) std::rethrow_exception(own);
  for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
    if (!reasons[rank].empty())
      throw RankError(text("rank ", rank, " cannot make the pipeline: ", reasons[rank]));
  }
}

std::shared_ptr<RankLink> connect_ranks(const PipelineOptions& options,
                                        const PartitionedModel& model,
                                        const schedule::Schedule& table) {
  const int first = first_rank(options);
  // Each rank sends its description and a random number. The first rank's is the number of this
  // pipeline.
  const std::pair<std::string, std::uint32_t> own(describe_pipeline(options, model.graph, table),
                                                  std::random_device()());
  const auto all = comm::with_purpose([] { return "while the ranks compared their pipelines"; },
                                      [&] { return comm::all_gather_values(options.group, own); });
  // Every rank compares all ranks with the first, so that all throw the same error.
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank)
    compare_pipelines(all[static_cast<std::size_t>(rank)].first,
                      all[static_cast<std::size_t>(first)].first, rank, first);
  std::vector<at::Device> devices;
  for (const auto& stage : model.stages) devices.push_back(stage.device());
  comm::refuse_shared_devices(options.group, devices, "of the pipeline");
  return std::make_shared<RankLink>(options.group, table.rank_of_stage.front(),
                                    table.rank_of_stage.back(),
                                    all[static_cast<std::size_t>(first)].second);
}

}  // namespace trestle::pipeline
