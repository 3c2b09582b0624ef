#include "trestle/train/predict/prediction_table.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "trestle/base/text.h"
#include "trestle/train/predict/predictor.h"

namespace trestle::train {

namespace {

using nlohmann::ordered_json;

std::string csv_field(const std::string& words) {
  if (words.find_first_of(",\"\r\n") == std::string::npos) return words;
  std::string quoted = "\"";
  for (const char c : words) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

std::string share(double probability) {
  char words[32];
  std::snprintf(words, sizeof words, "%.6f", probability);
  return words;
}

ordered_json to_object(const PredictedClass& predicted) {
  return {{"class", predicted.name},
          {"class_id", predicted.id},
          {"probability", predicted.probability}};
}

// File names are bytes; JSON needs UTF-8.
std::string dump(const ordered_json& object) {
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

PredictedClasses most_probable(const at::Tensor& scores, const std::vector<std::string>& names,
                               int count) {
  const at::Tensor probabilities = at::softmax(scores.to(at::kDouble), 0).contiguous();
  const double* shares = probabilities.const_data_ptr<double>();
  PredictedClasses all;
  for (std::int64_t id = 0; id < probabilities.numel(); ++id) {
    const auto at = static_cast<std::size_t>(id);
    all.push_back({id, at < names.size() ? names[at] : text(id), shares[id]});
  }
  std::ranges::stable_sort(all, [](const PredictedClass& a, const PredictedClass& b) {
    return a.probability > b.probability;
  });
  all.resize(std::min(all.size(), static_cast<std::size_t>(count)));
  return all;
}

std::string to_csv(const std::vector<std::filesystem::path>& images,
                   const std::vector<PredictedClasses>& classes) {
  std::string out = "file,class,probability";
  const std::size_t columns = classes.empty() ? 1 : classes[0].size();
  for (std::size_t i = 2; i <= columns; ++i) out += text(",class_", i, ",probability_", i);
  out += "\n";
  for (std::size_t i = 0; i < images.size(); ++i) {
    out += csv_field(images[i].filename().string());
    for (const PredictedClass& predicted : classes.at(i))
      out += text(",", csv_field(predicted.name), ",", share(predicted.probability));
    out += "\n";
  }
  return out;
}

std::string to_json(const PredictResult& result) {
  std::string out;
  for (std::size_t i = 0; i < result.images.size(); ++i) {
    ordered_json line = {{"file", result.images[i].string()}};
    if (i < result.masks.size()) line["mask"] = result.masks[i].string();
    if (i < result.pictures.size()) line["picture"] = result.pictures[i].string();
    if (i < result.classes.size()) {
      const PredictedClasses& classes = result.classes[i];
      line.update(to_object(classes.at(0)));
      if (classes.size() > 1)
        for (const PredictedClass& predicted : classes) line["top"].push_back(to_object(predicted));
    }
    out += dump(line);
  }
  for (const std::string& problem : result.problems) out += dump({{"problem", problem}});
  return out;
}

}  // namespace trestle::train
