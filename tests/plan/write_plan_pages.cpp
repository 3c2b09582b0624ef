// Writes the pages that browser_test.py opens: write_plan_pages FOLDER.
#include <filesystem>
#include <iostream>

#include "tests/plan/plan_pages.h"
#include "trestle/base/files.h"

int main(int count, char** words) {
  using namespace trestle;
  using namespace trestle::plan::pages;
  if (count != 2) {
    std::cerr << "usage: write_plan_pages FOLDER\n";
    return 2;
  }
  const std::filesystem::path folder = words[1];
  std::filesystem::create_directories(folder);
  write_file(folder / "plans.html", page(billions_39, on_64_devices()).html);
  write_file(folder / "large.html", page(billions_39, {.devices = 512,
                                                       .batch = 1536,
                                                       .kept = plan::parse_kept({"tensor=8"}),
                                                       .map = plan::MapRequest{.plans = 60}})
                                        .html);
  write_file(folder / "nothing.html",
             page(billions_175, {.devices = 8, .batch = 64, .map = plan::MapRequest()}).html);
  write_file(
      folder / "hostile.html",
      page(billions_39, {.devices = 8, .batch = 16, .map = plan::MapRequest()}, hostile, hostile)
          .html);
  return 0;
}
