#include "trestle/comm/group.h"

#include "trestle/base/error.h"
#include "trestle/comm/group_impl.h"
#include "trestle/comm/request.h"

namespace trestle::comm {
namespace {

const Group::Impl& checked(const std::shared_ptr<Group::Impl>& impl) {
  if (impl) return *impl;
  throw UsageError(
      "this rank is not in the group",
      {.hint = "make_group() returns a group that is not valid() on ranks outside it."});
}

// A collective counts as an in-place write: autograd then raises an error if a backward needs the
// overwritten values.
void note_write(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

int Group::rank() const { return checked(impl_).place().rank; }
int Group::size() const { return checked(impl_).size(); }
const std::vector<int>& Group::ranks() const { return checked(impl_).place().ranks; }
void Group::fail(const std::string& reason) const {
  const auto& place = checked(impl_).place();
  place.control->fail(reason_of_rank(reason, place.ranks.at(static_cast<std::size_t>(place.rank))));
}
void Group::report_status(std::string status) const {
  checked(impl_).place().control->report_status(std::move(status));
}
// The rank may itself wait for a rank without a heartbeat; that rank is named too.
std::string Group::status_of(int rank) const {
  const auto& place = checked(impl_).place();
  const int asked = place.ranks.at(static_cast<std::size_t>(rank));
  return place.control->status_of(asked) + place.control->silent_ranks({asked});
}
std::chrono::milliseconds Group::deadline() const { return checked(impl_).place().deadline; }

Group Group::with_check(Check check) const {
  return Group(std::make_shared<Impl>(checked(impl_).shared_connection(), check));
}

Work Group::broadcast(at::Tensor tensor, int from) const {
  const Impl& impl = checked(impl_);
  Request request = broadcast_request(tensor, from, impl.size());
  if (impl.place().rank != from) note_write(tensor);
  return impl.connection().collective(std::move(request), impl.check());
}

Work Group::all_reduce(at::Tensor tensor, Reduce op) const {
  const Impl& impl = checked(impl_);
  Request request = all_reduce_request(tensor, op);
  note_write(tensor);
  return impl.connection().collective(std::move(request), impl.check());
}

Work Group::reduce_scatter(at::Tensor output, at::Tensor input, Reduce op) const {
  const Impl& impl = checked(impl_);
  Request request = reduce_scatter_request(output, input, op, impl.size());
  note_write(output);
  return impl.connection().collective(std::move(request), impl.check());
}

Work Group::all_gather(at::Tensor output, at::Tensor input) const {
  const Impl& impl = checked(impl_);
  Request request = all_gather_request(output, input, impl.size());
  note_write(output);
  return impl.connection().collective(std::move(request), impl.check());
}

Work Group::all_to_all(at::Tensor output, at::Tensor input, std::vector<std::int64_t> output_rows,
                       std::vector<std::int64_t> input_rows) const {
  const Impl& impl = checked(impl_);
  Request request =
      all_to_all_request(output, input, std::move(output_rows), std::move(input_rows), impl.size());
  note_write(output);
  return impl.connection().collective(std::move(request), impl.check());
}

void Group::barrier() const {
  const Impl& impl = checked(impl_);
  impl.connection().collective(barrier_request(), impl.check()).wait();
}

Work Group::send(at::Tensor tensor, int to, int tag) const {
  const Impl& impl = checked(impl_);
  return impl.connection().message(
      message_request(Kind::Send, tensor, to, tag, impl.place().rank, impl.size()), impl.check());
}

Work Group::receive(at::Tensor tensor, int from, int tag) const {
  const Impl& impl = checked(impl_);
  Request request =
      message_request(Kind::Receive, tensor, from, tag, impl.place().rank, impl.size());
  note_write(tensor);
  return impl.connection().message(std::move(request), impl.check());
}

}  // namespace trestle::comm
