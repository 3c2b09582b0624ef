#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace trestle::sharding {

// The order in which a training forward begins and ends units. The first forward records it, and
// each later one must repeat it. The units are gathered in this order, so that all ranks gather in
// the same one. A backward goes through the ends in the opposite order.
class UnitOrder {
 public:
  // `keep`: the next unit that begins is the same one.
  struct Event {
    std::size_t unit = 0;
    bool begins = true;
    bool trains = true;  // false: inside no_grad
    bool keep = false;
    bool operator==(const Event&) const = default;
  };

  explicit UnitOrder(std::vector<std::string> names) : names_(std::move(names)) {}

  // The order of a model whose layers use these units, known before its first forward.
  void expect(const std::vector<std::size_t>& units);

  // The expected order is the recorded one.
  void take_expected();

  void begin_forward();  // forgets the recording of a forward that threw
  void end_training_forward() { known_ = true; }
  // The next event of this forward. Returns its place. Throws StateError where the first forward
  // had another event.
  std::size_t note(const Event& event);

  bool known() const { return known_; }
  std::size_t size() const { return events_.size(); }
  std::size_t next_place() const { return place_; }
  const Event& operator[](std::size_t place) const { return events_[place]; }
  // The recorded events, or the expected ones while none are recorded.
  const std::vector<Event>& known_or_expected() const { return known_ ? events_ : expected_; }

 private:
  std::vector<std::string> names_;  // of the units, for messages
  std::vector<Event> events_, expected_;
  std::size_t place_ = 0;  // in this forward
  bool known_ = false;
};

}  // namespace trestle::sharding
