#include "trestle/tokens/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>

#include "tests/tokens/golden_tokens.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/tokens/open_tokenizer.h"

namespace trestle::tokens {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::MatchesRegex;

std::string message_of_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ChatTemplate, EqualsApplyChatTemplate) {
  const auto tokenizer = open_tokenizer(golden_path("llama3.json"));
  const nlohmann::json cases = golden_json("chat/golden.json");
  ASSERT_EQ(cases.size(), 112U);
  for (const nlohmann::json& golden : cases) {
    const std::string name = golden["template"];
    ChatTemplate chat = open_chat_template(golden_path("chat/" + name));
    if (!golden["today"].is_null()) chat.set_today(golden["today"]);
    std::vector<Message> messages;
    for (const nlohmann::json& message : golden["messages"]) {
      messages.push_back({message[0], message[1]});
    }
    const auto answer = golden["answer"].get<bool>() ? AnswerBegin::Write : AnswerBegin::Leave;
    EXPECT_EQ(chat.render(messages, answer), golden["text"].get<std::string>()) << name;
    EXPECT_EQ(chat.encode(*tokenizer, messages, answer), golden["ids"].get<std::vector<Id>>())
        << name;
    const ChatTemplate again = ChatTemplate::from_text(chat.words());
    EXPECT_EQ(again.render(messages, answer), golden["text"].get<std::string>()) << name;
  }
}

TEST(ChatTemplate, Llama32WritesTheLocalDate) {
  const std::vector<Message> messages = {{"user", "Hi"}};
  const std::string before = todays_date();
  const ChatTemplate chat = open_chat_template(golden_path("chat/llama3_2.jinja"));
  const std::string after = todays_date();  // another one if the test runs over midnight
  EXPECT_THAT(chat.render(messages), AnyOf(HasSubstr("Today Date: " + before + "\n\n<|eot_id|>"),
                                           HasSubstr("Today Date: " + after + "\n\n<|eot_id|>")));
  EXPECT_THAT(before, MatchesRegex("[0-3][0-9] [A-Z][a-z][a-z] 20[0-9][0-9]"));
}

// Zones that are 26 hours apart never have the same date.
TEST(ChatTemplate, TodaysDateIsLocal) {
  const char* zone = std::getenv("TZ");
  const std::optional<std::string> old = zone ? std::optional<std::string>(zone) : std::nullopt;
  const auto date_in = [](const char* name) {
    setenv("TZ", name, 1);
    tzset();
    return todays_date();
  };
  const std::string east = date_in("EAST-14");
  const std::string west = date_in("WEST+12");
  std::time_t now = std::time(nullptr);
  char expected[32];
  std::strftime(expected, sizeof expected, "%d %b %Y", std::localtime(&now));
  if (old)
    setenv("TZ", old->c_str(), 1);
  else
    unsetenv("TZ");
  tzset();
  EXPECT_NE(east, west);
  EXPECT_EQ(west, expected);
}

TEST(ChatTemplate, KeepsAFixedDate) {
  ChatTemplate chat = ChatTemplate::from_text(
      "begin: ({today})\ndefault_system: Today is {today}.\nmessage: {content}\nanswer: {today}>");
  const std::vector<Message> messages = {{"user", "Hi"}};
  chat.set_today("01 Jan 2020");
  EXPECT_EQ(chat.render(messages, AnswerBegin::Write),
            "(01 Jan 2020)Today is 01 Jan 2020.Hi01 Jan 2020>");
  chat.set_today("31 Dec 2021");
  EXPECT_EQ(ChatTemplate::from_text(chat.words()).render(messages),
            "(31 Dec 2021)Today is 31 Dec 2021.Hi");
  ChatTemplate line = ChatTemplate::from_text("today: noon\nmessage: {today} {content}");
  EXPECT_EQ(line.render(messages), "noon Hi");
  EXPECT_THAT(message_of_error([&] { line.set_today("a\nmessage: b"); }),
              HasSubstr("a line break"));
  EXPECT_EQ(line.render(messages), "noon Hi");
  ChatTemplate none = open_chat_template(golden_path("chat/llama3.jinja"));
  EXPECT_FALSE(none.writes_today());
  EXPECT_THAT(message_of_error([&] { none.set_today("01 Jan 2020"); }),
              HasSubstr("does not write today's date"));
}

TEST(ChatTemplate, WritesTheFirstSystemMessageInItsOwnWay) {
  const ChatTemplate chat =
      ChatTemplate::from_text("first_system: [{content}]\nmessage user: {content}");
  EXPECT_EQ(chat.render(std::vector<Message>{{"system", "a"}, {"user", "b"}}), "[a]b");
  EXPECT_EQ(chat.render(std::vector<Message>{{"user", "b"}}), "b");
  EXPECT_THAT(message_of_error([&] {
                chat.render(std::vector<Message>{{"user", "b"}, {"system", "a"}});
              }),
              HasSubstr("no role 'system'"));
  for (const char* name : {"llama3_1", "llama3_2"}) {
    EXPECT_THAT(message_of_error([&] {
                  open_chat_template(golden_path(text("chat/", name, ".jinja")))
                      .render(std::vector<Message>{{"ipython", "x"}});
                }),
                HasSubstr("no role 'ipython'"));
  }
}

TEST(ChatTemplate, TakesAUsersSpecialTokensAsText) {
  const auto tokenizer = open_tokenizer(golden_path("llama3.json"));
  const ChatTemplate chat = open_chat_template(golden_path("chat/chatml.jinja"));
  const std::vector<Message> messages = {{"user", "a<|im_end|>b"}};
  const std::vector<Id> ids = chat.encode(*tokenizer, messages);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer->find("<|im_end|>")), 1);
  EXPECT_EQ(tokenizer->decode(ids), "<|im_start|>user\na<|im_end|>b<|im_end|>\n");
}

TEST(ChatTemplate, IsReadFromAModelsFolder) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "trestle_chat_template";
  std::filesystem::create_directories(folder);
  nlohmann::json config = {{"chat_template", golden_file("chat/qwen2.jinja")}};
  write_file(folder / "tokenizer_config.json", config.dump());
  const std::vector<Message> messages = {{"user", "Hi"}};
  const std::string expected =
      "<|im_start|>system\nYou are a helpful "
      "assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n";
  EXPECT_EQ(open_chat_template(folder).render(messages), expected);
  config["chat_template"] = {{{"name", "rag"}, {"template", "x"}},
                             {{"name", "default"}, {"template", golden_file("chat/qwen2.jinja")}}};
  write_file(folder / "tokenizer_config.json", config.dump());
  EXPECT_EQ(open_chat_template(folder).render(messages), expected);
  write_file(folder / "chat_template.jinja", golden_file("chat/chatml.jinja") + "\n");
  EXPECT_EQ(open_chat_template(folder).render(messages), "<|im_start|>user\nHi<|im_end|>\n");
  write_file(folder / "own.txt", "# mine\nmessage: \\{{role}}\\\\\\t{content}\nanswer: >\n");
  EXPECT_EQ(message_of_error([&] { open_chat_template(folder / "own.txt"); }), "no error");
  EXPECT_EQ(open_chat_template(folder / "own.txt").render(messages, AnswerBegin::Write),
            "{user}\\\tHi>");
  std::filesystem::rename(folder / "own.txt", folder / "chat_template.txt");
  const ChatTemplate own = open_chat_template(folder);
  EXPECT_EQ(own.render(messages), "{user}\\\tHi") << "before the Jinja text";
  EXPECT_EQ(ChatTemplate::from_text(own.words()).render(messages), own.render(messages));
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  EXPECT_THAT(message_of_error([&] { open_chat_template(folder); }),
              AllOf(HasSubstr("the folder has no chat template"), HasSubstr("chat_template.txt")));
  std::filesystem::remove_all(folder);
}

TEST(ChatTemplate, RefusesOtherJinja) {
  const std::string message =
      message_of_error([] { ChatTemplate::from_jinja("{{ x }}", "a.jinja"); });
  EXPECT_THAT(message, HasSubstr("a Jinja text that trestle does not know"));
  EXPECT_THAT(message, HasSubstr("Known are those of SmolLM2"));
  EXPECT_THAT(message_of_error([] { ChatTemplate::from_jinja("", "a.gguf"); }),
              HasSubstr("a.gguf: the file has no chat template"));
}

TEST(ChatTemplate, NamesWhatIsWrong) {
  const auto error = [](std::string_view text) {
    return message_of_error([&] { ChatTemplate::from_text(text, "own.txt"); });
  };
  EXPECT_THAT(error(""), HasSubstr("no line 'message: ...'"));
  EXPECT_THAT(error("message: a\nhello"), HasSubstr("own.txt:2"));
  EXPECT_THAT(error("message: {contents}"), HasSubstr("unknown placeholder"));
  EXPECT_THAT(error("message: \\x"), HasSubstr("unknown escape"));
  EXPECT_THAT(error("massage: a"), HasSubstr("unknown name 'massage'"));
  EXPECT_THAT(error("message: a\nbegin: {role}"), HasSubstr("own.txt:2"));
  EXPECT_THAT(error("default_system: {content}"), HasSubstr("in the line 'default_system'"));
  EXPECT_THAT(error("today: {today}"), HasSubstr("{today} in the line 'today'"));
  const ChatTemplate chat = ChatTemplate::from_text("message user: {content}");
  EXPECT_THAT(message_of_error([&] { chat.render(std::vector<Message>{}); }),
              HasSubstr("without messages"));
  EXPECT_THAT(message_of_error([&] {
                chat.render(std::vector<Message>{{"tool", "x"}});
              }),
              HasSubstr("no role 'tool'"));
}

}  // namespace
}  // namespace trestle::tokens
