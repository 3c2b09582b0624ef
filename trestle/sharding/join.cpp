#include "trestle/sharding/join.h"

#include <algorithm>
#include <memory>

#include "trestle/base/error.h"
#include "trestle/sharding/join/join_protocol.h"
#include "trestle/sharding/sharded_impl.h"

namespace trestle {
namespace {

using sharding::JoinProtocol;

void check_models(const std::vector<Sharded::Impl*>& models) {
  if (models.empty()) throw UsageError("join() without a model");
  for (std::size_t i = 0; i < models.size(); ++i) {
    models[i]->check_can_join();
    if (models[i]->all_ranks().ranks() != models[0]->all_ranks().ranks())
      throw UsageError("join() of models on different ranks");
    for (std::size_t k = 0; k < i; ++k)
      if (models[i] == models[k]) throw UsageError("join() with one model twice");
  }
}

// Ends the join of all models, also where something throws.
class JoinScope {
 public:
  JoinScope(const std::vector<Sharded::Impl*>& models,
            const std::shared_ptr<JoinProtocol>& protocol)
      : models_(models) {
    for (std::size_t i = 0; i < models_.size(); ++i)
      models_[i]->begin_join(protocol, static_cast<int>(i));
  }
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;
  ~JoinScope() {
    for (auto* const model : models_) model->end_join();
  }

 private:
  std::vector<Sharded::Impl*> models_;
};

std::shared_ptr<JoinProtocol> make_protocol(const std::vector<Sharded::Impl*>& models,
                                            const JoinOptions& options) {
  std::size_t plan =
      static_cast<std::size_t>(options.divide) * 2 + static_cast<std::size_t>(options.first_end);
  std::size_t gradients = 0;
  for (const auto* const model : models) {
    plan = plan * 31 + model->join_plan();
    gradients = std::max(gradients, model->engine().stepped().size());
  }
  return std::make_shared<JoinProtocol>(models[0]->all_ranks(), static_cast<std::uint32_t>(plan),
                                        gradients, options);
}

void shadow_active_ranks(const std::vector<Sharded::Impl*>& models, JoinProtocol& protocol) {
  for (auto* const model : models) {
    if (!model->engine().reducer().has_unreduced()) continue;
    throw StateError("the batches of this rank ended inside no_sync()",
                     {.hint = "The last backward of a rank must be outside of no_sync()."});
  }
  protocol.begin_shadowing();
  for (;;) {
    const JoinProtocol::Message message = protocol.exchange({});
    if (message.step == JoinProtocol::Step::Ended) break;
    models.at(static_cast<std::size_t>(message.model))->shadow(message);
    if (message.step == JoinProtocol::Step::Backward && protocol.options().after_backward)
      protocol.options().after_backward();
  }
  for (auto* const model : models) model->broadcast_last_buffers();
}

}  // namespace

void join(const std::vector<Sharded*>& given, const std::function<void()>& batches,
          const JoinOptions& options) {
  std::vector<Sharded::Impl*> models;
  for (Sharded* const model : given) {
    if (model == nullptr) throw UsageError("join() of a null model");
    models.push_back(&model->impl());
  }
  check_models(models);
  const auto protocol = make_protocol(models, options);
  const JoinScope scope(models, protocol);
  try {
    batches();
    shadow_active_ranks(models, *protocol);
  } catch (const std::exception& error) {
    if (!protocol->threw_for_first_end()) models[0]->all_ranks().fail(error.what());
    throw;
  }
}

}  // namespace trestle
