#include "trestle/train/planner/sent_bytes.h"
#include "trestle/train/recipe_schedule.h"

#include <algorithm>

#include "trestle/base/traffic.h"
#include "trestle/schedule/action.h"
#include "trestle/train/network_on_paper.h"
#include "trestle/train/setup.h"
#include "trestle/train/sharding_plan.h"

namespace trestle::train {

namespace {

using plan::GroupBytes;
using plan::LinkBytes;
using schedule::Kind;

// Adds bytes of a stage, the share `outside` of them to ranks of other hosts.
void add(double GroupBytes::*group, double bytes, double outside, LinkBytes* sent) {
  sent->inside.*group += bytes * (1 - outside);
  sent->between.*group += bytes * outside;
}

// The part of the other ranks of a group that are on other hosts than one of its ranks; the largest
// such part. `first` and `step` choose the group's ranks in the stage's column of hosts.
double outside_of(const std::vector<std::vector<int>>& hosts, std::size_t stage, std::size_t first,
                  std::size_t step, std::size_t size) {
  if (hosts.empty() || size < 2) return 0;
  double most = 0;
  for (std::size_t one = 0; one < size; ++one) {
    std::size_t others = 0;
    for (std::size_t other = 0; other < size; ++other)
      others += hosts[first + one * step][stage] != hosts[first + other * step][stage] ? 1 : 0;
    most = std::max(most, static_cast<double>(others) / static_cast<double>(size - 1));
  }
  return most;
}

// The same for the worst of `groups` groups, whose first ranks are `apart` from each other.
double outside_of_groups(const std::vector<std::vector<int>>& hosts, std::size_t stage,
                         std::size_t groups, std::size_t apart, std::size_t step,
                         std::size_t size) {
  double most = 0;
  for (std::size_t group = 0; group < groups; ++group)
    most = std::max(most, outside_of(hosts, stage, group * apart, step, size));
  return most;
}

int actions_of(const schedule::Schedule& table, int stage, Kind kind) {
  int count = 0;
  for (const auto& rank : table.ranks)
    count += static_cast<int>(std::ranges::count_if(rank, [&](const schedule::Action& action) {
      return action.stage == stage && action.kind == kind;
    }));
  return count;
}

void add_data(const recipe::Recipe& recipe, const StageParameters& parameters, StageRuns runs,
              const std::vector<std::vector<int>>& hosts, std::size_t stage, LinkBytes* sent) {
  const auto& mesh = recipe.mesh;
  const auto replicate = static_cast<std::size_t>(mesh.replicate);
  const auto shard = static_cast<std::size_t>(mesh.shard);
  const double all = bytes_sent(mesh, parameters, runs).all();
  if (shard < 2 || mesh.shard_level == "none") {
    add(&GroupBytes::data, all, outside_of(hosts, stage, 0, 1, replicate * shard), sent);
    return;
  }
  recipe::Recipe::Mesh row = mesh;  // without the sums over replicas
  row.replicate = 1;
  const double in_rows = bytes_sent(row, parameters, runs).all();
  add(&GroupBytes::data, in_rows, outside_of_groups(hosts, stage, replicate, shard, 1, shard),
      sent);
  add(&GroupBytes::data, all - in_rows, outside_of_groups(hosts, stage, shard, 1, shard, replicate),
      sent);
}

// The sums of each rank's stages.
std::vector<LinkBytes> sent_by_ranks(const std::vector<LinkBytes>& by_stage,
                                     const std::vector<int>& rank_of_stage) {
  std::vector<LinkBytes> ranks;
  for (std::size_t stage = 0; stage < by_stage.size(); ++stage) {
    const auto rank = static_cast<std::size_t>(rank_of_stage.at(stage));
    if (ranks.size() <= rank) ranks.resize(rank + 1);
    ranks[rank].stage = static_cast<int>(rank);
    for (double GroupBytes::*group :
         {&GroupBytes::tensor, &GroupBytes::data, &GroupBytes::pipeline}) {
      ranks[rank].inside.*group += by_stage[stage].inside.*group;
      ranks[rank].between.*group += by_stage[stage].between.*group;
    }
  }
  return ranks;
}

}  // namespace

std::vector<LinkBytes> bytes_sent_by_stages(const recipe::Recipe& recipe, const LayerCosts& costs,
                                            const std::vector<int>& balance,
                                            const StepOnPaper& step) {
  const auto& mesh = recipe.mesh;
  const auto stages = static_cast<int>(balance.size());
  const auto hosts = link_of(mesh) ? hosts_on_paper(mesh, ranks_of_stages(recipe, balance.size()))
                                   : std::vector<std::vector<int>>();
  const auto modes = recompute_modes(recipe, balance.size());
  const auto tensor = static_cast<int>(mesh.tensor);
  const double tensor_outside = !hosts.empty() && mesh.ranks_per_host == 0 ? 1 : 0;
  std::vector<LinkBytes> all;
  std::size_t first = 0;
  for (int s = 0; s < stages; ++s) {
    const auto stage = static_cast<std::size_t>(s);
    LinkBytes sent{.stage = s, .inside = {}, .between = {}};
    if (tensor > 1 && !step.costs.messages.empty()) {
      const auto add_messages = [&](const std::vector<LayerMessage>& messages, int times) {
        for (const LayerMessage& one : messages)
          add(&GroupBytes::tensor,
              times * share_sent(one.kind, tensor) * static_cast<double>(one.bytes), tensor_outside,
              &sent);
      };
      add_messages(
          step.costs.messages[stage].forward,
          actions_of(step.table, s, Kind::Forward) + actions_of(step.table, s, Kind::Recompute));
      add_messages(
          step.costs.messages[stage].backward,
          actions_of(step.table, s, Kind::Backward) + actions_of(step.table, s, Kind::InputGrad));
    }
    const std::size_t last = first + static_cast<std::size_t>(balance[stage]);
    StageParameters parameters;
    for (; first < last; ++first) {
      const plan::LayerCost& layer = costs.profile.layers.at(first);
      parameters.trained += layer.trained();
      parameters.frozen += layer.frozen;
    }
    if (mesh.parts() > 1)
      add_data(recipe, parameters,
               {.micro_batches = costs.sizes.micro_batches, .recompute = modes[stage]}, hosts,
               stage, &sent);
    all.push_back(sent);
  }
  // Between stages of one replica; those of one rank send nothing.
  if (!stages_apart(mesh)) return sent_by_ranks(all, step.table.rank_of_stage);
  const auto add_message = [&](int from, int to, double bytes) {
    if (step.table.rank_of_stage.at(static_cast<std::size_t>(from)) ==
        step.table.rank_of_stage.at(static_cast<std::size_t>(to)))
      return;
    double outside = 0;
    for (const auto& replica : hosts)
      if (replica[static_cast<std::size_t>(from)] != replica[static_cast<std::size_t>(to)])
        outside = 1;
    add(&GroupBytes::pipeline, bytes, outside, &all[static_cast<std::size_t>(from)]);
  };
  for (std::size_t i = 0; i < step.costs.routes.size(); ++i) {
    const schedule::Route& route = step.table.routes.at(i);
    const auto bytes = static_cast<double>(step.costs.routes[i].bytes * costs.sizes.micro_batches);
    add_message(route.from_stage, route.to_stage, bytes);
    add_message(route.to_stage, route.from_stage, bytes);
  }
  for (const simulate::TieCost& tie : step.costs.ties) {
    add_message(tie.owner, tie.copy, static_cast<double>(tie.bytes));
    if (!tie.frozen) add_message(tie.copy, tie.owner, static_cast<double>(tie.bytes));
  }
  return sent_by_ranks(all, step.table.rank_of_stage);
}

}  // namespace trestle::train
