#pragma once

#include <exception>
#include <filesystem>
#include <thread>

#include "trestle/comm/group.h"
#include "trestle/mesh/device_mesh.h"
#include "trestle/sharding/save/save.h"

namespace trestle {

// save() in the background: copies what this rank writes to CPU memory and returns. A thread writes
// the copies, which take the memory of this rank's shards once more until they are written.
//
//   trestle::BackgroundSave saving(mesh, sharded);
//   while (state.step < 1000) {
//     train(state.step++);
//     if (state.step % 100 == 0) saving.save("last", sharded, *optimizer, state);
//   }
//   saving.wait();
//
// A save waits for the one before. The next save() or wait() throws an error of the thread, on all
// ranks, as trestle::save() does; the previous checkpoint is then whole. All ranks make it and make
// the same calls.
class BackgroundSave {
 public:
  // `mesh`: the sharded model's.
  BackgroundSave(const DeviceMesh& mesh, const Sharded& sharded);
  ~BackgroundSave();  // waits for the thread and ignores its error: call wait() before to get it
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  void save(const std::filesystem::path& folder, const Sharded& sharded,
            const torch::optim::Optimizer& optimizer, const checkpoint::TrainState& state = {},
            const SaveOptions& options = {});
  void wait();

 private:
  comm::Group group_;  // the model's ranks, for the thread alone
  std::thread writer_;
  std::exception_ptr error_;
};

}  // namespace trestle
