#include <array>
#include <string>
#include <system_error>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/tokens/chat_template.h"
#include "trestle/tokens/tokenizers/content_hash.h"
#include "trestle/tokens/tokenizers/gguf_file.h"
#include "trestle/tokens/tokenizers/json_field.h"

namespace trestle::tokens {
namespace {

struct KnownTemplate {
  std::string_view hash;  // of the Jinja text
  std::string_view text;  // the same in our form
};

// tests/golden/tokens/chat/ has the Jinja texts, and the tests compare the results.
constexpr std::array<KnownTemplate, 7> known_templates = {{
    // SmolLM2
    {"fde8bc6b06ef6ac5",
     R"(default_system: You are a helpful AI assistant named SmolLM, trained by Hugging Face
message: <|im_start|>{role}\n{content}<|im_end|>\n
answer: <|im_start|>assistant\n)"},
    // ChatML
    {"f893faeea1da0a3c",
     R"(message: <|im_start|>{role}\n{content}<|im_end|>\n
answer: <|im_start|>assistant\n)"},
    // Llama-3
    {"1c881ad6766badc0",
     R"(begin: <|begin_of_text|>
message: <|start_header_id|>{role}<|end_header_id|>\n\n{content|trim}<|eot_id|>
answer: <|start_header_id|>assistant<|end_header_id|>\n\n)"},
    // Llama-3.1 and Llama-3.3, without their tools
    {"623ec8c89dea7884",
     R"(begin: <|begin_of_text|>
today: 26 Jul 2024
default_system:
first_system: <|start_header_id|>{role}<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: {today}\n\n{content|trim}<|eot_id|>
message system: <|start_header_id|>{role}<|end_header_id|>\n\n{content|trim}<|eot_id|>
message user: <|start_header_id|>{role}<|end_header_id|>\n\n{content|trim}<|eot_id|>
message assistant: <|start_header_id|>{role}<|end_header_id|>\n\n{content|trim}<|eot_id|>
answer: <|start_header_id|>assistant<|end_header_id|>\n\n)"},
    // Llama-3.2, without its tools
    {"21cccb2851154a76",
     R"(begin: <|begin_of_text|>
default_system:
first_system: <|start_header_id|>{role}<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: {today}\n\n{content|trim}<|eot_id|>
message system: <|start_header_id|>{role}<|end_header_id|>\n\n{content|trim}<|eot_id|>
message user: <|start_header_id|>{role}<|end_header_id|>\n\n{content|trim}<|eot_id|>
message assistant: <|start_header_id|>{role}<|end_header_id|>\n\n{content|trim}<|eot_id|>
answer: <|start_header_id|>assistant<|end_header_id|>\n\n)"},
    // Qwen1.5 and Qwen2
    {"53f9592dc497d80e",
     R"(default_system: You are a helpful assistant.
message: <|im_start|>{role}\n{content}<|im_end|>\n
answer: <|im_start|>assistant\n)"},
    // Qwen2.5, without its tools
    {"415053956311c8cc",
     R"(default_system: You are Qwen, created by Alibaba Cloud. You are a helpful assistant.
message system: <|im_start|>{role}\n{content}<|im_end|>\n
message user: <|im_start|>{role}\n{content}<|im_end|>\n
message assistant: <|im_start|>{role}\n{content}<|im_end|>\n
answer: <|im_start|>assistant\n)"},
}};

// "chat_template" is one text, or a list of named ones.
std::string jinja_of_config(const std::filesystem::path& path) {
  const nlohmann::json json = parse_json(read_text_file(path), path.string());
  const JsonField root(json, path.string());
  if (!root.has("chat_template")) {
    throw UsageError("the file has no 'chat_template'",
                     {.file = path.string(), .hint = how_to_write_a_template});
  }
  const JsonField field = root.at("chat_template");
  if (field.is_string()) return field.string();
  for (std::size_t i = 0; i < field.size(); ++i) {
    const JsonField entry = field.at(i);
    if (entry.at("name").string() == "default") return entry.at("template").string();
  }
  field.invalid("has no template named 'default'");
}

}  // namespace

std::string jinja_hash(std::string_view jinja) {
  std::string canonical;
  for (std::size_t i = 0; i < jinja.size(); ++i) {
    if (jinja[i] == '\\' && i + 1 < jinja.size() && jinja[i + 1] == 'n') {
      canonical += '\n';
      ++i;
    } else if (jinja[i] != '\r') {
      canonical += jinja[i];
    }
  }
  ContentHash hash;
  hash.add(trim(canonical));
  return hash.digits();
}

ChatTemplate ChatTemplate::from_jinja(std::string_view jinja, const std::string& file) {
  if (jinja.empty())
    throw UsageError("the file has no chat template",
                     {.file = file, .hint = how_to_write_a_template});
  const std::string hash = jinja_hash(jinja);
  for (const KnownTemplate& known : known_templates) {
    if (known.hash == hash) return from_text(known.text, file);
  }
  throw UsageError(
      text("the chat template is a Jinja text that trestle does not know (", hash, ")"),
      {.file = file,
       .hint = text("Known are those of SmolLM2, ChatML, Llama-3, Llama-3.1, Llama-3.2, Llama-3.3, "
                    "Qwen2 and Qwen2.5. ",
                    how_to_write_a_template)});
}

ChatTemplate open_chat_template(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    for (const char* name : {"chat_template.txt", "chat_template.jinja", "tokenizer_config.json"})
      if (std::filesystem::exists(path / name, ignored)) return open_chat_template(path / name);
    throw UsageError("the folder has no chat template",
                     {.file = path.string(), .hint = how_to_write_a_template});
  }
  if (is_gguf_file(path)) {
    return ChatTemplate::from_jinja(read_gguf_tokens(path).chat_template, path.string());
  }
  const std::string extension = path.extension().string();
  if (extension == ".jinja") {
    return ChatTemplate::from_jinja(read_text_file(path), path.string());
  }
  if (extension == ".json") return ChatTemplate::from_jinja(jinja_of_config(path), path.string());
  return ChatTemplate::from_text(read_text_file(path), path.string());
}

}  // namespace trestle::tokens
