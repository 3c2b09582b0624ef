#include "trestle/generate/choose_token.h"

#include <algorithm>
#include <cmath>
#include <limits>
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

constexpr double infinite = std::numeric_limits<double>::infinity();

// The candidate with the largest score, and its distance to the next one.
ChosenToken largest(const std::vector<Candidate>& all) {
  const auto best = std::ranges::min_element(all, is_before);
  double second = -infinite;
  for (auto one = all.begin(); one != all.end(); ++one)
    if (one != best) second = std::max(second, one->score);
  return {best->id, best->score - second};
}

// Gives each candidate its weight. With top_k or top_p the most probable ones are first, and at
// least one behind those that are drawn from, if there is one. Returns the number that is drawn
// from, without regard of top_p.
std::size_t order(std::vector<Candidate>& all, const ChoiceOptions& options) {
  const std::size_t size = all.size();
  const bool cut = options.top_k > 0 && static_cast<std::size_t>(options.top_k) < size;
  const std::size_t kept = cut ? static_cast<std::size_t>(options.top_k) : size;
  if (cut || options.top_p < 1) {
    const std::size_t sorted = std::min(kept + 1, size);
    std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(sorted), all.end(),
                      is_before);
    all.resize(sorted);
  }
  const double most = std::ranges::max_element(all, {}, &Candidate::score)->score;
  for (Candidate& one : all) one.weight = std::exp((one.score - most) / options.temperature);
  return kept;
}

double sum_of(std::span<const Candidate> some) {
  return std::accumulate(some.begin(), some.end(), 0.0,
                         [](double sum, const Candidate& one) { return sum + one.weight; });
}

// The distance of two shares in scores: ChosenToken::gap. A share of 0 or 1 is at no border.
double distance(double share, double border, double temperature) {
  if (!(border > 0 && border < 1)) return infinite;
  const auto logit = [](double p) { return std::log(p) - std::log1p(-p); };
  return temperature * std::abs(logit(share) - logit(border));
}

// Draws by the random number from 0 to 1.
ChosenToken draw(std::vector<Candidate>& all, double random, const ChoiceOptions& options) {
  std::size_t count = order(all, options);
  const double temperature = options.temperature;
  const bool sorted = all.size() > count || options.top_p < 1;
  ChosenToken chosen{.gap = infinite};
  const auto consider = [&](double gap) { chosen.gap = std::min(chosen.gap, gap); };
  double sum = sum_of({all.data(), count});
  if (options.top_p < 1) {
    const double whole = sum, wanted = options.top_p * whole;
    double before = 0, reached = 0;
    std::size_t last = 0;
    while (last < count && (last == 0 || reached < wanted)) {
      before = reached;
      reached += all[last++].weight;
    }
    // The first token is drawn from whatever its share is.
    if (last > 1) consider(distance(options.top_p, before / whole, temperature));
    if (last < count) consider(distance(options.top_p, reached / whole, temperature));
    count = last;
    sum = sum_of({all.data(), count});
  }
  double left = random * sum;
  std::size_t place = 0;
  double begin = 0;
  while (place + 1 < count && left >= all[place].weight) {
    left -= all[place].weight;
    begin += all[place].weight;
    ++place;
  }
  chosen.id = all[place].id;
  if (place > 0) consider(distance(random, begin / sum, temperature));
  if (place + 1 < count) consider(distance(random, (begin + all[place].weight) / sum, temperature));
  if (sorted && place > 0) consider(all[place - 1].score - all[place].score);
  if (sorted && place + 1 < all.size()) consider(all[place].score - all[place + 1].score);
  return chosen;
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

ChosenToken choose_with_gap(const at::Tensor& scores, const std::vector<std::int64_t>& so_far,
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
  if (options.temperature == 0) return largest(all);
  const CounterRandom random(options.seed, text("text ", text_number));
  return draw(all, random.uniform(so_far.size()), options);
}

std::int64_t choose_token(const at::Tensor& scores, const std::vector<std::int64_t>& so_far,
                          std::int64_t text_number, std::int64_t allowed,
                          const ChoiceOptions& options) {
  return choose_with_gap(scores, so_far, text_number, allowed, options).id;
}

}  // namespace trestle::generate
