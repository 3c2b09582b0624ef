#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trestle/base/units.h"

namespace trestle::sharding {

// A parameter, as assign_buckets() needs it.
struct BucketItem {
  Bytes bytes = 0;
  int kind = 0;  // a bucket holds one kind: one dtype on one device
};

// Divides parameters into buckets, as c10d's Reducer does (Li et al. 2020). Each item in `order`
// goes into the open bucket of its kind. A bucket closes when it holds `limit` bytes or more. The
// first bucket of a kind closes at `first_limit`, so that communication begins early. Buckets are
// in the order of their first items. A limit of 0 or less gives every item a bucket of its own.
std::vector<std::vector<std::size_t>> assign_buckets(const std::vector<BucketItem>& items,
                                                     const std::vector<std::size_t>& order,
                                                     Bytes first_limit, Bytes limit);

}  // namespace trestle::sharding
