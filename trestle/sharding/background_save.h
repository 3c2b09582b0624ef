#pragma once

#include <exception>
#include <filesystem>
#include <thread>

#include "trestle/comm/group.h"
#include "trestle/mesh/device_mesh.h"
#include "trestle/sharding/save.h"

namespace trestle {

// save() while the training goes on: it copies what this rank writes into the CPU's memory and returns, and a thread writes
// the copies. They need the memory of this rank's parts once more until they are written.
//
//   trestle::BackgroundSave saving(mesh, sharded);
//   while (state.step < 1000) {
//     train(state.step++);
//     if (state.step % 100 == 0) saving.save("last", sharded, *optimizer, state);
//   }
//   saving.wait();
//
// One save at a time: the next one waits for the one before. What went wrong in it is thrown by the next save() or wait(), on
// all ranks, as trestle::save() does; the checkpoint before is whole then. All ranks make it and call the same.
class BackgroundSave {
 public:
  // `mesh`: the sharded model's.
  BackgroundSave(const DeviceMesh& mesh, const Sharded& sharded);
  ~BackgroundSave();  // waits for what is written; who wants to know of errors calls wait() before
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  void save(const std::filesystem::path& folder, const Sharded& sharded,
            const torch::optim::Optimizer& optimizer, const checkpoint::TrainState& state = {},
            const SaveOptions& options = {});
  void wait();

 private:
  comm::Group group_;  // the model's ranks; the thread's alone
  std::thread writer_;
  std::exception_ptr error_;
};

}  // namespace trestle
