#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/tokens/tokenizer.h"

namespace trestle::tokens {

// The hint of every error about a template.
inline constexpr const char* how_to_write_a_template =
    "Write it in a text file of two lines, such as 'message: "
    "<|im_start|>{role}\\n{content}<|im_end|>\\n' and 'answer: <|im_start|>assistant\\n'. Name "
    "the file with --chat-template (in `trestle text prepare` with --chat), or call it "
    "chat_template.txt and put it into the model's folder.";

// One turn of a conversation.
struct Message {
  std::string role = {};  // "system", "user" or "assistant"
  std::string content = {};
};

// Whether the text ends with the begin of an answer, for the model to continue.
enum class AnswerBegin { Leave, Write };

// Writes a conversation as the text that a chat model was trained on.
//
//   const auto chat = trestle::tokens::open_chat_template("smollm");
//   const std::vector<trestle::tokens::Message> messages = {{"user", "Name three colors."}};
//   const auto ids = chat.encode(*tokenizer, messages, trestle::tokens::AnswerBegin::Write);
//
// A template is a text of lines, `name: value`:
//
//     # Llama-3
//     begin: <|begin_of_text|>
//     message: <|start_header_id|>{role}<|end_header_id|>\n\n{content|trim}<|eot_id|>
//     answer: <|start_header_id|>assistant<|end_header_id|>\n\n
//
// `begin` stands before the first message, `message` is each message, and `answer` begins an
// answer. `message user`, with a role, holds for that role; without `message`, other roles are
// errors. `first_system` replaces `message` for a system message that goes first, and
// `default_system` is the content of such a message if the conversation has none. A value is
// everything after the colon and one space; \n is a new line, \t a tab, \\ a backslash and \{ a
// brace. In messages {role} and {content} are those of the message, and {content|trim} has no white
// space at its ends. In all values {today} is a date such as 05 Mar 2025: that of the line `today`,
// or without such a line that of todays_date() when the template was read. Lines that begin with #
// are comments.
class ChatTemplate {
 public:
  // Throws FormatError, with the file and line, for an invalid text.
  static ChatTemplate from_text(std::string_view text, const std::string& file = "");

  // The template of a model's Jinja text, recognised by its hash: SmolLM2, ChatML, Llama-3, Qwen2
  // (also Qwen1.5), and without their tools Llama-3.1 (also Llama-3.3), Llama-3.2 and Qwen2.5.
  // Throws UsageError for any other, and for none ("").
  static ChatTemplate from_jinja(std::string_view jinja, const std::string& file = "");

  // The template as from_text() reads it, with the date of set_today().
  std::string words() const;

  // Whether the template has {today}.
  bool writes_today() const { return writes_today_; }

  // The text that {today} writes from now on, as `date_string` in apply_chat_template(). With a
  // fixed date a conversation has the same ids on every day. Throws UsageError if the template has
  // no {today}, and for a date with a backslash, a brace, a tab or a line break.
  void set_today(const std::string& date);

  // The same text as Python's apply_chat_template(tokenize=False). Throws UsageError for no
  // messages, and for a role that the template does not have.
  std::string render(std::span<const Message> messages,
                     AnswerBegin answer = AnswerBegin::Leave) const;

  // The ids of that text. The spelling of a special token counts as one in the template only, not
  // in a message: a user cannot write the end of a turn. Otherwise the ids equal those of
  // apply_chat_template(). Throws UsageError as render() does.
  std::vector<Id> encode(const Tokenizer& tokenizer, std::span<const Message> messages,
                         AnswerBegin answer = AnswerBegin::Leave) const;

 private:
  struct Part {
    enum class Kind { Text, Role, Content, TrimmedContent, Today };
    Kind kind = Kind::Text;
    std::string text;
  };
  struct Written {
    std::string text;
    bool by_template = false;
  };
  static std::vector<Part> parts_of(std::string_view value, const std::string& file, int line);
  static std::string joined(const std::vector<Written>& written);
  void read_line(const std::string& name, std::vector<Part> parts, const std::string& place);
  std::vector<Written> write(std::span<const Message> messages, AnswerBegin answer) const;
  void write_message(const Message& message, std::vector<Written>* out) const;
  void write_first_system(const Message& message, std::vector<Written>* out) const;
  void write_parts(const std::vector<Part>& parts, const Message& message,
                   std::vector<Written>* out) const;

  std::string file_;
  std::string words_;
  std::vector<Part> begin_;
  std::vector<Part> answer_;
  std::map<std::string, std::vector<Part>> messages_;  // by role; "" holds for any other role
  std::optional<std::vector<Part>> first_system_;
  std::optional<std::vector<Part>> default_system_;
  std::string today_;
  bool today_is_set_ = false;  // by set_today()
  bool writes_today_ = false;
};

// The date in the local time zone, as Python's strftime("%d %b %Y") in English: 05 Mar 2025.
std::string todays_date();

// The chat template of a model's folder (chat_template.txt as above, chat_template.jinja, or
// "chat_template" in tokenizer_config.json, in this order), of one of these files, of a GGUF file,
// or of a text file as above. Throws UsageError for a place without a template, and for a Jinja
// text that from_jinja() refuses.
ChatTemplate open_chat_template(const std::filesystem::path& path);

// The hash by which from_jinja() recognises a text: 16 hexadecimal digits. White space at the ends
// does not count, and "\n" in two characters is a new line.
std::string jinja_hash(std::string_view jinja);

}  // namespace trestle::tokens
