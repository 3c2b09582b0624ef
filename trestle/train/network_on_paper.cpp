#include "trestle/train/network_on_paper.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::train {

namespace {

bool has_rows(const recipe::Recipe::Mesh& mesh) { return mesh.replicate > 1 && mesh.shard > 1; }

}  // namespace

bool stages_apart(const recipe::Recipe::Mesh& mesh) {
  return mesh.parts() == 1 || mesh.pipeline > 1;
}

std::vector<std::vector<int>> hosts_on_paper(const recipe::Recipe::Mesh& mesh,
                                             const std::vector<int>& rank_of_stage) {
  const std::int64_t parts = mesh.parts();
  const std::int64_t row = has_rows(mesh) ? mesh.shard : 1;
  const bool apart = stages_apart(mesh);
  std::vector<std::vector<int>> hosts;
  for (std::int64_t replica = 0; replica < parts; ++replica) {
    hosts.emplace_back();
    for (const int rank : rank_of_stage) {
      const std::int64_t before = apart ? rank * parts : 0;
      hosts.back().push_back(static_cast<int>(
          mesh.ranks_per_host > 0 ? (before + replica) * mesh.tensor / mesh.ranks_per_host
                                  : replica / row + before / row));
    }
  }
  return hosts;
}

std::string words_of_network(const recipe::Recipe::Mesh& mesh, const simulate::Link& link) {
  std::string hosts = "each rank on a host of its own";
  if (mesh.ranks_per_host > 0)
    hosts = text("each ", mesh.ranks_per_host, " ranks on a host of their own");
  else if (has_rows(mesh))
    hosts = text("each ", mesh.shard, " ranks of 'shard' on a host of their own");
  return text(to_string(link), " (given) · ", hosts);
}

void check_hosts(const recipe::Recipe::Mesh& mesh) {
  if (mesh.ranks_per_host == 0) return;
  if (mesh.link.empty())
    throw UsageError("'ranks_per_host' in [mesh] needs 'link'",
                     {.hint = "Give the link between the hosts, such as --link 25Gbit,10us."});
  if (mesh.tensor > 1 && mesh.ranks_per_host % mesh.tensor != 0)
    throw UsageError(text("'ranks_per_host' = ", mesh.ranks_per_host, " in [mesh] puts ranks of a ",
                          "'tensor' group of ", mesh.tensor, " on two hosts"),
                     {.hint = "Give a multiple of 'tensor', or fewer tensor ranks."});
}

}  // namespace trestle::train
