#include "trestle/sharding/engine/module_units.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/sharding/engine/shard_engine.h"
#include "trestle/sharding/unshard/unit_choice.h"

namespace trestle::sharding {
namespace {

class ModuleUnitHook final : public UnitHook {
 public:
  ModuleUnitHook(std::weak_ptr<ParameterUnsharder> unsharder, std::size_t unit, std::string name)
      : unsharder_(std::move(unsharder)), unit_(unit), name_(std::move(name)) {}

  std::shared_ptr<void> begin(const Tensors& inputs) override {
    const auto unsharder = unsharder_.lock();
    if (!unsharder) return nullptr;
    std::vector<at::Tensor> given;
    inputs([&](at::Tensor& input) { given.push_back(input); });
    auto call = unsharder->begin(unit_, given);
    std::size_t next = 0;
    inputs([&](at::Tensor& input) { input = given[next++]; });
    return call;
  }

  void end(const std::shared_ptr<void>& call, const Tensors& outputs) override {
    const auto unsharder = unsharder_.lock();
    if (!unsharder || !call) return;
    std::vector<at::Tensor> made;
    outputs([&](at::Tensor& output) { made.push_back(output); });
    if (made.empty() && at::GradMode::is_enabled()) {
      throw UsageError(
          text("forward of the unit '", name_, "' returns no tensor that Sharded can find"),
          {.hint =
               "Return tensors, or tuples, pairs, vectors, maps and optionals of them: hooks on "
               "them follow the backward."});
    }
    unsharder->end(std::static_pointer_cast<ParameterUnsharder::Call>(call), made);
    std::size_t next = 0;
    outputs([&](at::Tensor& output) { output = made[next++]; });
  }

 private:
  std::weak_ptr<ParameterUnsharder> unsharder_;
  std::size_t unit_;
  std::string name_;
};

// Finds which modules are units, and which units use each parameter. Unit 0 is the rest of the
// model.
class UnitFinder {
 public:
  explicit UnitFinder(const ShardOptions& options)
      : choice_(options.units.names), least_bytes_(options.units.bytes) {}

  void find(torch::nn::Module& model) {
    visit_module(model, "", 0);
    choice_.check();
  }

  struct Found {
    std::string name;
    HookedModule* module;
  };
  std::vector<Found> units = {{"the rest of the model", nullptr}};
  std::map<const void*, std::set<std::size_t>> users;  // by parameter

 private:
  bool is_chosen(torch::nn::Module& module, const std::string& name) {
    const bool wanted = choice_.match(name, module).has_value();
    if (!choice_.empty()) return wanted;
    Bytes bytes = 0;
    for (const at::Tensor& parameter : module.parameters())
      bytes += static_cast<Bytes>(parameter.nbytes());
    return bytes > 0 && bytes >= least_bytes_;
  }

  // The module's unit, if it is one; otherwise the unit around it.
  std::size_t unit_of(torch::nn::Module& module, const std::string& name, std::size_t around) {
    auto* const hooked = dynamic_cast<HookedModule*>(&module);
    if (hooked == nullptr || name.empty() || !is_chosen(module, name)) return around;
    for (std::size_t known = 1; known < units.size(); ++known)
      if (units[known].module == hooked) return known;
    if (hooked->unit_hook())
      throw UsageError(text("module '", name, "' is a unit of another Sharded already"),
                       {.hint = "A model can have one Sharded at a time."});
    units.push_back({name, hooked});
    return units.size() - 1;
  }

  void visit_module(torch::nn::Module& module, const std::string& name, std::size_t around) {
    const std::size_t unit = unit_of(module, name, around);
    if (!seen_.insert({&module, unit}).second) return;  // registered twice
    for (const at::Tensor& parameter : module.parameters(/*recurse=*/false))
      users[parameter.unsafeGetTensorImpl()].insert(unit);
    for (const auto& child : module.named_children())
      visit_module(*child.value(), name.empty() ? child.key() : name + "." + child.key(), unit);
  }

  UnitChoice choice_;
  Bytes least_bytes_;
  std::set<std::pair<const void*, std::size_t>> seen_;
};

}  // namespace

ModuleUnits::ModuleUnits(torch::nn::Module& model, const NamedTensors& parameters,
                         const NamedTensors& buffers, ShardEngine& engine)
    : engine_(engine) {
  UnitFinder found(engine.options());
  found.find(model);
  engine.start_from_rank_0(parameters, buffers);
  GroupBuilder& builder = engine.builder();
  if (found.units.size() == 1) {
    builder.add_unit("the model", parameters);
    return;
  }
  std::vector<NamedTensors> members(found.units.size()), shared(found.units.size());
  for (const auto& member : parameters) {
    const auto& users = found.users.at(member.second.unsafeGetTensorImpl());
    (users.size() > 1 ? shared : members)[*users.begin()].push_back(member);
  }
  // A shared parameter's gradient is complete after the backward of its first user. Groups are
  // reduced in the opposite order, so its group belongs beside that of the first user.
  std::vector<std::pair<std::size_t, std::set<std::size_t>>> users_of_groups;
  for (std::size_t unit = 0; unit < members.size(); ++unit) {
    builder.add_unit(found.units[unit].name, members[unit]);
    for (const auto& one : shared[unit])
      users_of_groups.emplace_back(builder.add_shared_group(one),
                                   found.users.at(one.second.unsafeGetTensorImpl()));
  }
  builder.units()[0].stays = true;
  for (const auto& [group, users] : users_of_groups)
    for (const std::size_t unit : users) builder.units()[unit].groups.push_back(group);
  for (const auto& unit : found.units) hooked_.push_back(unit.module);
}

void ModuleUnits::attach_hooks() {
  for (std::size_t unit = 0; unit < hooked_.size(); ++unit) {
    if (hooked_[unit] == nullptr) continue;
    hooks_.push_back(
        std::make_shared<ModuleUnitHook>(engine_.unsharder(), unit, engine_.units()[unit].name));
    hooked_[unit]->set_unit_hook(hooks_.back());
  }
}

}  // namespace trestle::sharding
