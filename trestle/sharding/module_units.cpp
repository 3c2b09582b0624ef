// The units of a torch module: what is Hooked in it, and the rest.
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <map>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/sharding/hooked.h"
#include "trestle/sharding/sharded_impl.h"
#include "trestle/sharding/unit_choice.h"

namespace trestle {
namespace sharding {

void detail::copy_module(const torch::nn::Module& from, torch::nn::Module& to,
                         const std::optional<at::Device>& device) {
  const at::NoGradGuard no_grad;
  const auto copy = [&](const auto& tensors, auto copies) {
    if (tensors.size() != copies.size())
      throw UsageError(text("a copy of ", from.name(), " has not the same parameters and buffers"),
                       {.hint = "Register them in reset(), as torch::nn::Cloneable asks for."});
    for (const auto& item : tensors) {
      at::Tensor& own = copies[item.key()];
      own.set_data(device ? item.value().to(*device, item.value().scalar_type(), false, true)
                          : item.value().clone());
      own.set_requires_grad(item.value().requires_grad());
    }
  };
  copy(from.named_parameters(), to.named_parameters());
  copy(from.named_buffers(), to.named_buffers());
  const auto modules = from.modules();
  const auto copies = to.modules();
  for (std::size_t i = 0; i < copies.size() && i < modules.size(); ++i)
    if (modules[i]->is_training() != copies[i]->is_training())
      copies[i]->train(modules[i]->is_training());
}

namespace {

class ModuleUnit final : public UnitHook {
 public:
  ModuleUnit(std::weak_ptr<ParameterUnsharder> unsharder, std::size_t unit, std::string name)
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
          text("forward of the unit '", name_, "' returns no tensor that can be found"),
          {.hint = "Return tensors, or tuples, pairs, vectors, maps and optionals of them: the "
                   "backward is followed by them."});
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

// Which modules are units, and which units use each parameter. Number 0 is the rest.
class UnitFinder {
 public:
  explicit UnitFinder(const ShardOptions& options) : choice_(options.units), least_(options.unit) {}

  void find(torch::nn::Module& model) {
    visit(model, "", 0);
    choice_.check();
  }

  struct Found {
    std::string name;
    HookedModule* module;
  };
  std::vector<Found> units = {{"the rest of the model", nullptr}};
  std::map<const void*, std::set<std::size_t>> users;

 private:
  bool is_chosen(torch::nn::Module& module, const std::string& name) {
    const bool wanted = choice_.match(name, module).has_value();
    if (!choice_.empty()) return wanted;
    Bytes bytes = 0;
    for (const at::Tensor& parameter : module.parameters())
      bytes += static_cast<Bytes>(parameter.nbytes());
    return bytes > 0 && bytes >= least_;
  }

  std::size_t number_of(torch::nn::Module& module, const std::string& name, std::size_t around) {
    auto* const hooked = dynamic_cast<HookedModule*>(&module);
    if (hooked == nullptr || name.empty() || !is_chosen(module, name)) return around;
    for (std::size_t known = 1; known < units.size(); ++known)
      if (units[known].module == hooked) return known;
    if (hooked->unit_hook())
      throw UsageError(text("module '", name, "' is a unit of another Sharded already"),
                       {.hint = "One Sharded a model at a time."});
    units.push_back({name, hooked});
    return units.size() - 1;
  }

  void visit(torch::nn::Module& module, const std::string& name, std::size_t around) {
    const std::size_t unit = number_of(module, name, around);
    if (!seen_.insert({&module, unit}).second) return;  // registered twice
    for (const at::Tensor& parameter : module.parameters(/*recurse=*/false))
      users[parameter.unsafeGetTensorImpl()].insert(unit);
    for (const auto& child : module.named_children())
      visit(*child.value(), name.empty() ? child.key() : name + "." + child.key(), unit);
  }

  UnitChoice choice_;
  Bytes least_;
  std::set<std::pair<const void*, std::size_t>> seen_;
};

}  // namespace
}  // namespace sharding

void Sharded::Impl::make_module_units() {
  sharding::UnitFinder found(options);
  found.find(*module_);
  start_from_rank_0(parameters_);
  if (found.units.size() == 1) {
    make_unit("the model", parameters_);
    return;
  }
  std::vector<NamedTensors> members(found.units.size()), shared(found.units.size());
  for (const auto& member : parameters_) {
    const auto& users = found.users.at(member.second.unsafeGetTensorImpl());
    (users.size() > 1 ? shared : members)[*users.begin()].push_back(member);
  }
  // A shared one's gradient is complete where the first of its users has been: groups are reduced in the opposite order.
  std::vector<std::pair<std::size_t, std::set<std::size_t>>> users_of_groups;
  for (std::size_t unit = 0; unit < members.size(); ++unit) {
    make_unit(found.units[unit].name, members[unit]);
    for (const auto& one : shared[unit])
      users_of_groups.emplace_back(make_shared_group(one),
                                   found.users.at(one.second.unsafeGetTensorImpl()));
  }
  units_[0].stays = true;
  for (const auto& [group, users] : users_of_groups)
    for (const std::size_t unit : users) units_[unit].groups.push_back(group);
  for (const auto& unit : found.units) hooked_.push_back(unit.module);
}

void Sharded::Impl::hook_modules() {
  for (std::size_t unit = 0; unit < hooked_.size(); ++unit) {
    if (hooked_[unit] == nullptr) continue;
    unit_hooks_.push_back(
        std::make_shared<sharding::ModuleUnit>(unsharder_, unit, units_[unit].name));
    hooked_[unit]->set_unit_hook(unit_hooks_.back());
  }
}

}  // namespace trestle
