#include "trestle/cli/text_ranks.h"

#include <cstdint>
#include <tuple>
#include <utility>

#include "trestle/comm/gather.h"
#include "trestle/comm/purpose.h"

namespace trestle::cli {

namespace {

enum class Next { Write, WaitForUser, Wait, End };

// The next work of the other ranks, and for Write the ids and the number of each text.
using Message = std::tuple<Next, std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>>>;

Message send(const comm::Group& group, const Message& message) {
  if (!group.valid()) return message;
  return comm::with_purpose([] { return "while the ranks waited for the next prompts"; },
                            [&] { return comm::broadcast_value(group, message, 0); });
}

}  // namespace

void TextRanks::begin(const std::vector<generate::Prompt>& prompts) const {
  Message message{Next::Write, {}};
  for (const generate::Prompt& one : prompts)
    std::get<1>(message).emplace_back(one.ids, one.text_number);
  send(group_, message);
}

void TextRanks::wait_for_user() const { send(group_, {Next::WaitForUser, {}}); }

void TextRanks::wait() const { send(group_, {Next::Wait, {}}); }

void TextRanks::end() const { send(group_, {Next::End, {}}); }

void TextRanks::follow(const std::function<void(const std::vector<generate::Prompt>&)>& write,
                       const std::function<void()>& wait) const {
  while (true) {
    const auto [next, texts] = send(group_, {Next::End, {}});
    if (next == Next::End) return;
    if (next == Next::WaitForUser) wait();
    if (next != Next::Write) continue;
    std::vector<generate::Prompt> prompts;
    for (const auto& [ids, number] : texts) prompts.push_back({ids, number});
    write(prompts);
  }
}

}  // namespace trestle::cli
