#include "trestle/cli/text_session.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/base/utf8.h"
#include "trestle/cli/interrupt.h"

namespace trestle::cli {

namespace {

std::vector<std::int64_t> parse_ids(const std::string& words) {
  std::vector<std::int64_t> ids;
  for (const std::string& word : split(words, ',')) {
    std::int64_t id = 0;
    const std::string plain = trim(word);
    const auto [end, problem] = std::from_chars(plain.data(), plain.data() + plain.size(), id);
    if (problem != std::errc() || end != plain.data() + plain.size())
      throw UsageError(text("--ids must be token ids such as 5,17,3, not '", words, "'"));
    ids.push_back(id);
  }
  return ids;
}

}  // namespace

TextSession::TextSession(const GenerateArguments& arguments, train::TextModel model,
                         const TextRanks& ranks)
    : arguments_(arguments),
      model_(std::move(model)),
      ranks_(ranks),
      writer_(model_.layers, model_.config),
      printer_(arguments.json ? TextPrinter::Form::Json : TextPrinter::Form::Words,
               model_.config.context),
      input_(STDIN_FILENO) {
  options_.generate.choice = arguments.choice;
  options_.generate.most_tokens = arguments.tokens;
  options_.generate.slide = arguments.slide;
  options_.generate.end_tokens = model_.config.end_tokens;
  options_.generate.tokens = model_.known_tokens();
  options_.generate.stop = [this] { return !goes_on(); };
  options_.stop_words = arguments.stop;
  if (ranks.alone() || !ranks.leads()) return;
  output_.emplace();
  options_.generate.ready = [this] { return output_->written_within(part_of_deadline()); };
}

void TextSession::write_all() {
  write_texts();
  while (output_ && !output_->written_within(part_of_deadline())) ranks_.wait();
}

// How long rank 0 may wait before it sends a message to the other ranks.
std::chrono::milliseconds TextSession::part_of_deadline() const {
  return std::min<std::chrono::milliseconds>(std::chrono::seconds(5),
                                             arguments_.on.ranks.deadline / 4);
}

void TextSession::write_texts() {
  if (!arguments_.ids.empty()) return write_ids();
  if (!model_.tokenizer)
    throw UsageError(text(arguments_.on.model.string(), ": has no tokenizer"),
                     {.hint = "Name one with --tokenizer, or give token ids with --ids."});
  if (arguments_.chat) return converse();
  write_prompts(all_prompts());
}

void TextSession::follow(const Follow& hooks) {
  generate::GenerateOptions options = options_.generate;
  options.stop = hooks.stop;
  ranks_.follow(
      [&](const std::vector<generate::Prompt>& batch) {
        hooks.begins();
        generate::generate_batch(writer_, batch, options);
      },
      hooks.waits);
}

// A closed pipe has no reader.
bool TextSession::goes_on() const {
  return !stopped_by_rank_ && !interrupted() && std::cout.good();
}

void TextSession::note_stop(const generate::Generated& made) {
  if (made.ended == generate::Ended::Stopped && goes_on()) stopped_by_rank_ = true;
}

std::vector<std::string> TextSession::all_prompts() const {
  std::vector<std::string> prompts = arguments_.prompts;
  if (!arguments_.prompt_file.empty()) {
    const std::string content = read_text_file(arguments_.prompt_file);
    for (std::string line :
         split(without_byte_order_mark(content, arguments_.prompt_file.string()), '\n')) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty()) prompts.push_back(line);
    }
  }
  if (prompts.empty())
    throw UsageError("there is no prompt",
                     {.hint = "Give one with --prompt \"Once upon a time\"."});
  return prompts;
}

// A prompt gives the same text alone and among others: the random numbers of a text depend on
// the seed and on the number of equal prompts before it.
void TextSession::write_prompts(const std::vector<std::string>& prompts) {
  const auto specials =
      arguments_.special ? tokens::Specials::Recognised : tokens::Specials::AsText;
  std::vector<generate::Prompt> encoded;
  std::map<std::string, std::int64_t> seen;
  for (const std::string& prompt : prompts)
    encoded.push_back({generate::prompt_ids(*model_.tokenizer, prompt, specials), seen[prompt]++});
  generate::check_prompts(model_.config, encoded);
  const auto size = static_cast<std::size_t>(arguments_.batch);
  for (std::size_t first = 0; first < prompts.size() && goes_on(); first += size) {
    const std::size_t last = std::min(prompts.size(), first + size);
    std::vector<generate::Prompt> batch;
    std::vector<TextPrinter::Part> parts;
    for (std::size_t i = first; i < last; ++i) {
      batch.push_back(encoded[i]);
      parts.push_back({prompts[i], encoded[i].ids, (i > 0 ? "\n" : "") + prompts[i]});
    }
    write(batch, std::move(parts));
  }
}

std::vector<generate::Written> TextSession::write(const std::vector<generate::Prompt>& batch,
                                                  std::vector<TextPrinter::Part> parts) {
  generate::WriteOptions options = options_;
  options.on_text = [&](std::size_t text, std::string_view words) {
    printer_.add(text, words);
    return true;
  };
  ranks_.begin(batch);
  printer_.start(std::move(parts));
  try {
    auto all = generate::write_batch(
        writer_, *model_.tokenizer, batch, options,
        [&](std::size_t text, const generate::Written& written) { printer_.end(text, written); });
    for (const generate::Written& one : all) note_stop(one.generated);
    return all;
  } catch (...) {
    printer_.break_line();
    throw;
  }
}

void TextSession::write_ids() {
  const std::vector<std::int64_t> ids = parse_ids(arguments_.ids);
  generate::check_prompts(model_.config, {{ids}});
  ranks_.begin({{ids}});
  const generate::Generated made = generate::generate(writer_, ids, options_.generate);
  if (!arguments_.json) {
    std::cout << join(made.ids, ",") << std::endl;
    return;
  }
  nlohmann::ordered_json line{
      {"prompt_ids", ids}, {"ids", made.ids}, {"ended", generate::to_word(made.ended)}};
  add_gap(line, made);
  std::cout << line.dump() << std::endl;
}

// The ids of a conversation with room for an answer: without the oldest messages and their
// answers, if all are too long. Empty if the last message alone fills the context; it is then
// removed.
std::vector<std::int64_t> TextSession::fit(std::vector<tokens::Message>& messages) const {
  const std::int64_t context = model_.config.context;
  const std::int64_t room = std::max<std::int64_t>(std::min(arguments_.tokens, context / 4), 1);
  std::int64_t forgotten = 0;
  while (true) {
    const auto encoded =
        model_.chat->encode(*model_.tokenizer, messages, tokens::AnswerBegin::Write);
    const std::int64_t count = std::ssize(encoded);
    const bool is_last = messages.size() < 3;
    if (count + room > context && !is_last) {
      messages.erase(messages.begin(), messages.begin() + 2);
      ++forgotten;
      continue;
    }
    if (forgotten > 0)
      std::cerr << text("trestle: the conversation fills the model's context of ", context,
                        " tokens: the model no longer sees the oldest ",
                        counted(forgotten, "message"), " and the answers to them\n");
    if (count < context) return {encoded.begin(), encoded.end()};
    std::cerr << text("trestle: the message is left out: with its template it has ", count,
                      " tokens, and the model's context ", context, ". Send a shorter one.\n");
    messages.pop_back();
    return {};
  }
}

// Reads lines from the standard input. Ctrl-C ends an answer; at the prompt it ends the session.
void TextSession::converse() {
  if (!model_.chat) throw UsageError(text("--chat needs a chat template. ", model_.no_chat));
  if (!arguments_.today.empty()) model_.chat->set_today(arguments_.today);
  std::vector<tokens::Message> messages;
  const bool terminal = isatty(STDIN_FILENO) != 0;
  std::vector<std::string> first = arguments_.prompts;
  while (goes_on()) {
    std::string line;
    if (!first.empty()) {
      line = first.front();
      first.erase(first.begin());
    } else {
      if (!arguments_.prompts.empty() && !terminal) return;
      // Before the prompt: a signal that came between it and reading would wait for a line.
      watch_interrupts();
      if (interrupted()) return;
      if (terminal) std::cout << "> " << std::flush;
      const auto read = read_line();
      if (!read) {
        if (terminal) std::cout << std::endl;  // after Ctrl-D
        return;
      }
      line = *read;
    }
    if (line.empty()) continue;
    messages.push_back({"user", line});
    const std::vector<std::int64_t> ids = fit(messages);
    if (ids.empty()) continue;
    if (terminal)
      stop_on_interrupt("\ntrestle: the answer ends here; a second signal ends the program");
    else if (!ranks_.alone())  // the other ranks end with this one
      stop_on_interrupt("\ntrestle: the text ends here; a second signal ends the program\n");
    const generate::Written written = write({{ids}}, {{line, ids}}).front();
    if (terminal) forget_ctrl_c();
    messages.push_back({"assistant", written.text});
  }
}

// The other ranks wait for a line, which may take longer than their deadline.
std::optional<std::string> TextSession::read_line() {
  if (ranks_.alone()) return input_.next();
  ranks_.wait_for_user();
  return input_.next(part_of_deadline(), [&] { ranks_.wait_for_user(); });
}

}  // namespace trestle::cli
