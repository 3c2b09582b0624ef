#pragma once

#include <string>

#include "trestle/base/text.h"
#include "trestle/plan/gpt/planned_gpt.h"
#include "trestle/plan/page/plan_page.h"

// Searches whose pages the tests read, and that a browser opens.
namespace trestle::plan::pages {

inline const GptModel billions_39 = {
    .layers = 48, .hidden = 8192, .heads = 64, .sequence = 2048, .vocabulary = 51200};
inline const GptModel billions_175 = {
    .layers = 96, .hidden = 12288, .heads = 96, .sequence = 2048, .vocabulary = 51200};

// A model that a user named.
class NamedGpt : public PlannedGpt {
 public:
  NamedGpt(const GptModel& gpt, const Machine& machine, std::string name)
      : PlannedGpt(gpt, machine), name_(std::move(name)) {}
  std::string name() const override { return name_; }

 private:
  std::string name_;
};

inline Machine machine() {
  return read_machine(std::string(TRESTLE_SOURCE_DIR) + "/machines/a100-8-per-node.toml");
}

// A name that closes elements, strings and scripts if anything in a page is not escaped.
inline const std::string hostile =
    "</script></title><script>window.broken=1</script><img src=x onerror=window.broken=1>"
    "\"';&amp;`${window.broken=1}\\u003c \xE2\x80\xA8 \xff";

struct PageOf {
  std::string html;
  PlanResult result;
};

inline PageOf page(const GptModel& gpt, const PlanRequest& request, const std::string& name = "",
                   const std::string& machine_name = "") {
  Machine on = machine();
  if (!machine_name.empty()) {
    on.name = machine_name;
    on.memory.from = machine_name;
  }
  const PlannedGpt plain(gpt, on);
  const NamedGpt named(gpt, on, name);
  const PlannedModel& model = name.empty() ? static_cast<const PlannedModel&>(plain) : named;
  PlanResult result = find_plans(model, on, request);
  std::string html = plan_page({model, on, request, result});
  return {std::move(html), std::move(result)};
}

// 39 billion parameters on 64 devices, searched once.
inline const PageOf& page_of_64_devices() {
  static const PageOf page_of =
      page(billions_39, {.devices = 64, .batch = 64, .map = MapRequest()});
  return page_of;
}

inline PlanRequest on_64_devices() { return {.devices = 64, .batch = 64, .map = MapRequest()}; }
inline PlanRequest on_1024_devices() {
  return {.devices = 1024, .batch = 1536, .map = MapRequest()};
}

}  // namespace trestle::plan::pages
