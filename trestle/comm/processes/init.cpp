#include <cstdlib>
#include <iostream>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/backends/nccl_backend.h"
#include "trestle/comm/processes/process_world.h"
#include "trestle/comm/start_failure.h"
#include "trestle/comm/threads/thread_world.h"
#include "trestle/comm/world.h"

namespace trestle {
namespace {

std::string backend_of(const InitOptions& options) {
  if (!options.backend.empty()) return options.backend;
  const char* variable = std::getenv("TRESTLE_BACKEND");
  return variable && *variable ? variable : "gloo";
}

void check(const launch::RankEnvironment& environment, const InitOptions& options,
           const std::string& backend) {
  if (backend != "gloo" && backend != "nccl")
    throw UsageError(text("unknown backend '", backend, "'"), {.hint = "Use gloo or nccl."});
  if (environment.world_size < 1 || environment.rank < 0 ||
      environment.rank >= environment.world_size)
    throw UsageError(text("rank ", environment.rank, " is not valid in a world of ",
                          environment.world_size, " ranks"));
  if (environment.world_size > 1 && (environment.port < 1 || environment.port > 65535))
    throw UsageError(text("invalid rendezvous port ", environment.port),
                     {.hint = "MASTER_PORT is 1 to 65535."});
  if (options.deadline <= std::chrono::milliseconds::zero())
    throw UsageError(
        text("the deadline is ", options.deadline.count(), " ms, but must be positive"));
}

}  // namespace

World init(const InitOptions& options) {
  const auto environment =
      options.environment ? *options.environment : launch::read_rank_environment();
  std::string backend = backend_of(options);
  try {
    check(environment, options, backend);
    if (environment.world_size > 1) comm::check_network();
  } catch (const Error& error) {
    comm::report_start_failure(environment, error);
    throw;
  }
  if (backend == "nccl" && !comm::has_nccl()) {
    if (environment.local_rank == 0)
      std::cerr << "trestle: this libtorch has no NCCL; the ranks use Gloo instead\n";
    backend = "gloo";
  }
  if (environment.world_size > 1)
    return comm::process_world(environment,
                               backend == "nccl" ? comm::GpuBackend::Nccl : comm::GpuBackend::None,
                               options.deadline);
  return comm::thread_world(std::make_shared<comm::ThreadBoard>(1),
                            {.restart = environment.restart,
                             .backend = backend,
                             .started_by = environment.source,
                             .deadline = options.deadline});
}

}  // namespace trestle
