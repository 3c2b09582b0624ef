#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trestle/cli/background_output.h"
#include "trestle/cli/generate_arguments.h"
#include "trestle/cli/line_reader.h"
#include "trestle/cli/text_printer.h"
#include "trestle/cli/text_ranks.h"
#include "trestle/generate/write_text.h"
#include "trestle/tokens/chat_template.h"
#include "trestle/train/language/text_model.h"

namespace trestle::cli {

// The texts of a call of `trestle generate` on one rank.
class TextSession {
 public:
  // `arguments` and `ranks` must live as long.
  TextSession(const GenerateArguments& arguments, train::TextModel model, const TextRanks& ranks);

  // On rank 0: reads the prompts, and writes and prints all texts. The reader of the output may be
  // slow: the other ranks then wait longer than their deadline.
  void write_all();

  struct Follow {
    std::function<bool()> stop = {};       // whether this rank got a signal
    std::function<void()> begins = [] {};  // a text
    std::function<void()> waits = [] {};   // for the user, which may take long
  };
  // On the other ranks: computes what rank 0 writes.
  void follow(const Follow& hooks);

 private:
  bool goes_on() const;
  std::chrono::milliseconds part_of_deadline() const;
  void write_texts();
  void note_stop(const generate::Generated& made);
  std::vector<std::string> all_prompts() const;
  void write_prompts(const std::vector<std::string>& prompts);
  std::vector<generate::Written> write(const std::vector<generate::Prompt>& batch,
                                       std::vector<TextPrinter::Part> parts);
  void write_ids();
  std::vector<std::int64_t> fit(std::vector<tokens::Message>& messages) const;
  void converse();
  std::optional<std::string> read_line();

  const GenerateArguments& arguments_;
  train::TextModel model_;
  const TextRanks& ranks_;
  generate::LanguageModel writer_;
  generate::WriteOptions options_;
  TextPrinter printer_;
  LineReader input_;
  std::optional<BackgroundOutput> output_;  // of rank 0 among others
  bool stopped_by_rank_ = false;            // a signal to another rank ended a text
};

}  // namespace trestle::cli
