#pragma once

#include <string_view>

// The style of a page of plans beside view/page, and its scripts in the order of their use.
// Not installed.
namespace trestle::plan {

std::string_view plan_style();
std::string_view bytes_script();    // bars of a ledger, and the parts of a step
std::string_view table_script();    // sorts, filters and opens plans
std::string_view map_script();      // time against memory
std::string_view missing_script();  // rules, families that do not fit, and sources

}  // namespace trestle::plan
