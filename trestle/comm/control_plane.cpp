#include "trestle/comm/control_plane.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/comm/completion.h"
#include "trestle/comm/connection.h"

namespace trestle::comm {
namespace {

constexpr std::string_view before_rank = "\n  on rank ";

}  // namespace

std::optional<std::string> ControlPlane::failure_with_stall_note() const {
  auto reason = failure();
  return reason ? with_stall_note(std::move(*reason)) : reason;
}

void ControlPlane::attach(const Connection& connection) {
  abort_list_->add(connection.aborter());
  if (const auto reason = failure_with_stall_note()) connection.aborter()->abort(*reason);
}

std::string reason_of_rank(const std::string& reason, int rank) {
  return text(reason, before_rank, rank);
}

std::optional<int> rank_of_reason(const std::string& reason) {
  const auto at = reason.rfind(before_rank);
  if (at == std::string::npos) return std::nullopt;
  const char* const end = reason.data() + reason.size();
  int rank = 0;
  const auto [last, error] = std::from_chars(reason.data() + at + before_rank.size(), end, rank);
  if (error != std::errc() || last != end) return std::nullopt;
  return rank;
}

std::string describe_status(const std::string& status, std::chrono::milliseconds age) {
  return status.empty() ? "has not reported what it does"
                        : text("last reported '", status, "' ", seconds_text(age), " ago");
}

std::string statuses(const ControlPlane& control, const std::vector<int>& ranks, int but) {
  constexpr std::size_t most = 8;  // keeps the message readable
  std::vector<std::string> parts;
  for (const int rank : ranks) {
    if (rank == but) continue;
    if (parts.size() == most) {
      parts.push_back("...");
      break;
    }
    parts.push_back(text("rank ", rank, ": ", control.status_of(rank)));
  }
  return join(parts, "; ");
}

}  // namespace trestle::comm
