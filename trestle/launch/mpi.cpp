#include "trestle/launch/mpi.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/launch/variables.h"

namespace trestle::launch {

namespace {

struct Spelling {
  Names rank, size, local_rank, local_size;
  Names job;  // unique for each start, and equal on all its ranks
};

RankEnvironment read_mpi(const VariableReader& variables, const Spelling& names) {
  const Number rank = variables.number(names.rank, 0, most_ranks, names.size[0]);
  const Number size = variables.number(names.size, 1, most_ranks, rank.words());
  check_below(rank, size);
  RankEnvironment result{.rank = rank.value, .world_size = size.value};
  if (size.value == 1) return result;
  const Number local_rank = variables.number(names.local_rank, 0, most_ranks, rank.words());
  const Number local_size = variables.number(names.local_size, 1, most_ranks, rank.words());
  check_below(local_rank, local_size);
  if (local_size.value > size.value)
    throw UsageError(text("environment variables contradict each other: ", local_size.words(),
                          " and ", size.words()));
  result.local_rank = local_rank.value;
  result.local_size = local_size.value;
  const bool one_machine = local_size.value == size.value;
  result.node = one_machine ? 0 : -1;
  const auto address = variables.address();
  if (!address && !one_machine)
    throw UsageError(text("environment variable MASTER_ADDR is not set, but the ", size.value,
                          " ranks are on several machines (", local_size.words(), ")"),
                     {.hint = "MPI does not set the address of rank 0. Set MASTER_ADDR to its "
                              "machine on all ranks: mpirun -x MASTER_ADDR=HOST, or mpiexec -genv "
                              "MASTER_ADDR HOST."});
  if (address) result.address = *address;
  result.port = default_port;
  for (const char* name : names.job) {
    if (const auto job = variables.find(name)) {
      result.port = port_from(*job);
      break;
    }
  }
  result.port = variables.port().value_or(result.port);
  return result;
}

}  // namespace

RankEnvironment read_openmpi(const VariableReader& variables) {
  RankEnvironment result =
      read_mpi(variables, {.rank = {"OMPI_COMM_WORLD_RANK"},
                           .size = {"OMPI_COMM_WORLD_SIZE"},
                           .local_rank = {"OMPI_COMM_WORLD_LOCAL_RANK"},
                           .local_size = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
                           .job = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}});
  result.source = "openmpi";
  return result;
}

RankEnvironment read_mpich(const VariableReader& variables) {
  RankEnvironment result = read_mpi(variables, {.rank = {"PMI_RANK"},
                                                .size = {"PMI_SIZE"},
                                                .local_rank = {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
                                                .local_size = {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"},
                                                .job = {"PMI_JOBID"}});
  result.source = "mpich";
  return result;
}

}  // namespace trestle::launch
