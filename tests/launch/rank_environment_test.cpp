#include "trestle/launch/rank_environment.h"

#include <cstdlib>

#include "tests/launch/fake_environment.h"

namespace trestle::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Recorded from `torchrun --no-python --nproc-per-node 2 --max-restarts 1` of torch 2.13.
const FakeEnvironment torchrun = {
    {"GROUP_RANK", "0"},
    {"GROUP_WORLD_SIZE", "1"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "2"},
    {"MASTER_ADDR", "localhost"},
    {"MASTER_PORT", "34595"},
    {"OMP_NUM_THREADS", "1"},
    {"RANK", "1"},
    {"ROLE_NAME", "default"},
    {"ROLE_RANK", "1"},
    {"ROLE_WORLD_SIZE", "2"},
    {"TORCHELASTIC_MAX_RESTARTS", "1"},
    {"TORCHELASTIC_RESTART_COUNT", "0"},
    {"TORCHELASTIC_RUN_ID", "04d2e2eb-d2b7-4a39-8399-20ae9d8d1c6b"},
    {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
    {"WORLD_SIZE", "2"},
};

const FakeEnvironment by_hand = {
    {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};

TEST(RankEnvironment, NoVariablesMeanOneRank) {
  const RankEnvironment found = read({});
  EXPECT_EQ(found.source, "one rank");
  EXPECT_EQ(found.rank, 0);
  EXPECT_EQ(found.world_size, 1);
  EXPECT_EQ(found.port, 0);
}

TEST(RankEnvironment, AddressAloneMeansOneRank) {
  EXPECT_EQ(read({{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}}).source, "one rank");
}

TEST(RankEnvironment, ReadsRecordedTorchrun) {
  const RankEnvironment found = read(torchrun);
  EXPECT_EQ(found.source, "torchrun");
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.world_size, 2);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_size, 2);
  EXPECT_EQ(found.node, 0);
  EXPECT_EQ(found.address, "localhost");
  EXPECT_EQ(found.port, 34595);
  EXPECT_EQ(found.restart, 0);
  EXPECT_TRUE(found.store_of_launcher);
}

TEST(RankEnvironment, ReadsTorchrunOnSecondMachineAfterRestart) {
  const RankEnvironment found = read(with(torchrun, {{"RANK", "3"},
                                                     {"WORLD_SIZE", "4"},
                                                     {"GROUP_RANK", "1"},
                                                     {"MASTER_ADDR", "node1"},
                                                     {"TORCHELASTIC_RESTART_COUNT", "1"}}));
  EXPECT_EQ(found.node, 1);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.restart, 1);
  EXPECT_EQ(found.address, "node1");
}

TEST(RankEnvironment, RecognizesTrestleLaunch) {
  const FakeEnvironment ours =
      with(torchrun, {{"TRESTLE_LAUNCH", "1"}, {"TORCHELASTIC_USE_AGENT_STORE", "False"}});
  EXPECT_EQ(read(ours).source, "trestle launch");
  EXPECT_FALSE(read(ours).store_of_launcher);
  // A rank of trestle launch started torchrun: the inner launcher counts.
  EXPECT_EQ(read(with(torchrun, {{"TRESTLE_LAUNCH", "1"}})).source, "torchrun");
}

TEST(RankEnvironment, ReadsVariablesOnOneMachine) {
  const RankEnvironment found = read(by_hand);
  EXPECT_EQ(found.source, "variables");
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.local_rank, 3);
  EXPECT_EQ(found.local_size, 4);
  EXPECT_FALSE(found.store_of_launcher);
}

TEST(RankEnvironment, OneRankNeedsNoAddress) {
  const RankEnvironment found = read({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(found.world_size, 1);
  EXPECT_EQ(found.port, 0);
}

TEST(RankEnvironment, SeveralMachinesNeedLocalRank) {
  const FakeEnvironment far = with(by_hand, {{"MASTER_ADDR", "node1"}});
  EXPECT_THAT(refusal(far), AllOf(HasSubstr("LOCAL_RANK is not set"), HasSubstr("RANK=3"),
                                  HasSubstr("WORLD_SIZE=4"), HasSubstr("0 and 1")));
  EXPECT_THAT(refusal(with(far, {{"LOCAL_RANK", "1"}})), HasSubstr("LOCAL_WORLD_SIZE is not set"));
  const RankEnvironment found = read(with(far, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}));
  EXPECT_EQ(found.node, 1);
  const RankEnvironment pod = read(with(far, {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}));
  EXPECT_EQ(pod.node, 3);
}

TEST(RankEnvironment, NamesMissingVariables) {
  EXPECT_THAT(refusal({{"RANK", "2"}}),
              AllOf(HasSubstr("WORLD_SIZE is not set"), HasSubstr("RANK=2 is")));
  EXPECT_THAT(refusal({{"WORLD_SIZE", "2"}}),
              AllOf(HasSubstr("RANK is not set"), HasSubstr("WORLD_SIZE=2 is")));
  EXPECT_THAT(refusal(with(by_hand, {{"MASTER_ADDR", "-"}})), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(refusal(with(by_hand, {{"MASTER_PORT", "-"}})), HasSubstr("MASTER_PORT is not set"));
}

TEST(RankEnvironment, NamesInvalidNumbersWithValue) {
  for (const char* word : {"", "x", "-1", "1.5", " 1", "0x1", "99999999999999999999"}) {
    EXPECT_THAT(refusal(with(by_hand, {{"RANK", word}})), HasSubstr(std::string("RANK=") + word));
    EXPECT_THAT(refusal(with(by_hand, {{"WORLD_SIZE", word}})),
                HasSubstr(std::string("WORLD_SIZE=") + word));
  }
  for (const char* word : {"0", "65536", "29500tcp"})
    EXPECT_THAT(refusal(with(by_hand, {{"MASTER_PORT", word}})),
                HasSubstr(std::string("MASTER_PORT=") + word));
  EXPECT_THAT(refusal(with(by_hand, {{"WORLD_SIZE", "0"}})), HasSubstr("WORLD_SIZE=0"));
  EXPECT_THAT(refusal(with(by_hand, {{"MASTER_ADDR", " "}})), HasSubstr("MASTER_ADDR is empty"));
  EXPECT_THAT(refusal(with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "maybe"}})),
              HasSubstr("TORCHELASTIC_USE_AGENT_STORE=maybe"));
  EXPECT_THAT(refusal(with(torchrun, {{"TORCHELASTIC_RESTART_COUNT", "none"}})),
              HasSubstr("TORCHELASTIC_RESTART_COUNT=none"));
}

TEST(RankEnvironment, NamesBothVariablesForNumberOutOfRange) {
  EXPECT_THAT(refusal(with(by_hand, {{"RANK", "4"}})),
              HasSubstr("RANK=4 is not below WORLD_SIZE=4"));
  EXPECT_THAT(refusal(with(torchrun, {{"LOCAL_RANK", "2"}})),
              HasSubstr("LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2"));
  EXPECT_THAT(refusal(with(torchrun, {{"LOCAL_WORLD_SIZE", "3"}})),
              AllOf(HasSubstr("LOCAL_WORLD_SIZE=3"), HasSubstr("WORLD_SIZE=2")));
}

// The third task of `srun --ntasks-per-node=2 --nodes=2`.
const FakeEnvironment srun = {{"SLURM_PROCID", "2"},
                              {"SLURM_NTASKS", "4"},
                              {"SLURM_STEP_NUM_TASKS", "4"},
                              {"SLURM_LOCALID", "0"},
                              {"SLURM_NODEID", "1"},
                              {"SLURM_STEP_ID", "0"},
                              {"SLURM_JOB_ID", "4711"},
                              {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                              {"SLURM_STEP_NODELIST", "node[01-02]"}};

TEST(RankEnvironment, LauncherInsideSlurmTaskCounts) {
  // One torchrun per node; trestle launch with two ranks in each of four tasks.
  EXPECT_EQ(read(with(torchrun, srun)).source, "torchrun");
  EXPECT_EQ(read(with(with(torchrun, srun),
                      {{"TRESTLE_LAUNCH", "1"}, {"TORCHELASTIC_USE_AGENT_STORE", "False"}}))
                .source,
            "trestle launch");
  // Another launcher, with more ranks than tasks.
  EXPECT_EQ(read(with(with(by_hand, srun), {{"RANK", "5"}, {"WORLD_SIZE", "8"}})).source,
            "variables");
}

TEST(RankEnvironment, AcceptsVariablesThatRepeatSlurms) {
  const RankEnvironment found = read(with(with(by_hand, srun), {{"RANK", "2"}}));
  EXPECT_EQ(found.source, "variables");
  EXPECT_EQ(found.rank, 2);
}

TEST(RankEnvironment, NamesVariablesThatContradictSlurm) {
  // Left over in the shell: every task of srun would become rank 0 of 1.
  EXPECT_THAT(refusal(with(srun, {{"RANK", "0"}, {"WORLD_SIZE", "1"}})),
              AllOf(HasSubstr("RANK=0 and WORLD_SIZE=1"),
                    HasSubstr("SLURM_PROCID=2 and SLURM_STEP_NUM_TASKS=4"), HasSubstr("Unset")));
  EXPECT_THAT(refusal(with(with(by_hand, srun), {{"RANK", "3"}})),
              AllOf(HasSubstr("RANK=3"), HasSubstr("SLURM_PROCID=2")));
}

TEST(RankEnvironment, NamesVariablesThatContradictMpi) {
  EXPECT_THAT(
      refusal(with(by_hand, {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}})),
      AllOf(HasSubstr("RANK=3"), HasSubstr("OMPI_COMM_WORLD_RANK=1")));
  EXPECT_THAT(refusal(with(by_hand, {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}})),
              AllOf(HasSubstr("RANK=3"), HasSubstr("PMI_RANK=1")));
}

TEST(RankEnvironment, ReadsThisProcess) {
  for (const auto& [name, value] : by_hand) setenv(name.c_str(), value.c_str(), 1);
  const RankEnvironment found = read_rank_environment();
  for (const auto& [name, value] : by_hand) unsetenv(name.c_str());
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(read_rank_environment().source, "one rank");
}

}  // namespace
}  // namespace trestle::launch
