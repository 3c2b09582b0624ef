#pragma once

#include <functional>
#include <optional>
#include <string>

// Which rank this process is, as whoever started it says in environment variables. No torch.
namespace trestle::launch {

// What a launcher tells one process.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of its machine
  int local_size = 1;  // ranks of its machine
  int node = 0;        // number of its machine; -1 = several, and the launcher does not number them
  std::string address = "127.0.0.1";  // where the ranks find each other: rank 0's machine
  int port = 0;                       // 0 with one lone rank only
  int restart = 0;                    // how often the launcher has started all ranks anew
  // torchrun's agent holds the store, so that rank 0 connects to it too and does not open the port.
  bool store_of_launcher = false;
  // Who said so: "trestle launch", "torchrun", "variables" (RANK and WORLD_SIZE set by hand or by
  // another launcher), "slurm", "openmpi", "mpich", or "one rank".
  std::string source = "one rank";
};

// Gives an environment variable, or nothing where it is not set.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;

// The launcher nearest to the process is the one that counts:
//  1. RANK and WORLD_SIZE, with LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT and
//     TORCHELASTIC_*, as torchrun and `trestle launch` set them. By hand, LOCAL_RANK and
//     LOCAL_WORLD_SIZE may be left out where MASTER_ADDR is this machine (127.0.0.1, localhost).
//  2. OMPI_COMM_WORLD_*, as Open MPI's mpirun sets them.
//  3. PMI_RANK and PMI_SIZE with MPI_LOCALRANKID and MPI_LOCALNRANKS, as the mpiexec of MPICH and Intel
//     MPI sets them.
//  4. SLURM_PROCID and its like inside a step of a job, as srun sets them. Last, because mpirun in a
//     Slurm job starts its own helpers by srun.
//  5. Nothing of these: one lone rank.
// MASTER_ADDR and MASTER_PORT, if set, hold for all of them. Else Slurm's ranks meet on the first node
// of the step, MPI's on this machine if it has all of them (several machines: MASTER_ADDR must be
// set), at a port made from the number of the job and step (Slurm) or the name of the job (Open MPI);
// MPICH tells its ranks nothing that they share, so they take port 29500.
//
// Throws UsageError, with the names and values of the variables, for one that is missing, is no
// number or out of range, and where two of these contradict each other. torchrun, `trestle launch` or
// another launcher within a task of Slurm or MPI is no contradiction; RANK=0 in all tasks of srun is.
RankEnvironment read_rank_environment(const Variables& variables);
RankEnvironment read_rank_environment();  // of this process

}  // namespace trestle::launch
