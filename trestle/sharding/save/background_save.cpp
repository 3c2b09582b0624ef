#include "trestle/sharding/save/background_save.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "trestle/sharding/save/prepared_save.h"

namespace trestle {
namespace {

comm::Group background_group(const DeviceMesh& mesh, const Sharded& sharded) {
  std::vector<std::string> names;
  for (const auto& dimension : mesh.layout().dimensions())
    if (dimension.name == sharded.options().mesh.replicate ||
        dimension.name == sharded.options().mesh.shard)
      names.push_back(dimension.name);
  return mesh.flatten(names, "background_save").group("background_save");
}

}  // namespace

BackgroundSave::BackgroundSave(const DeviceMesh& mesh, const Sharded& sharded)
    : group_(background_group(mesh, sharded)) {}

BackgroundSave::~BackgroundSave() {
  if (writer_.joinable()) writer_.join();
}

void BackgroundSave::wait() {
  if (writer_.joinable()) writer_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void BackgroundSave::save(const std::filesystem::path& folder, const Sharded& sharded,
                          const torch::optim::Optimizer& optimizer,
                          const checkpoint::TrainState& state, const SaveOptions& options) {
  wait();
  auto prepared = sharding::prepare_save(sharded, &optimizer, state, options);
  const at::NoGradGuard no_grad;
  for (auto& [group, parts] : prepared.groups)
    for (auto& part : parts)
      part.tensor = part.tensor.detach().to(at::kCPU, part.tensor.scalar_type(),
                                            /*non_blocking=*/false, /*copy=*/true);
  writer_ = std::thread([this, folder, prepared = std::move(prepared)] {
    try {
      sharding::write_save(folder, prepared, group_);
    } catch (...) {
      error_ = std::current_exception();
    }
  });
}

}  // namespace trestle
