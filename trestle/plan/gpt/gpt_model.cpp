#include "trestle/plan/gpt/gpt_model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <vector>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"

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
                                  GptSize{"vocabulary", &GptModel::vocabulary, 100'000'000},
                                  GptSize{"kv_heads", &GptModel::kv_heads, 1'000'000},
                                  GptSize{"feed_forward", &GptModel::feed_forward, 10'000'000}};

std::string gpt_example(const std::string& flag) {
  if (flag == "--llama")
    return "Write --llama layers=32,hidden=4096,heads=32,kv_heads=8,feed_forward=14336,"
           "sequence=8192,vocabulary=128256";
  if (flag == "--model") return "Write --model NAME, or --model NAME,sequence=4096";
  return "Write --gpt layers=48,hidden=8192,heads=64,sequence=2048,vocabulary=51200";
}

// Reads the words of one flag.
class SizesReader {
 public:
  SizesReader(GptModel model, std::string flag) : model_(model), flag_(std::move(flag)) {}

  void read(std::string_view words) {
    for (const std::string& word : split(words, ',')) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos)
        throw UsageError(text(flag_, ": '", word, "' is not key=value"),
                         {.hint = gpt_example(flag_)});
      const std::string key = trim(word.substr(0, equals)), value = trim(word.substr(equals + 1));
      if (has(key)) throw UsageError(text(flag_, " gives ", key, " twice"));
      given_.push_back(key);
      set(key, value);
    }
  }

  void need(const std::vector<std::string>& keys) const {
    std::vector<std::string> missing;
    for (const std::string& key : keys)
      if (!has(key)) missing.push_back(key);
    if (!missing.empty())
      throw UsageError(text(flag_, " has no ", join(missing, ", no ")),
                       {.hint = gpt_example(flag_)});
  }

  GptModel checked() const {
    check(model_, flag_);
    return model_;
  }

 private:
  bool has(const std::string& key) const {
    return std::find(given_.begin(), given_.end(), key) != given_.end();
  }

  bool is_llama() const { return model_.family == GptModel::Family::Llama; }

  void set(const std::string& key, const std::string& value) {
    if (key == "tied") {
      model_.tied_head = choice(key, value, "no", "yes");
      return;
    }
    if (key == "attention" && !is_llama()) {
      model_.flash = choice(key, value, "written", "flash");
      return;
    }
    for (const GptSize& size : gpt_sizes)
      if (key == size.key) {
        model_.*size.member = number(size, value);
        return;
      }
    std::vector<std::string> known;
    for (const GptSize& size : gpt_sizes) known.emplace_back(size.key);
    known.emplace_back("tied");
    if (!is_llama()) known.emplace_back("attention");
    throw_unknown("size of " + flag_, key, known);
  }

  bool choice(const std::string& key, const std::string& value, const char* no,
              const char* yes) const {
    if (value != yes && value != no)
      throw UsageError(text(flag_, " ", key, "=", value, ": write ", yes, " or ", no));
    return value == yes;
  }

  std::int64_t number(const GptSize& size, const std::string& value) const {
    std::int64_t number = 0;
    const auto* end = value.data() + value.size();
    const auto [at, error] = std::from_chars(value.data(), end, number);
    if (error != std::errc() || at != end || number < 1 || number > size.most)
      throw UsageError(text(flag_, " ", size.key, "=", value, ": ", size.key,
                            " is a whole number from 1 to ", size.most),
                       {.hint = gpt_example(flag_)});
    return number;
  }

  GptModel model_;
  std::string flag_;
  std::vector<std::string> given_;
};

double num(std::int64_t value) { return static_cast<double>(value); }

// Numbers of a block's matrices.
double matrix_numbers(const GptModel& model) {
  const double h = num(model.hidden), f = num(model.inner());
  const double attention = 2 * h * h + 2 * h * (h / num(model.heads)) * num(model.heads_of_keys());
  return attention + (model.family == GptModel::Family::Llama ? 3 : 2) * h * f;
}

}  // namespace

void check(const GptModel& model, const std::string& name) {
  for (const GptSize& size : gpt_sizes) {
    const std::int64_t given = model.*size.member;
    const bool may_be_0 =
        size.member == &GptModel::kv_heads || size.member == &GptModel::feed_forward;
    if (given < (may_be_0 ? 0 : 1) || given > size.most)
      throw UsageError(text(name, " ", size.key, "=", given, ": ", size.key,
                            " is a whole number from 1 to ", size.most));
  }
  if (model.hidden % model.heads != 0)
    throw UsageError(
        text(name, ": ", model.heads, " heads do not divide a hidden size of ", model.hidden),
        {.hint = "Give a hidden size that is a multiple of the heads."});
  if (model.heads % model.heads_of_keys() != 0)
    throw UsageError(text(name, ": ", model.kv_heads, " heads of keys and values do not divide ",
                          model.heads, " heads"),
                     {.hint = "Give heads that are a multiple of kv_heads."});
}

GptModel parse_gpt(std::string_view words) {
  SizesReader reader({}, "--gpt");
  reader.read(words);
  reader.need({"layers", "hidden", "heads", "sequence", "vocabulary"});
  return reader.checked();
}

GptModel parse_llama(std::string_view words) {
  SizesReader reader({.tied_head = false, .family = GptModel::Family::Llama, .flash = true},
                     "--llama");
  reader.read(words);
  reader.need({"layers", "hidden", "heads", "feed_forward", "sequence", "vocabulary"});
  return reader.checked();
}

GptModel with_sizes(GptModel model, std::string_view words, const std::string& flag) {
  SizesReader reader(model, flag);
  reader.read(words);
  return reader.checked();
}

namespace {

// "39.1 billion", "25.3 million" or "12,345".
std::string rounded_count(double count) {
  if (count < 0.1e6) return format_count(std::llround(count));
  const bool billions = count >= 0.1e9;
  std::ostringstream out;
  out << std::fixed << std::setprecision(1) << count / (billions ? 1e9 : 1e6)
      << (billions ? " billion" : " million");
  return out.str();
}

}  // namespace

std::string describe(const GptModel& model) {
  const bool llama = model.family == GptModel::Family::Llama;
  std::vector<std::string> words = {text(model.layers, " layers"), text("hidden ", model.hidden),
                                    text(model.heads, " heads")};
  if (model.heads_of_keys() != model.heads)
    words.push_back(text(model.kv_heads, " heads of keys and values"));
  if (llama || model.inner() != 4 * model.hidden)
    words.push_back(text("feed-forward ", model.inner()));
  words.push_back(text(model.sequence, " tokens"));
  words.push_back(text("vocabulary ", model.vocabulary));
  if (!llama && model.flash) words.emplace_back("flash attention");
  return text(llama ? "Llama" : "GPT", " of ", rounded_count(parameters_of(model)),
              " parameters: ", join(words, ", "));
}

double parameters_of(const GptModel& model) {
  const double L = num(model.layers), h = num(model.hidden), s = num(model.sequence),
               V = num(model.vocabulary);
  if (!model.is_plain()) {
    const bool llama = model.family == GptModel::Family::Llama;
    const double kv = h / num(model.heads) * num(model.heads_of_keys());
    const double around = llama ? 2 * h : (h + 2 * kv) + h + num(model.inner()) + h + 4 * h;
    const double whole = L * (matrix_numbers(model) + around) + V * h + (llama ? h : s * h);
    return model.tied_head ? whole : whole + V * h;
  }
  const double tied = 12 * L * h * h * (1 + 13 / (12 * h) + (V + s) / (12 * L * h));
  return model.tied_head ? tied : tied + V * h;
}

double matrix_flops(const GptModel& model) { return 2 * matrix_numbers(model); }

double model_flops(const GptModel& model, double batch) {
  const double L = num(model.layers), h = num(model.hidden), s = num(model.sequence),
               V = num(model.vocabulary);
  if (!model.is_plain()) return 3 * batch * s * (L * (matrix_flops(model) + 4 * s * h) + 2 * h * V);
  return 72 * batch * L * s * h * h * (1 + s / (6 * h) + V / (12 * L * h));
}

std::string flops_formula(const GptModel& model) {
  if (model.is_plain()) return "72 B L s h^2 (1 + s / (6 h) + V / (12 L h))";
  return text("3 B s (L (4 h^2 (1 + kv / a) + ",
              model.family == GptModel::Family::Llama ? "6 h f" : "4 h f",
              " + 4 s h) + 2 h V), with attention to all tokens (no causal discount)");
}

double recomputed_flops(const GptModel& model, double batch) {
  const double L = num(model.layers), h = num(model.hidden), s = num(model.sequence),
               V = num(model.vocabulary);
  return 96 * batch * L * s * h * h * (1 + s / (6 * h) + V / (16 * L * h));
}

}  // namespace trestle::plan
