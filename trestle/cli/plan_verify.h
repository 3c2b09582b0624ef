#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/plan/machine/machine.h"
#include "trestle/plan/verify/residuals.h"
#include "trestle/plan/verify/verify_plans.h"

// `trestle plan RECIPE --verify K`: runs the best plans. No torch.
namespace trestle::cli {

struct VerifyArguments {
  std::int64_t plans = 0;   // 0: none are run
  std::int64_t rounds = 5;  // runs of each plan
  std::int64_t steps = 5;   // of a run that are timed
  bool threads = false;     // ranks are threads of one process
  // The words of a shell that start a program as ranks, such as "mpirun -n {ranks}". Empty: each
  // run starts its ranks itself, on this machine.
  std::string launcher = {};
  std::string save_residuals = {};
};

// A plan as a command.
struct RunnablePlan {
  plan::VerifiedPlan plan;  // with its prediction alone
  std::string recipe;       // as TOML
  std::string ranks;        // for --ranks; empty: one process
};

// "trestle train FILE --ranks 4": starts the ranks of a plan.
std::string run_words(const std::string& file, const std::string& ranks);

// Throws for a file of residuals that cannot be extended: of another machine, or broken.
void check_residuals_to_save(const VerifyArguments& arguments, const plan::Residual& here);

// Runs the plans in turn, each run as `trestle train` of its recipe in processes of its own, and
// prints predicted and measured figures. The launcher starts the plans over ranks; all its machines
// must see the folder for temporary files. `here` names the model, the machine and the version.
// Returns the exit code: 1 if a plan failed.
int verify_and_print(const std::vector<RunnablePlan>& plans, const VerifyArguments& arguments,
                     const plan::Machine& machine, const plan::Residual& here, bool json);

}  // namespace trestle::cli
