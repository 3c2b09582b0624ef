#include "trestle/launch/slurm.h"

#include "tests/launch/fake_environment.h"

namespace trestle::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The fourth task of `srun --nodes=3 --ntasks=5`.
const FakeEnvironment slurm_step = {{"SLURM_JOB_ID", "4711"},
                                    {"SLURM_STEP_ID", "2"},
                                    {"SLURM_STEPID", "2"},
                                    {"SLURM_PROCID", "3"},
                                    {"SLURM_LOCALID", "1"},
                                    {"SLURM_NODEID", "1"},
                                    {"SLURM_NTASKS", "5"},
                                    {"SLURM_STEP_NUM_TASKS", "5"},
                                    {"SLURM_STEP_NUM_NODES", "3"},
                                    {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                                    {"SLURM_TASKS_PER_NODE", "16(x4)"},
                                    {"SLURM_STEP_NODELIST", "node[01-02,07]"},
                                    {"SLURM_NODELIST", "login3,node[01-07]"}};

TEST(Slurm, ReadsTaskOfStep) {
  const RankEnvironment found = read(slurm_step);
  EXPECT_EQ(found.source, "slurm");
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.world_size, 5);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_size, 2);
  EXPECT_EQ(found.node, 1);
  EXPECT_EQ(found.address, "node01");
  EXPECT_EQ(found.restart, 0);
  EXPECT_FALSE(found.store_of_launcher);
}

TEST(Slurm, ReadsTaskCountOfLastNode) {
  const RankEnvironment found = read(
      with(slurm_step, {{"SLURM_PROCID", "4"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "2"}}));
  EXPECT_EQ(found.local_size, 1);
  EXPECT_EQ(found.node, 2);
}

TEST(Slurm, DerivesOnePortPerStep) {
  const int port = read(slurm_step).port;
  EXPECT_GE(port, 20000);
  EXPECT_LT(port, 32768);
  EXPECT_EQ(
      read(with(slurm_step, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}}))
          .port,
      port);
  EXPECT_NE(read(with(slurm_step, {{"SLURM_STEP_ID", "3"}, {"SLURM_STEPID", "3"}})).port, port);
  EXPECT_NE(read(with(slurm_step, {{"SLURM_JOB_ID", "4712"}})).port, port);
}

TEST(Slurm, AcceptsGivenAddressAndPort) {
  const RankEnvironment found =
      read(with(slurm_step, {{"MASTER_ADDR", "fast0"}, {"MASTER_PORT", "12345"}}));
  EXPECT_EQ(found.address, "fast0");
  EXPECT_EQ(found.port, 12345);
}

TEST(Slurm, OneNodeNeedsNoName) {
  const RankEnvironment found = read(with(slurm_step, {{"SLURM_NODEID", "0"},
                                                       {"SLURM_LOCALID", "3"},
                                                       {"SLURM_STEP_TASKS_PER_NODE", "5"},
                                                       {"SLURM_STEP_NODELIST", "-"},
                                                       {"SLURM_NODELIST", "-"}}));
  EXPECT_EQ(found.address, "127.0.0.1");
  EXPECT_EQ(found.local_size, 5);
}

TEST(Slurm, AcceptsOlderVariableNames) {
  const RankEnvironment found = read({{"SLURM_JOB_ID", "9"},
                                      {"SLURM_STEPID", "0"},
                                      {"SLURM_PROCID", "1"},
                                      {"SLURM_LOCALID", "0"},
                                      {"SLURM_NODEID", "1"},
                                      {"SLURM_NPROCS", "2"},
                                      {"SLURM_TASKS_PER_NODE", "1(x2)"},
                                      {"SLURM_NODELIST", "a,b"}});
  EXPECT_EQ(found.world_size, 2);
  EXPECT_EQ(found.address, "a");
}

TEST(Slurm, IgnoresShellsOfAllocation) {
  // The batch script, the interactive shell, and an allocation without a step.
  for (const char* number : {"4294967291", "4294967290", "4294967294", "batch", ""})
    EXPECT_EQ(read(with(slurm_step, {{"SLURM_STEP_ID", number}, {"SLURM_STEPID", number}})).source,
              "one rank")
        << number;
  EXPECT_EQ(read(with(slurm_step, {{"SLURM_STEP_ID", "-"}, {"SLURM_STEPID", "-"}})).source,
            "one rank");
  EXPECT_EQ(read(with(slurm_step, {{"SLURM_PROCID", "-"}})).source, "one rank");
}

TEST(Slurm, OneTaskIsOneRank) {
  const RankEnvironment found =
      read({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}});
  EXPECT_EQ(found.source, "slurm");
  EXPECT_EQ(found.world_size, 1);
  EXPECT_EQ(found.port, 0);
}

TEST(Slurm, AcceptsPmiOfSrunOnly) {
  EXPECT_EQ(read(with(slurm_step, {{"PMI_RANK", "3"}, {"PMI_SIZE", "5"}})).source, "slurm");
  EXPECT_THAT(refusal(with(slurm_step, {{"PMI_RANK", "2"}, {"PMI_SIZE", "5"}})),
              AllOf(HasSubstr("SLURM_PROCID=3"), HasSubstr("PMI_RANK=2")));
}

TEST(Slurm, MpirunInsideJobCounts) {
  // mpirun's helper on the second node is task 1 of 2 of a step; its ranks inherit the variables.
  const RankEnvironment found = read(with(slurm_step, {{"SLURM_PROCID", "1"},
                                                       {"SLURM_STEP_NUM_TASKS", "2"},
                                                       {"OMPI_COMM_WORLD_RANK", "6"},
                                                       {"OMPI_COMM_WORLD_SIZE", "8"},
                                                       {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                                                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                                       {"MASTER_ADDR", "node01"}}));
  EXPECT_EQ(found.source, "openmpi");
  EXPECT_EQ(found.rank, 6);
  EXPECT_EQ(found.world_size, 8);
}

TEST(Slurm, NamesMissingAndInvalidVariables) {
  EXPECT_THAT(refusal(with(slurm_step, {{"SLURM_LOCALID", "-"}})),
              HasSubstr("SLURM_LOCALID is not set"));
  EXPECT_THAT(refusal(with(slurm_step, {{"SLURM_NODEID", "-"}})),
              HasSubstr("SLURM_NODEID is not set"));
  EXPECT_THAT(refusal(with(slurm_step, {{"SLURM_NTASKS", "-"}, {"SLURM_STEP_NUM_TASKS", "-"}})),
              HasSubstr("SLURM_STEP_NUM_TASKS or SLURM_NTASKS or SLURM_NPROCS is not set"));
  EXPECT_THAT(refusal(with(slurm_step, {{"SLURM_PROCID", "five"}})),
              HasSubstr("SLURM_PROCID=five"));
  EXPECT_THAT(refusal(with(slurm_step, {{"SLURM_PROCID", "5"}})),
              HasSubstr("SLURM_PROCID=5 is not below SLURM_STEP_NUM_TASKS=5"));
  EXPECT_THAT(refusal(with(slurm_step, {{"SLURM_LOCALID", "2"}})), HasSubstr("SLURM_LOCALID=2"));
  EXPECT_THAT(refusal(with(slurm_step, {{"SLURM_NODEID", "3"}})),
              AllOf(HasSubstr("SLURM_NODEID=3"), HasSubstr("3 nodes")));
  EXPECT_THAT(refusal(with(slurm_step, {{"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}})),
              AllOf(HasSubstr("SLURM_STEP_TASKS_PER_NODE=2(x3) means 6 tasks"),
                    HasSubstr("SLURM_STEP_NUM_TASKS=5")));
  EXPECT_THAT(refusal(with(slurm_step,
                           {{"SLURM_STEP_TASKS_PER_NODE", "-"}, {"SLURM_TASKS_PER_NODE", "-"}})),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE is not set"));
  EXPECT_THAT(refusal(with(slurm_step, {{"SLURM_STEP_NODELIST", "node[01-"}})),
              AllOf(HasSubstr("node[01-"), HasSubstr("SLURM_STEP_NODELIST")));
  EXPECT_THAT(refusal(with(slurm_step, {{"SLURM_STEP_NODELIST", "-"}, {"SLURM_NODELIST", "-"}})),
              HasSubstr("SLURM_STEP_NODELIST and MASTER_ADDR"));
}

TEST(Slurm, ParsesFirstHost) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("node[01-04,07],other3"), "node01");
  EXPECT_EQ(first_host("node[7,01-04]"), "node7");
  EXPECT_EQ(first_host("other3,node[01-04]"), "other3");
  EXPECT_EQ(first_host("rack[2-3]node[001-128].site"), "rack2node001.site");
  EXPECT_EQ(first_host("n[5]"), "n5");
  for (const char* wrong :
       {"", ",", "a,", ",a", "a[", "a[]", "a]", "a[1-]", "a[-1]", "a[3-1]", "a[1-2-3]", "a[x]",
        "a[1,]", "a[[1]]", "a b", "a;b", "a[1", "a[1234567890]", "a[1],"})
    EXPECT_THROW(first_host(wrong), UsageError) << wrong;
}

TEST(Slurm, ParsesTasksOfNode) {
  EXPECT_EQ(tasks_of_node("4", 0).tasks, 4);
  EXPECT_EQ(tasks_of_node("4", 1).tasks, 0);
  const NodeTasks last = tasks_of_node("2(x3),1", 3);
  EXPECT_EQ(last.tasks, 1);
  EXPECT_EQ(last.nodes, 4);
  EXPECT_EQ(last.all_tasks, 7);
  EXPECT_EQ(tasks_of_node("2(x3),1", 2).tasks, 2);
  EXPECT_EQ(tasks_of_node("2(x3),1", -1).tasks, 0);
  for (const char* wrong : {"", ",", "2,", "0", "-1", "2(x0)", "2(x)", "2(x3", "(x3)", "2x3",
                            "2(3)", "2(x3)1", "2(x1000001)", "1(x999999),1(x999999)", "two"})
    EXPECT_THROW(tasks_of_node(wrong, 0), UsageError) << wrong;
}

}  // namespace
}  // namespace trestle::launch
