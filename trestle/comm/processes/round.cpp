#include "trestle/comm/processes/round.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <thread>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/completion.h"
#include "trestle/comm/processes/network.h"
#include "trestle/comm/processes/process_control_plane.h"
#include "trestle/comm/rank_error.h"
#include "trestle/launch/exit_status.h"
#include "trestle/launch/notes.h"

namespace trestle::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr const char *latest_key = "trestle/round", *opened_key = "trestle/rounds";
// How long a process on another machine may leave its counter as it is.
constexpr milliseconds longest_silence{1500};
constexpr milliseconds counter_interval{250};

// Why there will be no world. `restart` is that of the process that refused.
struct Refusal {
  std::string kind, reason;
  int restart = 0;

  std::string to_text() const { return text(kind, "\t", restart, "\t", reason); }
  static Refusal from_text(const std::string& words) {
    const auto parts = split(words, '\t');
    if (parts.size() < 3) return {"rank", words, 0};
    return {parts[0], words.substr(parts[0].size() + parts[1].size() + 2), std::stoi(parts[1])};
  }
  [[noreturn]] void raise() const {
    if (kind == "usage") throw UsageError(reason);
    if (kind == "deadline") throw DeadlineError(reason);
    throw RankError(reason);
  }
};

Round::Card own_card(const launch::RankEnvironment& environment) {
  Round::Card card{own_process_identity(), environment.restart,
                   address_of_host(environment.address, environment.port)};
  card.identity.address = address_in_network(environment.address, environment.port);
  return card;
}

}  // namespace

std::string Round::Card::to_text() const {
  return text(identity.to_text(), "\t", restart, "\t", address_of_rank_zero);
}

Round::Card Round::Card::from_text(const std::string& words) {
  const auto last = words.rfind('\t');
  const auto before = last == std::string::npos ? last : words.rfind('\t', last - 1);
  if (before == std::string::npos) return {};
  return {ProcessIdentity::from_text(words.substr(0, before)), std::stoi(words.substr(before + 1)),
          words.substr(last + 1)};
}

std::string Round::prefix(std::int64_t number) { return text("trestle/", number); }

// The keys that waiting ranks read exist before the round's number is known.
std::int64_t Round::open(c10d::Store& store) {
  const std::int64_t number = store.add(opened_key, 1);
  for (const char* const name : {"/refused", "/world", "/end"})
    store.set(prefix(number) + name, "");
  store.set(latest_key, std::to_string(number));
  return number;
}

std::int64_t Round::latest(c10d::Store& store) {
  return store.check({latest_key}) ? std::stoll(store.get_to_str(latest_key)) : 0;
}

Round::Round(c10::intrusive_ptr<c10d::Store> store, std::int64_t number,
             const launch::RankEnvironment& environment, std::string place)
    : store_(std::move(store)),
      number_(number),
      environment_(environment),
      place_(std::move(place)),
      own_(own_card(environment)) {}

std::string Round::key(const char* name) const { return text(prefix(number_), "/", name); }

std::string Round::key(const char* name, int rank) const { return text(key(name), "/", rank); }

std::string Round::value(const std::string& key) const { return store_->get_to_str(key); }

c10::intrusive_ptr<c10d::Store> Round::part_of_store() const {
  return c10::make_intrusive<c10d::PrefixStore>(prefix(number_), store_);
}

bool Round::is_open() {
  if (const std::string refused = value(key("refused")); !refused.empty()) {
    const Refusal refusal = Refusal::from_text(refused);
    if (refusal.restart >= own_.restart) raise(refused);
    return false;  // it was another start's; rank 0 opens a round for this one
  }
  const std::string world = value(key("world"));
  if (world.empty()) return true;
  const int rank = environment_.rank;
  const auto cards = split(world, '\n');
  if (static_cast<std::size_t>(rank) >= cards.size()) return false;  // an earlier, smaller world
  const Card other = Card::from_text(cards[static_cast<std::size_t>(rank)]);
  const auto part = part_of_store();
  const auto world_ends = [&] {
    return ProcessControlPlane::has_failed(*part) || ProcessControlPlane::has_left(*part, rank);
  };
  if (world_ends()) return false;
  if (is_alive(other, "beat")) {
    if (world_ends()) return false;
    refuse_second_process(other);
  }
  ProcessControlPlane::report_end(*part, rank, describe_end(rank, other.identity));
  return false;
}

// Whether another process with this rank number runs. A restarted rank may start a moment before
// its predecessor has ended.
bool Round::is_alive(const Card& other, const char* counter) {
  const bool is_here = other.identity.machine == own_.identity.machine;
  const std::string first = is_here ? "" : value(key(counter, environment_.rank));
  const auto end =
      steady_clock::now() + (is_here && own_.restart == 0 ? milliseconds(0) : longest_silence);
  for (;;) {
    if (is_here && has_ended(other.identity)) return false;
    if (!is_here && value(key(counter, environment_.rank)) != first) return true;
    if (steady_clock::now() >= end) return is_here;
    std::this_thread::sleep_for(milliseconds(50));
  }
}

void Round::refuse_second_process(const Card& first) {
  const ProcessIdentity &one = first.identity, &other = own_.identity;
  const UsageError error(
      text("two processes have the rank number ", environment_.rank, ": ", describe_process(one),
           " and ", describe_process(other)),
      {.hint = environment_.local_size < environment_.world_size ? number_of_machine_hint : ""});
  refuse("usage", error.what());
}

// Fails the other ranks too, unless their world exists already: a latecomer must not end a run.
void Round::refuse(const char* kind, const std::string& reason) {
  const Refusal refusal{kind, reason, own_.restart};
  if (value(key("world")).empty()) store_->compareSet(key("refused"), "", refusal.to_text());
  raise(refusal.to_text());
}

void Round::raise(const std::string& refusal) {
  note_told();
  Refusal::from_text(refusal).raise();
}

// The launcher of rank 0's machine tells the ranks that come late, unless settle() notes that it
// need not.
void Round::note_told() {
  store_->set(key("told", environment_.rank), "");
  if (environment_.rank >= environment_.local_size) launch::note_settled();
}

bool Round::wait_until_told(int first, milliseconds most) {
  const auto end = steady_clock::now() + most;
  for (int rank = first; rank < environment_.world_size; ++rank)
    while (!store_->check({key("told", rank)})) {
      if (steady_clock::now() >= end) return false;
      std::this_thread::sleep_for(milliseconds(10));
    }
  return true;
}

void Round::settle(int first, milliseconds most) {
  if (wait_until_told(first, most) || most >= time_for_latecomers) launch::note_settled();
}

// Another machine's launcher has ended for good, so this machine's must not restart its ranks.
void Round::raise_end(const std::string& reason) {
  launch::note_end(reason);
  store_->set(key("told", environment_.rank), "");
  throw RankError(text("rank ", environment_.rank, " waited at ", place_,
                       " for the other ranks, of which some will not come: ", reason));
}

bool Round::refuse_start(const Error& error) {
  if (!value(key("world")).empty()) return false;
  const Refusal refusal{dynamic_cast<const UsageError*>(&error) ? "usage" : "rank",
                        text("rank ", environment_.rank, " on ", describe_host(own_.identity),
                             " cannot start: ", error.what()),
                        own_.restart};
  store_->compareSet(key("refused"), "", refusal.to_text());
  note_told();
  return true;
}

void Round::agree_on_size() {
  const std::string mine = text(environment_.world_size, "\t", environment_.rank);
  const auto first = split(store_->compareSet(key("size"), "", mine), '\t');
  if (first.size() == 2 && first[0] != std::to_string(environment_.world_size))
    refuse("usage",
           text("rank ", environment_.rank, " was started with world size ",
                environment_.world_size, ", and rank ", first[1], " with world size ", first[0]));
}

void Round::publish_card() {
  const std::string place = key("card", environment_.rank), mine = own_.to_text();
  store_->set(key("waits", environment_.rank), "0");
  for (std::string known;;) {
    const std::string found = store_->compareSet(place, known, mine);
    if (found == mine) break;
    if (found != known && is_alive(Card::from_text(found), "waits"))
      refuse_second_process(Card::from_text(found));
    known = found;
  }
  ProcessControlPlane::prepare(*part_of_store(), environment_.rank);
  store_->set(key("here", environment_.rank), mine);
}

std::optional<std::vector<Round::Card>> Round::meet(Time end, milliseconds deadline,
                                                    WaitNotice& notice) {
  agree_on_size();
  publish_card();
  for (int r = 0; r < environment_.world_size; ++r) missing_.push_back(r);
  const auto begin = steady_clock::now();
  Time counted_at = begin;
  for (std::int64_t count = 1;;) {
    const auto found = store_->multiGet({latest_key, key("refused"), key("world"), key("end")});
    const auto words = [&](std::size_t at) {
      return std::string(found[at].begin(), found[at].end());
    };
    if (!found[1].empty()) raise(words(1));
    if (!found[3].empty()) raise_end(words(3));
    if (!found[2].empty()) return read_world(words(2));
    if (std::stoll(words(0)) > number_) {
      if (environment_.rank != 0) return {};
      throw UsageError(text("rank 0 (", describe_process(own_.identity),
                            ") was replaced: another process has this rank number"),
                       {.hint = number_of_machine_hint});
    }
    if (environment_.rank == 0) declare_world();
    const auto now = steady_clock::now();
    if (now >= end) {
      std::vector<int> late = missing();
      if (late.empty()) late.push_back(0);
      refuse("deadline", text(launch::describe_ranks(late), " of ", environment_.world_size,
                              late.size() == 1 ? " has" : " have", " not arrived at ", place_,
                              " within ", seconds_text(deadline)));
    }
    notice.waits([&] {
      const auto& late = missing();
      return text(late.empty() ? "rank 0" : describe_missing(late, environment_), " at ", place_);
    });
    if (now - counted_at >= counter_interval) {
      store_->set(key("waits", environment_.rank), std::to_string(++count));
      counted_at = now;
    }
    std::this_thread::sleep_for(milliseconds(now - begin < milliseconds(1000) ? 5 : 20));
  }
}

const std::vector<int>& Round::missing() {
  std::erase_if(missing_, [&](int rank) { return store_->check({key("here", rank)}); });
  return missing_;
}

// A process that has ended since it arrived is replaced if its launcher restarts it.
void Round::declare_world() {
  if (!missing().empty()) return;
  std::vector<std::string> cards;
  for (int r = 0; r < environment_.world_size; ++r) {
    cards.push_back(value(key("here", r)));
    const ProcessIdentity identity = Card::from_text(cards.back()).identity;
    if (identity.machine != own_.identity.machine || !has_ended(identity)) continue;
    if (environment_.max_restarts > 0) return;
    refuse("rank", text("rank ", r, " (", describe_process(identity),
                        ") ended before all ranks had arrived"));
  }
  store_->compareSet(key("world"), "", join(cards, "\n"));
}

// "end" is set before "world" is read: a rank that reads the world later reads both.
bool Round::take(const launch::NewsForMachines& news) {
  const auto part = part_of_store();
  const bool is_in_time = !ProcessControlPlane::has_failed(*part);
  if (news.is_end) store_->compareSet(key("end"), "", news.reason);
  const std::string world = value(key("world"));
  if (world.empty() || news.rank < 0) return is_in_time;
  const auto cards = split(world, '\n');
  const auto rank = static_cast<std::size_t>(news.rank);
  if (rank >= cards.size()) return is_in_time;
  // The launcher's child may be a shell whose child is the rank.
  const ProcessIdentity identity = Card::from_text(cards[rank]).identity;
  if (identity.machine == own_.identity.machine &&
      (identity.pid == news.process || has_ended(identity)))
    ProcessControlPlane::report_end(
        *part, news.rank,
        text("rank ", news.rank, " (", describe_process(identity), ") ", news.how));
  return is_in_time;
}

// Another process may have replaced this one, or this one its predecessor, too late.
std::optional<std::vector<Round::Card>> Round::read_world(const std::string& world) {
  std::vector<Card> cards;
  for (const std::string& line : split(world, '\n')) cards.push_back(Card::from_text(line));
  const Card& card = cards.at(static_cast<std::size_t>(environment_.rank));
  if (card.identity.nonce == own_.identity.nonce) return cards;
  is_open();
  return {};
}

}  // namespace trestle::comm
