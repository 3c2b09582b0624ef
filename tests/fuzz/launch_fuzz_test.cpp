#include <map>

#include "tests/fuzz/fuzz.h"
#include "trestle/launch/rank_environment.h"
#include "trestle/launch/slurm.h"

namespace trestle {
namespace {

TEST(Fuzz, SlurmHosts) {
  const auto result =
      fuzz::run({"node[01-04,07],other3", "rack[2-3]node[001-128].site", "a,b,c", "n[5]"},
                [](std::string_view hosts) {
                  const std::string first = launch::first_host(hosts);
                  EXPECT_FALSE(first.empty());
                  EXPECT_EQ(first.find_first_of("[],"), std::string::npos) << first;
                });
  EXPECT_GT(result.accepted, 1000);
  EXPECT_GT(result.refused, 1000);
}

TEST(Fuzz, SlurmTasks) {
  const auto result =
      fuzz::run({"2(x3),1", "4", "16(x128)", "1,2,3(x2)"}, [](std::string_view words) {
        const launch::NodeTasks tasks = launch::tasks_of_node(words, 2);
        EXPECT_GE(tasks.tasks, 0);
        EXPECT_GE(tasks.nodes, 1);
        EXPECT_GE(tasks.all_tasks, tasks.nodes);
      });
  EXPECT_GT(result.accepted, 1000);
  EXPECT_GT(result.refused, 1000);
}

// Lines of NAME=VALUE form a whole environment.
TEST(Fuzz, RankEnvironment) {
  const auto read = [](std::string_view bytes) {
    std::map<std::string, std::string> variables;
    for (const std::string& line : split(bytes, '\n')) {
      const auto equals = line.find('=');
      if (equals != std::string::npos) variables[line.substr(0, equals)] = line.substr(equals + 1);
    }
    const auto found =
        launch::read_rank_environment([&](const std::string& name) -> std::optional<std::string> {
          const auto at = variables.find(name);
          return at == variables.end() ? std::nullopt : std::optional(at->second);
        });
    EXPECT_LT(found.rank, found.world_size);
    EXPECT_GE(found.rank, 0);
    EXPECT_LT(found.local_rank, found.local_size);
    EXPECT_LE(found.local_size, found.world_size);
    EXPECT_TRUE(found.world_size == 1 || (found.port > 0 && found.port < 65536)) << bytes;
    EXPECT_FALSE(found.address.empty());
  };
  const auto result = fuzz::run(
      {"RANK=1\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=node1\n"
       "MASTER_PORT=29500\nTORCHELASTIC_USE_AGENT_STORE=True",
       "SLURM_PROCID=3\nSLURM_NTASKS=5\nSLURM_LOCALID=1\nSLURM_NODEID=1\nSLURM_STEP_ID=0\n"
       "SLURM_STEP_TASKS_PER_NODE=2(x2),1\nSLURM_STEP_NODELIST=node[01-03]",
       "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=1\n"
       "OMPI_COMM_WORLD_LOCAL_SIZE=2\nPMIX_NAMESPACE=job1"},
      read);
  EXPECT_GT(result.accepted, 1000);
  EXPECT_GT(result.refused, 1000);
}

}  // namespace
}  // namespace trestle
