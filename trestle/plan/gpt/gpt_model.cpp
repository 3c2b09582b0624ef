#include "trestle/plan/gpt/gpt_model.h"

#include <array>
#include <charconv>
#include <iomanip>
#include <sstream>
#include <vector>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::plan {
namespace {

struct GptSize {
  const char* key;
  std::int64_t GptModel::*member;
  std::int64_t most;
};
constexpr std::array gpt_sizes = {GptSize{"layers", &GptModel::layers, 4096},
                                  GptSize{"hidden", &GptModel::hidden, 1'000'000},
                                  GptSize{"heads", &GptModel::heads, 1'000'000},
                                  GptSize{"sequence", &GptModel::sequence, 100'000'000},
                                  GptSize{"vocabulary", &GptModel::vocabulary, 100'000'000}};

std::string gpt_example() {
  return "Write --gpt layers=48,hidden=8192,heads=64,sequence=2048,vocabulary=51200";
}

std::int64_t gpt_number(const GptSize& size, const std::string& value) {
  std::int64_t number = 0;
  const auto* end = value.data() + value.size();
  const auto [at, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || at != end || number < 1 || number > size.most)
    throw UsageError(text("--gpt ", size.key, "=", value, ": ", size.key,
                          " is a whole number from 1 to ", size.most),
                     {.hint = gpt_example()});
  return number;
}

double num(std::int64_t value) { return static_cast<double>(value); }

}  // namespace

GptModel parse_gpt(std::string_view words) {
  GptModel model;
  std::vector<std::string> known, given;
  for (const GptSize& size : gpt_sizes) known.emplace_back(size.key);
  known.emplace_back("tied");
  for (const std::string& word : split(words, ',')) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos)
      throw UsageError(text("--gpt: '", word, "' is not key=value"), {.hint = gpt_example()});
    const std::string key = trim(word.substr(0, equals)), value = trim(word.substr(equals + 1));
    for (const std::string& before : given)
      if (before == key) throw UsageError(text("--gpt gives ", key, " twice"));
    given.push_back(key);
    if (key == "tied") {
      if (value != "yes" && value != "no")
        throw UsageError(text("--gpt tied=", value, ": write yes or no"));
      model.tied_head = value == "yes";
      continue;
    }
    bool found = false;
    for (const GptSize& size : gpt_sizes)
      if (key == size.key) {
        model.*size.member = gpt_number(size, value);
        found = true;
      }
    if (!found) throw_unknown("size of --gpt", key, known);
  }
  std::vector<std::string> missing;
  for (const GptSize& size : gpt_sizes) {
    bool has = false;
    for (const std::string& key : given) has = has || key == size.key;
    if (!has) missing.emplace_back(size.key);
  }
  if (!missing.empty())
    throw UsageError(text("--gpt has no ", join(missing, ", no ")), {.hint = gpt_example()});
  if (model.hidden % model.heads != 0)
    throw UsageError(
        text("--gpt: ", model.heads, " heads do not divide a hidden size of ", model.hidden),
        {.hint = "Give a hidden size that is a multiple of the heads."});
  return model;
}

std::string describe(const GptModel& model) {
  std::ostringstream billions;
  billions << std::fixed << std::setprecision(1) << parameters_of(model) / 1e9;
  return text("GPT of ", billions.str(), " billion parameters: ", model.layers, " layers, hidden ",
              model.hidden, ", ", model.heads, " heads, ", model.sequence, " tokens, vocabulary ",
              model.vocabulary);
}

double parameters_of(const GptModel& model) {
  const double L = num(model.layers), h = num(model.hidden), s = num(model.sequence),
               V = num(model.vocabulary);
  const double tied = 12 * L * h * h * (1 + 13 / (12 * h) + (V + s) / (12 * L * h));
  return model.tied_head ? tied : tied + V * h;
}

double model_flops(const GptModel& model, double batch) {
  const double L = num(model.layers), h = num(model.hidden), s = num(model.sequence),
               V = num(model.vocabulary);
  return 72 * batch * L * s * h * h * (1 + s / (6 * h) + V / (12 * L * h));
}

double recomputed_flops(const GptModel& model, double batch) {
  const double L = num(model.layers), h = num(model.hidden), s = num(model.sequence),
               V = num(model.vocabulary);
  return 96 * batch * L * s * h * h * (1 + s / (6 * h) + V / (16 * L * h));
}

}  // namespace trestle::plan
