#include "trestle/recompute/hook_engine.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <mutex>
#include <utility>
#include <vector>

#include "trestle/device/keyed_generator.h"
#include "trestle/device/torch_versions.h"
#include "trestle/recompute/install.h"

namespace trestle::recompute {
namespace {

using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::GraphTask;
using torch::autograd::variable_list;

// The innermost is last. Null: a backward, whose saved tensors no keeper stores.
thread_local std::vector<TensorKeeper*> keepers;

// A backward with create_graph saves tensors too. In the first run of a checkpointed function the
// threads of devices save them, which have no keeper; in its recomputation the same thread may. No
// keeper stores any of them, so that both runs save the same tensors in the same order.
class BackwardScope {
 public:
  BackwardScope() { keepers.push_back(nullptr); }
  ~BackwardScope() { keepers.pop_back(); }
  BackwardScope(const BackwardScope&) = delete;
  BackwardScope& operator=(const BackwardScope&) = delete;
};

#if TORCH_VERSION_MINOR >= 13
using NodePointer = c10::intrusive_ptr<torch::autograd::Node>;
#else
using NodePointer = std::shared_ptr<torch::autograd::Node>;
#endif

// Saved tensors get their hooks from the default engine; without Python there is no other way to
// set them. The device threads and the pool for nested backwards belong to the previous engine, so
// this one forwards all work to it.
class HookEngine final : public Engine {
 public:
  explicit HookEngine(Engine& engine) : engine_(engine) {}

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return keepers.empty() || keepers.back() == nullptr ? engine_.get_default_saved_variable_hooks()
                                                        : keepers.back()->hooks();
  }
  variable_list execute(const edge_list& roots, const variable_list& inputs, bool keep_graph,
                        bool create_graph, bool accumulate_grad,
                        const edge_list& outputs) override {
    for (TensorKeeper* keeper : keepers)
      if (keeper != nullptr) keeper->record_backward();
    const BackwardScope in_backward;
    return engine_.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<GraphTask>& task, NodePointer root,
      torch::autograd::InputBuffer&& inputs) override {
    return engine_.execute_with_graph_task(task, std::move(root), std::move(inputs));
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return engine_.make_anomaly_metadata();
  }

 private:
  Engine& engine_;
};

// Never freed: threads may be in a backward until the process ends.
HookEngine* installed = nullptr;

Engine& installed_engine() { return *installed; }

}  // namespace

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    prepare_keyed_random();
    installed = new HookEngine(Engine::get_default_engine());
    torch::autograd::set_default_engine_stub(&installed_engine);
  });
}

KeeperScope::KeeperScope(TensorKeeper& keeper) { keepers.push_back(&keeper); }
KeeperScope::~KeeperScope() { keepers.pop_back(); }

}  // namespace trestle::recompute
