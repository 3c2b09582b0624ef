#include "trestle/comm/control.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/comm/connection.h"

namespace trestle::comm {
namespace {

constexpr std::string_view before_rank = "\n  on rank ";

}  // namespace

void Breaker::break_off(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (connection_) connection_->break_off(reason);
}

void Breaker::retire() {
  const std::lock_guard lock(mutex_);
  connection_ = nullptr;
}

void BreakList::add(std::shared_ptr<Breaker> breaker) {
  const std::lock_guard lock(mutex_);
  std::erase_if(breakers_, [](const auto& held) { return held.expired(); });
  breakers_.push_back(std::move(breaker));
}

void BreakList::break_all(const std::string& reason) const {
  std::vector<std::weak_ptr<Breaker>> breakers;
  {
    const std::lock_guard lock(mutex_);
    breakers = breakers_;
  }
  for (const auto& held : breakers) {
    if (const auto breaker = held.lock()) breaker->break_off(reason);
  }
}

std::optional<std::string> Control::failure_in_own_words() const {
  auto reason = failure();
  return reason ? own_words(std::move(*reason)) : reason;
}

void Control::attach(const Connection& connection) {
  breaks_->add(connection.breaker());
  if (const auto reason = failure_in_own_words()) connection.breaker()->break_off(*reason);
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

std::string statuses(const Control& control, const std::vector<int>& ranks, int but) {
  constexpr std::size_t most = 8;  // a message is read by a person
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
