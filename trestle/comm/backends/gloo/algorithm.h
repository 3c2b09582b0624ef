#pragma once
// Included by ProcessGroupGloo.hpp, which uses none of it.
