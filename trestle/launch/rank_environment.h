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
  int node = 0;
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

// Reads what torchrun and `trestle launch` set (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// GROUP_RANK, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_*), else what Slurm's srun sets (SLURM_PROCID and
// its like, inside a job step), else Open MPI's, else MPICH's; nothing of these: one lone rank.
// Throws UsageError, with the names and values of the variables, for one that is missing, is no
// number or out of range, and where two sources contradict each other.
RankEnvironment read_rank_environment(const Variables& variables);
RankEnvironment read_rank_environment();  // of this process

}  // namespace trestle::launch
