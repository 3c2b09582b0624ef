#include "trestle/tokens/chat_template.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/tokens/tokenizers/added_tokens.h"
#include "trestle/tokens/tokenizers/code_points.h"
#include "trestle/tokens/tokenizers/valid_utf8.h"

namespace trestle::tokens {
namespace {

// Python's str.strip() also takes four control characters.
bool is_stripped(char32_t code) { return is_white_space(code) || (code >= 0x1C && code <= 0x1F); }

std::string_view strip(std::string_view content) {
  while (!content.empty()) {
    const CodePoint last = code_point_before(content, content.size());
    if (!is_stripped(last.code)) break;
    content.remove_suffix(last.length);
  }
  while (!content.empty()) {
    const CodePoint first = code_point_at(content, 0);
    if (!is_stripped(first.code)) break;
    content.remove_prefix(first.length);
  }
  return content;
}

std::string at_line(const std::string& file, int line) {
  return file.empty() ? text("line ", line) : text(file, ":", line);
}

}  // namespace

std::string todays_date() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  constexpr const char* months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                    "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  return text(local.tm_mday < 10 ? "0" : "", local.tm_mday, " ", months[local.tm_mon], " ",
              local.tm_year + 1900);
}

std::string ChatTemplate::joined(const std::vector<Written>& written) {
  std::string all;
  for (const Written& one : written) all += one.text;
  return all;
}

std::vector<ChatTemplate::Part> ChatTemplate::parts_of(std::string_view value,
                                                       const std::string& file, int line) {
  const std::pair<std::string_view, Part::Kind> placeholders[] = {
      {"{role}", Part::Kind::Role},
      {"{content}", Part::Kind::Content},
      {"{content|trim}", Part::Kind::TrimmedContent},
      {"{today}", Part::Kind::Today}};
  std::vector<Part> parts;
  const auto add_character = [&](char character) {
    if (parts.empty() || parts.back().kind != Part::Kind::Text) parts.emplace_back();
    parts.back().text += character;
  };
  while (!value.empty()) {
    if (value[0] == '{') {
      const auto* known =
          std::find_if(std::begin(placeholders), std::end(placeholders),
                       [&](const auto& entry) { return value.starts_with(entry.first); });
      if (known == std::end(placeholders)) {
        throw FormatError(
            text("unknown placeholder at '", value.substr(0, 20), "'"),
            {.file = at_line(file, line),
             .hint = "Use {role}, {content}, {content|trim} or {today}; a brace itself is "
                     "\\{."});
      }
      parts.push_back({known->second, ""});
      value.remove_prefix(known->first.size());
    } else if (value[0] == '\\') {
      constexpr std::string_view names = "nt\\{";
      constexpr std::string_view characters = "\n\t\\{";
      const std::size_t found = value.size() < 2 ? std::string::npos : names.find(value[1]);
      if (found == std::string::npos) {
        throw FormatError(text("unknown escape at '", value.substr(0, 2), "'"),
                          {.file = at_line(file, line), .hint = "Use \\n, \\t, \\\\ or \\{."});
      }
      add_character(characters[found]);
      value.remove_prefix(2);
    } else {
      add_character(value[0]);
      value.remove_prefix(1);
    }
  }
  return parts;
}

void ChatTemplate::read_line(const std::string& name, std::vector<Part> parts,
                             const std::string& place) {
  constexpr std::string_view for_role = "message ";
  const bool is_message = name == "message" || name == "first_system" || name.starts_with(for_role);
  for (const Part& part : parts) {
    if (part.kind == Part::Kind::Text) continue;
    const bool is_today = part.kind == Part::Kind::Today;
    if (is_today && name == "today")
      throw FormatError("{today} in the line 'today'",
                        {.file = place, .hint = "Write a date, such as 'today: 26 Jul 2024'."});
    if (!is_today && !is_message)
      throw FormatError(text("{role} or {content} in the line '", name, "'"),
                        {.file = place, .hint = "They are those of a message."});
    writes_today_ = writes_today_ || is_today;
  }
  if (name == "begin") {
    begin_ = std::move(parts);
  } else if (name == "answer") {
    answer_ = std::move(parts);
  } else if (name == "message") {
    messages_[""] = std::move(parts);
  } else if (name.starts_with(for_role)) {
    messages_[trim(name.substr(for_role.size()))] = std::move(parts);
  } else if (name == "first_system") {
    first_system_ = std::move(parts);
  } else if (name == "default_system") {
    default_system_ = std::move(parts);
  } else if (name == "today") {
    today_ = parts.empty() ? "" : parts.front().text;
  } else {
    throw FormatError(text("unknown name '", name, "'"),
                      {.file = place,
                       .hint = "Names are begin, message, message ROLE, first_system, answer, "
                               "default_system and today."});
  }
}

ChatTemplate ChatTemplate::from_text(std::string_view content, const std::string& file) {
  ChatTemplate chat;
  chat.file_ = file;
  chat.words_ = content;
  chat.today_ = todays_date();
  int line_number = 0;
  while (!content.empty()) {
    const std::size_t end = std::min(content.find('\n'), content.size());
    std::string_view line = content.substr(0, end);
    content.remove_prefix(std::min(end + 1, content.size()));
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    const std::size_t colon = line.find(':');
    const std::string name = trim(line.substr(0, std::min(colon, line.size())));
    std::string_view value = colon == std::string::npos ? "" : line.substr(colon + 1);
    if (value.starts_with(' ')) value.remove_prefix(1);
    std::vector<Part> parts = parts_of(value, file, line_number);
    if (colon == std::string::npos) {
      throw FormatError("a line without a colon",
                        {.file = at_line(file, line_number), .hint = how_to_write_a_template});
    }
    chat.read_line(name, std::move(parts), at_line(file, line_number));
  }
  if (chat.messages_.empty()) {
    throw FormatError("the chat template has no line 'message: ...'",
                      {.file = file, .hint = how_to_write_a_template});
  }
  return chat;
}

std::string ChatTemplate::words() const {
  // The last line of a name counts.
  return today_is_set_ ? text(words_, words_.ends_with('\n') ? "" : "\n", "today: ", today_, "\n")
                       : words_;
}

void ChatTemplate::set_today(const std::string& date) {
  if (!writes_today_) {
    throw UsageError(
        "the chat template does not write today's date",
        {.file = file_, .hint = "Set no date, or write {today} into a template of your own."});
  }
  if (date.find_first_of("\\{\t\n\r") != std::string::npos) {
    throw UsageError(text("the date '", date, "' has a backslash, a brace, a tab or a line break"),
                     {.file = file_, .hint = "Write it as 26 Jul 2024."});
  }
  today_ = date;
  today_is_set_ = true;
}

void ChatTemplate::write_parts(const std::vector<Part>& parts, const Message& message,
                               std::vector<Written>* out) const {
  for (const Part& part : parts) {
    switch (part.kind) {
      case Part::Kind::Text:
        out->push_back({part.text, true});
        break;
      case Part::Kind::Role:
        out->push_back({message.role, false});
        break;
      case Part::Kind::Content:
        out->push_back({message.content, false});
        break;
      case Part::Kind::TrimmedContent: {
        std::string storage;
        out->push_back({std::string(strip(valid_utf8(message.content, &storage))), false});
        break;
      }
      case Part::Kind::Today:
        out->push_back({today_, false});
        break;
    }
  }
}

void ChatTemplate::write_message(const Message& message, std::vector<Written>* out) const {
  auto found = messages_.find(message.role);
  if (found == messages_.end() || message.role.empty()) found = messages_.find("");
  if (found == messages_.end()) {
    std::vector<std::string> roles;
    for (const auto& [role, parts] : messages_) roles.push_back(role);
    throw UsageError(text("the chat template has no role '", message.role, "'"),
                     {.file = file_, .hint = text("Its roles are ", join(roles, ", "), ".")});
  }
  write_parts(found->second, message, out);
}

void ChatTemplate::write_first_system(const Message& message, std::vector<Written>* out) const {
  if (first_system_)
    write_parts(*first_system_, message, out);
  else
    write_message(message, out);
}

std::vector<ChatTemplate::Written> ChatTemplate::write(std::span<const Message> messages,
                                                       AnswerBegin answer) const {
  if (messages.empty()) {
    throw UsageError("a conversation without messages",
                     {.file = file_, .hint = "Give at least one message."});
  }
  std::vector<Written> out;
  write_parts(begin_, {}, &out);
  if (messages[0].role == "system") {
    write_first_system(messages[0], &out);
    messages = messages.subspan(1);
  } else if (default_system_) {
    std::vector<Written> content;
    write_parts(*default_system_, {}, &content);
    write_first_system({.role = "system", .content = joined(content)}, &out);
  }
  for (const Message& message : messages) write_message(message, &out);
  if (answer == AnswerBegin::Write) write_parts(answer_, {}, &out);
  return out;
}

std::string ChatTemplate::render(std::span<const Message> messages, AnswerBegin answer) const {
  return joined(write(messages, answer));
}

std::vector<Id> ChatTemplate::encode(const Tokenizer& tokenizer, std::span<const Message> messages,
                                     AnswerBegin answer) const {
  std::vector<AddedToken> specials;
  std::vector<std::string> spellings;
  for (Id id = 0; id < tokenizer.size(); ++id) {
    if (!tokenizer.is_special(id)) continue;
    specials.push_back({.id = id, .text = {}, .special = true});
    spellings.emplace_back(tokenizer.bytes(id));
  }
  const AddedTokens matcher(std::move(specials), spellings);
  std::vector<Id> ids;
  // Words may reach from the template into a message, so all text between two special tokens is
  // encoded together.
  std::string between;
  const auto flush = [&] {
    const std::vector<Id> encoded = tokenizer.encode(between, Specials::AsText);
    ids.insert(ids.end(), encoded.begin(), encoded.end());
    between.clear();
  };
  for (const Written& written : write(messages, answer)) {
    if (!written.by_template) {
      between += written.text;
      continue;
    }
    std::vector<AddedTokens::Part> parts;
    matcher.split(written.text, Specials::Recognised, &parts);
    for (const AddedTokens::Part& part : parts) {
      if (part.id < 0) {
        between += part.text;
        continue;
      }
      flush();
      ids.push_back(part.id);
    }
  }
  flush();
  return ids;
}

}  // namespace trestle::tokens
