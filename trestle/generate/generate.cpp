#include "trestle/generate/generate.h"

#include <algorithm>
#include <tuple>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"
#include "trestle/comm/gather.h"
#include "trestle/comm/purpose.h"
#include "trestle/tensor_parallel/plan_agreement.h"

namespace trestle::generate {

std::string to_word(Ended ended) {
  switch (ended) {
    case Ended::EndToken:
      return "end token";
    case Ended::StopWord:
      return "stop word";
    case Ended::Length:
      return "length";
    case Ended::Context:
      return "context";
    case Ended::Stopped:
      return "stopped";
  }
  return "";
}

void check_prompts(const models::TransformerConfig& config, const std::vector<Prompt>& prompts) {
  if (prompts.empty()) throw UsageError("there is no prompt");
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<std::int64_t>& ids = prompts[i].ids;
    const std::string which =
        prompts.size() > 1 ? text("prompt ", i + 1, " of ", prompts.size()) : "the prompt";
    if (ids.empty())
      throw UsageError(which + " has no token",
                       {.hint = "Give a prompt of at least one character."});
    if (std::ssize(ids) >= config.context)
      throw UsageError(text(which, " has ", counted(std::ssize(ids), "token"),
                            " and leaves no room in the model's context of ", config.context),
                       {.hint = "Shorten the prompt."});
    for (const std::int64_t id : ids)
      if (id < 0 || id >= config.vocabulary)
        throw UsageError(text(which, " has the token id ", id, ", and the model has the ids 0 to ",
                              config.vocabulary - 1));
  }
}

namespace {

// The next token of a text that has not ended, as rank 0 chose it.
struct Decision {
  std::int64_t id = 0;
  double gap = 0;
  enum class Text { Continues, EndsBefore, EndsBehind } text = Text::Continues;  // this token
  Ended ended = Ended::Length;
};

// Throws UsageError on all ranks if they would not make the same steps.
void refuse_different_texts(const tensor_parallel::TensorRanks& ranks,
                            const std::vector<Prompt>& prompts, const GenerateOptions& options) {
  if (!ranks.exist()) return;
  std::string own =
      text("at most ", options.most_tokens, " tokens, ",
           options.slide ? "sliding" : "without sliding", "\n", prompts.size(), " prompts\n");
  for (std::size_t i = 0; i < prompts.size(); ++i)
    own += text("prompt ", i + 1, ": ", join(prompts[i].ids, ","), "\n");
  tensor_parallel::refuse_different_plans(ranks, own, "write different texts");
}

// The texts of a batch that have not ended, in the order of the model's state.
class Writing {
 public:
  Writing(const LanguageModel& model, const std::vector<Prompt>& prompts,
          const GenerateOptions& options,
          const std::function<void(std::size_t, const Generated&)>& on_end)
      : model_(model), options_(options), on_end_(on_end), results_(prompts.size()) {
    allowed_ = options.tokens > 0 ? options.tokens : model.config().vocabulary;
    for (const Prompt& prompt : prompts)
      open_.push_back({open_.size(), prompt.text_number, prompt.ids});
  }

  std::vector<Generated> write() {
    if (options_.most_tokens < 1) {
      for (const Text& one : open_) end(one);
      return results_;
    }
    std::vector<std::vector<std::int64_t>> next;
    for (const Text& one : open_) next.push_back(one.so_far);
    LanguageModel::State state = model_.begin();
    while (true) {
      if (slide()) {
        state = model_.begin();
        next.clear();
        for (const Text& one : open_)
          next.emplace_back(one.so_far.begin() + one.seen_from, one.so_far.end());
      }
      const at::Tensor scores = model_.extend_batch(state, next);
      next.clear();
      std::vector<std::int64_t> kept;
      const std::vector<Decision> decisions = decide(scores);
      for (std::size_t row = 0; row < open_.size(); ++row)
        if (decisions[row].text == Decision::Text::Continues) {
          kept.push_back(static_cast<std::int64_t>(row));
          next.push_back({decisions[row].id});
        } else {
          end(open_[row]);
        }
      if (kept.empty()) return results_;
      if (kept.size() == open_.size()) continue;
      model_.keep(state, kept);
      std::vector<Text> rest;
      for (const std::int64_t row : kept)
        rest.push_back(std::move(open_[static_cast<std::size_t>(row)]));
      open_ = std::move(rest);
    }
  }

 private:
  struct Text {
    std::size_t number;  // of the prompt
    std::int64_t text_number;
    std::vector<std::int64_t> so_far;
    std::int64_t seen_from = 0;  // the first token of the model's context
  };

  std::int64_t seen(const Text& one) const { return std::ssize(one.so_far) - one.seen_from; }

  // Moves the begin of full contexts. Returns whether there was one.
  bool slide() {
    bool any = false;
    for (Text& one : open_) {
      if (!options_.slide || seen(one) <= model_.config().context) continue;
      one.seen_from =
          std::ssize(one.so_far) - std::max<std::int64_t>(model_.config().context / 2, 1);
      any = true;
    }
    return any;
  }

  // The next token of each text, which is added to it. Rank 0 decides for all tensor ranks: not
  // even scores that differ would lead to different texts.
  std::vector<Decision> decide(const at::Tensor& scores) {
    const bool alone = !model_.ranks().exist(), chooses = alone || model_.ranks().rank() == 0;
    bool stops = chooses && wait_until_ready();
    std::vector<Decision> decisions;
    if (chooses)
      for (std::size_t row = 0; row < open_.size(); ++row) {
        Text& one = open_[row];
        const auto [id, gap] = choose_with_gap(scores[static_cast<std::int64_t>(row)], one.so_far,
                                               one.text_number, allowed_, options_.choice);
        decisions.push_back({id, gap});
        set_end(one, decisions.back());
      }
    if (alone) {
      stops = options_.stop && options_.stop();
    } else {
      Round round;
      do {
        round = exchange(chooses ? Turn::Decides : Turn::Waits, decisions);
        stops = stops || round.stops;
      } while (round.turn == Turn::Waits);
      decisions = std::move(round.decisions);
      if (!chooses)
        for (std::size_t row = 0; row < open_.size(); ++row) add(open_[row], decisions[row]);
    }
    for (std::size_t row = 0; row < open_.size(); ++row) {
      Decision& decision = decisions[row];
      if (stops && decision.text == Decision::Text::Continues) {
        decision.text = Decision::Text::EndsBehind;
        decision.ended = Ended::Stopped;
      }
      results_[open_[row].number].ended = decision.ended;
    }
    return decisions;
  }

  // A message of all tensor ranks: rank 0 waits or has decided, and whether any rank stops.
  enum class Turn { Waits, Decides };
  struct Round {
    Turn turn = Turn::Waits;
    bool stops = false;
    std::vector<Decision> decisions;
  };
  Round exchange(Turn turn, const std::vector<Decision>& own) const {
    const bool stop = options_.stop && options_.stop();
    const auto all = comm::with_purpose(
        [] { return "while the tensor ranks agreed on the next tokens"; },
        [&] {
          return comm::all_gather_values(model_.ranks().group(), std::tuple(turn, stop, own));
        });
    Round round{.turn = std::get<0>(all.front()), .decisions = std::get<2>(all.front())};
    for (const auto& one : all) round.stops = round.stops || std::get<1>(one);
    return round;
  }

  // On rank 0: every message starts the deadline of the other ranks again. Returns whether a rank
  // stops.
  bool wait_until_ready() const {
    if (!model_.ranks().exist() || !options_.ready) return false;
    while (!options_.ready())
      if (exchange(Turn::Waits, {}).stops) return true;
    return false;
  }

  // Adds the decision's token and calls on_token, which may end the text.
  bool add(Text& one, const Decision& decision) {
    Generated& result = results_[one.number];
    const std::int64_t place = std::ssize(result.ids);
    if (place == 0) result.prompt_seconds = watch_.seconds();
    if (decision.gap < result.smallest_gap) {
      result.smallest_gap = decision.gap;
      result.smallest_gap_at = place;
    }
    if (decision.text == Decision::Text::EndsBefore) return true;
    result.ids.push_back(decision.id);
    one.so_far.push_back(decision.id);
    return !options_.on_token || options_.on_token(one.number, decision.id);
  }

  // Adds the decision's token to the text, unless it is an end token, and sets whether it ends.
  void set_end(Text& one, Decision& decision) {
    const auto& ends = options_.end_tokens;
    const bool is_end = std::ranges::find(ends, decision.id) != ends.end();
    decision.text = is_end ? Decision::Text::EndsBefore : Decision::Text::EndsBehind;
    decision.ended = Ended::EndToken;
    const bool goes_on = add(one, decision);
    if (is_end) return;
    if (!goes_on) {
      decision.ended = Ended::Stopped;
    } else if (std::ssize(results_[one.number].ids) >= options_.most_tokens) {
      decision.ended = Ended::Length;
    } else if (options_.slide || seen(one) < model_.config().context) {
      decision.text = Decision::Text::Continues;
    } else {
      decision.ended = Ended::Context;
    }
  }

  void end(const Text& one) {
    Generated& result = results_[one.number];
    result.answer_seconds = watch_.seconds() - result.prompt_seconds;
    if (on_end_) on_end_(one.number, result);
  }

  const LanguageModel& model_;
  const GenerateOptions& options_;
  const std::function<void(std::size_t, const Generated&)>& on_end_;
  std::int64_t allowed_ = 0;
  std::vector<Text> open_;
  std::vector<Generated> results_;
  Stopwatch watch_;
};

}  // namespace

std::vector<Generated> generate_batch(
    const LanguageModel& model, const std::vector<Prompt>& prompts, const GenerateOptions& options,
    const std::function<void(std::size_t, const Generated&)>& on_end) {
  check_choice(options.choice);
  if (options.tokens < 0 || options.tokens > model.config().vocabulary || options.most_tokens < 0)
    throw UsageError(text("options of a text: ", options.tokens, " tokens of ",
                          model.config().vocabulary, " to choose from, and at most ",
                          options.most_tokens, " new ones"));
  check_prompts(model.config(), prompts);
  refuse_different_texts(model.ranks(), prompts, options);
  return Writing(model, prompts, options, on_end).write();
}

Generated generate(const LanguageModel& model, const std::vector<std::int64_t>& prompt,
                   const GenerateOptions& options) {
  return generate_batch(model, {{prompt, options.text_number}}, options).front();
}

}  // namespace trestle::generate
