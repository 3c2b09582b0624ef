#include "trestle/launch/mpi.h"

#include "tests/launch/fake_environment.h"

namespace trestle::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Recorded from `mpirun -n 3` of Open MPI 5.0.11: local ranks may be ordered differently.
const FakeEnvironment openmpi = {{"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                                 {"OMPI_COMM_WORLD_NODE_RANK", "2"},
                                 {"OMPI_COMM_WORLD_RANK", "1"},
                                 {"OMPI_COMM_WORLD_SIZE", "3"},
                                 {"OMPI_UNIVERSE_SIZE", "2"},
                                 {"PMIX_HOSTNAME", "vm"},
                                 {"PMIX_NAMESPACE", "prterun-vm-10165@1"},
                                 {"PMIX_RANK", "1"}};

// Recorded from `mpiexec -n 3` of MPICH 5.0.2.
const FakeEnvironment mpich = {
    {"HYDI_CONTROL_FD", "7"}, {"MPI_LOCALNRANKS", "3"}, {"MPI_LOCALRANKID", "1"}, {"PMI_FD", "11"},
    {"PMI_HOSTNAME", "vm"},   {"PMI_RANK", "1"},        {"PMI_SIZE", "3"}};

TEST(Mpi, ReadsRecordedOpenMpi) {
  const RankEnvironment found = read(openmpi);
  EXPECT_EQ(found.source, "openmpi");
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.world_size, 3);
  EXPECT_EQ(found.local_rank, 2);
  EXPECT_EQ(found.local_size, 3);
  EXPECT_EQ(found.node, 0);
  EXPECT_EQ(found.address, "127.0.0.1");
}

TEST(Mpi, DerivesPortFromOpenMpiJob) {
  const int port = read(openmpi).port;
  EXPECT_GE(port, 20000);
  EXPECT_LT(port, 32768);
  EXPECT_EQ(read(with(openmpi, {{"OMPI_COMM_WORLD_RANK", "0"}, {"PMIX_RANK", "0"}})).port, port);
  EXPECT_NE(read(with(openmpi, {{"PMIX_NAMESPACE", "prterun-vm-10166@1"}})).port, port);
  EXPECT_EQ(read(with(openmpi, {{"MASTER_PORT", "4000"}})).port, 4000);
  EXPECT_EQ(read(with(openmpi, {{"PMIX_NAMESPACE", "-"}})).port, 29500);
}

TEST(Mpi, ReadsRecordedMpich) {
  const RankEnvironment found = read(mpich);
  EXPECT_EQ(found.source, "mpich");
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.world_size, 3);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_size, 3);
  EXPECT_EQ(found.port, 29500);
  EXPECT_EQ(read(with(mpich, {{"MASTER_PORT", "4000"}})).port, 4000);
}

TEST(Mpi, OneRankNeedsNothingElse) {
  EXPECT_EQ(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).source, "mpich");
  EXPECT_EQ(read({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}).port, 0);
}

TEST(Mpi, SeveralMachinesNeedAddress) {
  const FakeEnvironment far = with(openmpi, {{"OMPI_COMM_WORLD_SIZE", "6"}});
  EXPECT_THAT(refusal(far),
              AllOf(HasSubstr("MASTER_ADDR is not set"), HasSubstr("several machines"),
                    HasSubstr("OMPI_COMM_WORLD_LOCAL_SIZE=3"), HasSubstr("mpirun -x MASTER_ADDR")));
  const RankEnvironment found = read(with(far, {{"MASTER_ADDR", "node1"}}));
  EXPECT_EQ(found.address, "node1");
  EXPECT_EQ(found.node, -1);
  EXPECT_THAT(refusal(with(mpich, {{"PMI_SIZE", "6"}})), HasSubstr("MASTER_ADDR is not set"));
}

TEST(Mpi, NamesMissingAndInvalidVariables) {
  EXPECT_THAT(refusal(with(openmpi, {{"OMPI_COMM_WORLD_SIZE", "-"}})),
              AllOf(HasSubstr("OMPI_COMM_WORLD_SIZE is not set"), HasSubstr("RANK=1")));
  EXPECT_THAT(refusal(with(openmpi, {{"OMPI_COMM_WORLD_RANK", "-"}})),
              HasSubstr("OMPI_COMM_WORLD_RANK is not set"));
  EXPECT_THAT(refusal(with(openmpi, {{"OMPI_COMM_WORLD_RANK", "3"}})),
              HasSubstr("OMPI_COMM_WORLD_RANK=3 is not below OMPI_COMM_WORLD_SIZE=3"));
  EXPECT_THAT(
      refusal(with(openmpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}})),
      AllOf(HasSubstr("OMPI_COMM_WORLD_LOCAL_SIZE=4"), HasSubstr("OMPI_COMM_WORLD_SIZE=3")));
  EXPECT_THAT(refusal(with(mpich, {{"MPI_LOCALRANKID", "-"}})),
              HasSubstr("MPI_LOCALRANKID or PMI_LOCAL_RANK is not set"));
  EXPECT_THAT(refusal(with(mpich, {{"PMI_RANK", "first"}})), HasSubstr("PMI_RANK=first"));
}

TEST(Mpi, NamesDisagreementBetweenTwoMpis) {
  EXPECT_EQ(read(with(openmpi, {{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}})).source, "openmpi");
  EXPECT_THAT(refusal(with(openmpi, {{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}})),
              AllOf(HasSubstr("OMPI_COMM_WORLD_RANK=1"), HasSubstr("PMI_RANK=0")));
}

}  // namespace
}  // namespace trestle::launch
