#pragma once

namespace trestle::app {

constexpr int failed = 1;
constexpr int misused = 2;  // what cannot be: words, recipes, files

}  // namespace trestle::app
