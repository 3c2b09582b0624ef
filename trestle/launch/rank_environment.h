#pragma once

#include <functional>
#include <optional>
#include <string>

// This process's rank, read from the environment variables that its launcher has set. No torch.
namespace trestle::launch {

// The rank and world of one process.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // rank among the ranks of this machine
  int local_size = 1;  // number of ranks on this machine
  int node = 0;  // number of this machine; -1 if unknown: several, not numbered by the launcher
  std::string address = "127.0.0.1";  // where the ranks meet: rank 0's machine
  int port = 0;                       // 0 only for a single rank
  int restart = 0;                    // how many times the launcher has restarted all ranks
  int max_restarts = 0;               // how many times it may
  // torchrun's agent hosts the store: rank 0 connects to it too, and does not open the port.
  bool store_of_launcher = false;
  // "trestle launch", "torchrun", "variables" (RANK and WORLD_SIZE set by hand or by another
  // launcher), "slurm", "openmpi", "mpich", or "one rank".
  std::string source = "one rank";
};

// Returns the value of an environment variable, or nothing if it is not set.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;

// Reads the variables of the innermost launcher:
//  1. RANK and WORLD_SIZE, with LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT
//     and TORCHELASTIC_*, as torchrun and `trestle launch` set them. If set by hand, LOCAL_RANK and
//     LOCAL_WORLD_SIZE may be left out if MASTER_ADDR is this machine (127.0.0.1, localhost).
//  2. OMPI_COMM_WORLD_*, as Open MPI's mpirun sets them.
//  3. PMI_RANK and PMI_SIZE with MPI_LOCALRANKID and MPI_LOCALNRANKS, as the mpiexec of MPICH and
//     Intel MPI sets them.
//  4. SLURM_PROCID and related variables inside a step of a job, as srun sets them. They come last,
//     because mpirun in a Slurm job starts its helpers with srun.
//  5. None of these: a single rank.
// MASTER_ADDR and MASTER_PORT, if set, apply to all of them. Otherwise Slurm's ranks meet on the
// first node of the step, and MPI's ranks on this machine if all of them are here (for several
// machines MASTER_ADDR must be set). The port is derived from the job and step number (Slurm) or
// the job's name (Open MPI). MPICH sets no variable that its ranks share, so they use port 29500.
//
// Throws UsageError, with the names and values of the variables, if one is missing, not a number or
// out of range, and if two contradict each other. A launcher inside a task of Slurm or MPI is no
// contradiction; RANK=0 in all tasks of srun is.
RankEnvironment read_rank_environment(const Variables& variables);
RankEnvironment read_rank_environment();  // reads this process's environment

}  // namespace trestle::launch
