#include "trestle/generate/choose_token.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <span>

#include "trestle/base/counter_random.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::generate {

namespace {

struct Candidate {
  std::int64_t id = 0;
  double score = 0;
  double weight = 0;  // relative probability
};

bool is_before(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score > b.score : a.id < b.id;
}

std::vector<Candidate> candidates_of(std::span<const float> scores,
                                     const std::vector<std::int64_t>& so_far,
                                     const ChoiceOptions& options) {
  std::vector<Candidate> all;
  all.reserve(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!std::isfinite(scores[i]))
      throw FormatError(text("the score of token ", i, " is ", scores[i]),
                        {.hint = "The weights are invalid, or the training diverged."});
    all.push_back({static_cast<std::int64_t>(i), scores[i]});
  }
  if (options.repetition_penalty == 1) return all;
  for (const std::int64_t id : std::set<std::int64_t>(so_far.begin(), so_far.end())) {
    if (id < 0) throw UsageError(text("the text so far has the id ", id, ", which is no token"));
    if (id >= std::ssize(all)) continue;
    double& score = all[static_cast<std::size_t>(id)].score;
    score = score > 0 ? score / options.repetition_penalty : score * options.repetition_penalty;
  }
  return all;
}

// The most probable candidates first, with weights; their number is limited by top_k and top_p.
void limit(std::vector<Candidate>& all, const ChoiceOptions& options) {
  const bool cut = options.top_k > 0 && options.top_k < std::ssize(all);
  const auto kept = cut ? all.begin() + options.top_k : all.end();
  if (cut || options.top_p < 1) std::partial_sort(all.begin(), kept, all.end(), is_before);
  all.erase(kept, all.end());
  const double largest = std::max_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
                           return a.score < b.score;
                         })->score;
  for (Candidate& one : all) one.weight = std::exp((one.score - largest) / options.temperature);
  if (options.top_p >= 1) return;
  const double sum = std::accumulate(all.begin(), all.end(), 0.0,
                                     [](double s, const Candidate& one) { return s + one.weight; });
  double reached = 0;
  std::size_t count = 0;
  while (count < all.size() && (count == 0 || reached < options.top_p * sum))
    reached += all[count++].weight;
  all.resize(count);
}

}  // namespace

void check_choice(const ChoiceOptions& options) {
  const auto refuse = [](const char* name, double value, const char* allowed) {
    throw UsageError(text(name, " is ", value, ", and must be ", allowed));
  };
  if (!(options.temperature >= 0 && options.temperature <= 1e6))
    refuse("temperature", options.temperature, "from 0 to 1e6");
  if (options.top_k < 0) refuse("top_k", static_cast<double>(options.top_k), "0 or more");
  if (!(options.top_p > 0 && options.top_p <= 1))
    refuse("top_p", options.top_p, "above 0 and at most 1");
  if (!(options.repetition_penalty > 0))
    refuse("repetition_penalty", options.repetition_penalty, "above 0");
}

std::int64_t choose_token(const at::Tensor& scores, const std::vector<std::int64_t>& so_far,
                          std::int64_t text_number, std::int64_t allowed,
                          const ChoiceOptions& options) {
  if (!scores.is_cpu() || scores.scalar_type() != at::kFloat || scores.dim() != 1)
    throw UsageError(text("a token is chosen from scores fp32 [vocabulary] on the CPU; got ",
                          c10::toString(scores.scalar_type()), " [", join(scores.sizes(), ", "),
                          "] on ", scores.device().str()));
  if (allowed < 1 || scores.numel() == 0)
    throw UsageError(text("a token is chosen from ", allowed, " of ", scores.numel(), " tokens"));
  const at::Tensor row = scores.contiguous();
  const std::size_t count = static_cast<std::size_t>(std::min(row.numel(), allowed));
  std::vector<Candidate> all = candidates_of({row.const_data_ptr<float>(), count}, so_far, options);
  if (options.temperature == 0) return std::min_element(all.begin(), all.end(), is_before)->id;
  limit(all, options);
  double sum = 0;
  for (const Candidate& one : all) sum += one.weight;
  const CounterRandom random(options.seed, text("text ", text_number));
  double left = random.uniform(so_far.size()) * sum;
  for (const Candidate& one : all) {
    left -= one.weight;
    if (left < 0) return one.id;
  }
  return all.back().id;
}

}  // namespace trestle::generate
