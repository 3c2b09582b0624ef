#include "trestle/comm/world.h"

#include <algorithm>
#include <set>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"
#include "trestle/comm/group_impl.h"
#include "trestle/comm/world_impl.h"

namespace trestle {

void World::Impl::fail_if_unwinding() {
  if (std::uncaught_exceptions() > exceptions_)
    control_->fail(text("rank ", facts_.rank, " ended with an exception"));
}

std::optional<comm::Connection::Place> World::Impl::place_in(const std::vector<int>& ranks) const {
  const auto found = std::find(ranks.begin(), ranks.end(), facts_.rank);
  if (found == ranks.end()) return {};
  return comm::Connection::Place{static_cast<int>(found - ranks.begin()), ranks, facts_.deadline,
                                 control_};
}

void World::Impl::connect_all() {
  std::vector<int> ranks;
  for (int r = 0; r < facts_.size; ++r) ranks.push_back(r);
  group_ = make_group(ranks);
}

comm::Group World::Impl::make_group(const std::vector<int>& ranks) {
  if (ranks.empty()) throw UsageError("a group needs at least one rank");
  for (const int rank : ranks) {
    if (rank < 0 || rank >= facts_.size)
      throw UsageError(text("the group of ranks [", join(ranks, ", "),
                            "] is invalid: the world's ranks are 0 to ", facts_.size - 1));
  }
  if (std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size())
    throw UsageError(text("the group of ranks [", join(ranks, ", "), "] contains a rank twice"));
  int number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = groups_++;
  }
  const auto connection = connect(number, ranks);
  if (!connection) return {};
  control_->attach(*connection);
  return comm::Group(std::make_shared<comm::Group::Impl>(connection, comm::Check::On));
}

int World::rank() const { return impl_->facts().rank; }
int World::size() const { return impl_->facts().size; }
int World::local_rank() const { return impl_->facts().local_rank; }
int World::local_size() const { return impl_->facts().local_size; }
bool World::is_on_this_machine(int rank) const {
  const auto& facts = impl_->facts();
  return facts.machines.empty() ||
         facts.machines.at(static_cast<std::size_t>(rank)) == facts.machine;
}
int World::restart() const { return impl_->facts().restart; }
const std::string& World::backend() const { return impl_->facts().backend; }
const std::string& World::started_by() const { return impl_->facts().started_by; }
const comm::Group& World::group() const { return impl_->group(); }

comm::Group World::make_group(const std::vector<int>& ranks) const {
  return impl_->make_group(ranks);
}

void World::own_devices(const std::vector<Device>& devices) const {
  std::vector<std::string> own;
  for (const Device& device : devices)
    if (!device.torch.is_cpu())
      own.push_back(impl_->facts().machine + "\n" + device_name(device.torch));
  const auto clash = comm::find_clash(group(), own);
  if (!clash) return;
  throw UsageError(text("ranks ", clash->first, " and ", clash->second, " both use ",
                        clash->value.substr(clash->value.find('\n') + 1)),
                   {.hint = "Give each rank its own devices: ranks that share one would wait for "
                            "each other in its backward thread."});
}

void World::report_status(std::string status) const {
  impl_->control()->report_status(std::move(status));
}

std::string World::status_of(int rank) const {
  if (rank < 0 || rank >= size())
    throw UsageError(text("there is no rank ", rank, ": the world's ranks are 0 to ", size() - 1));
  return impl_->control()->status_of(rank);
}

void World::fail(const std::string& reason) const {
  impl_->control()->fail(comm::reason_of_rank(reason, rank()));
}

std::optional<std::string> World::failure() const { return impl_->control()->failure(); }

std::optional<int> World::failed_rank() const {
  const auto reason = failure();
  return reason ? comm::rank_of_reason(*reason) : std::nullopt;
}

}  // namespace trestle
