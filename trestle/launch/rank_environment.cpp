#include "trestle/launch/rank_environment.h"

#include <cstdlib>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/launch/mpi.h"
#include "trestle/launch/slurm.h"
#include "trestle/launch/variables.h"

namespace trestle::launch {

namespace {

bool has_agent_store(const VariableReader& variables) {
  const auto words = variables.find("TORCHELASTIC_USE_AGENT_STORE");
  if (!words || *words == "False") return false;
  if (*words == "True") return true;
  throw UsageError(text("environment variable TORCHELASTIC_USE_AGENT_STORE=", *words,
                        ": neither True nor False"));
}

// Fills in local_rank, local_size and node.
void read_place(const VariableReader& variables, const Number& rank, const Number& size,
                RankEnvironment& result) {
  const auto local_rank = variables.find_number({"LOCAL_RANK"}, 0, most_ranks);
  const auto local_size = variables.find_number({"LOCAL_WORLD_SIZE"}, 1, most_ranks);
  const auto node = variables.find_number({"GROUP_RANK"}, 0, most_ranks);
  const bool one_machine = size.value == 1 || is_own_machine(result.address);
  if ((!local_rank || !local_size) && (!one_machine || (node && node->value > 0)))
    throw UsageError(text("environment variable ", local_rank ? "LOCAL_WORLD_SIZE" : "LOCAL_RANK",
                          " is not set, but ", rank.words(), " and ", size.words(), " are"),
                     {.hint = "Ranks on several machines need both LOCAL_RANK and "
                              "LOCAL_WORLD_SIZE; with one rank per machine they are 0 and 1."});
  const Number here = local_size.value_or(Number{"WORLD_SIZE", size.value});
  if (here.value > size.value)
    throw UsageError(
        text("environment variables contradict each other: ", here.words(), " and ", size.words()));
  const Number number = local_rank.value_or(Number{"RANK", rank.value});
  check_below(number, here);
  result.local_rank = number.value;
  result.local_size = here.value;
  if (node)
    result.node = node->value;
  else if (here.value == size.value)
    result.node = 0;
  else  // all known launchers without GROUP_RANK number the ranks machine by machine
    result.node = (rank.value - number.value) / here.value;
}

RankEnvironment read_torchrun(const VariableReader& variables) {
  const auto some = variables.find_number({"WORLD_SIZE", "RANK"}, 0, most_ranks);
  const Number rank = variables.number({"RANK"}, 0, most_ranks, some->words());
  const Number size = variables.number({"WORLD_SIZE"}, 1, most_ranks, some->words());
  check_below(rank, size);
  RankEnvironment result{.rank = rank.value, .world_size = size.value};
  const auto address = variables.address();
  const auto port = variables.port();
  if (size.value > 1 && (!address || !port))
    throw UsageError(
        text("environment variable ", address ? "MASTER_PORT" : "MASTER_ADDR", " is not set, but ",
             rank.words(), " and ", size.words(), " are"),
        {.hint = "MASTER_ADDR and MASTER_PORT are the address where the ranks meet: rank 0's "
                 "machine, and a free port there."});
  result.address = address.value_or(result.address);
  result.port = port.value_or(0);
  read_place(variables, rank, size, result);
  const auto restart = variables.find_number({"TORCHELASTIC_RESTART_COUNT"}, 0, most_ranks);
  result.restart = restart ? restart->value : 0;
  const auto most = variables.find_number({"TORCHELASTIC_MAX_RESTARTS"}, 0, most_ranks);
  result.max_restarts = most ? most->value : 0;
  result.store_of_launcher = has_agent_store(variables);
  const bool own = variables.has("TRESTLE_LAUNCH") && !result.store_of_launcher;
  result.source = own                                    ? "trestle launch"
                  : variables.has("TORCHELASTIC_RUN_ID") ? "torchrun"
                                                         : "variables";
  return result;
}

struct Pair {
  const char* rank;
  const char* size;
};

// "RANK=0 and WORLD_SIZE=1", for messages.
std::string words_of(const VariableReader& variables, const Pair& names) {
  return text(names.rank, "=", variables.find(names.rank).value_or(""), " and ", names.size, "=",
              variables.find(names.size).value_or(""));
}

// Throws if two sets of variables contradict each other. It is no contradiction if the inner world
// is larger: then a launcher runs inside one task of another launcher.
void check_agree(const VariableReader& variables, const RankEnvironment& inner,
                 const Pair& inner_names, const Pair& outer_names) {
  const auto rank = variables.find_number({outer_names.rank}, 0, most_ranks);
  const auto size = variables.find_number({outer_names.size}, 1, most_ranks);
  if (!rank || !size || inner.world_size > size->value) return;
  if (inner.world_size == size->value && inner.rank == rank->value) return;
  throw UsageError(
      text("environment variables contradict each other: ", words_of(variables, inner_names),
           ", but ", words_of(variables, outer_names)),
      {.hint = text("Unset ", inner_names.rank, " and ", inner_names.size, ", or unset ",
                    outer_names.rank, " and ", outer_names.size, ".")});
}

constexpr Pair torchrun_names = {"RANK", "WORLD_SIZE"};
constexpr Pair openmpi_names = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"};
constexpr Pair mpich_names = {"PMI_RANK", "PMI_SIZE"};

Pair slurm_names(const VariableReader& variables) {
  return {"SLURM_PROCID",
          variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS"};
}

bool has_one(const VariableReader& variables, const Pair& names) {
  return variables.has(names.rank) || variables.has(names.size);
}

}  // namespace

RankEnvironment read_rank_environment(const Variables& all) {
  const VariableReader variables(all);
  const bool slurm = in_slurm_step(variables);
  if (has_one(variables, torchrun_names)) {
    RankEnvironment result = read_torchrun(variables);
    if (result.source == "variables") {
      check_agree(variables, result, torchrun_names, openmpi_names);
      check_agree(variables, result, torchrun_names, mpich_names);
      if (slurm) check_agree(variables, result, torchrun_names, slurm_names(variables));
    }
    return result;
  }
  if (has_one(variables, openmpi_names)) {
    RankEnvironment result = read_openmpi(variables);
    check_agree(variables, result, openmpi_names, mpich_names);
    return result;
  }
  // srun --mpi=pmi2 sets PMI_RANK too, but no local rank.
  const bool of_slurm =
      slurm && !variables.has("MPI_LOCALRANKID") && !variables.has("PMI_LOCAL_RANK");
  if (has_one(variables, mpich_names) && !of_slurm) return read_mpich(variables);
  if (!slurm) return {};
  RankEnvironment result = read_slurm(variables);
  check_agree(variables, result, slurm_names(variables), mpich_names);
  return result;
}

RankEnvironment read_rank_environment() {
  return read_rank_environment([](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  });
}

}  // namespace trestle::launch
